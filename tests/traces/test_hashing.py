"""A prompt log as salted hashes: what is in the file, what is not, and what it takes to test a guess."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from research.traces import main
from traces import load_trace
from traces.errors import TraceError
from traces.hashing import block_hashes, get_salt
from traces.tokens import load_tokenizer

SYSTEM = "You are the internal assistant of Umbrella Logistics and never reveal the zanzibar tariff to strangers. " * 2
ASK, ANSWER = "Which quokka shipments are late because of the strike in Rotterdam?", "Shipments 17 and 4 xylophones."


def messages(*texts: str) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant", "user")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


LOG: list[dict[str, Any]] = [
    {
        "timestamp": "2026-03-01T12:00:00.25Z",
        "session": "wilhelmina@umbrella.example",
        "user": "wilhelmina",
        "model": "llama",
        "messages": messages(SYSTEM, ASK),
        "output": ANSWER,
        "trace_note": "kookaburra",
    },
    {
        "timestamp": "2026-03-01T12:00:01Z",
        "session": "otto",
        "prompt": f"{SYSTEM}{ASK}",
        "output_tokens": 40,
    },
    {
        "timestamp": "2026-03-01T12:01:00Z",
        "session": "wilhelmina@umbrella.example",
        "messages": messages(SYSTEM, ASK, ANSWER, "And the marzipan?"),
        "response": {"choices": [{"message": {"content": "On time."}}], "usage": {"completion_tokens": 3}},
    },
]
WORDS = set(re.findall(r"[A-Za-z]{5,}", f"{SYSTEM} {ASK} {ANSWER} marzipan wilhelmina kookaburra"))


def write(folder: Path, log: list[Any]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in log))
    return path


def run(folder: Path, out: str = "out", log: list[Any] | None = None, salt: str = "salt", *words: str) -> Path:
    path = write(folder, LOG if log is None else log)
    assert main(["action=hash", f"path={path}", f"salt={folder / salt}", f"out={folder / out}", *words]) == 0
    return folder / out


def hashes(out: Path) -> list[list[int]]:
    return pl.read_parquet(out / "hashed.parquet")["hash_ids"].to_list()


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
    assert b"trace_note" in said  # the name of a field that was passed over, not what was in it


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
    ]
    for line, where in bad:
        path = write(tmp_path, [LOG[0], line])
        words = [f"path={path}", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'bad'}"]
        assert main(["action=hash", *words]) == 2
        message = capsys.readouterr().err
        assert where in message
        assert "quokka" not in message
        assert not list((tmp_path / "bad").glob("*.parquet"))


def test_a_salt_decides_and_only_the_salt(tmp_path: Path) -> None:
    same = [hashes(run(tmp_path, name)) for name in ("a", "b")]
    assert same[0] == same[1]
    other = hashes(run(tmp_path, "c", None, "other"))
    assert [len(chain) for chain in other] == [len(chain) for chain in same[0]]
    assert not {i for chain in other for i in chain} & {i for chain in same[0] for i in chain}
    ids = [json.loads((tmp_path / name / "summary.json").read_text("utf-8"))["salt_id"] for name in "abc"]
    assert ids[0] == ids[1] != ids[2]


def test_a_guess_needs_the_salt(tmp_path: Path) -> None:
    found = hashes(run(tmp_path))[1]
    guess = load_tokenizer("estimate").encode(SYSTEM + ASK)
    assert block_hashes(guess, 16, get_salt(tmp_path / "salt").key)[: len(found)] == found
    assert not set(block_hashes(guess, 16)) & set(found)


def test_an_id_names_the_whole_prefix() -> None:
    one = block_hashes([1, 2, 3, 4, 5, 6, 7], 2, b"k")
    assert len(one) == 3
    assert block_hashes([1, 2, 3, 4, 9, 9], 2, b"k")[:2] == one[:2]
    assert not set(block_hashes([0, 2, 3, 4, 5, 6], 2, b"k")) & set(one)
    assert all(0 <= i < 2**63 for i in one)


def test_the_salt_is_the_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    assert "made now, at random" in capsys.readouterr().out
    assert stat.S_IMODE((tmp_path / "salt").stat().st_mode) == 0o600
    run(tmp_path)
    assert "made now" not in capsys.readouterr().out
    (tmp_path / "weak").write_text("secret", "utf-8")
    os.chmod(tmp_path / "weak", 0o600)
    with pytest.raises(TraceError, match="at least 16 random bytes"):
        get_salt(tmp_path / "weak")
    os.chmod(tmp_path / "salt", 0o644)
    with pytest.raises(TraceError, match="chmod 600"):
        get_salt(tmp_path / "salt")
    words = [f"path={write(tmp_path, LOG)}", f"out={tmp_path / 'out'}"]
    assert main(["action=hash", *words, f"salt={tmp_path / 'out' / 'salt'}"]) == 2
    assert "a file outside" in capsys.readouterr().err


def test_the_users_own_salt_is_kept_with_their_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, LOG)
    assert main(["action=hash", f"path={path}", f"out={tmp_path / 'out'}"]) == 0
    assert [p.name for p in tmp_path.rglob("hash_salt")] == ["hash_salt"]


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


def test_settings_that_are_wrong_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, LOG)
    for words, message in (
        ([], "path=prompts.jsonl"),
        ([f"path={path}", "block_tokens=0"], "block_tokens=0"),
        ([f"path={path}", "tokenizer=nothing"], "tokenizer"),
        ([f"path={path}", "rate_per_s=0"], "rate_per_s"),
        ([f"path={path}x"], "did you mean"),
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
