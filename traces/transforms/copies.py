"""Copies of sessions side by side: new session numbers, and what the copies share of prefixes.

``prefixes`` is one of

* ``own``: blocks of one session alone are private to each copy; blocks that several sessions share (a system prompt,
  a document) stay shared, by all copies as well: more users of the same service.
* ``shared``: copies find all blocks of each other, as if the same conversation were held twice.
* ``private``: copies share nothing: the users of another service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError, nearest
from traces.transforms.rows import count_turns, gather_chains, rebuild, units

if TYPE_CHECKING:
    from traces.trace import Trace

PREFIXES = ("own", "shared", "private")


def check_prefixes(trace: Trace, prefixes: str) -> None:
    """Raise unless ``prefixes`` is known."""
    if prefixes not in PREFIXES:
        expected = f"one of {', '.join(PREFIXES)}{nearest(str(prefixes), PREFIXES)}"
        raise TraceError(file=trace.name, column="prefixes", value=prefixes, expected=expected)


def strata(trace: Trace, cuts_s: Sequence[float]) -> NDArray[np.float64]:
    """Edges from 0 to the duration, with the cuts inside."""
    return np.array([0.0, *(cut for cut in cuts_s if 0 < cut < trace.duration_s), trace.duration_s])


def copied(
    trace: Trace,
    index: NDArray[np.int64],
    copy: NDArray[np.int64],
    arrival: NDArray[np.float64],
    piece: NDArray[np.int64],
    prefixes: str,
    name: str,
    note: str,
) -> Trace:
    """A trace of rows taken several times.

    Args:
        trace: the trace.
        index: (m,) rows of the trace, from 0.
        copy: (m,) which copy of its session each row belongs to; copy 0 keeps its prefix ids.
        arrival: (m,) new arrivals.
        piece: (m,) a session of a copy with several pieces is cut into that many.
        prefixes: what copies share.
        name: of the new trace.
        note: for the provenance.
    """
    session = trace.frame["session"].to_numpy()[index]
    pieces = int(piece.max()) + 1
    key = (session * (int(copy.max()) + 1) + copy) * pieces + piece
    new = np.where(session >= 0, np.unique(key, return_inverse=True)[1].reshape(-1), -1)
    frame = count_turns(trace.frame[index].with_columns(pl.Series("arrival_s", arrival), pl.Series("session", new)))
    cut = np.unique(key[session >= 0]).size - np.unique((key // pieces)[session >= 0]).size
    notes = [note + (f"; {cut} sessions go on as another one after a wrap or a zone's end" if cut else "")]
    offsets, ids = gather_chains(trace.chain_offsets, trace.chain_ids.astype(np.int64), index)
    if prefixes != "shared" and ids.size:
        of = np.repeat(copy, np.diff(offsets))
        private = np.ones(ids.size, np.bool_) if prefixes == "private" else ~_shared_blocks(trace)[ids]
        ids = ids + np.where(private, of, 0) * trace.n_prefix_ids
    return rebuild(trace, frame, name, *notes, offsets=offsets, ids=ids)


def _shared_blocks(trace: Trace) -> NDArray[np.bool_]:
    """(ids,) blocks that two sessions, or requests without one, have in common."""
    of = np.repeat(units(trace), np.diff(trace.chain_offsets))
    low, high = np.full(trace.n_prefix_ids, of.size, np.int64), np.full(trace.n_prefix_ids, -1, np.int64)
    np.minimum.at(low, trace.chain_ids, of)
    np.maximum.at(high, trace.chain_ids, of)
    return np.asarray(low != high)
