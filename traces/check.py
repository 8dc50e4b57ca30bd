"""What a valid trace frame is, and the checks that hold it to that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError, nearest

MAX_TOKENS = 10_000_000
"""Longest prompt or output that is believed: ten times the largest context window on offer."""

REPLAY_MODES = ("open", "closed", "clients")

CHUNK = 1 << 20
"""Rows of a large trace that are looked at in one step: temporary arrays stay small."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a trace frame. ``low``/``high`` bound numbers, inclusive."""

    name: str
    dtype: pl.DataType
    required: bool
    nullable: bool
    low: float | None
    high: float | None
    meaning: str


_F, _I, _S = pl.Float64(), pl.Int64(), pl.String()
_BIG = 2.0**62

COLUMNS: tuple[Column, ...] = (
    Column("arrival_s", _F, True, False, 0.0, 1e10, "arrival, seconds from the start of the trace"),
    Column("session", _I, True, False, -1, _BIG, "dense session number, -1 for none"),
    Column("turn", _I, True, False, 1, 2**31 - 1, "turn in the session, from 1"),
    Column("think_s", _F, True, True, 0.0, 1e10, "end of the previous turn to this arrival, null on turn 1"),
    Column("prompt_tokens", _I, True, False, 1, MAX_TOKENS, "prompt length"),
    Column("output_tokens", _I, True, False, 1, MAX_TOKENS, "output length"),
    Column("class", _S, False, False, None, None, "service class"),
    Column("priority", _I, False, False, -_BIG, _BIG, "larger is more urgent"),
    Column("tenant", _S, False, True, None, None, "tenant"),
    Column("model", _S, False, True, None, None, "model"),
    Column("lora", _S, False, True, None, None, "LoRA adapter"),
    Column("max_output_tokens", _I, False, True, 1, _BIG, "the client's limit"),
    Column("output_hint_tokens", _I, False, True, 1, _BIG, "output-length hint that a router may see"),
    Column("cancel_after_s", _F, False, True, 0.0, 1e10, "client cancels this long after arrival"),
    Column("prefill_worker", _I, False, True, -1, _BIG, "logged route"),
    Column("decode_worker", _I, False, True, -1, _BIG, "logged route"),
    Column("ttft_s", _F, False, True, 0.0, 1e10, "logged time to first token"),
    Column("tpot_s", _F, False, True, 0.0, 1e10, "logged time per output token"),
    Column("status", _S, False, True, None, None, "logged outcome"),
    # What a replay of the very same answers needs besides; written by envs.logged, absent where it is the default.
    Column("routed_after_s", _F, False, True, 0.0, 1e10, "logged wait at the router, from arrival to route"),
    Column("order_key", _F, False, True, -1e300, 1e300, "logged place in the engine's queue, smaller first"),
    Column("local_chunk_tokens", _I, False, True, 0, MAX_TOKENS, "logged cap on a local prefill's chunks, 0 for none"),
    Column("logged_order", _I, False, False, 0, _BIG, "logged order of requests within one instant"),
)
LOGGED = tuple(c.name for c in COLUMNS[[c.name for c in COLUMNS].index("prefill_worker") :])
"""What happened to a request where the trace was recorded. No policy sees any of it, but for ``logged``."""

BY_NAME = {column.name: column for column in COLUMNS}
REQUIRED = tuple(column.name for column in COLUMNS if column.required)


def row_of(mask: NDArray[np.bool_]) -> int:
    """Row, counted from 1, of the first true entry."""
    return int(np.argmax(mask)) + 1


def check_frame(frame: pl.DataFrame, file: str) -> None:
    """Raise :class:`TraceError` unless the frame has the columns, types, ranges and order of a trace.

    Args:
        frame: (n,) rows, one a request.
        file: named in the error.
    """
    for column in COLUMNS:
        if column.required and column.name not in frame.columns:
            hint = nearest(column.name, frame.columns)
            raise TraceError(file=file, column=column.name, expected=f"this column to be present{hint}")
    for name in frame.columns:
        if name not in BY_NAME:
            raise TraceError(file=file, column=name, expected=f"a trace column{nearest(name, BY_NAME)}")
        _check_column(frame[name], BY_NAME[name], file)
    if frame.height == 0:
        raise TraceError(file=file, expected="at least one request")
    _check_order(frame, file)


def _check_column(values: pl.Series, column: Column, file: str) -> None:
    if values.dtype != column.dtype:
        raise TraceError(file=file, column=column.name, value=str(values.dtype), expected=f"type {column.dtype}")
    if not column.nullable and values.null_count():
        row = row_of(values.is_null().to_numpy())
        raise TraceError(file=file, row=row, column=column.name, value="null", expected=column.meaning)
    if column.low is None or column.high is None:
        return
    # NaN fails both comparisons, so it is caught here as well.
    fine = (values >= column.low) & (values <= column.high)
    if not fine.all():
        bad = ~fine.fill_null(True).to_numpy()
        row = row_of(bad)
        expected = f"a number from {column.low:,.15g} to {column.high:,.15g} ({column.meaning})"
        raise TraceError(file=file, row=row, column=column.name, value=values[row - 1], expected=expected)


def _check_order(frame: pl.DataFrame, file: str) -> None:
    arrival = frame["arrival_s"].to_numpy()
    session = frame["session"].to_numpy()
    turn = frame["turn"].to_numpy()
    back = arrival[1:] < arrival[:-1]
    ties = np.flatnonzero(arrival[1:] == arrival[:-1])
    if ties.size:
        earlier, later = session[ties], session[ties + 1]
        back[ties] = (later < earlier) | ((later == earlier) & (turn[ties + 1] < turn[ties]))
    if back.any():
        row = row_of(back) + 1
        raise TraceError(
            file=file,
            row=row,
            column="arrival_s",
            value=float(arrival[row - 1]),
            expected="rows in order of (arrival_s, session, turn); trace.options.sort=true orders them",
        )
    bad = (session < 0) & (turn != 1)
    if bad.any():
        row = row_of(bad)
        raise TraceError(file=file, row=row, column="turn", value=int(turn[row - 1]), expected="1 without a session")
    think = frame["think_s"]
    if think.null_count() < think.len():
        bad = (turn == 1) & think.is_not_null().to_numpy()
        if bad.any():
            row = row_of(bad)
            value = think[row - 1]
            raise TraceError(file=file, row=row, column="think_s", value=value, expected="null on the first turn")
    _check_turns(session, turn, file)


def _check_turns(session: NDArray[np.int64], turn: NDArray[np.int64], file: str) -> None:
    n_sessions = int(session.max()) + 1
    if not n_sessions:
        return
    inside = session if session.min() >= 0 else session[session >= 0]
    count: NDArray[np.int64] = np.zeros(1, np.int64)
    if n_sessions <= inside.size:
        count = np.bincount(inside, minlength=n_sessions).astype(np.int64, copy=False)
    if count.min() == 0:
        raise TraceError(file=file, column="session", value=n_sessions - 1, expected="dense session numbers from 0")
    if not _turns_in_order(session, turn, count):
        _raise_turns(session, turn, file)


def _turns_in_order(session: NDArray[Any], turn: NDArray[Any], count: NDArray[np.int64]) -> bool:
    """True if every session shows turns 1, 2, 3, ... from row to row; without sorting, for large traces.

    Each turn has its place in a list of all turns, session by session. The list is full, and rows ascend along it.
    """
    place = np.cumsum(count) - count
    row: NDArray[Any] = np.full(int(count.sum()), -1, np.int32 if session.size < 2**31 else np.int64)
    for start in range(0, session.size, CHUNK):
        s, t = session[start : start + CHUNK], turn[start : start + CHUNK]
        inside = np.flatnonzero(s >= 0)
        s, t = s[inside], t[inside]
        if (t > count[s]).any():  # turns are 1 or more
            return False
        row[place[s] + t - 1] = start + inside
    if (row < 0).any():
        return False
    ascends = row[1:] > row[:-1]
    ascends[place[1:] - 1] = True  # from the last turn of a session to the first of the next
    return bool(ascends.all())


def _raise_turns(session: NDArray[np.int64], turn: NDArray[np.int64], file: str) -> None:
    """The error about the first session in which a turn is missing, twice or out of order."""
    rows = np.flatnonzero(session >= 0)
    s, t = session[rows], turn[rows]
    # Rows are in order of arrival; a stable sort by session must then show turns 1, 2, 3, ... of each.
    order = np.argsort(s, kind="stable")
    s, t, rows = s[order], t[order], rows[order]
    first = np.r_[True, s[1:] != s[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(s.size), 0))
    want = np.arange(s.size) - start + 1
    at = int(np.argmax(t != want))
    twice = not first[at] and t[at] == t[at - 1]
    what = "a turn only once" if twice else "turns 1, 2, 3, ... in order of arrival"
    raise TraceError(
        file=file,
        row=int(rows[at]) + 1,
        column="turn",
        value=int(t[at]),
        expected=f"{what} (session {int(s[at])}, turn {int(want[at])} comes here)",
    )


def check_chains(
    offsets: NDArray[np.int64], ids: NDArray[np.int32], block_tokens: int, tokens: NDArray[np.int64], file: str
) -> None:
    """Raise unless the chains are well formed and an id always names one whole prefix.

    Args:
        offsets: (n+1,) CSR offsets.
        ids: prefix-block ids.
        block_tokens: tokens of a prefix block, 0 if the trace has no prefix information.
        tokens: (n,) prompt + output tokens.
        file: named in the error.
    """
    if block_tokens < 0:
        raise TraceError(file=file, column="prefix_block_tokens", value=block_tokens, expected="0 or more tokens")
    lengths = np.diff(offsets)
    if offsets.shape != (tokens.size + 1,) or offsets[0] != 0 or offsets[-1] != ids.size or (lengths < 0).any():
        expected = "chain_offsets of one entry a request and one more, from 0 to the number of chain ids"
        raise TraceError(file=file, column="chain_offsets", value=str(offsets.shape), expected=expected)
    if not ids.size:
        return
    if block_tokens == 0:
        raise TraceError(file=file, column="prefix_block_tokens", value=0, expected="a block size, as there are chains")
    if (lengths > tokens // block_tokens).any():
        bad = lengths > tokens // block_tokens
        row = row_of(bad)
        raise TraceError(
            file=file,
            row=row,
            column="chain_ids",
            value=int(lengths[row - 1]),
            expected=f"at most {int(tokens[row - 1]) // block_tokens} full blocks of {block_tokens} tokens",
        )
    n_ids = int(ids.max()) + 1
    if ids.min() < 0 or n_ids > ids.size:
        raise TraceError(file=file, column="chain_ids", value=n_ids, expected="dense ids from 0")
    first = np.zeros(ids.size, np.bool_)
    first[offsets[:-1][lengths > 0]] = True
    parent = np.full(n_ids, -2, np.int32)  # of each id, where it appeared last: it must be the same everywhere
    for start in range(0, ids.size, CHUNK):
        parent[ids[start : start + CHUNK]] = _parents(ids, first, start)
    for start in range(0, ids.size, CHUNK):
        bad = parent[ids[start : start + CHUNK]] != _parents(ids, first, start)
        if bad.any():
            at = start + int(np.argmax(bad))
            raise TraceError(
                file=file,
                row=int(np.searchsorted(offsets, at, side="right")),
                column="chain_ids",
                value=int(ids[at]),
                expected="an id to name the whole prefix: always at the same depth, after the same id",
            )
    if (parent == -2).any():
        raise TraceError(file=file, column="chain_ids", value=n_ids, expected="dense ids from 0")


def _parents(ids: NDArray[np.int32], first: NDArray[np.bool_], start: int) -> NDArray[np.int32]:
    """The id before each of a chunk's, -1 at the start of a chain."""
    part = first[start : start + CHUNK]
    before = ids[start - 1 : start + CHUNK - 1] if start else np.append(np.int32(-1), ids[: CHUNK - 1])
    return np.where(part, np.int32(-1), before[: part.size])
