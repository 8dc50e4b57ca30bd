"""``action=convert`` and what ``action=describe`` draws, called as a user does."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from research.traces import main
from traces import load_trace
from traces.steps import apply_steps

STEPS = "trace.steps=[{name: thin, keep: 0.1, seed: 2}, {name: rate, factor: 3}]"


def test_convert_keeps_the_trace_with_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action=convert", STEPS, "csv=true", f"out={tmp_path}"]) == 0
    steps = [{"name": "thin", "keep": 0.1, "seed": 2}, {"name": "rate", "factor": 3}]
    wanted = apply_steps(load_trace("default"), steps).trace
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    again = load_trace(tmp_path / "default-steps.parquet")
    assert again.sha256 == wanted.sha256 == summary["sha256"]
    assert again.provenance[: len(wanted.provenance)] == wanted.provenance
    printed = capsys.readouterr().out
    assert f"trace.path={tmp_path / 'default-steps.parquet'}" in printed
    table = pl.read_csv(tmp_path / "default-steps.csv")
    assert table["prompt_tokens"].sum() == wanted.frame["prompt_tokens"].sum()
    assert len(load_trace(tmp_path / "default-steps.csv", "table")) == len(wanted)


def test_describe_takes_steps_and_a_zone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action=describe", STEPS, "zone=test", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert "zones" not in summary
    assert any("thinned to 0.1" in note for note in summary["provenance"])
    assert main(["action=describe", "zone=tests", f"out={tmp_path}"]) == 2
    assert "did you mean 'test'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "rows", ["0,5,1", "0,5,1\n0,5,1", "0,5,1\n1,5,1\n20,9,3"], ids=["one request", "all at once", "three"]
)
def test_a_tiny_trace_is_described_and_drawn(tmp_path: Path, rows: str) -> None:
    (tmp_path / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    words = ["action=describe", f"trace.path={tmp_path / 't.csv'}", "trace.format=table", f"out={tmp_path / 'o'}"]
    assert main(words) == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text("utf-8"))
    assert "lengths.png" in summary["pictures"]
    assert "too few to cut into zones" in summary["zones"]
