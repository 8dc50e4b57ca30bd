"""``research.benchmark``: it runs, measures every case, and refuses an unknown subject by name."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import pytest

from research import benchmark
from research.benchmarking import simulator
from research.benchmarking.traces import write_log


def test_every_case_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulator, "PYTHON_REQUESTS", 200)
    monkeypatch.setattr(simulator, "REFERENCE_REQUESTS", 40)
    argv = ["simulator", f"out={tmp_path}", "requests=3000", "repeats=1", "rate_per_s=60", f"data_dir={tmp_path}"]
    assert benchmark.main(argv) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    cases = " | ".join(row["case"] for row in summary["rows"])
    for words in ("guard compiled", "prefix caches", "no-op Python policy", "guard interpreted", "reference"):
        assert words in cases
    assert all(row["per_cpu_s"] > 0 for row in summary["rows"])
    assert summary["rows"][0]["count"] == 3000
    assert "the default trace stands in" in capsys.readouterr().out


def test_an_unknown_subject_names_the_nearest(capsys):
    assert benchmark.main(["simulater"]) == 2
    assert "simulator" in capsys.readouterr().err


def test_a_log_is_read_hashed_and_written(tmp_path, capsys):
    assert benchmark.main(["traces", f"out={tmp_path}", "rows=3000"]) == 0
    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert [row["count"] for row in rows] == [3000] * 5
    for words in ("read and validated", "hash", "csv-module loop", "Parquet: written", "Parquet: read"):
        assert any(words in row["case"] for row in rows)
    assert 0 < rows[0]["peak_rss_gib"] < 1
    assert rows[0]["times_faster_than_csv_loop_cpu"] == pytest.approx(rows[0]["per_cpu_s"] / rows[2]["per_cpu_s"])
    assert not any("under" in key for key in rows[0])  # the bar is one for ten million
    assert "trace.path=my.csv" in capsys.readouterr().out


def test_the_generated_log_has_sessions_in_order_of_arrival(tmp_path):
    write_log(tmp_path / "log.csv", 5000)
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5000
    stamps = [float(row["arrival_s"]) for row in rows]
    assert all(a <= b for a, b in pairwise(stamps))
    assert 1.5 < 5000 / len({row["session"] for row in rows}) < 3.5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["simulator", "rows=5"], "benchmark simulator takes no rows; settings it takes: repeats, requests"),
        (["traces", "requests=5"], "benchmark traces takes no requests"),
        (["traces", "rows=0"], "expected 1 or more of each"),
    ],
)
def test_settings_that_a_subject_does_not_take_are_refused(tmp_path, capsys, argv, message):
    assert benchmark.main([*argv, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
