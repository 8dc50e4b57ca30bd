"""The command: a part of measured runs from end to end, resumed; a backtest of a log; mistakes told in one line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import polars as pl
import pytest
from omegaconf import OmegaConf

from envs.cluster.presets import parse_cluster
from envs.hardware.load import load_handover
from research import replay, validate
from research.cli import compose_config
from research.clusters import build_cluster
from research.validating import backtest, marks, ranking, serving, work
from tests.research.validate_runs import profile, write_table


def command(out, *words):
    return validate.main([*words, f"out={out}", "workers=1"])


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    write_table(folder)
    monkeypatch.setattr(serving, "engine_profile", lambda instance, data_dir: profile())
    return f"data_dir={folder}"


def test_a_part_is_predicted_scored_drawn_and_resumed(data_dir, tmp_path, capsys, monkeypatch):
    assert command(tmp_path / "a", "part=colocated_dense", data_dir) == 0
    said = capsys.readouterr().out
    summary = json.loads((tmp_path / "a" / "summary.json").read_bytes())
    assert (summary["runs"], summary["predicted"], summary["missing"]) == (8, 8, [])
    assert {b["metric"] for b in summary["bars"]} == {"ttft", "tpot", "tokens_per_gpu"}
    assert "bar TPOT MAPE 9 %" in said
    assert f"summary  {tmp_path / 'a' / 'summary.json'}" in said
    assert (tmp_path / "a" / "runs.png").stat().st_size > 10_000
    frame = pl.read_parquet(tmp_path / "a" / "runs.parquet")
    unknown = frame.filter(protocol="unknown")
    assert (unknown["low_ttft_s"] <= unknown["predicted_ttft_s"]).all()
    assert unknown["low_ttft_s"].to_list() != unknown["high_ttft_s"].to_list()

    # Stopped in the middle: what is finished is not made again.
    kept = (tmp_path / "a" / "finished.jsonl").read_text().splitlines()
    (tmp_path / "a" / "finished.jsonl").write_text("\n".join(kept[:6]) + '\n{"key": "cut o')
    made = []
    real = work.serve
    monkeypatch.setattr(work, "serve", lambda run, *rest: made.append(run["run"]) or real(run, *rest))
    assert command(tmp_path / "a", "part=colocated_dense", data_dir) == 0
    assert len(made) == 2
    again = json.loads((tmp_path / "a" / "summary.json").read_bytes())
    assert again["errors_percent"] == summary["errors_percent"]


def test_predictions_see_no_measured_time(data_dir, tmp_path, monkeypatch):
    seen = []
    real = work.serve
    monkeypatch.setattr(work, "serve", lambda run, *rest: seen.append(set(run)) or real(run, *rest))
    command(tmp_path / "a", data_dir, "every=4")
    assert len(seen) == 2
    assert not any("ttft" in name or "tpot" in name for names in seen for name in names)


def test_a_sample_of_the_runs_meets_or_misses_no_bar(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "FEWEST_PAIRS", 1)

    def met(every):
        assert command(tmp_path / f"a{every}", data_dir, f"every={every}") == 0
        rows = json.loads((tmp_path / f"a{every}" / "summary.json").read_bytes())["ranking"]
        return {row["met"] for row in rows if row["bar_percent"] is not None}

    assert met(3) == {None}
    assert None not in met(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["part=colocated_dens"], "did you mean 'colocated_dense'?"),
        (["part=disaggregated"], "has no such runs"),
        (["part=vllm_requests"], "requests.jsonl.gz (or .jsonl) in the data folder"),
        (["part=vllm_requests"], "(set by data_dir or $PDGYM_DATA)"),
        (["part=all", "trace=azure_conv"], "expected one of them"),
        (["budget_tokens.vllm=0"], "budget_tokens.vllm=0"),
        (["rounds=[0]"], "rounds=0"),
        (["link=rdm"], "rdma"),
        (["trace=azure_conv", "policy=ppd"], "expected policy=logged"),
        (["trace=default", "policy=round_robin"], " cluster=... policy=round_robin"),
        (["trace=default", "policy=logged"], "default: no logged routes, expected columns prefill_worker and decode"),
        (["trace=default"], " cluster=... policy=round_robin"),
        (["trace=default", "part=all"], "expected one of them"),
    ],
)
def test_mistakes_are_one_line(words, message, data_dir, tmp_path, capsys):
    assert command(tmp_path / "a", data_dir, *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_runs_without_a_profile_are_counted_by_reason(tmp_path, capsys):
    write_table(tmp_path / "data")
    assert command(tmp_path / "a", f"data_dir={tmp_path / 'data'}") == 0
    summary = json.loads((tmp_path / "a" / "summary.json").read_bytes())
    assert summary["predicted"] == 0
    assert sum(row["runs"] for row in summary["missing"]) == 8
    said = capsys.readouterr().out
    assert "nothing to score" in said
    assert not (tmp_path / "a" / "runs.png").exists()


@pytest.mark.usefixtures("public_data")
def test_real_runs_are_predicted(public_data, tmp_path):
    assert command(tmp_path / "a", f"data_dir={public_data}", "part=colocated_dense", "every=120") == 0
    summary = json.loads((tmp_path / "a" / "summary.json").read_bytes())
    tpot = next(
        r for r in summary["errors_percent"] if (r["metric"], r["source"], r["group"]) == ("tpot", "predicted", "all")
    )
    assert summary["runs"] == 7
    assert tpot["median_percent"] < 40


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    rows = [f"{i * 0.05},{300 + 400 * (i % 3)},{20 + i % 7}" for i in range(120)]
    (folder / "talk.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    words = [f"trace.path={folder / 'talk.csv'}", "trace.format=table", "policy=round_robin", "cluster=1p2d"]
    replay.run(compose_config("replay", [*words, f"out={folder}"]))
    return folder / "run.parquet"


def test_a_backtest_of_our_own_run_is_exact_and_leaves_a_mark(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(tmp_path / "a", f"trace.path={log}", "policy=logged", "cluster=1p2d") == 0
    summary = json.loads((tmp_path / "a" / "summary.json").read_bytes())
    assert summary["all"]["ttft"]["requests"] == 120
    assert summary["all"]["ttft"]["median_abs_error_percent"] == summary["all"]["tpot"]["p90_abs_error_percent"] == 0.0
    assert [w["worker"] for w in summary["workers"]] == [0, 1, 2]
    assert summary["workers"][0]["tpot"] is None  # worker 0 prefills only
    plain = OmegaConf.to_container(compose_config("compare", ["cluster=1p2d"]), resolve=True)
    cluster = build_cluster(plain["cluster"], plain["hardware"], plain["view"])  # as a comparison makes it
    said = capsys.readouterr().out
    assert "low load (0 to" in said
    assert f"picture  {tmp_path / 'a' / 'requests.png'}" in said
    assert (tmp_path / "a" / "requests.png").stat().st_size > 10_000
    found = marks.find(cluster)
    assert found["trace_sha256"] == summary["trace_sha256"]
    assert found["tpot"] == summary["all"]["tpot"]


def test_a_backtest_shows_a_slow_world(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = "hardware.profile=llama2-70b-fp16-a100-tp8"
    assert command(tmp_path / "a", f"trace.path={log}", "policy=logged", "cluster=1p2d", other) == 0
    summary = json.loads((tmp_path / "a" / "summary.json").read_bytes())
    assert summary["all"]["tpot"]["median_signed_error_percent"] > 100
    assert [level["level"] for level in summary["levels"]] == ["low", "middle", "high"]


def as_table(log, tmp_path, n=120, **factors):
    """The first requests of the log as a CSV table, times multiplied."""
    frame = pl.read_parquet(log).head(n)
    path = tmp_path / f"log{n}.csv"
    keep = ["arrival_s", "prompt_tokens", "output_tokens", "prefill_worker", "decode_worker", "ttft_s", "tpot_s"]
    frame.select(keep).with_columns(pl.col(k) * v for k, v in factors.items()).write_csv(path)
    return [f"trace.path={path}", "trace.format=table", "cluster=1p2d"]


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"ttft_s": 1000.0}, "milliseconds read as seconds?"),
        ({"ttft_s": 400.0}, "ttft_s is"),
        ({"tpot_s": 400.0}, "tpot_s is"),
        ({"ttft_s": 1 / 400}, "seconds read as milliseconds?"),
    ],
)
def test_a_log_in_another_unit_is_a_question_and_leaves_no_mark(factors, message, log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(tmp_path / "a", *as_table(log, tmp_path, **factors)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "trace.options.latency_unit=ms" in error
    assert not (tmp_path / "results").exists()


def test_a_unit_that_was_answered_is_no_question(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = as_table(log, tmp_path, ttft_s=1000.0, tpot_s=1000.0)
    assert command(tmp_path / "a", *right, "trace.options.latency_unit=s") == 0
    assert "mark     none: ttft_s is" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
    assert command(tmp_path / "b", *right, "trace.options.latency_unit=ms") == 0
    assert len(list((tmp_path / "results" / "backtests").iterdir())) == 1


def test_a_mark_needs_requests_and_a_smaller_one_replaces_none(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(tmp_path / "a", *as_table(log, tmp_path, 99)) == 0
    assert "mark     none: 99 requests with times are compared, a mark needs 100" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
    for n in (110, 120, 100):
        assert command(tmp_path / "a", *as_table(log, tmp_path, n)) == 0
    (path,) = (tmp_path / "results" / "backtests").iterdir()
    assert json.loads(path.read_bytes())["requests"] == 120
    said = capsys.readouterr().out
    assert f"mark     {path} stays: it is of 120 requests of log120" in said
    assert "another log, more than the 100 compared here of log100" in said


def test_a_mark_stays_beside_another_log_of_as_many_requests(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(tmp_path / "a", *as_table(log, tmp_path)) == 0
    (path,) = (tmp_path / "results" / "backtests").iterdir()
    before, other = path.read_bytes(), tmp_path / "other"
    other.mkdir()
    assert command(tmp_path / "worse", *as_table(log, other, ttft_s=2.0)) == 0
    assert "another log, as many as the 120 compared here" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert command(tmp_path / "again", *as_table(log, tmp_path)) == 0  # the same log: made anew
    assert json.loads(path.read_bytes())["summary"] == str(tmp_path / "again" / "summary.json")


def test_swapped_columns_are_a_question_and_leave_no_mark(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = as_table(log, tmp_path)
    path = tmp_path / "log120.csv"
    frame = pl.read_csv(path)
    frame.with_columns(ttft_s=pl.col("tpot_s"), tpot_s=pl.col("ttft_s")).write_csv(path)
    assert command(tmp_path / "a", *words) == 2
    error = capsys.readouterr().err
    assert "ttft_s is below tpot_s in 120 of 120 requests of the log" in error
    assert "swapped columns?" in error
    assert command(tmp_path / "b", *words, "trace.options.latency_unit=s") == 0
    assert "mark     none: ttft_s is below tpot_s" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
    turned = ["trace.options.columns.ttft_s=tpot_s", "trace.options.columns.tpot_s=ttft_s"]
    assert command(tmp_path / "c", *words, *turned) == 0
    assert json.loads((tmp_path / "c" / "summary.json").read_bytes())["all"]["ttft"]["median_abs_error_percent"] < 0.1


def test_ttft_below_tpot_in_the_simulation_too_is_no_question():
    times = {"logged_ttft_s": [0.1] * 3, "logged_tpot_s": [0.2] * 3, "simulated_ttft_s": [0.1] * 3}
    assert backtest.swap_doubts(pl.DataFrame(times | {"simulated_tpot_s": [0.2] * 3})) == []
    assert len(backtest.swap_doubts(pl.DataFrame(times | {"simulated_tpot_s": [0.05] * 3}))) == 1


def test_a_log_without_prefixes_is_a_caution_where_caches_are_on(log, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = as_table(log, tmp_path)
    assert command(tmp_path / "a", *words) == 0
    said = capsys.readouterr().out
    assert said.count("caution: the log of") == 1
    assert "hits of the real cluster are not in the log" in said
    assert command(tmp_path / "b", *words, "cluster.prefix_cache=false") == 0
    assert "caution" not in capsys.readouterr().out


def test_the_default_folder_names_part_sample_and_log_in_plain_letters(log, data_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert validate.main([data_dir, "every=4", "workers=1"]) == 0
    folder = tmp_path / "results" / "validate-colocated_dense-every4"
    assert (folder / "summary.json").is_file()
    said = capsys.readouterr().out
    assert "simulating 2 runs, each 4th of the part, less those finished in" in said
    assert "part=NAME takes other ones (colocated_moe, disaggregated, all)" in said
    assert "hard pairs: none among these runs" in said
    assert (
        validate.main([f"trace.path={log}", "trace.steps=[{name: window, start_s: 1, end_s: 4}]", "cluster=1p2d"]) == 0
    )
    (made,) = (p.name for p in (tmp_path / "results").iterdir() if p.name != folder.name)
    assert re.fullmatch(r"validate-[A-Za-z0-9._-]+-1p2d", made)


def test_load_counts_the_others_in_flight():
    frame = pl.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 2.0, 10.0],
            "output_tokens": [3, 1, 2, 1],
            "ttft_s": [1.0, 0.5, 1.0, None],
            "tpot_s": [1.0, None, 1.0, None],
        }
    )
    # 0: until 3; 1: until 1.5; 2: until 4; the last without times is an instant.
    assert backtest.in_flight(frame).tolist() == [0, 1, 1, 0]


def test_a_log_without_times_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i * 0.1},500,20,0,1" for i in range(5)]
    head = "arrival_s,prompt_tokens,output_tokens,prefill_worker,decode_worker"
    (tmp_path / "log.csv").write_text("\n".join([head, *rows]))
    assert command(tmp_path / "a", f"trace.path={tmp_path / 'log.csv'}", "trace.format=table", "cluster=1p1d") == 2
    assert "neither ttft_s nor tpot_s" in capsys.readouterr().err


def test_marks_follow_what_decides_the_times_and_not_the_name(tmp_path):
    used = profile()
    cluster = parse_cluster("1p1d", profile=used, handover=load_handover("nvlink", gpus=1))
    path = marks.leave(cluster, {"cluster": "1p1d"}, tmp_path)
    assert path.is_file()
    same = parse_cluster("1P1D", profile=used, handover=load_handover("nvlink", gpus=1))
    assert marks.find(same, tmp_path)["cluster"] == "1p1d"
    first, last = cluster.workers
    decodes_only = replace(cluster, workers=(first, replace(last, can_prefill=False)))
    assert marks.find(decodes_only, tmp_path) is None
    slower = parse_cluster("1p1d", profile=used.with_step(used.step.scaled(1.1)), handover=cluster.handover)
    assert marks.find(slower, tmp_path) is None
    path.write_text("{")
    assert marks.find(cluster, tmp_path) is None
