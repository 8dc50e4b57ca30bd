from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from traces import Trace, TraceError, check
from traces import trace as trace_module


def build(**change: Any) -> Trace:
    columns: dict[str, Any] = {
        "arrival_s": [0.0, 1.0, 2.0, 3.0],
        "session": [0, 1, 0, -1],
        "turn": [1, 1, 2, 1],
        "think_s": [None, None, 0.5, None],
        "prompt_tokens": [100, 200, 140, 64],
        "output_tokens": [20, 10, 5, 1],
    }
    settings: dict[str, Any] = {"replay": "closed"}
    for key, value in change.items():
        (columns if key in columns or key in ("class", "priority", "extra") else settings)[key] = value
    return Trace.build("t", {k: v for k, v in columns.items() if v is not None}, **settings)


CHAINS = {
    "chain_offsets": np.array([0, 1, 4, 6, 7]),
    "chain_ids": np.array([7, 9, 10, 11, 7, 3, 7]),
    "prefix_block_tokens": 64,
}


def test_build_sorts_and_numbers_by_first_appearance() -> None:
    trace = build(arrival_s=[5.0, 1.0, 6.0, 0.0], session=[30, 20, 30, -1], replay="closed", **CHAINS)
    assert trace.frame["arrival_s"].to_list() == [0.0, 1.0, 5.0, 6.0]
    assert trace.frame["session"].to_list() == [-1, 0, 1, 1]
    assert [trace.chain(i).tolist() for i in range(4)] == [[0], [1, 2, 3], [0], [0, 4]]
    assert (trace.n_sessions, trace.n_prefix_ids, len(trace)) == (2, 5, 4)


def test_equal_content_has_an_equal_hash_whatever_its_labels_and_order() -> None:
    one = build(**CHAINS)
    index = np.array([2, 3, 0, 1])
    chains = [[7, 3], [7], [7], [9, 10, 11]]
    relabelled = Trace.build(
        "another name",
        one.frame[index].with_columns(session=pl.Series([50, -9, 50, 60])),
        chain_offsets=np.r_[0, np.cumsum([len(c) for c in chains])],
        chain_ids=np.concatenate(chains) * 1000,
        prefix_block_tokens=64,
        replay="closed",
        provenance=["somewhere else"],
    )
    assert relabelled.sha256 == one.sha256


@pytest.mark.parametrize(
    "change",
    [
        {"arrival_s": [0.0, 1.0, 2.0, 3.5]},
        {"think_s": [None, None, 0.25, None]},
        {"prompt_tokens": [100, 200, 140, 65]},
        {"replay": "open"},
        {"duration_s": 10.0},
        {"class": ["a", "b", "a", "a"]},
        {"priority": [0, 0, 0, 0]},
        CHAINS,
    ],
)
def test_different_content_has_a_different_hash(change: dict[str, Any]) -> None:
    assert build(**change).sha256 != build().sha256


def test_negative_zero_is_zero() -> None:
    assert build(arrival_s=[-0.0, 1.0, 2.0, 3.0]).sha256 == build().sha256


BAD = [
    ("NaN", {"arrival_s": [0.0, float("nan"), 2.0, 3.0]}, "arrival_s", "from 0"),
    ("negative", {"arrival_s": [-1.0, 1.0, 2.0, 3.0]}, "arrival_s", "from 0"),
    ("no prompt", {"prompt_tokens": [100, 0, 140, 64]}, "prompt_tokens", "from 1"),
    ("a huge prompt", {"prompt_tokens": [100, 10**12, 140, 64]}, "prompt_tokens", "10,000,000"),
    ("a fraction", {"prompt_tokens": [100.5, 1.0, 140.0, 64.0]}, "prompt_tokens", "whole"),
    ("text", {"prompt_tokens": ["a", "b", "c", "d"]}, "prompt_tokens", "Int64"),
    ("no tokens out", {"output_tokens": [20, 0, 5, 1]}, "output_tokens", "from 1"),
    ("a turn twice", {"turn": [1, 1, 1, 1], "think_s": None, "replay": "open"}, "turn", "only once"),
    ("a missing turn", {"turn": [1, 1, 3, 1]}, "turn", "turns 1, 2, 3"),
    ("a turn alone", {"session": [0, 1, -1, -1]}, "turn", "1 without a session"),
    ("think on turn 1", {"think_s": [0.0, None, 0.5, None]}, "think_s", "null"),
    ("no think", {"think_s": [None] * 4}, "think_s", "replay=closed"),
    ("a replay", {"replay": "opened"}, "replay", "did you mean 'open'"),
    ("an unknown column", {"extra": [1, 2, 3, 4]}, "extra", "a trace column"),
    ("a class", {"class": ["a", "b", "a", "c"], "classes": ["a", "bb"]}, "class", "one of a, bb"),
    ("a short duration", {"duration_s": 2.5}, "duration_s", "at least the last arrival"),
    ("a missing column", {"output_tokens": None}, "output_tokens", "present"),
]


@pytest.mark.parametrize(("change", "column", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_is_no_trace(change: dict[str, Any], column: str, expected: str) -> None:
    with pytest.raises(TraceError) as raised:
        build(**change)
    assert raised.value.column == column
    assert expected in str(raised.value)


BAD_CHAINS = [
    ("longer than its tokens", {"chain_offsets": np.array([0, 2, 4, 6, 7])}, "at most 1 full blocks"),
    ("one id after two prefixes", {"chain_ids": np.array([7, 9, 10, 11, 7, 11, 7])}, "whole prefix"),
    ("negative", {"chain_ids": np.array([-7, 9, 10, 11, 7, 3, 7])}, "0 or more"),
    ("no block size", {"prefix_block_tokens": 0}, "block size"),
    ("a short CSR", {"chain_offsets": np.array([0, 1, 4, 7])}, "chain_offsets"),
    ("a CSR that runs back", {"chain_offsets": np.array([0, 4, 1, 6, 7])}, "chain_offsets"),
]


@pytest.mark.parametrize(("change", "expected"), [b[1:] for b in BAD_CHAINS], ids=[b[0] for b in BAD_CHAINS])
def test_what_is_no_chain(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(TraceError, match=expected):
        build(**(CHAINS | change))


def test_the_constructor_takes_final_form_only() -> None:
    good = build(**CHAINS)
    same = Trace("t", good.frame, good.chain_offsets, good.chain_ids, 64, "closed", duration_s=good.duration_s)
    assert same.sha256 == good.sha256
    with pytest.raises(TraceError, match="sort=true"):
        Trace("t", good.frame[::-1], good.chain_offsets, good.chain_ids, 64, "closed")
    with pytest.raises(TraceError, match="at least one request"):
        Trace("t", good.frame[:0], np.zeros(1, np.int64), np.zeros(0, np.int32), 0)
    with pytest.raises(TraceError, match="dense session numbers"):
        Trace("t", good.frame.with_columns(session=pl.Series([0, 2, 0, -1])), good.chain_offsets, good.chain_ids, 64)


def test_a_trace_cannot_be_changed() -> None:
    trace = build(**CHAINS)
    with pytest.raises(AttributeError):
        trace.name = "x"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        trace.chain_ids[0] = 5


def test_the_error_says_what_is_wrong_in_one_line() -> None:
    error = TraceError(file="a.csv", row=3, column="x", value="y" * 200, expected="something short")
    assert str(error).startswith("a.csv, row 3, column 'x': found 'yyy")
    assert str(error).endswith("expected something short")
    assert len(str(error)) < 160
    assert "\n" not in str(error)


def test_with_replay_keeps_the_requests() -> None:
    closed = build(**CHAINS)
    opened = closed.with_replay("open")
    assert opened.frame.equals(closed.frame)
    assert opened.duration_s == 3.0
    assert closed.with_replay("closed") is closed
    assert opened.with_replay("closed").sha256 == closed.sha256


@pytest.mark.parametrize("labels", [range(-1, 12), range(12), range(-1, 12 * 10**12, 10**12)], ids=str)
def test_order_and_session_numbers_against_a_plain_sort(labels: range) -> None:
    rng = np.random.default_rng(3)
    session = rng.choice(np.array(labels), 80)
    arrival = rng.integers(0, 25, 80) / 2  # many arrive together
    turn, count = np.ones(80, np.int64), dict.fromkeys(labels, 0)
    for row in np.argsort(arrival, kind="stable"):
        count[session[row]] += session[row] >= 0
        turn[row] = max(1, count[session[row]])
    columns = {"arrival_s": arrival, "session": session, "turn": turn}
    trace = Trace.build("t", {**columns, "prompt_tokens": np.arange(1, 81), "output_tokens": np.ones(80)})

    first = {s: (arrival[session == s].min(), s) for s in set(session.tolist()) - {-1}}
    number = {s: k for k, s in enumerate(sorted(first, key=first.__getitem__))} | {-1: -1}
    wanted = [(arrival[i], number[session[i]], turn[i], i + 1) for i in range(80)]
    got = trace.frame.select("arrival_s", "session", "turn", "prompt_tokens").rows()
    assert [row[:3] for row in got] == sorted(row[:3] for row in wanted)
    assert sorted(got) == sorted(wanted)


def test_large_traces_are_checked_chunk_by_chunk_to_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(**CHAINS)
    for module in (check, trace_module):
        monkeypatch.setattr(module, "CHUNK", 2)
    assert build(**CHAINS).sha256 == whole.sha256
    for _, chains, expected in BAD_CHAINS:
        with pytest.raises(TraceError, match=expected):
            build(**(CHAINS | chains))
    for _, change, column, expected in BAD:
        with pytest.raises(TraceError, match=f"{column}.*{expected}"):
            build(**change)


def test_the_hash_is_that_of_earlier_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = "79fc499dddbfced5cfb3433062764e34cd1447d35eafaece84b935cfdc2fbb05"
    words = {"class": ["a", "b", "a", "\u00e9"]}
    assert build(**CHAINS, **words).sha256 == pinned
    monkeypatch.setattr(trace_module, "CHUNK", 3)
    assert build(**CHAINS, **words).sha256 == pinned
