"""calibrate action=from_log as a user runs it: the log of a slower engine in, a corrected profile out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from envs.cluster.simulator import simulate
from envs.cluster.slo import LOOSE
from envs.hardware.from_runs import Correction
from envs.hardware.load import load_handover, load_profile
from envs.hardware.profile import StepLaw
from envs.logged import as_trace
from policies.registry import load
from research import validate
from research.calibrate import main
from research.calibrating.log_replay import head
from research.calibrating.log_words import warnings
from research.clusters import build_cluster
from traces import Trace
from traces.readers import canonical

NAME = "llama-3.1-8b-bf16-h100-tp1"
TRUTH = Correction(matrices=1.2, prefill=1.3, decode=1.25, host_step_s=2e-3, host_seq_s=3e-5, request_s=0.03)
COMMON = {
    "prefill_budget_tokens": 8192, "decode_budget_tokens": 2048, "max_num_seqs": 256, "kv_tokens": None,
    "prefix_cache": True,
}  # fmt: skip


def requests(n=400, rate=4.0, seed=3):
    rng = np.random.default_rng(seed)
    rates = rate * np.where(np.arange(n) % 100 < 50, 0.6, 2.0)  # quiet and busy times
    columns = {
        "arrival_s": np.cumsum(rng.exponential(1.0 / rates)),
        "prompt_tokens": rng.integers(100, 4000, n),
        "output_tokens": rng.integers(20, 300, n),
    }
    return Trace.build("log", columns, replay="open")


def logged(trace, cluster="colocated2", truth=TRUTH, law=None):
    """What a cluster of another truth than its profile's would log."""
    spec = build_cluster({"name": cluster, **COMMON}, {"profile": NAME, "link": "rdma"}, {})
    workers = tuple(
        replace(w, profile=truth.apply(w.profile if law is None else w.profile.with_step(law))) for w in spec.workers
    )
    spec = replace(spec, workers=workers, handover=replace(spec.handover, dispatch_s=truth.request_s))
    return as_trace(simulate(trace, spec, load("round_robin"), LOOSE), trace)


def without(log, *columns, **changed):
    return Trace.build("log", log.frame.drop(columns).with_columns(**changed), replay="open")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def slower():
    return logged(requests())


def calibrate(log, *words, cluster="colocated2"):
    path = Path(f"log-{log.sha256[:12]}.parquet").absolute()  # a process reads a path once
    canonical.write(log, path)
    return main(
        ["action=from_log", f"trace={path}", f"cluster={cluster}", f"hardware.profile={NAME}", "out=out", *words]
    )


def test_the_log_of_a_slower_engine_corrects_the_profile(folder, slower, capsys):
    assert calibrate(slower) == 0
    said = capsys.readouterr().out
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    assert summary["requests"] == {"log": 400, "lead_in": 0, "fitted": 200, "judged": 200}
    rows = {(row["metric"], row["quantile"]): row for row in summary["held_out"]["quantiles"]}
    for metric in ("ttft", "tpot", "e2e"):
        for quantile in (50, 90):
            row = rows[metric, quantile]
            assert row["before_error_percent"] < -10.0
            assert abs(row["after_error_percent"]) < 5.0
            assert "first_part_error_percent" in row
    assert summary["request_ms"] == pytest.approx(30.0, abs=10.0)
    # What is written says where it is from, and can be used as it is.
    profile = load_profile(folder / "out" / f"{NAME}-from-log.yaml")
    own = profile.fit["from_log"]
    assert profile.source["licence"] == "yours"
    assert profile.source["files"][0]["path"] == f"log-{slower.sha256[:12]}.parquet"
    assert own["trace_sha256"] == slower.sha256
    assert own["held_out"]["quantiles"] == summary["held_out"]["quantiles"]
    assert profile.fit["range"] == load_profile(NAME).fit["range"]
    assert own["range"]["new_tokens"][1] < 4000
    assert sum(cell["requests"] for cell in own["cells"]) == 200
    assert load_handover(folder / "out" / "rdma-from-log.yaml").dispatch_s == pytest.approx(0.03, abs=0.01)
    # The command that comes next is run as it is told.
    told = said.rstrip().splitlines()[-1]
    assert told.startswith("next     python -m research.validate trace.path=")
    assert " replay=open policy=logged cluster=colocated2 hardware.profile=" in told
    assert validate.main([*told.split()[4:], "out=back"]) == 0
    after = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert after.startswith("next     python -m research.compare trace.path=")
    assert f" cluster=colocated2 hardware.profile={folder / 'out' / f'{NAME}-from-log.yaml'}" in after
    back = json.loads((folder / "back" / "summary.json").read_bytes())
    assert back["all"]["tpot"]["median_abs_error_percent"] < 3.0


def test_the_fit_looks_at_the_first_part_only(folder, slower):
    last = pl.int_range(pl.len()) >= 200
    spoiled = without(slower, tpot_s=pl.when(last).then(pl.col("tpot_s") * 1.3).otherwise("tpot_s"))
    assert calibrate(slower) == 0
    first = load_profile(folder / "out" / f"{NAME}-from-log.yaml")
    assert calibrate(spoiled, "bound_percent=50") == 0
    assert load_profile(folder / "out" / f"{NAME}-from-log.yaml").step == first.step


def test_workers_of_both_phases_are_corrected_by_their_routes(folder, capsys):
    assert calibrate(logged(requests(), "1p1d"), cluster="1p1d") == 0
    assert "the log's own routes" in capsys.readouterr().out
    rows = json.loads((folder / "out" / "summary.json").read_bytes())["held_out"]["quantiles"]
    assert max(abs(row["after_error_percent"]) for row in rows if row["quantile"] == 50) < 5.0


def test_where_no_correction_fits_the_coefficients_are_found(folder, capsys):
    # Each decode is dear and its context cheap, prompts the other way round: no factor on decodes does that.
    nominal = load_profile(NAME).step
    odd = replace(nominal, c_seq_s=9e-4, c_kv_s=nominal.c_kv_s / 20, c_tok_s=nominal.c_tok_s / 2, c_attn_s=2e-8)
    assert calibrate(logged(requests(300), law=odd, truth=Correction()), "first=0.6") == 0
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    assert summary["law"] == "coefficients"
    assert summary["tried_distance"]["coefficients"] < summary["tried_distance"]["correction"]
    profile = load_profile(folder / "out" / f"{NAME}-from-log.yaml")
    assert "by search" in profile.source["method"]
    assert profile.fit["range"] == profile.fit["from_log"]["range"]
    assert "coefficients were found by search" in capsys.readouterr().out


def test_a_profile_that_is_right_stays(folder):
    assert calibrate(logged(requests(), truth=Correction())) == 0
    corrected, nominal = load_profile(folder / "out" / f"{NAME}-from-log.yaml"), load_profile(NAME)
    for key in StepLaw.__slots__:
        assert getattr(corrected.step, key) == pytest.approx(getattr(nominal.step, key), rel=0.03)


def test_an_engine_that_changed_after_the_fitted_part_keeps_the_profile(folder, slower, capsys):
    later = logged(requests(), truth=Correction())
    first = pl.int_range(pl.len()) < 200
    mixed = {
        name: pl.when(first).then(slower.frame[name]).otherwise(later.frame[name]) for name in ("ttft_s", "tpot_s")
    }
    assert calibrate(without(slower, **mixed)) == 2
    assert f"further off than {NAME}" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_a_log_without_routes_needs_one_worker_or_a_rule(folder, slower, capsys):
    bare = without(slower, "prefill_worker", "decode_worker")
    assert calibrate(bare) == 2
    assert "it has no routes, and colocated2 has 2 workers: policy=round_robin" in capsys.readouterr().err
    assert calibrate(bare, "policy=round_robin") == 0
    said = capsys.readouterr().out
    assert "routes taken for those of round_robin" in said
    told = said.rstrip().splitlines()[-1]
    assert told.startswith("next     python -m research.compare trace.path=")
    assert f"log-{bare.sha256[:12]}.parquet replay=open cluster=colocated2 hardware.profile=" in told


def test_overload_one_level_and_few_requests_are_told(folder, capsys):
    log = logged(requests(240, rate=60.0), "colocated1")
    assert calibrate(log, "force=true", cluster="colocated1") == 0
    said = capsys.readouterr().out
    assert "overloaded: " in said
    assert "tokens per second are right" in said
    assert "KV memory of 451,184 tokens" in said
    assert "give the engine's own cluster.max_num_seqs=N (its --max-num-seqs), cluster.kv_tokens=N" in said
    assert "120 judged requests: a p99 of so few hangs on 1 of them" in said
    columns = {
        "arrival_s": np.arange(200) * 2.0, "prompt_tokens": np.random.default_rng(1).integers(100, 4000, 200),
        "output_tokens": np.full(200, 50),
    }  # fmt: skip
    assert calibrate(logged(Trace.build("log", columns, replay="open"), "colocated1"), cluster="colocated1") == 0
    said = capsys.readouterr().out
    assert "one load level: 0 to 0 requests in flight" in said
    line = next(line for line in said.splitlines() if line.startswith("not determined by this log"))
    assert "host_seq" in line


def test_a_lead_in_is_replayed_and_not_counted(folder, slower):
    assert calibrate(slower, "lead_in_s=20") == 0
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    lead = int((slower.frame["arrival_s"] < 20.0).sum())
    assert summary["requests"]["lead_in"] == lead
    assert summary["requests"]["fitted"] == (400 - lead) // 2
    frame = pl.read_parquet(folder / "out" / "requests.parquet")
    assert frame["part"].value_counts(sort=True).height == 3


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda log: without(log, "ttft_s", "tpot_s"), (), "no ttft_s and no tpot_s: a profile is corrected by the"),
        (lambda log: without(log, "tpot_s"), (), "no tpot_s: a profile"),
        (lambda log: head(log, 90), (), "90 of 90 requests have TTFT and TPOT: expected at least 100"),
        (
            lambda log: without(log, ttft_s=pl.col("ttft_s") * 1e3, tpot_s=pl.col("tpot_s") * 1e3), (),
            "is it another unit (trace.options.latency_unit=ms)",
        ),
        (
            lambda log: without(log, ttft_s=pl.col("tpot_s"), tpot_s=pl.col("ttft_s")), (),
            "in 400 of 400 requests: expected it to be longer; are the two columns swapped",
        ),
        (lambda log: log, ("first=1.0",), "first=1.0: expected a number above 0.0 and below 1.0"),
        (lambda log: log, ("lead_in_s=-1",), "lead_in_s=-1: expected"),
        (lambda log: log, ("profile=x",), "profile=x: action=from_log takes hardware.profile=x"),
        (lambda log: log, ("path=x.csv",), "path=x.csv: action=from_log takes trace.path=x.csv"),
        (lambda log: log, ("cluster.kv_tokens=2000",), "as configured refuses"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(folder, slower, capsys, change, words, message):
    assert calibrate(change(slower), *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out").exists()


def test_a_ttft_that_got_worse_at_every_load_is_warned_of():
    rows = [
        {"ttft_before_median_abs_error_percent": was, "ttft_after_median_abs_error_percent": now}
        for was, now in ((5.0, 9.0), (7.0, 7.5))
    ]
    (line,) = warnings(rows)
    assert line.startswith(
        "warning: TTFT of single requests got worse at every load level (5.0 -> 9.0 %, 7.0 -> 7.5 %)"
    )
    rows[1]["ttft_after_median_abs_error_percent"] = 6.0
    assert warnings(rows) == []


def test_without_a_log_one_is_asked_for(folder, capsys):
    assert main(["action=from_log"]) == 2
    assert "trace=MY_LOG: expected a log with times" in capsys.readouterr().err


def test_a_profile_that_no_worker_has_is_refused(folder, slower, capsys):
    (folder / "mine.yaml").write_text("workers: [{role: mixed, count: 2, profile: llama-3.1-8b-bf16-a100-tp1}]")
    assert calibrate(slower, cluster="mine.yaml") == 2
    assert "no worker of mine has it: expected one of llama-3.1-8b-bf16-a100-tp1" in capsys.readouterr().err


def test_the_law_of_another_engine_is_refused(folder, capsys):
    nominal = load_profile(NAME).step
    slow = StepLaw(*(8.0 * getattr(nominal, key) for key in StepLaw.__slots__))
    assert calibrate(logged(requests(200, rate=0.5), law=slow)) == 2
    error = capsys.readouterr().err
    assert "no profile is written (force=true writes it all the same)" in error
    assert "the log looks like another model, GPU, precision or engine" in error
