"""A prompt log as salted hashes: what is in the file, and what is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from research.traces import main
from tests.traces.prompt_logs import ANSWER, ASK, LOG, SYSTEM, WORDS, hashes, messages, quick_salt, run, write  # noqa: F401
from traces import load_trace
from traces.hashing import block_hashes
from traces.tokens import load_tokenizer


def test_the_table_has_lengths_sessions_and_chains(tmp_path: Path) -> None:
    out = run(tmp_path)
    frame = pl.read_parquet(out / "hashed.parquet")
    encode = load_tokenizer("estimate").encode
    system, ask, answer = (len(encode(text)) for text in (SYSTEM, ASK, ANSWER))
    assert frame["arrival_s"].to_list() == pytest.approx([0.0, 0.75, 59.75])
    assert frame["session"].to_list() == [0, 1, 0]
    assert frame["tenant"].to_list() == ["tenant_0", None, None]
    assert frame["model"].to_list() == ["llama", None, None]
    assert frame["prompt_tokens"][0] == 1 + system + 1 + ask + 1
    assert frame["output_tokens"].to_list() == [answer, 40, 3]
    assert frame.schema["hash_ids"] == pl.List(pl.Int64)
    one, alone, two = hashes(out)
    whole = frame["prompt_tokens"] + frame["output_tokens"]
    assert [len(one), len(two)] == [whole[0] // 16, (whole[2] // 16)]
    assert len(alone) == frame["prompt_tokens"][1] // 16  # the answer's text is not in the log
    assert two[: len(one)] == one  # the next prompt repeats the answer
    assert not set(alone) & set(one)  # no role before the text: another prefix
    assert min(one + alone) >= 0
    head = json.loads(pl.read_parquet_metadata(out / "hashed.parquet")["pdgym.hash"])
    assert (head["version"], head["block_tokens"]) == (1, 16)


def test_no_text_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(tmp_path, "out", None, "salt", "block_tokens=4")
    printed = capsys.readouterr()
    said = (printed.out + printed.err).encode().replace(str(tmp_path).encode(), b"")
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"hashed.parquet", "summary.json"}
    for data in [said, *(path.read_bytes() for path in files)]:
        for word in WORDS:
            assert word.lower().encode() not in data.lower()
    columns = pl.read_parquet(out / "hashed.parquet")
    assert not [c for c in columns.columns if columns.schema[c] == pl.String and c not in ("model", "tenant")]
    assert b"1 fields not read, on 1 of 3 requests" in said


def test_a_bad_line_is_named_without_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad: list[tuple[Any, str]] = [
        (b'{"prompt": "quokka strike, "output_tokens": 3}', "row 2"),
        ({"timestamp": 5, "prompt": {"text": "quokka"}, "output_tokens": 3}, "row 2, column 'prompt'"),
        ({"timestamp": 5, "output_tokens": 3, "text": "quokka"}, "row 2, column 'prompt'"),
        ({"timestamp": 5, "prompt": "quokka"}, "row 2, column 'output_tokens'"),
        ({"timestamp": 5, "prompt": "quokka", "output": ["quokka"]}, "row 2, column 'output'"),
        ({"timestamp": 5, "prompt": "quokka", "output_tokens": "quokka"}, "row 2, column 'output_tokens'"),
        ({"timestamp": 5, "messages": [{"content": "quokka"}], "output_tokens": 3}, "row 2, column 'messages'"),
        ({"timestamp": -5, "prompt": "quokka", "output_tokens": 3}, "row 2, column 'timestamp'"),
        ({"timestamp": 5, "prompt": "", "output_tokens": 3}, "row 2, column 'prompt'"),
        (b'["quokka"]', "row 2"),
        (b'{"prompt": "quokka \xff"}', "row 2"),
        ({"timestamp": "quokka at noon", "prompt": "quokka", "output_tokens": 3}, "row 2, column 'timestamp'"),
        ({"quokka strike": 1, "promt": "quokka", "output_tokens": 3}, "found 'neither, in 3 fields'"),
        ({"timestamp": 5, "promt": "quokka", "output_tokens": 3}, "did you mean 'prompt'?"),
        ({"timestamp": 5, "prompt": "quokka", "output_tokens": 3, "model": "the quokka"}, "row 2, column 'model'"),
        ({"timestamp": 5, "prompt": "quokka", "output_tokens": 3, "model": "\ud83d"}, "row 2, column 'model'"),
        ({"timestamp": 5, "prompt": "quokka", "output_tokens": 3, "user": {"quokka": 1}}, "row 2, column 'user'"),
        ({"timestamp": 5, "prompt": "quokka", "output_tokens": 3, "max_tokens": 1.5}, "row 2, column 'max_tokens'"),
        ({"timestamp": 5, "prompt": "quokka", "output_tokens": 4915112345678}, "row 2, column 'output_tokens'"),
        ({"timestamp": -4915112345678, "prompt": "quokka", "output_tokens": 1}, "row 2, column 'timestamp'"),
    ]
    for line, where in bad:
        path = write(tmp_path, [LOG[0], line])
        words = [f"path={path}", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'bad'}"]
        assert main(["action=hash", *words]) == 2
        message = capsys.readouterr().err
        assert where in message
        assert "quokka" not in message
        assert "4915112345678" not in message
        assert not list((tmp_path / "bad").glob("*.parquet"))


def test_an_id_names_the_whole_prefix() -> None:
    one = block_hashes([1, 2, 3, 4, 5, 6, 7], 2, b"k")
    assert len(one) == 3
    assert block_hashes([1, 2, 3, 4, 9, 9], 2, b"k")[:2] == one[:2]
    assert not set(block_hashes([0, 2, 3, 4, 5, 6], 2, b"k")) & set(one)
    assert all(0 <= i < 2**63 for i in one)


def test_times_are_asked_for_or_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = [{"prompt": [1, 2, 3], "output_tokens": 3}] * 200
    path = write(tmp_path, plain)
    words = ["action=hash", f"path={path}", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'out'}"]
    assert main(words) == 2
    assert "rate_per_s=R" in capsys.readouterr().err
    assert main([*words, "rate_per_s=10"]) == 0
    arrival = pl.read_parquet(tmp_path / "out/hashed.parquet")["arrival_s"]
    assert arrival[-1] == pytest.approx(20.0, rel=0.3)
    write(tmp_path, LOG)
    assert main([*words, "rate_per_s=10"]) == 2
    assert "times of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "stamps"),
    [
        ("timestamp", [1.7e9, 1.7e9 + 2.5, 1.7e9 + 1]),
        ("timestamp_ms", [0, 2500, 1000]),
        ("created", [1_700_000_000_000, 1_700_000_002_500, 1_700_000_001_000]),
        ("arrival_s", ["0", "2.5", "1"]),
        ("ts_ns", [1_700_000_000_000_000_000, 1_700_000_002_500_000_000, 1_700_000_001_000_000_000]),
    ],
)
def test_stamps_become_seconds_in_order(tmp_path: Path, name: str, stamps: list[Any]) -> None:
    log = [{name: stamp, "prompt": [7] * (k + 1), "output_tokens": 1} for k, stamp in enumerate(stamps)]
    out = run(tmp_path, "out", log)
    frame = pl.read_parquet(out / "hashed.parquet")
    assert frame["arrival_s"].to_list() == pytest.approx([0.0, 1.0, 2.5])
    assert frame["prompt_tokens"].to_list() == [1, 3, 2]
    notes = json.loads((out / "summary.json").read_text("utf-8"))["notes"]
    assert any("1 steps back in time, requests sorted" in note for note in notes)


def test_pieces_and_packed_logs_make_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hashes(run(tmp_path))
    monkeypatch.setattr("research.trace_actions.hashing._PIECE", 1)
    packed = tmp_path / "prompts.jsonl.gz"
    packed.write_bytes(gzip.compress(write(tmp_path, LOG).read_bytes()))
    assert main(["action=hash", f"path={packed}", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'p'}"]) == 0
    assert hashes(tmp_path / "p") == whole
    counted = json.loads((tmp_path / "p" / "summary.json").read_text("utf-8"))["distinct_blocks"]
    assert counted == len({i for chain in whole for i in chain})  # by shares, as _PIECE is small


def test_settings_that_are_wrong_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, LOG)
    for words, message in (
        ([], "path=prompts.jsonl"),
        ([f"path={path}", "block_tokens=0"], "block_tokens=0"),
        ([f"path={path}", "tokenizer=nothing"], "tokenizer"),
        ([f"path={path}", "rate_per_s=0"], "rate_per_s"),
        ([f"path={path}x"], "did you mean"),
        ([f"path={path}", 'salt="a\0b"'], "expected the path of a file"),
    ):
        assert main(["action=hash", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'out'}", *words]) == 2
        assert message in capsys.readouterr().err


def test_the_table_reader_takes_it(tmp_path: Path) -> None:
    trace = load_trace(run(tmp_path) / "hashed.parquet")
    chains = [trace.chain(row).tolist() for row in range(3)]
    assert trace.prefix_block_tokens == 16
    assert [len(chain) for chain in chains] == [len(chain) for chain in hashes(tmp_path / "out")]
    assert chains[2][: len(chains[0])] == chains[0]
    assert trace.frame["turn"].to_list() == [1, 1, 2]
    long = [{"timestamp": k, "prompt": "one two three", "output": "x y z " * 99} for k in range(2)]
    again = load_trace(run(tmp_path, "long", long) / "hashed.parquet", format="table")
    assert again.chain(0).tolist() == again.chain(1).tolist() != []
    assert any("2 go on into their answer" in note for note in again.provenance)


def talk(answer: str, recorded: int | None) -> list[dict[str, Any]]:
    """Two turns; the second repeats the answer of the first."""
    count = {} if recorded is None else {"output_tokens": recorded}
    first = {"timestamp": 1, "session": 5, "messages": messages(SYSTEM, ASK), "output": answer, **count}
    again = messages(SYSTEM, ASK, answer, ASK)
    return [first, {"timestamp": 9, "session": 5, "messages": again, "output_tokens": 5}]


def test_an_answer_whose_thinking_is_not_in_the_log_is_of_no_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ANSWER * 20
    length = len(load_tokenizer("estimate").encode(answer))
    for recorded, left_out in ((None, 0), (length, 0), (length + length // 4 + 1, 0), (length * 3, 1)):
        out = run(tmp_path, f"out{recorded}", talk(answer, recorded))
        said = f"{left_out} of 2 answers are longer than their text"
        assert (said in capsys.readouterr().out) == bool(left_out)
        first, second = hashes(out)
        frame = pl.read_parquet(out / "hashed.parquet")
        assert len(first) == (frame["prompt_tokens"][0] + (0 if left_out else length)) // 16
        assert second[: len(first)] == first
        trace = load_trace(out / "hashed.parquet", format="table")
        assert trace.chain(0).size == len(first)


def test_a_session_called_null_is_none(tmp_path: Path) -> None:
    names = ("null", "null", "NaN", " None ", "a", "a")
    log = [{"timestamp": k, "session": s, "user": s, "prompt": "x", "output_tokens": 1} for k, s in enumerate(names)]
    out = run(tmp_path, "out", log)
    frame = pl.read_parquet(out / "hashed.parquet")
    assert frame["session"].to_list() == [None] * 4 + [0, 0]
    assert frame["tenant"].to_list() == [None] * 4 + ["tenant_0"] * 2
    notes = json.loads((out / "summary.json").read_text("utf-8"))["notes"]
    assert any("4 requests are in no session" in note for note in notes)


def test_the_summary_holds_no_path(tmp_path: Path) -> None:
    out = run(tmp_path)
    assert str(tmp_path) not in (out / "summary.json").read_text("utf-8")


def test_what_is_drawn_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, [{"prompt": [1] * 20, "output_tokens": 1}] * 3)
    for words, message in (
        (["rate_per_s=1", "seed=-1"], "seed=-1: expected a whole number"),
        (["rate_per_s=1", "seed=abc"], "seed='abc'"),
        (["rate_per_s=1", "seed=1.5"], "seed=1.5"),
        (["seed=1"], "seed=1: expected rate_per_s=R with it"),
        (["rate_per_s=true"], "rate_per_s=True"),
        (["rate_per_s=1e-320"], "rate_per_s=1e-320"),
    ):
        assert (
            main(["action=hash", f"path={path}", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'out'}", *words]) == 2
        )
        assert message in capsys.readouterr().err
