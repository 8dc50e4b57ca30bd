"""Errors, rankings and layout decisions from hand-made predictions."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from research.validating import ranking, scores, show, show_backtest
from research.validating.rules import StaticEstimates, one_line
from tests.research.validate_runs import disaggregated, measured, run


def predicted(ttft_s, tpot_s):
    row = {"ttft_s": ttft_s, "tpot_s": tpot_s, "preemptions": 0}
    return {"rounds": [row], "profile": "hand", "role": "mixed", "budget_tokens": 1}


def frame_of(rows, guesses):
    runs = measured(rows)
    none = [None] * runs.height
    return scores.gathered(runs, dict(zip(runs["run"], guesses, strict=True)), none, none)


def timed(name, ttft_s, tpot_s, gpus=1, **given):
    return run(run=name, **given) | {"ttft_s": ttft_s, "tpot_s": tpot_s, "gpus": gpus}


def test_errors_by_hand():
    rows = [timed(f"r{i}", 0.1, 0.010, campaign=f"c{i}.csv") for i in range(4)]
    frame = frame_of(rows, [predicted(0.1, 0.011), predicted(0.2, 0.009), predicted(0.1, 0.010), {"missing": "why"}])
    tpot, ttft = scores.score(frame, "predicted", "tpot"), scores.score(frame, "predicted", "ttft")
    assert (tpot["runs"], tpot["clusters"]) == (3, 3)
    assert tpot["mape_percent"] == pytest.approx(20 / 3)
    assert tpot["median_percent"] == pytest.approx(10)
    assert tpot["median_signed_error_percent"] == pytest.approx(0)
    assert (ttft["mape_percent"], ttft["median_percent"]) == (pytest.approx(100 / 3), pytest.approx(0))
    assert tpot["mape_low_percent"] <= tpot["mape_percent"] <= tpot["mape_high_percent"]
    assert scores.score(frame, "rule", "tpot") is None
    # tokens/s per GPU: users * output / (TTFT + TPOT * (output - 1)) / GPUs
    assert frame["measured_tokens_per_gpu"][0] == pytest.approx(100 / (0.1 + 0.010 * 99))


def test_clusters_are_resampled_and_two_are_too_few():
    values, clusters = np.array([1.0] * 50 + [9.0]), np.array(["a"] * 50 + ["b"])
    assert all(math.isnan(end[0]) for end in scores.interval(values, clusters, (np.mean,)))
    low, high = scores.interval(np.append(values, 5.0), np.append(clusters, "c"), (np.mean,))
    assert (low[0], high[0]) == (1.0, 9.0)  # three draws of one cluster: as wide as the clusters, not as 52 runs


def test_bars_are_judged_where_nearly_all_is_predicted():
    rows = [timed(f"r{i}", 0.1, 0.010) for i in range(2)]

    def bars(*guesses):
        found = scores.against_bars("colocated_dense", scores.table(frame_of(rows, guesses)), 2)
        return {(b["metric"], b["statistic"]): b for b in found}

    both = bars(predicted(0.1, 0.0108), predicted(0.1, 0.0108))
    assert (both["tpot", "mape"]["met"], both["tpot", "median"]["met"]) == (True, False)
    one = bars(predicted(0.1, 0.0108), {"missing": "why"})["tpot", "mape"]
    assert one["reached_percent"] == pytest.approx(8)
    assert (one["runs"], one["of"], one["met"]) == (1, 2, None)
    alone = scores.table(frame_of(rows[:1], [predicted(0.1, 0.010)]))
    assert {b["met"] for b in scores.against_bars("colocated_dense", alone, 1)} == {None}


def test_rounds_that_are_not_known_give_a_range():
    rows = [timed("r0", 0.1, 0.010), timed("r1", 0.1, 0.010, campaign="data/h100_sxm/vllm/1/m.csv")]
    rounds = [{"ttft_s": t, "tpot_s": 0.010, "preemptions": 0} for t in (0.3, 0.2, 0.1)]
    frame = frame_of(rows, [predicted(0, 0) | {"rounds": rounds}] * 2)
    assert {row["runs"] for row in scores.by_rounds(frame)} == {2}  # none published at all, or none with the runs
    found = {r["source"]: r["mape_percent"] for r in scores.by_rounds(frame) if r["metric"] == "ttft"}
    assert found == {"lowest": pytest.approx(0), "scored": pytest.approx(100), "highest": pytest.approx(200)}


def test_hard_pairs():
    rows = [
        timed("a", 0.1, 0.0100, gpus=1, users=8, tp=1),
        timed("b", 0.1, 0.0105, gpus=2, users=32, tp=2),  # more tokens per GPU: 4 x users on 2 x GPUs
        timed("c", 0.1, 0.0200, gpus=2, users=64, tp=2),  # another TPOT: no pair with them
        timed("b2", 0.1, 0.0105, gpus=2, users=32, tp=2, campaign="again.csv"),  # the same configuration
    ]
    right = [predicted(0.1, 0.010)] * 4
    found = {r["question"]: r for r in ranking.fidelity(frame_of(rows, right)) if not r["one_engine"]}
    row = found["tokens/s per GPU at equal TPOT"]
    assert (row["pairs"], row["strata"], row["right_percent"]) == (2, 1, 100.0)
    assert row["rules_percent"] == {"fewer GPUs": 0.0, "more users a GPU": 100.0}
    assert row["met"] is None  # two pairs are too few to judge
    wrong = [predicted(0.1, 0.010), predicted(0.1, 0.1), predicted(0.1, 0.1), predicted(0.1, 0.1)]
    found = {r["question"]: r for r in ranking.fidelity(frame_of(rows, wrong)) if not r["one_engine"]}
    assert found["tokens/s per GPU at equal TPOT"]["right_percent"] == 0.0


def test_ranking_bars_are_judged_on_enough_pairs_of_the_whole_part():
    def rows(n):  # n configurations of equal TPOT, each with more users on its GPU than the one before
        return [timed(f"r{i}", 0.1, 0.010, users=8 + 8 * i) for i in range(n)]

    def found(n, whole=True):
        frame = frame_of(rows(n), [predicted(0.1, 0.010)] * n)
        made = ranking.fidelity(frame, whole)
        row = next(r for r in made if r["question"].startswith("tokens/s") and not r["one_engine"])
        table = show.ranking_table(made)
        return row["pairs"], row["met"], next(iter(table.columns[-1].cells))

    assert found(9) == (36, True, "90 met")
    assert found(9, whole=False) == (36, None, "90 not judged")
    assert found(8) == (28, None, "90 not judged")


def test_pairs_with_equal_users_a_gpu_are_scored_apart():
    rows = [
        timed("a", 0.1, 0.0100, gpus=1, users=8, tp=1),
        timed("b", 0.1, 0.0105, gpus=2, users=16, tp=2),  # as many users a GPU: a little slower, so fewer tokens
        timed("c", 0.1, 0.0103, gpus=2, users=32, tp=2),  # more users a GPU
    ]
    guesses = [predicted(0.1, 0.0105), predicted(0.1, 0.0100), predicted(0.1, 0.0103)]
    row = next(r for r in ranking.fidelity(frame_of(rows, guesses)) if r["question"].startswith("tokens/s"))
    assert (row["pairs"], row["right_percent"]) == (3, pytest.approx(200 / 3))
    assert (row["same_users_pairs"], row["same_users_right_percent"]) == (1, 0.0)
    assert row["rules_percent"]["more users a GPU"] == pytest.approx(250 / 3)  # blind on one: half right
    assert row["ceiling_percent"] is None  # nothing was repeated
    assert (row["best_rule"], row["over_rule_points"]) == ("more users a GPU", pytest.approx(-50 / 3))


def test_what_nobody_can_rank_bounds_the_score():
    apart = np.log([1.5, 1.05])
    scatter = np.log(np.repeat([1.02, 1.2], 10))
    # 1.5 is beyond all repeats; of the repeats either way half are below 1.05 one way, and all the other way
    assert ranking.ceiling_percent(apart, scatter) == pytest.approx(100 * (1.0 + 0.75) / 2)
    assert ranking.ceiling_percent(apart, scatter[:5]) is None
    assert ranking.ceiling_percent(apart, np.zeros(20)) == 100.0


def test_the_ceiling_is_what_a_perfect_predictor_scores():
    rng = np.random.default_rng(0)
    truth = np.log(1.3) * rng.standard_normal((4000, 2))
    noise = 0.1 * rng.standard_normal((4000, 2))
    seen = truth + noise
    scatter = np.abs(0.1 * np.sqrt(2) * rng.standard_normal(4000))
    right = np.sign(truth[:, 0] - truth[:, 1]) == np.sign(seen[:, 0] - seen[:, 1])
    ceiling = ranking.ceiling_percent(np.abs(seen[:, 0] - seen[:, 1]), scatter)
    assert ceiling == pytest.approx(100 * right.mean(), abs=2.0)


def test_repeats_leave_out_copies_of_one_measurement():
    rows = [
        timed("a", 0.1, 0.0100),
        timed("b", 0.1000001, 0.0100, campaign="again.csv"),  # the same measurement, filed twice
        timed("c", 0.2, 0.0110, campaign="later.csv"),
        timed("d", 0.4, 0.0200, campaign="later.csv", engine_version="0.13.0"),  # another engine
    ]
    frame = frame_of(rows, [predicted(0.1, 0.010)] * 4)
    assert ranking.repeats(frame, "ttft") == pytest.approx([np.log(2.0)] * 2, rel=1e-4)
    assert ranking.repeats(frame, "tpot") == pytest.approx([np.log(1.1)] * 2, rel=1e-4)


def test_what_is_signed_is_called_so():
    empty = {"all": {"ttft": None, "tpot": None}, "levels": [], "workers": []}
    assert "median signed error; runs" in show.errors_table([]).title
    assert "median signed error; requests" in show_backtest.table(empty).title


def test_worker_ratios_are_compared_among_disaggregated_runs_only():
    both = [
        disaggregated(1, 2, run="a", users=8) | {"ttft_s": 0.1, "tpot_s": 0.010, "gpus": 3},
        disaggregated(2, 1, run="b", users=16) | {"ttft_s": 0.1, "tpot_s": 0.010, "gpus": 3},
        timed("c", 0.1, 0.010, gpus=3),
    ]
    found = [r for r in ranking.fidelity(frame_of(both, [predicted(0.1, 0.01)] * 3)) if "prefill" in r["question"]]
    assert [(r["pairs"], r["right_percent"]) for r in found] == [(1, 100.0)]


def test_the_rule_is_its_one_line():
    made = measured([timed("a", 1, 1, gpus=2, users=4, model="meta-llama/Llama-3.1-8B", precision="bf16")]).row(
        0, named=True
    )
    ttft, tpot = one_line(made)
    prompt = 2 * 8_030_261_248 * 1000 / (2 * 9.89e14)
    assert ttft == pytest.approx(prompt, rel=1e-3)
    assert tpot == pytest.approx((2 * 8_030_261_248 + 4 * 1050 * 131_072) / (2 * 3.35e12) + 4 * prompt / 100, rel=1e-3)
    assert one_line(made | {"dense": False}) is None


def test_a_run_on_too_few_gpus_is_told_apart():
    rows = [
        timed("a", 0.1, 0.010, users=1, campaign="a.csv"),
        timed(
            "b", 0.1, 0.010, users=5000, campaign="b.csv"
        ),  # 32B parameters, 5,000 x 1,100 tokens in 1.1 s on one GPU
    ]
    frame = frame_of(rows, [predicted(0.1, 0.011), predicted(0.1, 0.1)])
    assert frame["arithmetic"].to_list() == ["within peak", "above the GPUs' peak"]
    bars = {(b["metric"], b["statistic"]): b for b in scores.against_bars("colocated_dense", scores.table(frame), 2)}
    assert bars["tpot", "mape"]["reached_percent"] == pytest.approx(455)  # it counts: rules were fixed before
    assert bars["tpot", "mape"]["possible_percent"] == pytest.approx(10)
    first, second, *rest = titles(scores.table(frame))
    assert (first, second) == ("simulator", "simulator, without runs above the GPUs' peak")
    assert "arithmetic above the GPUs' peak" in rest
    assert "arithmetic within peak" not in rest  # the second row


def titles(rows):
    return list(show.errors_table(rows).columns[0].cells)


def test_the_simulator_on_the_rules_runs_is_a_row_where_it_differs():
    rows = [timed(f"r{i}", 0.1, 0.010, campaign=f"c{i}.csv") for i in range(3)]
    guesses = dict(zip(["r0", "r1", "r2"], [predicted(0.1, 0.011)] * 3, strict=True))
    none, rule = [None] * 3, [(0.1, 0.01)] * 3
    assert "simulator, on the rule's runs" not in titles(
        scores.table(scores.gathered(measured(rows), guesses, rule, none))
    )
    some = [None, *rule[1:]]
    assert "simulator, on the rule's runs" in titles(scores.table(scores.gathered(measured(rows), guesses, some, none)))
    assert isinstance(show.ranking_table([]), str)


def test_static_estimates_match_batch_and_length(tmp_path):
    (tmp_path / "derived").mkdir()
    base = {"model": "Qwen/Qwen3-32B", "system": "h100_sxm", "backend": "vllm", "tp": 1, "quant": "fp8", "osl": 2}
    rows = [
        base | {"mode": "static_ctx", "batch": 1, "isl": isl, "ttft_ms": isl / 10, "tpot_ms": 0.0}
        for isl in (500, 2000)
    ] + [base | {"mode": "static_gen", "batch": 4, "isl": isl, "ttft_ms": 0.0, "tpot_ms": 9.0} for isl in (500, 2000)]
    pl.DataFrame(rows).write_csv(tmp_path / "derived" / "aic_estimates.csv")
    estimates = StaticEstimates(tmp_path)
    made = measured([timed("a", 1, 1, users=4)]).row(0, named=True)
    assert estimates.of(made) == (pytest.approx(0.1), pytest.approx(0.009))
    assert estimates.of(made | {"users": 5})[1] is None
    assert estimates.of(made | {"prompt_tokens": 4000}) == (None, None)
    assert StaticEstimates(tmp_path / "nowhere").of(made) == (None, None)
