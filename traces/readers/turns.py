"""Sessions of a log: keys as numbers, turns counted by arrival, think times from where a turn ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.readers.columns import Table


def session_keys(piece: Table, name: str) -> pl.Series:
    """Session keys of a piece as Int64, null for none (empty, or -1).

    Text is kept as a 64-bit hash: that two of ten million sessions get the same has a chance of 3 in a million.
    """
    raw = piece.frame[name]
    if raw.dtype.is_integer():
        number = raw.reinterpret(signed=True) if raw.dtype == pl.UInt64 else raw.cast(pl.Int64)
        return pl.select(pl.when(number != -1).then(number)).to_series()
    if raw.dtype.is_float():
        raw = raw.fill_nan(None)
    key = Table(raw.to_frame(), piece.source, piece.first_row).text(name).str.strip_chars()
    hashed = key.hash(0).reinterpret(signed=True)
    return pl.select(pl.when((key != "") & (key != "-1")).then(hashed)).to_series()


def number_sessions(keys: pl.Series) -> NDArray[np.int64]:
    """(n,) session numbers from 0 by first appearance, -1 for none."""
    n = keys.len()
    number = np.full(n, -1, np.int64)
    inside = np.flatnonzero(keys.is_not_null().to_numpy()) if keys.null_count() else slice(None)
    values = keys.drop_nulls().to_numpy()
    if not values.size:
        return number
    known, inverse = np.unique(values, return_inverse=True)
    first = np.empty(known.size, np.int64)
    first[inverse[::-1]] = np.arange(values.size - 1, -1, -1)  # the last write is the first appearance
    rank = np.empty(known.size, np.int64)
    rank[np.argsort(first)] = np.arange(known.size)
    number[inside] = rank[inverse]
    return number


@dataclass(frozen=True, eq=False)
class Turns:
    """Turns of sessions.

    Attributes:
        session: (n,) session numbers in order of arrival, -1 for none.
    """

    session: NDArray[np.int64]

    @cached_property
    def _grouped(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows session by session in order of arrival, and which of them is a first turn."""
        small = self.session.astype(np.int32) if self.session.size < 2**31 else self.session
        order = np.argsort(small, kind="stable")
        grouped = small[order]
        first = np.empty(order.size, np.bool_)
        first[:1] = True
        np.not_equal(grouped[1:], grouped[:-1], out=first[1:])
        first[: int(np.searchsorted(grouped, 0))] = True  # without a session
        return order, first

    @cached_property
    def turn(self) -> NDArray[np.int64]:
        """(n,) turns, counted from 1; 1 without a session."""
        order, first = self._grouped
        start = np.flatnonzero(first)
        length = np.diff(np.append(start, first.size))
        turn = np.empty(order.size, np.int64)
        turn[order] = np.arange(1, order.size + 1) - np.repeat(start, length)
        return turn

    @cached_property
    def previous(self) -> NDArray[np.int64]:
        """(n,) row of the turn before, -1 for none."""
        order, first = self._grouped
        before = np.empty_like(order)
        before[:1], before[1:] = -1, order[:-1]
        before[first] = -1
        previous = np.empty_like(order)
        previous[order] = before
        return previous

    @property
    def next(self) -> NDArray[np.int64]:
        """(n,) row of the turn after, -1 for none."""
        later = np.flatnonzero(self.previous >= 0)
        after = np.full(self.session.size, -1, np.int64)
        after[self.previous[later]] = later
        return after


@dataclass(frozen=True, slots=True)
class Thinking:
    """Think times and where they come from.

    Attributes:
        think_s: (n,) seconds, null on first turns and where the end of the turn before is not known.
        note: for the provenance.
    """

    think_s: pl.Series
    note: str


def think_times(
    arrival_s: NDArray[np.float64],
    previous: NDArray[np.int64],
    ends: Mapping[str, NDArray[np.float64]],
) -> Thinking:
    """Think times: from the end of a turn to the next arrival, never from start to start; below 0 counts as 0.

    Args:
        arrival_s: (n,) arrivals.
        previous: (n,) row of the turn before, -1 for none.
        ends: (n,) end of each request by how it is known, the best first, NaN where it is not; seconds.
    """
    later = np.flatnonzero(previous >= 0)
    before = previous[later]
    end = np.full(later.size, np.nan)
    shares = []
    for how, known in ends.items():
        take = np.isnan(end) & ~np.isnan(known[before])
        end[take] = known[before[take]]
        if take.any():
            shares.append(f"{take.mean():.1%} from {how}")
    gap = arrival_s[later] - end
    negative = float((gap < 0).mean()) if later.size else 0.0
    think = np.full(arrival_s.size, np.nan)
    think[later] = np.maximum(gap, 0.0)
    unknown = f", {np.isnan(end).mean():.1%} not known" if np.isnan(end).any() else ""
    note = (
        f"think time = gap from the end of a turn to the next arrival; ends: {', '.join(shares) or 'none'}{unknown}; "
        f"{negative:.1%} of gaps were negative and count as 0"
    )
    return Thinking(pl.Series("think_s", think).fill_nan(None), note)
