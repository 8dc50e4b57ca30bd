"""calibrate action=from_runs as a user runs it: runs of a slower engine in, a corrected profile out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.from_runs import Correction
from envs.hardware.load import load_handover, load_profile
from research.calibrate import main
from research.calibrating import score_from_runs
from research.calibrating.replays import JITTERS, Assumed, assumptions, predictor, replay_of
from research.calibrating.runs_table import BenchmarkRun

NAME = "llama-3.1-8b-bf16-h100-tp1"
POINTS = ((512, 64, 1), (512, 64, 16), (4096, 32, 4), (2048, 128, 8), (1024, 64, 32), (8192, 16, 2))
GIVEN = Assumed(3, "together", None)
TRUTH = Correction(matrices=1.15, prefill=1.25, decode=1.2, host_step_s=2e-3, host_seq_s=3e-5, request_s=0.03)


def measured(truth, points=POINTS, assumed=GIVEN):
    profile = load_profile(NAME)
    runs = [BenchmarkRun(0, *point, 1.0, 1.0, start="together") for point in points]
    return predictor([replay_of(run, profile, assumed) for run in runs])(truth.apply(profile), truth.request_s)


def write(path, times, points=POINTS, extra="", cells=""):
    lines = [f"prompt_tokens,output_tokens,concurrency,ttft_ms,tpot_ms{extra}"]
    for point, (ttft, tpot) in zip(points, times, strict=True):
        lines.append(",".join(map(str, point)) + f",{ttft * 1e3:.6g},{tpot * 1e3:.6g}{cells}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calibrate(*words):
    return main(["action=from_runs", "path=runs.csv", f"profile={NAME}", "out=out", *words])


def test_runs_of_a_slower_engine_correct_the_profile(folder, capsys):
    write(folder / "runs.csv", measured(TRUTH)[:5], POINTS[:5], ",rounds,start", ",3,together")
    assert calibrate("budget_tokens=8192", "link=rdma") == 0
    said = capsys.readouterr().out
    assert "left out" in said
    assert (
        "runs taken for: rounds a user: 3 (given by the runs); started all at once (given by the runs); "
        "lengths all alike (tried); 8,192 tokens a step (given by the command)"
    ) in said
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    errors = summary["errors_percent"]
    assert errors["before"]["tpot_mape"] > 15.0
    assert errors["after"]["tpot_mape"] < 3.0
    # The run that was not given is predicted too.
    corrected, held = load_profile(folder / "out" / f"{NAME}-from-runs.yaml"), measured(TRUTH)[5]
    run = BenchmarkRun(0, *POINTS[5], 1.0, 1.0, start="together")
    found = replay_of(run, corrected, GIVEN).means(corrected, summary["request_ms"] / 1e3)
    assert np.abs(np.array(found) / held - 1.0).max() < 0.1
    link = load_handover(folder / "out" / "rdma-from-runs.yaml")
    assert f"hardware.link={folder / 'out' / 'rdma-from-runs.yaml'}" in said
    assert summary["link_kept"] is None
    assert link.dispatch_s == pytest.approx(summary["request_ms"] / 1e3, rel=1e-3)
    assert replace(link, name="rdma", dispatch_s=load_handover("rdma").dispatch_s, source={}) == replace(
        load_handover("rdma"), source={}
    )


def test_what_the_runs_do_not_say_is_tried(folder, capsys):
    told = Assumed(10, "together", None)
    write(folder / "runs.csv", measured(Correction(), assumed=told))
    assert calibrate() == 0
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    words = (
        "rounds a user: 10 (tried); started all at once (tried); lengths all alike (tried); the engine's default "
        "budget (tried)"
    )
    assert summary["taken_for"] == words
    assert len(summary["costs"]) > 1
    assert f"runs taken for: {words}" in capsys.readouterr().out
    assert summary["errors_percent"]["after"]["tpot_mape"] < 1.0


def test_lengths_that_are_drawn_are_found(folder):
    drawn = Assumed(10, "together", None, JITTERS[1])
    write(folder / "runs.csv", measured(Correction(), assumed=drawn), extra=",rounds,start", cells=",10,together")
    assert calibrate("budget_tokens=8192") == 0
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    assert "lengths within 11% of the mean (tried)" in summary["taken_for"]
    # A run that says that its lengths are alike is believed.
    profile = load_profile(NAME)
    alike = replay_of(BenchmarkRun(0, 512, 64, 3, 1.0, 1.0, jitter=0.0), profile, drawn).trace.frame
    assert alike["prompt_tokens"].unique().to_list() == [512]


def test_what_some_runs_say_is_told_apart_from_what_is_tried():
    runs = [BenchmarkRun(0, 512, 64, 1, 1.0, 1.0, rounds=rounds, start="staggered") for rounds in (10, None)]
    assert Assumed(3, "together", 2048).words_for(runs, budget_given=False) == (
        "rounds a user: 10 (given by some runs), 3 (tried for the others); started 1 ms apart (given by the runs); "
        "lengths all alike (tried); 2,048 tokens a step (tried)"
    )
    assert Assumed(3, "together", 2048).words_for(runs[:1], budget_given=True).startswith("rounds a user: 10 (given by")


def test_a_staggered_start_means_the_same_given_or_tried():
    profile = load_profile(NAME)
    given = replay_of(BenchmarkRun(0, 512, 64, 3, 1.0, 1.0, start="staggered"), profile, GIVEN)
    tried = replay_of(BenchmarkRun(0, 512, 64, 3, 1.0, 1.0), profile, Assumed(3, "staggered", None))
    assert sorted(set(given.trace.frame["arrival_s"])) == pytest.approx([0.0, 1e-3, 2e-3])
    assert given.trace.frame.equals(tried.trace.frame)


def test_a_link_stays_where_the_runs_do_not_determine_the_time_before_an_engine(folder, capsys):
    points = ((16_000, 16, 8), (16_000, 32, 12), (24_000, 16, 8), (12_000, 32, 16), (20_000, 24, 8))
    cells = ",3,together,0.20"
    write(folder / "runs.csv", measured(Correction(), points), points, ",rounds,start,version", cells)
    assert calibrate("budget_tokens=8192", "link=rdma") == 0
    said = capsys.readouterr().out
    assert "(prior 30): the runs do not determine it; link rdma stays as it is, none is written" in said
    assert said.rstrip().endswith("hardware.link=rdma worlds=20")
    assert not (folder / "out" / "rdma-from-runs.yaml").exists()
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    assert (summary["link"], summary["link_kept"]) == (None, "rdma")
    # The version of the runs, not of the profile that was corrected.
    corrected = load_profile(folder / "out" / f"{NAME}-from-runs.yaml")
    assert corrected.engine_version == "0.20"
    assert corrected.fit["from_runs"]["versions"] == ["0.20"]
    assert corrected.fit["from_runs"]["corrects_version"] == load_profile(NAME).engine_version


def test_runs_of_another_gpu_are_refused_unless_forced(folder, capsys):
    write(folder / "runs.csv", measured(Correction()) * 5.0, extra=",rounds,start", cells=",3,together")
    assert calibrate("budget_tokens=8192") == 2
    error = capsys.readouterr().err
    assert "outside what llama-3.1-8b-bf16-h100-tp1 can be corrected to (force=true writes it all the same)" in error
    assert not (folder / "out").exists()
    assert calibrate("budget_tokens=8192", "force=true") == 0
    assert json.loads((folder / "out" / "summary.json").read_bytes())["outside"]


def test_swapped_lengths_are_asked_about(folder, capsys):
    write(folder / "runs.csv", measured(Correction()), [(b, a, users) for a, b, users in POINTS])
    assert calibrate("budget_tokens=8192") == 2
    assert "prompt_tokens and output_tokens the other way round" in capsys.readouterr().err


def test_seconds_and_milliseconds_of_another_profile_are_told(folder, capsys):
    times = measured(Correction()) * [1.0, 1.0 / 80.0]
    write(folder / "runs.csv", times, extra=",rounds,start", cells=",3,together")
    assert calibrate("budget_tokens=8192") == 2
    assert "are milliseconds and seconds swapped" in capsys.readouterr().err


def test_prompts_that_never_fit_are_told_with_their_line_before_anything_is_simulated(folder, capsys, monkeypatch):
    times = measured(Correction())[:4]
    monkeypatch.setattr("research.calibrating.from_runs.fitted", lambda *_: pytest.fail("simulated"))
    points = (*POINTS[:4], (450_000, 2000, 4))
    write(folder / "runs.csv", [*times, (60.0, 0.05)], points, ",rounds,start", ",3,together")
    assert calibrate("budget_tokens=8192") == 2
    error = capsys.readouterr().err
    assert "runs.csv, line 6: prompt_tokens + output_tokens = 452,000: expected at most 451,184" in error


def test_a_run_of_which_a_drawn_length_never_fits_is_told_with_its_line():
    profile = load_profile(NAME)
    run = BenchmarkRun(7, 440_000, 2000, 1, 60.0, 0.05, jitter=0.2)
    with pytest.raises(MeasurementError, match=r"line 7: profile .* serves \d of 8 requests: .* 451,184 tokens"):
        replay_of(run, profile, Assumed(8, "together", None)).means(profile, 0.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["action=from_runs"], "expected path=RUNS.csv and profile=NAME"),
        (["action=from_runs", "path=none.csv", f"profile={NAME}"], "none.csv: cannot be read"),
        (["action=from_run"], "did you mean 'from_runs'"),
        (["action=from_runs", "path=runs.csv", f"profile={NAME}", "budget_tokens=0"], "budget_tokens=0: expected"),
        (["action=score_from_runs", "draws=0"], "draws=0: expected a whole number of at least 1"),
    ],
)
def test_mistakes_end_in_one_line(folder, capsys, words, message):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_runs_of_another_engine_are_refused(folder, capsys):
    write(folder / "runs.csv", measured(Correction()), extra=",engine", cells=",vlm")
    assert calibrate() == 2
    assert "engine = 'vlm' (did you mean 'vllm'?): expected 'vllm'" in capsys.readouterr().err


def test_what_is_taken_without_runs_is_the_middle_protocol():
    assert score_from_runs.nominal(assumptions()) == Assumed(5, "together", None)
    assert score_from_runs.nominal(assumptions((10,), budgets=(None,))) == Assumed(10, "together", None)


def test_the_score_resamples_whole_targets_and_counts_refusals():
    rows = [
        {
            "target": target, "draw": draw, "refused": target == "b" and draw == 1, "left_out_tpot_mape": 4.0,
            "left_out_ttft_median": 9.0, "tpot_before_percent": 20.0, "ttft_before_percent": -40.0,
            "tpot_after_percent": size, "ttft_after_percent": -2.0 * size,
        }
        for target, size in (("a", 2.0), ("b", 6.0)) for draw in (0, 1) for _ in range(10)
    ]  # fmt: skip
    found = score_from_runs.score(pl.DataFrame(rows))
    assert found["tpot_mape"]["before"] == {"estimate": 20.0, "low": 20.0, "high": 20.0}
    assert found["tpot_mape"]["after"] == {
        "estimate": 4.0,
        "low": 2.0,
        "high": 6.0,
    }  # two targets: one, both, the other
    assert found["ttft_median"]["after"]["estimate"] == 8.0
    assert found["refused_share"] == 0.25
    assert found["after_by_draw"] == [{"tpot_mape": 4.0, "ttft_median": 8.0}] * 2
    assert found["after_not_refused"] == {"tpot_mape": pytest.approx(10 / 3), "ttft_median": 4.0}
    assert [row["tpot_mape_after"] for row in score_from_runs.by_target(pl.DataFrame(rows))] == [2.0, 6.0]


def test_fewer_than_five_targets_meet_no_bar():
    rows = [
        {
            "target": f"t{target}", "draw": 0, "refused": False, "left_out_tpot_mape": 4.0,
            "left_out_ttft_median": 9.0, "tpot_before_percent": 20.0, "ttft_before_percent": -40.0,
            "tpot_after_percent": 2.0, "ttft_after_percent": 3.0,
        }
        for target in range(5)
    ]  # fmt: skip
    for targets, judged in ((4, False), (5, True)):
        scores = score_from_runs.score(pl.DataFrame(rows[:targets]))
        said = "\n".join(score_from_runs.words({"scores": {"all": scores}, "missing": []}))
        assert ("bar 6 %" in said) is judged
        assert ("no bar is met or missed: fewer than 5 targets" in said) is not judged


@pytest.mark.slow
def test_public_targets_are_scored_and_those_without_a_profile_listed(public_data, folder, capsys):
    words = ["action=score_from_runs", f"data_dir={public_data}", "draws=1", "every=10", "workers=1", "out=out"]
    assert main(words) == 0
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    assert summary["scored"] + len(summary["missing"]) == summary["targets"]
    after, before = (summary["scores"]["all"]["tpot_mape"][when]["estimate"] for when in ("after", "before"))
    assert after < before
    said = capsys.readouterr().out
    assert "bar 6 %" in said
    assert said.rstrip().splitlines()[-1].startswith("next     python -m research.calibrate action=from_runs")
