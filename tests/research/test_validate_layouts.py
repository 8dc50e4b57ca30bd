"""Colocated or disaggregated: doubt drawn from other strata, when an answer is given, and what a wrong one costs."""

from __future__ import annotations

import numpy as np
import pytest

from research.validating import layouts, scores, show
from research.validating.doubt import Doubt, measured_doubt
from tests.research.validate_runs import disaggregated, measured, run

PROMPTS = tuple(range(1000, 1009))
"""Each prompt length is a stratum: the first is asked, the others show how far predictions are off."""
USERS = (8, 16, 32)


def runs_of(prompt, layout, tpot_s, gpus):
    """A series: TPOT rises a little with the users, TTFT is 100 ms."""
    rows = []
    for users in USERS:
        name = f"{layout[0]}{prompt}-{users}"
        given = {"run": name, "users": users, "prompt_tokens": prompt}
        made = run(**given) if layout == "colocated" else disaggregated(1, 1, **given)
        rows.append(made | {"ttft_s": 0.1, "tpot_s": tpot_s * (1 + users / 1000), "gpus": gpus})
    return rows


def frame_of(rows, error):
    """Predictions: measured times the error of TPOT, ``error(run) -> factor``; None: not predicted."""
    runs, none = measured(rows), [None] * len(rows)
    guesses = {}
    for row in rows:
        factor = error(row)
        times = {"ttft_s": row["ttft_s"], "tpot_s": row["tpot_s"] * (factor or 1.0), "preemptions": 0}
        guesses[row["run"]] = {"missing": "why"} if factor is None else {"rounds": [times]}
    return scores.gathered(runs, guesses, none, none)


def both(colocated_s=0.010, disaggregated_s=0.010):
    """Nine strata; disaggregated runs take twice the GPUs, so colocated ones are better unless they are slower."""
    return [
        row
        for prompt in PROMPTS
        for row in (
            *runs_of(prompt, "colocated", colocated_s, 4),
            *runs_of(prompt, "disaggregated", disaggregated_s, 8),
        )
    ]


def noisy(size, seed=0):
    """Strata off by a factor of their own, each layout apart."""
    rng, known = np.random.default_rng(seed), {}

    def error(row):
        key = row["prompt_tokens"], row["layout"]
        if key not in known:
            known[key] = float(np.exp(size * rng.standard_normal()))
        return known[key]

    return error


def asked(verdict):
    """The rows of the first stratum."""
    first = verdict["strata"][0]["stratum"]
    return [row for row in verdict["decisions"] if row["stratum"] == first]


def test_small_errors_elsewhere_let_it_answer_a_clear_case():
    verdict = layouts.verdict(frame_of(both(), noisy(0.03)))
    assert verdict["asked"] == verdict["given"] > 0
    assert (verdict["right_percent"], verdict["abstained_percent"], verdict["confidently_wrong"]) == (100.0, 0.0, [])
    assert verdict["loss_percent"]["given"] == 0.0
    assert [row["no_answer"] for row in verdict["strata"]] == [None] * len(PROMPTS)


def test_errors_elsewhere_as_large_as_the_difference_make_it_abstain():
    verdict = layouts.verdict(frame_of(both(), noisy(0.8)))
    assert {row["predicted"] for row in asked(verdict)} == {"abstain"}
    assert verdict["confidently_wrong"] == []


def test_the_doubt_is_of_other_strata_only():
    def wild_here(row):  # the asked stratum itself is predicted badly: nobody can know that
        return 3.0 if (row["prompt_tokens"], row["layout"]) == (PROMPTS[0], "colocated") else noisy(0.0)(row)

    frame = frame_of(both(), wild_here)
    verdict = layouts.verdict(frame)
    first = verdict["strata"][0]
    assert first["elsewhere"]["colocated"]["tpot_between_sd"] == pytest.approx(0.0, abs=1e-9)
    assert first["elsewhere"]["colocated"]["strata"] == len(PROMPTS) - 1
    assert first["confidently_wrong"]
    assert verdict["confidently_wrong"] == [first["stratum"]]
    assert first["loss_percent"] == pytest.approx(50.0, abs=2.0)  # half the tokens of a GPU
    assert not any(row["confidently_wrong"] for row in verdict["strata"][1:])


def test_a_bias_that_other_strata_show_is_taken_off():
    def slow_colocated(row):  # everywhere predicted three times too slow: nominally the worse one
        return 3.0 if row["layout"] == "colocated" else 1.0

    verdict = layouts.verdict(frame_of(both(), slow_colocated))
    assert {row["nominal"] for row in verdict["decisions"] if row["slo_tpot_s"] == 0.1} == {"disaggregated"}
    assert {row["predicted"] for row in verdict["decisions"]} == {"colocated"}
    assert verdict["nominal_right_percent"] < verdict["likely_right_percent"] == 100.0


def test_few_strata_show_no_spread():
    rows = [row for row in both() if row["prompt_tokens"] < PROMPTS[4]]
    verdict = layouts.verdict(frame_of(rows, noisy(0.0)))
    assert verdict["given"] == 0
    assert measured_doubt(frame_of(rows, noisy(0.0))) is None


def test_a_layout_whose_runs_are_not_all_predicted_gets_no_answer():
    def missing(row):
        return None if row["run"] == f"c{PROMPTS[0]}-32" else 1.0

    verdict = layouts.verdict(frame_of(both(), missing))
    first = verdict["strata"][0]
    assert first["no_answer"] == "2 of 3 colocated runs predicted"
    assert (first["asked"], first["objectives"] > 0) == (0, True)
    assert verdict["asked_strata"] == len(PROMPTS) - 1


def test_runs_that_are_not_what_they_are_called_give_no_answer_and_no_doubt():
    rows = both()
    for row in rows:
        if row["layout"] == "colocated" and row["prompt_tokens"] == PROMPTS[0]:
            row["tp"] = 32  # a whole deployment, filed as one instance
        if row["layout"] == "colocated" and row["prompt_tokens"] == PROMPTS[1]:
            row["users"] *= 10_000  # more than a GPU can compute
    verdict = layouts.verdict(frame_of(rows, noisy(0.0)))
    assert [row["no_answer"] for row in verdict["strata"][:3]] == [
        "colocated runs with TP above 16",
        "colocated runs above their GPUs' peak",
        None,
    ]
    assert verdict["strata"][2]["elsewhere"]["colocated"]["strata"] == len(PROMPTS) - 3
    text = "".join(str(cell) for column in show.layout_table(verdict).columns for cell in column.cells)
    assert "no answer: colocated runs with TP above 16" in text


def test_a_part_without_an_answer_says_the_majority():
    verdict = layouts.verdict(frame_of(both(), lambda row: None))
    assert (verdict["asked"], verdict["right_percent"]) == (0, None)
    assert "always colocated is right in 100 %" in show.layout_words(verdict)[0]


def test_words_put_the_majority_answer_beside_ours():
    lines = show.layout_words(layouts.verdict(frame_of(both(), noisy(0.03))))
    assert "100 % right, 0.0 % of the goodput lost (always colocated on the same: 100 %, 0.0 %)" in lines[0]
    assert any(line.startswith("doubt, disaggregated, from 8 other strata") for line in lines)


def test_draws_cover_a_new_stratum_as_often_as_they_say():
    """Strata's means and series' leanings are normal: the 5th percentile of the draws is undercut in 5 % of cases."""
    rng = np.random.default_rng(1)
    below = []
    for _ in range(600):
        shared, own = 0.3 * rng.standard_normal((9, 2)), 0.1 * rng.standard_normal((9, 4, 1, 2))
        series = own + 0.05 * rng.standard_normal((9, 4, 3, 2))
        truth = shared[0, 0] + series[0, 0, 1, 0] + 0.2
        means = shared[1:] + series[1:].mean(axis=(1, 2)) + 0.2
        residuals = series[1:] - series[1:].mean(axis=(1, 2), keepdims=True)
        doubt = Doubt(means, tuple(residuals.reshape(-1, 3, 2)), np.full(32, 1 / 32))
        drawn = doubt.draw([3], 400, rng)[:, 1, 0]
        below.append((drawn < truth).mean())
    ranks = np.array(below)
    assert (ranks < 0.05).mean() < 0.08
    assert (ranks > 0.95).mean() < 0.08
    assert (ranks < 0.05).mean() > 0.02  # and not by being far too wide


def test_answers_are_wrong_in_at_most_one_of_twenty():
    """Two layouts of one run each, as good in truth as a coin says; predictions share a stratum's error."""
    rng = np.random.default_rng(2)
    given = wrong = 0
    for _ in range(600):
        errors = 0.2 + 0.3 * rng.standard_normal((2, 9, 2))
        truth = 0.6 * rng.standard_normal(2)  # log of the goodput
        guessed = truth - errors[:, 0, 0]  # latency too high: goodput too low
        residual = (np.zeros((1, 2)),)
        doubts = [Doubt(own[1:], residual, np.ones(1)) for own in errors]
        drawn = [g + d.draw([1], 300, rng)[:, 0, 0] for g, d in zip(guessed, doubts, strict=True)]
        share = (drawn[0] > drawn[1]).mean()
        if max(share, 1.0 - share) >= layouts.AGREE:
            given += 1
            wrong += (share > 0.5) != (truth[0] > truth[1])
    assert given > 100
    assert wrong / given <= 0.05


def test_series_take_whole_series_of_residuals_in_the_order_of_users():
    doubt = Doubt(np.zeros((5, 2)), (np.arange(6.0).reshape(3, 2),), np.ones(1))
    drawn = doubt.draw([3, 1, 2], 4, np.random.default_rng(0))
    assert drawn.shape == (4, 6, 2)
    assert drawn[0, :, 0].tolist() == [0.0, 2.0, 4.0, 2.0, 0.0, 4.0]


def test_intervals_are_checked_on_strata_that_are_left_out():
    frame = frame_of(both(), noisy(0.3))
    assert layouts.coverage_percent(frame)["colocated"]["tpot"] >= 80.0

    def one_far_off(row):  # one stratum of nine: what the other eight show does not hold it
        odd = (row["prompt_tokens"], row["layout"]) == (PROMPTS[0], "colocated")
        return 5.0 if odd else noisy(0.05)(row)

    found = layouts.coverage_percent(frame_of(both(), one_far_off))
    assert found["colocated"]["tpot"] == pytest.approx(100 * 8 / 9)
