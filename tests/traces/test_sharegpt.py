from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples import write
from tests.traces.samples_conversations import MESSAGES, SHAREGPT, SYSTEM, jsonl
from traces import Trace, TraceError, load_trace
from traces.tokens import load_tokenizer


def words(text: str) -> list[int]:
    """A tokenizer for tests: one token a word."""
    return [sum(map(ord, word)) for word in text.split()]


WORDS = f"{__name__}:words"


def read(tmp_path: Path, records: Any = SHAREGPT, **options: Any) -> Trace:
    data = records if isinstance(records, bytes) else json.dumps(records).encode()
    path = write(tmp_path, "sharegpt.json", data)
    return load_trace(
        path, **({"rate_per_s": 1.0, "think_s": 5.0, "tokenizer": WORDS, "prefix_block_tokens": 4} | options)
    )


def test_answers_are_turns_of_a_session(tmp_path: Path) -> None:
    trace = read(tmp_path)
    frame = trace.frame.sort("session", "turn")
    system = len(SYSTEM.split())
    # One token for the role of each message, the answer's own included.
    assert frame["prompt_tokens"].to_list() == [
        1 + system + 1 + 10 + 1,
        1 + system + 1 + 10 + 1 + 12 + 1 + 2 + 1,
        system + 7,
    ]
    assert frame["output_tokens"].to_list() == [12, 16, 5]  # two answers in a row are one
    assert frame["turn"].to_list() == [1, 2, 1]
    assert frame["think_s"].to_list() == [None, 5.0, None]
    assert trace.replay == "closed"
    notes = " ".join(trace.provenance)
    assert "3 conversations, 1 of them without a turn; 1 begin with an answer" in notes
    assert "2 end with a question" in notes


def test_prefixes_come_from_the_text(tmp_path: Path) -> None:
    trace = read(tmp_path)
    rows = trace.frame.with_row_index("row").sort("session", "turn")["row"]
    one, two, other = (trace.chain(row).tolist() for row in rows)
    tokens = trace.frame["prompt_tokens"] + trace.frame["output_tokens"]
    assert [len(one), len(two), len(other)] == [tokens[row] // 4 for row in rows]
    assert two[: len(one)] == one
    shared = (1 + len(SYSTEM.split()) + 1) // 4
    assert other[:shared] == one[:shared]
    assert not set(other[shared:]) & set(two[shared:])


def test_arrivals_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.options\.rate_per_s.*no times"):
        read(tmp_path, rate_per_s=None)
    with pytest.raises(TraceError, match=r"trace\.options\.think_s.*1 later turns.*max_turns=1"):
        read(tmp_path, think_s=None)
    alone = read(tmp_path, think_s=None, max_turns=1)
    assert (alone.replay, len(alone)) == ("open", 2)
    assert read(tmp_path, seed=1).sha256 == read(tmp_path, seed=1).sha256 != read(tmp_path, seed=2).sha256
    many = read(tmp_path, SHAREGPT[:1] * 400, rate_per_s=4.0)
    assert many.duration_s == pytest.approx(100.0, rel=0.2)
    assert any("Poisson, 4 sessions a second" in note for note in many.provenance)


def test_messages_as_json_lines(tmp_path: Path) -> None:
    trace = read(tmp_path, jsonl(MESSAGES), max_turns=1, think_s=None)
    assert trace.frame["prompt_tokens"].to_list() == [3, 5]
    assert trace.frame["model"].to_list() == ["m", None]


def test_the_estimate_is_told_and_near(tmp_path: Path) -> None:
    trace = read(tmp_path, tokenizer="estimate")
    assert any("tokens estimated without a tokenizer: English" in note for note in trace.provenance)
    encode = load_tokenizer("estimate").encode
    # 36 tokens by cl100k, DeepSeek-V3's and an early Claude's, 35 by o200k.
    text = (
        "The quick brown fox jumps over the lazy dog. Tokenizers cut internationalization into several pieces, and "
        "numbers such as 123456 into groups of three digits, don't they?\n"
    )
    assert len(encode(text)) == pytest.approx(36, abs=2)
    assert encode(text + "x")[: len(encode(text)) - 1] == encode(text)[:-1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("estimat", "estimate, package.module:function"),
        ("no.such.module:f", "an importable module"),
        ("json:no_such", "a function 'no_such' in json"),
        ("missing.json", "an existing tokenizer.json"),
        ("builtins:len", "to return token ids"),
        (3, "expected text"),
    ],
)
def test_a_tokenizer_that_is_none_is_told(tmp_path: Path, spec: object, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, tokenizer=spec)


def test_a_tokenizer_json_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    path = write(tmp_path, "tokenizer.json", b"{}")
    if importlib.util.find_spec("tokenizers") is None:
        with pytest.raises(TraceError, match="package `tokenizers`"):
            load_tokenizer(str(path))
    else:
        with pytest.raises(TraceError, match=r"Hugging Face tokenizer\.json"):
            load_tokenizer(str(path))


def broken(**message: Any) -> list[dict[str, Any]]:
    return [SHAREGPT[0], {"conversations": [{"from": "human", "value": "a"} | message]}]


@pytest.mark.parametrize(
    ("records", "column"),
    [
        (broken(**{"from": "humam"}), "conversations[1].from"),
        (broken(**{"from": "quokka"}), "conversations[1].from"),
        (broken(value={"quokka": 3}), "conversations[1].value"),
        ([SHAREGPT[0], {"conversations": ["quokka"]}], "conversations[1]"),
        ([SHAREGPT[0], {"conversation": "quokka"}], "conversation"),
        ([SHAREGPT[0], {"quokka": "hi"}], "conversations"),
        ([SHAREGPT[0], "quokka"], None),
        (json.dumps(SHAREGPT[:1]).encode()[:-1] + b', {"quokka": }]', None),
        (json.dumps(SHAREGPT[:1]).encode()[:-1] + b', {"quokka": ' + b"9" * 5000 + b"}]", None),
        (jsonl(MESSAGES[:1]) + b'{"quokka": }', None),
        (jsonl(MESSAGES[:1]) + b'["quokka"]', None),
    ],
)
def test_a_bad_message_is_named_by_place_without_its_text(tmp_path: Path, records: Any, column: str | None) -> None:
    with pytest.raises(TraceError) as raised:
        read(tmp_path, records)
    assert (raised.value.row, raised.value.column) == (2, column)
    assert "quokka" not in str(raised.value)


def test_a_list_that_is_cut_off_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="row 3"):
        read(tmp_path, json.dumps(SHAREGPT).encode()[:-9])


def exits(text: str) -> list[int]:
    raise SystemExit(text)


def test_a_tokenizer_that_fails_is_named_by_conversation(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="found 'SystemExit'") as raised:
        read(tmp_path, [{"conversations": []}, *SHAREGPT], tokenizer=f"{__name__}:exits")
    assert (raised.value.row, raised.value.column) == (2, "trace.options.tokenizer")
    assert "gardener" not in str(raised.value)


def test_halves_of_surrogate_pairs_are_mended_and_counted(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a \ud83d b"}, {"role": "assistant", "content": "c"}]
    trace = read(tmp_path, [{"model": "m\ud83d", "messages": said}], tokenizer="estimate")
    assert trace.frame["model"].to_list() == ["m\ufffd"]
    assert "repair: 1 texts had halves of surrogate pairs, now U+FFFD" in trace.provenance
