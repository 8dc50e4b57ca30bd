"""Rows, differences, winners and words: no more is said than the intervals hold."""

from __future__ import annotations

import math

import pytest

from research.evidence import summary, words
from research.evidence.summary import Cell
from tests.research.studies import cell, study_summary


def test_a_row_says_policy_load_metric_estimate_interval_windows_and_seeds():
    row = summary.rows([cell("guard", 8.0)], "tight", 2, ["goodput_per_s"])[0]
    assert {"policy", "load", "slo", "metric", "estimate", "low", "high", "windows", "seeds"} <= set(row)
    assert row["low"] < row["estimate"] < row["high"]
    assert (row["windows"], row["seeds"], row["slo"]) == (8, 2, "tight")


def test_intervals_stay_among_values_a_metric_can_take():
    made = Cell(
        "p",
        1.0,
        1.0,
        0.0,
        tuple(range(4)),
        tuple({"attainment": a, "goodput_per_s": g} for a, g in ((1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.6, 5.0))),
    )
    rows = {r["metric"]: r for r in summary.rows([made], "tight", 1)}
    assert rows["attainment"]["high"] == 1.0
    assert rows["goodput_per_s"]["low"] == 0.0


def test_differences_are_paired_so_windows_that_differ_do_not_matter():
    cells = [cell("guard", 8.0), cell("round_robin", 7.5)]
    found = [d for d in summary.differences(cells, "guard", "tight") if d["metric"] == "goodput_per_s"]
    assert [d["policy"] for d in found] == ["round_robin"]
    assert found[0]["proven"]
    assert found[0]["estimate"] == pytest.approx(-0.5, abs=0.15)
    assert found[0]["relative"] == pytest.approx(-0.5 / 8.0, abs=0.03)
    spread = [r for r in summary.rows(cells, "tight", 1, ["goodput_per_s"])]
    assert spread[0]["low"] < spread[1]["high"]  # unpaired, the two overlap


def test_a_winner_must_be_told_apart_from_every_other_policy():
    clear = summary.winners([cell("a", 9.0), cell("b", 7.0), cell("c", 5.0)], "tight")[0]
    assert (clear["leader"], clear["proven"], clear["not_told_apart"]) == ("a", True, [])
    close = summary.winners([cell("a", 9.0, spread=1.0), cell("b", 8.95, spread=1.0), cell("c", 2.0)], "tight")[0]
    assert not close["proven"]
    assert close["not_told_apart"] == [close["runner_up"]["versus"]]


def test_equal_policies_have_no_winner():
    twin = cell("a", 9.0)
    winner = summary.winners([twin, Cell("b", 1.0, 10.0, 0.0, twin.windows, twin.metrics)], "tight")[0]
    assert not winner["proven"]
    assert "are equal in every window" in words.verdict(winner, "requests")


def test_an_unranked_policy_neither_wins_nor_loses():
    winner = summary.winners([cell("ppd", 9.9), cell("guard", 8.0), cell("rr", 5.0)], "tight", ["ppd"])[0]
    assert winner["leader"] == "guard"
    assert winner["proven"]


def test_words_of_a_proven_winner_name_gap_interval_level_and_windows():
    text = study_summary({"round_robin": 5.0, "guard": 8.0})["words"][2]
    assert text.startswith("load 1 (10.0 requests/s): guard wins, goodput ")
    assert "over round_robin; paired interval [" in text
    assert "at level 0.95 over 8 windows." in text
    assert "indicative" not in text


def test_words_without_a_proven_winner_say_so_and_what_could_have_been_seen():
    made = study_summary({"deflect": 8.05, "guard": 8.0}, spread=1.0)
    text = made["words"][2]
    assert "no winner is proven" in text
    assert "is not told apart from" in text
    assert "8 windows find a true difference of" in text


def test_the_first_sentence_is_the_shortest_true_answer():
    assert study_summary({"round_robin": 5.0, "guard": 8.0})["words"][0] == "guard wins at every load."
    unclear = study_summary({"deflect": 8.05, "guard": 8.0}, spread=1.0)["words"][0]
    assert unclear == "No policy is proven best at any load."
    a, b, c = {"proven": True, "leader": "a"}, {"proven": True, "leader": "b"}, {"proven": False, "leader": "a"}
    assert words.headline([a, b]) == "Proven best: a at 1 of 2 loads, b at 1 of 2 loads."
    assert words.headline([a, a, c]) == "Proven best: a at 2 of 3 loads; at the others no winner is proven."


def test_few_windows_are_called_indicative():
    made = study_summary({"round_robin": 5.0, "guard": 8.0}, windows=4)
    assert "indicative only (fewer than 8 windows)" in made["words"][2]


def test_a_trace_without_prefixes_says_that_prefix_policies_are_not_ranked():
    made = study_summary({"ppd": 9.0, "guard": 8.0}, prefixes=False)
    assert made["words"][-2].startswith("prefix-aware policies are not ranked on this trace (ppd)")
    assert all(w["leader"] == "guard" for w in made["winners"])
    nobody = study_summary({"round_robin": 5.0, "guard": 8.0}, prefixes=False)["words"][-2]
    assert nobody.startswith("prefix-aware policies are not ranked on this trace (none of those compared here)")
    assert not any("not ranked" in line for line in study_summary({"ppd": 9.0, "guard": 8.0})["words"])


def test_other_figures_name_their_own_winner():
    # In these cells the policy with less goodput has the better TPOT.
    line = words.other_winners(study_summary({"round_robin": 5.0, "guard": 8.0})["winners"][1], "requests")
    assert line is not None
    assert "round_robin (p99 TPOT" in line


def test_robustness_is_told():
    lines = study_summary({"round_robin": 5.0, "guard": 8.0})["words"]
    assert any("guard still leads with the predictor 20% off" in line for line in lines)


def test_no_share_is_told_of_a_runner_up_that_serves_nothing():
    none = Cell("none", 1.0, 10.0, 0.0, tuple(range(8)), ({"goodput_per_s": 0.0},) * 8)
    text = words.verdict(summary.winners([cell("guard", 8.0), none], "tight")[0], "requests")
    assert "/s over none; paired interval [" in text
    assert "nan" not in text


def test_figures_in_words_have_three_digits():
    assert [words.sig(v) for v in (26.0, 0.4163, 1234.5, 0.0)] == ["26.0", "0.416", "1234", "0.00"]
    assert words.sig(2.5, "+") == "+2.50"
    assert [words.relative(s) for s in (0.256, -0.5, 4.78)] == ["+25.6%", "-50.0%", "5.78 times"]


def test_a_rate_without_a_knee_is_told_as_a_rate():
    assert words.load_words(math.nan, 4.0, "sessions") == "4.00 sessions/s"
    assert words.load_words(None, 4.0, "sessions") == "4.00 sessions/s"
