"""``python -m research.traces``, called as a function: what it prints and leaves."""

from __future__ import annotations

import json
import re
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


def test_out_is_made_and_checked_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from research.trace_actions import describing, hashing, listing

    def never(*_: object) -> None:
        raise AssertionError("the work is not begun")

    (tmp_path / "file").write_text("mine")
    for module in (listing, describing, hashing):
        monkeypatch.setattr(module, "run", never)
    for action in ("list", "describe", "hash"):
        for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none", "[1]"):
            assert main([f"action={action}", f"out={place}"]) == 2
            assert re.fullmatch(r"error: out=.*: expected a folder.*\n", capsys.readouterr().err)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failed_action_leaves_no_empty_folder(tmp_path: Path) -> None:
    assert main(["action=generate", "path=none.yaml", f"out={tmp_path / 'a' / 'b'}"]) == 2
    assert not list(tmp_path.iterdir())


def test_odd_settings_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    (tmp_path / "fit.yaml").write_text("[" * 3000)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "output": "b"}\n')
    hashed = ["action=hash", f"path={tmp_path / 'p.jsonl'}", f"salt={tmp_path / 'salt'}", "rate_per_s=1"]
    for words, named in (
        ([f"trace.path={tmp_path / 't.csv'}", "trace.format=5"], "trace.format"),
        (["trace.path=~nouser/t.csv"], "nouser"),
        ([*hashed, "seed=-1"], "seed=-1"),
        ([*hashed, "seed=abc"], "seed='abc'"),
        (["action=generate", f"path={tmp_path / 'fit.yaml'}"], "fit.yaml: expected a generator"),
        (["action=generate", "path=x.yaml", "trace=azure_conv"], "action=fit trace=azure_conv makes"),
        (["action=list", "trace.steps=[{name: thin, keep: 0.5}]"], "reads no trace"),
    ):
        assert main([*words, f"out={tmp_path / 'o'}"]) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert named in message
        assert message.count("\n") == 1


def test_a_trace_without_zones_is_not_sent_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n10,1,1\n")
    assert main([f"trace.path={path}", f"out={tmp_path / 'o'}"]) == 0
    said = capsys.readouterr().out
    assert "too few to cut into zones" in said
    assert "next: research.compare needs zones" in said
    path = tmp_path / "longer.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},1,1\n" for i in range(100)))
    assert main([f"trace.path={path}", f"out={tmp_path / 'p'}"]) == 0
    assert "next: python -m research.compare trace.path=" in capsys.readouterr().out
