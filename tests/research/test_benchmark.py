"""``research.benchmark``: it runs, measures every case, and refuses an unknown subject by name."""

from __future__ import annotations

import json

from research import benchmark


def test_every_case_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "PYTHON_REQUESTS", 200)
    monkeypatch.setattr(benchmark, "REFERENCE_REQUESTS", 40)
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
