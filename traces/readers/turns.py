"""Sessions of a log: keys as numbers, turns counted by arrival, think times from where a turn ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import CHUNK
from traces.readers.columns import Table
from traces.readers.users import SLACK_S, streams_of

NO_SESSION = ("-1", "-1.0", "null", "none", "nan", "-nan", "n/a", "#n/a", "na", "<na>", "nat", "undefined")
"""What programs write where there is no session, in lower case."""


def says_none(keys: pl.Series) -> pl.Series:
    """(n,) whether a text key is a word for no session; null where there is no key."""
    return keys.str.to_lowercase().is_in(NO_SESSION)


def none_note(count: int) -> str | None:
    """A line for the provenance on ``count`` keys that say so."""
    return f"session keys that say none (null, NaN, -1, ...): {count:,} requests are in no session" if count else None


class SessionColumn:
    """Reads session keys piece by piece as numbers from 0 by first appearance, -1 for none.

    None are the empty ones, -1, and the words of :data:`NO_SESSION`.

    Text is known by its 64-bit hash: that any two of ten million sessions get the same has a chance of 3 in a million.
    """

    def __init__(self, name: str) -> None:
        """``name``: column of the file."""
        self.name = name
        self.none = 0  # keys that say so in a word or number
        self._known = np.zeros(0, np.int64)  # keys, sorted
        self._number = np.zeros(0, np.int32)  # of each

    def __call__(self, piece: Table) -> pl.Series:
        """Session numbers of a piece, Int32."""
        keys = self._keys(piece)
        return pl.concat([self._numbered(keys.slice(at, CHUNK)) for at in range(0, keys.len(), CHUNK)])

    def _numbered(self, keys: pl.Series) -> pl.Series:
        numbers = np.full(keys.len(), -1, np.int32)
        inside = np.flatnonzero(keys.is_not_null().to_numpy())
        found, first, inverse = np.unique(keys.drop_nulls().to_numpy(), return_index=True, return_inverse=True)
        at = np.searchsorted(self._known, found)
        new = np.append(self._known, 0)[at] != found if self._known.size else np.ones(found.size, np.bool_)
        new |= at == self._known.size
        number = np.empty(found.size, np.int32)
        number[~new] = self._number[at[~new]]
        fresh = np.flatnonzero(new)
        number[fresh[np.argsort(first[fresh])]] = np.arange(self._known.size, self._known.size + fresh.size)
        self._known = np.insert(self._known, at[fresh], found[fresh])
        self._number = np.insert(self._number, at[fresh], number[fresh])
        numbers[inside] = number[inverse]
        return pl.Series(self.name, numbers)

    def _keys(self, piece: Table) -> pl.Series:
        """Int64, null for no session."""
        raw = piece.frame[self.name]
        if raw.dtype.is_integer():
            number = raw.reinterpret(signed=True) if raw.dtype == pl.UInt64 else raw.cast(pl.Int64)
            self.none += int((number == -1).sum())
            return pl.select(pl.when(number != -1).then(number)).to_series()
        if raw.dtype.is_float():
            piece = Table(piece.frame.select(pl.col(self.name).fill_nan(None)), piece.source, piece.first_row)
        key = piece.text(self.name).str.strip_chars()
        none = says_none(key)
        self.none += int(none.sum())
        return pl.select(pl.when((key != "") & ~none).then(key.hash(0).reinterpret(signed=True))).to_series()


@dataclass(frozen=True, eq=False)
class Turns:
    """Turns of sessions.

    Attributes:
        session: (n,) session numbers in order of arrival, -1 for none; fewer than 2**31.
    """

    session: NDArray[np.int32]

    def _grouped(self) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Rows session by session in order of arrival, and which of them is a first turn."""
        small = self.session.astype(np.int32, copy=False)
        order = np.argsort(small, kind="stable").astype(np.int32)
        grouped = small[order]
        first = np.empty(order.size, np.bool_)
        first[:1] = True
        np.not_equal(grouped[1:], grouped[:-1], out=first[1:])
        first[: int(np.searchsorted(grouped, 0))] = True  # without a session
        return order, first

    @cached_property
    def turn(self) -> NDArray[np.int64]:
        """(n,) turns, counted from 1; 1 without a session."""
        order, first = self._grouped()
        start = np.flatnonzero(first).astype(np.int32)
        count = np.arange(1, order.size + 1, dtype=np.int32)
        count -= np.repeat(start, np.diff(start, append=np.int32(first.size)).astype(np.int64))
        turn = np.empty(order.size, np.int64)
        turn[order] = count
        return turn

    @cached_property
    def previous(self) -> NDArray[np.int32]:
        """(n,) row of the turn before, -1 for none."""
        order, first = self._grouped()
        previous = np.full(order.size, -1, np.int32)
        later = np.flatnonzero(~first)
        previous[order[later]] = order[later - 1]
        return previous

    @property
    def following(self) -> NDArray[np.int32]:
        """(n,) row of the turn after, -1 for none."""
        later = np.flatnonzero(self.previous >= 0)
        after = np.full(self.session.size, -1, np.int32)
        after[self.previous[later]] = later
        return after


def apart(
    turns: Turns, arrival_s: NDArray[np.float64], ends: Iterable[NDArray[np.float64]]
) -> tuple[Turns, NDArray[np.int64]]:
    """Sessions whose requests do not overlap: parallel calls of one become streams, each a session of its own.

    Args:
        turns: sessions, in order of arrival.
        arrival_s: (n,) arrivals.
        ends: (n,) end of each request as recorded, the best first, NaN where it is not; seconds.

    Returns:
        The sessions, and the rows of requests that began before the turn before them had ended.
    """
    end = np.full(arrival_s.size, np.nan)
    for known in ends:
        end = np.where(np.isnan(end), known, end)
    later = np.flatnonzero(turns.previous >= 0)
    over = later[arrival_s[later] < end[turns.previous[later]] - SLACK_S]
    if not over.size:
        return turns, over
    session = turns.session.copy()
    some = np.flatnonzero(np.isin(session, np.unique(session[over])))
    streams = streams_of(arrival_s[some], np.fmax(end, arrival_s)[some], group=session[some].astype(np.int64))
    session[some] = session.max() + 1 + streams.stream
    return Turns(session), over


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
    previous: NDArray[np.int32],
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
