"""Rows and chains: what every transform is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError

if TYPE_CHECKING:
    from traces.trace import Trace

MAX_REQUESTS = 50_000_000
"""Requests that a trace may be made to have: some ten gigabytes."""

_MOST, _MOST_WHOLE = 1e300, 2.0**62  # what arrays can hold, with room to add


def gather_chains(
    offsets: NDArray[np.int64], ids: NDArray[Any], index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets and ids of the chains at ``index`` (rows from 0), in that order."""
    lengths = np.diff(offsets)[index]
    new = np.zeros(index.size + 1, np.int64)
    np.cumsum(lengths, out=new[1:])
    take = np.repeat(offsets[:-1][index] - new[:-1], lengths) + np.arange(new[-1])
    return new, ids[take]


def shorten_chains(
    offsets: NDArray[np.int64], ids: NDArray[Any], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Every chain cut to its first ``lengths`` blocks; (n,) lengths of at most those that are."""
    new = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=new[1:])
    take = np.repeat(offsets[:-1] - new[:-1], lengths) + np.arange(new[-1])
    return new, ids[take]


def rebuild(
    trace: Trace,
    frame: pl.DataFrame,
    name: str,
    *notes: str,
    offsets: NDArray[Any] | None = None,
    ids: NDArray[Any] | None = None,
    duration_s: float | None = None,
) -> Trace:
    """A trace from changed rows; chains are the old ones unless given, the duration grows with the last arrival."""
    last = last_start_s(frame["arrival_s"].to_numpy(), frame, trace.replay)
    return type(trace).build(
        name,
        frame,
        chain_offsets=trace.chain_offsets if offsets is None else offsets,
        chain_ids=trace.chain_ids if ids is None else ids,
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, *notes),
        duration_s=max(trace.duration_s if duration_s is None else duration_s, last),
    )


def subset(
    trace: Trace, keep: NDArray[np.bool_], *, start_s: float, duration_s: float, name: str, note: str = ""
) -> Trace:
    """Keep some requests; arrivals are counted from ``start_s``, turns of each session from 1 again.

    The first kept turn of a session has no think time. Prefix ids are renumbered; equal stays equal.
    """
    index = np.flatnonzero(keep)
    if not index.size:
        raise TraceError(file=trace.name, expected="at least one request left" + (f" ({note})" if note else ""))
    frame = count_turns(trace.frame[index]).with_columns(pl.col("arrival_s") - start_s)
    offsets, ids = gather_chains(trace.chain_offsets, trace.chain_ids, index)
    return type(trace).build(
        name,
        frame,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, *([note] if note else [])),
        duration_s=duration_s,
    )


def count_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """Turns of each session from 1 without gaps, in the order that they have; none on turn 1 has a think time."""
    session = frame["session"].to_numpy()
    order = np.lexsort((frame["turn"].to_numpy(), session))
    of = session[order]
    first = np.r_[True, of[1:] != of[:-1]] | (of < 0)
    start = np.maximum.accumulate(np.where(first, np.arange(of.size), 0))
    turn = np.empty(of.size, np.int64)
    turn[order] = np.arange(of.size) - start + 1
    think = pl.when(pl.Series(turn == 1)).then(None).otherwise(pl.col("think_s")).alias("think_s")
    return frame.with_columns(pl.Series("turn", turn), think)


def last_start_s(arrival: NDArray[np.float64], frame: pl.DataFrame, replay: str) -> float:
    """Last arrival whose time the trace fixes: any in open replay, else the last start of a session."""
    if replay != "open":
        arrival = arrival[frame["turn"].to_numpy() == 1]
    return float(arrival.max())


def session_starts(trace: Trace) -> NDArray[np.float64]:
    """(n,) arrival of the first turn of each request's session, NaN without a session."""
    session = trace.frame["session"].to_numpy()
    starts = np.full(trace.n_sessions + 1, np.nan)
    first = (session >= 0) & (trace.frame["turn"].to_numpy() == 1)
    starts[session[first]] = trace.frame["arrival_s"].to_numpy()[first]
    return np.asarray(starts[session])


def starts(trace: Trace) -> NDArray[np.float64]:
    """(n,) arrival of the first turn of each request's session, its own arrival without a session."""
    start = session_starts(trace)
    return np.where(np.isnan(start), trace.frame["arrival_s"].to_numpy(), start)


def units(trace: Trace) -> NDArray[np.int64]:
    """(n,) number of what a request belongs to, from 0 in order of arrival: its session, or itself without one."""
    session = trace.frame["session"].to_numpy()
    key = np.where(session >= 0, session, trace.n_sessions + np.arange(session.size))
    _, first, unit = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(first.size)
    return np.asarray(rank[unit.reshape(-1)])


def number(
    trace: Trace,
    option: str,
    value: object,
    *,
    low: float,
    high: float = np.inf,
    ends: bool = True,
    whole: bool = False,
) -> float:
    """``value`` if it is a number from ``low`` to ``high``; the bounds themselves are none with ``ends=False``.

    Raises:
        TraceError: it is not, or is too large for an array; named by the option.
    """
    kind = int if whole else int | float
    fine = isinstance(value, kind) and not isinstance(value, bool)
    if fine and isinstance(value, int | float):
        inside = low <= value <= high if ends else low < value < high
        if inside and value <= (_MOST_WHOLE if whole else _MOST):
            return value
    what = "a whole number" if whole else "a number"
    bounds = f" {'from' if ends else 'above'} {low:g}" if high == np.inf else f" between {low:g} and {high:g}"
    raise TraceError(file=trace.name, column=option, value=value, expected=what + bounds)


def seeded(trace: Trace, seed: object) -> np.random.Generator:
    """A generator from a seed, a whole number of 0 or more.

    Raises:
        TraceError: another seed.
    """
    return np.random.default_rng(int(number(trace, "seed", seed, low=0, whole=True)))
