"""``python -m research.traces``, called as a function: what it prints and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.traces import main


def test_describe_prints_and_leaves_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action=describe", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary["requests"] == 12081
    assert set(summary["zones"]) == {"train", "validation", "test"}
    printed = capsys.readouterr().out
    assert "prompt_tokens" in printed
    assert "12,081 requests" in printed
    for name in summary["pictures"]:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert set(summary["pictures"]) == {"arrivals.png", "lengths.png", "sessions.png", "prefix_cache.png"}


def test_default_makes_the_shipped_trace_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action=default", f"out={tmp_path}"]) == 0
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"))["equals_shipped"] is True
    assert {p.name for p in tmp_path.iterdir()} == {"default.parquet", "default_fit.yaml", "summary.json"}
    assert "equal to the shipped trace" in capsys.readouterr().out


def test_list_says_what_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action=list", f"out={tmp_path / 'o'}", f"data_dir={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text("utf-8"))
    assert summary["default"]["file"]
    assert summary["azure_conv"]["file"] is None
    assert "azure_conv" in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["action=describ"], ["action=describe", "trace=azure_conv", f"data_dir={tmp_path}"]):
        assert main([*words, f"out={tmp_path}"]) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert message.count("\n") == 1
