"""``research.replay``: a run becomes a trace, and its log gives the same times."""

from __future__ import annotations

import json

import pytest

from policies.errors import PolicyError
from research.choices import PolicyChoice
from research.cli import compose_config
from research.errors import ResearchError
from research.replay import run
from research.study import study_from
from traces import load_trace
from traces.errors import TraceError


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "talk.csv"
    rows = [f"{i * 0.05},{i // 3},{300 + 400 * (i % 3)},{20 + i % 7}" for i in range(150)]
    path.write_text("\n".join(["arrival_s,session,prompt_tokens,output_tokens", *rows]))
    return [f"trace.path={path}", "trace.format=table", "trace.options.context=grows"]


def replay(out, *words):
    run(compose_config("replay", [*words, f"out={out}"]))
    return json.loads((out / "summary.json").read_bytes())


def test_a_log_gives_the_same_times(table, tmp_path, capsys):
    first = replay(tmp_path / "a", *table, "policy=deflect", "cluster=1p2d")
    assert "policy=logged   (gives the same times)" in capsys.readouterr().out
    assert (first["requests"], first["served"], first["against_log"]) == (150, 150, {})
    path = tmp_path / "a" / "run.parquet"
    assert load_trace(str(path)).sha256 == first["log_sha256"]
    again = replay(tmp_path / "b", f"trace.path={path}", "policy=logged", "cluster=1p2d")
    assert again["against_log"]["ttft_equal"] == again["against_log"]["ttft_requests"] == 150
    assert again["against_log"]["tpot_equal"] == again["against_log"]["tpot_requests"] == 150
    assert again["log_sha256"] == first["log_sha256"]
    assert "TTFT against the log: 150 of 150 equal" in capsys.readouterr().out


def test_ids_are_mapped_and_a_rate_is_reached(table, tmp_path):
    replay(tmp_path / "a", *table, "policy=round_robin", "cluster=1p1d", "csv=true")
    assert (tmp_path / "a" / "run.csv").is_file()
    words = (f"trace.path={tmp_path / 'a' / 'run.parquet'}", "policy=logged", "cluster=2p1d")
    with pytest.raises(TraceError, match=r"row 1, column 'decode_worker': found 1, .*can decode \(2\)"):
        replay(tmp_path / "b", *words)
    mapped = replay(tmp_path / "b", *words, "policy.worker_ids={1: 2}")
    assert mapped["against_log"]["ttft_equal"] == 150
    faster = replay(tmp_path / "c", *words, "policy.worker_ids={1: 2}", "rate_per_s=40")
    assert faster["rate_scale"] == pytest.approx(40 * 7.45 / 150)
    assert faster["against_log"]["ttft_equal"] < 150


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["zone=tset"], "zone=tset: expected one of train, validation, test .did you mean 'test'"),
        (["rate_per_s=0"], "rate_per_s=0: expected a number above 0"),
        (
            ["policy=logged", "policy.worker_ids={a: 1}"],
            "worker_ids=.*: expected logged ids and workers of the cluster",
        ),
        (["policy=logged", "policy.worker_ids=[1]"], "worker_ids=.*: expected logged ids"),
        (["seed=x"], "seed='x'"),
    ],
)
def test_a_wrong_setting_is_named(table, tmp_path, words, message):
    with pytest.raises(ResearchError, match=message):
        replay(tmp_path / "o", *table, *words)


def test_logged_is_no_router(table):
    choice = PolicyChoice.parse({"name": "logged", "worker_ids": {"17": 0}}, "policy")
    assert choice.replays
    assert choice.text() == "logged (worker_ids={17: 0})"
    with pytest.raises(ResearchError, match="no rule that could route other requests, be exported"):
        choice.build()
    with pytest.raises(ResearchError, match="unknown parameter 'ids'"):
        PolicyChoice.parse({"name": "logged", "ids": 3}, "policy")
    with pytest.raises(ResearchError, match="reference=logged: expected a router"):
        study_from(compose_config("compare", [*table, "reference=logged", "windows=2", "rate_per_s=1"]), "compare")
    with pytest.raises(PolicyError, match="unknown policy 'loged'"):
        PolicyChoice.parse("loged", "policy")


def test_a_study_refuses_routes_that_are_not_there_before_anything_runs(table):
    with pytest.raises(TraceError, match="the logged routes that policy=logged replays"):
        study_from(compose_config("compare", [*table, "policies=[logged]", "windows=2", "rate_per_s=1"]), "compare")


def test_logged_cannot_be_exported(tmp_path):
    from research.export import run as export

    with pytest.raises(ResearchError, match="be exported"):
        export(compose_config("export", ["policy=logged", f"out={tmp_path / 'o'}"]))
