"""Whether a compared cluster was backtested: found by what decides its times, told with its errors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from research.cli import compose_config
from research.errors import ResearchError
from research.evidence import backtests
from research.study import study_from
from research.validating import marks
from traces import load_trace

CONTENT = {
    "cluster": "2p2d",
    "profiles": ["p"],
    "trace": "my log",
    "trace_sha256": "0" * 64,
    "requests": 1200,
    "ttft": {"median_abs_error_percent": 7.25, "median_signed_error_percent": -2.0},
    "tpot": None,
    "summary": "out/summary.json",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(*words):
    return study_from(compose_config("compare", ["trace=default", "cluster=2p2d", *words]), "compare")


def test_a_cluster_without_a_mark_was_never_backtested(folder):
    assert study().backtest is None
    line = backtests.words(backtests.record(None, load_trace("default")))
    assert line.startswith("This cluster was never backtested")
    assert "research.validate trace=YOUR_LOG policy=logged" in line
    assert "on a log that has routes and times" in line


def test_a_mark_is_found_by_the_cluster_and_told_with_its_errors(folder):
    marks.leave(study().cluster, CONTENT)
    found = study("slo=loose").backtest
    assert found is not None
    trace = load_trace("default")
    line = backtests.words(backtests.record(found, trace))
    assert "backtested on 1200 requests of my log: median error of TTFT 7.2 % (signed median -2.0 %)." in line
    assert "another trace than the one compared here" in line
    assert "backtest it again" not in line
    marks.leave(study().cluster, CONTENT | {"trace_sha256": trace.sha256})
    assert "another trace" not in backtests.words(backtests.record(study().backtest, trace))


def test_another_link_or_budget_is_another_cluster(folder):
    marks.leave(study().cluster, CONTENT)
    assert study("hardware.link=tcp").backtest is None
    assert study("cluster.decode_budget_tokens=512").backtest is None


def test_a_mark_of_an_older_simulator_says_so(folder):
    path = marks.leave(study().cluster, CONTENT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "older"}))
    line = backtests.words(backtests.record(study().backtest, load_trace("default")))
    assert "The simulator has changed since: backtest it again." in line


def test_a_mark_elsewhere_is_given_by_its_path(folder):
    path = marks.leave(study().cluster, CONTENT, folder / "elsewhere")
    assert study().backtest is None
    found = study(f"backtest={path}").backtest
    assert found is not None
    assert found["requests"] == 1200
    with pytest.raises(ResearchError, match="it is of cluster '2p2d' as it was then"):
        study(f"backtest={path}", "hardware.link=tcp")


def test_what_is_no_mark_is_refused(folder):
    with pytest.raises(ResearchError, match=r"backtest=none\.json: not readable"):
        study("backtest=none.json")
    (folder / "other.json").write_text("{}")
    with pytest.raises(ResearchError, match=r"backtest=other\.json: expected the mark"):
        study("backtest=other.json")


def test_the_key_is_of_what_decides_times(folder):
    cluster = study().cluster
    assert marks.cluster_key(replace(cluster, name="mine")) == marks.cluster_key(cluster)
