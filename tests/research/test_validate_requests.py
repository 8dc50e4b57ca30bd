"""A run logged request by request: calibrated on the first, judged on the rest."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from envs.cluster.spec import WorkerSpec
from envs.hardware.profile import StepLaw
from research import validate
from research.errors import ResearchError
from research.validating import requests
from tests.research.validate_runs import profile
from traces import Trace

TRUE = StepLaw(0.0, 0.012, 4e-5, 1e-10, 2e-5, 8e-8)


@pytest.fixture(scope="module")
def logged():
    """200 Poisson arrivals served under a law that the search does not start from."""
    rng = np.random.default_rng(3)
    columns = {
        "arrival_s": np.sort(rng.uniform(0, 40, 200)),
        "prompt_tokens": rng.integers(100, 2000, 200),
        "output_tokens": rng.integers(20, 300, 200),
    }
    trace = Trace.build("log", columns, replay="open")
    worker = WorkerSpec(profile(StepLaw(0.0, 0.02, 6e-5, 1e-10, 2e-5, 1.2e-7)), prefix_cache=False)
    bare = requests.LoggedRun("hand", _with_times(trace, [1.0] * 200, [1.0] * 200), worker, "nowhere")
    frame = requests.simulated(bare, TRUE)
    times = (frame["simulated_ttft_s"].to_list(), frame["simulated_tpot_s"].to_list())
    return requests.LoggedRun("hand", _with_times(trace, *times), worker, "nowhere")


def _with_times(trace, ttft, tpot):
    columns = {name: trace.frame[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    return Trace.build("log", {**columns, "ttft_s": ttft, "tpot_s": tpot}, replay="open")


def test_calibration_finds_a_law_that_predicts_the_rest(logged):
    start = requests.judge(requests.simulated(logged, logged.worker.profile.step))
    law = requests.calibrate(logged)
    rows = requests.judge(requests.simulated(logged, law))
    assert max(abs(r["error_percent"]) for r in start if r["quantile"] < 99) > 30
    assert max(abs(r["error_percent"]) for r in rows if r["quantile"] < 99) < 10
    assert all(r["met"] for r in rows if r["quantile"] < 99)
    assert law.c0_s == pytest.approx(TRUE.c0_s, rel=0.2)


def test_calibration_looks_at_the_first_requests_only(logged):
    spoiled = logged.trace.frame.with_columns(
        pl.when(pl.int_range(pl.len()) < 50).then("ttft_s").otherwise(9.0),
        pl.when(pl.int_range(pl.len()) < 50).then("tpot_s").otherwise(9.0),
    )
    other = requests.LoggedRun("x", _with_times(logged.trace, spoiled["ttft_s"], spoiled["tpot_s"]), logged.worker, "x")
    assert requests.calibrate(other, 50) == requests.calibrate(logged, 50)


def test_quantiles_and_backlog_by_hand():
    n = 100
    frame = pl.DataFrame(
        {
            "arrival_s": np.arange(n, dtype=float),
            **{f"measured_{name}_s": np.full(n, 2.0) for name in requests.TIMES},
            **{f"simulated_{name}_s": np.full(n, 2.1) for name in requests.TIMES},
        }
    )
    rows = requests.judge(frame, 20)
    assert {r["requests"] for r in rows} == {80}
    assert all(r["error_percent"] == pytest.approx(5.0) and r["rule_error_percent"] == 0.0 for r in rows)
    assert [(r["low_s"], r["high_s"]) for r in rows if r["quantile"] == 99] == [(2.0, 2.0)] * 3
    assert requests.backlog(frame) == {"arrivals_s": 99.0, "waiting": 2, "waiting_percent": 2.0}


def test_the_open_vllm_runs(public_data, tmp_path, capsys):
    assert validate.main(["part=vllm_requests", f"data_dir={public_data}", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    rows = [row for run in summary["runs"] for row in run["quantiles"] if row["quantile"] < 99]
    assert len(rows) == 12
    assert all(abs(row["error_percent"]) <= 10.0 for row in rows)
    assert "overloaded" in capsys.readouterr().out


def test_settings_that_are_missing_are_named(tmp_path, monkeypatch):
    folder = tmp_path / requests.BENCH / "GPU" / "model" / "vllm"
    folder.mkdir(parents=True)
    row = {"request_id": "a", "input_toks": 10, "output_toks": 2, "arrival_time": 1.0, "queued_ts": 1.0,
           "scheduled_ts": 1.0, "first_token_ts": 1.1, "last_token_ts": 1.2}  # fmt: skip
    stamps = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    lines = [json.dumps(row | {name: row[name] + i / 10 for name in stamps} | {"request_id": str(i)}) for i in range(9)]
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ResearchError, match=r"meta\.json.*expected the settings of the run"):
        requests.logged_runs(tmp_path)
    (folder / "meta.json").write_text('{"model": "llama-3.1-8b"}')
    with pytest.raises(ResearchError, match=r"meta\.json: no key engine_kwargs"):
        requests.logged_runs(tmp_path)
