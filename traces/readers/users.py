"""Who sent a request after which other one: streams of requests that never overlap.

A benchmark with fixed concurrency is so many users, each of whom sends the next request when the last one has ended;
a session with parallel calls is several streams. Both are found from recorded starts and ends: a request continues
the stream that ended last before it. The gap between is the think time, from recorded stamps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLACK_S = 1e-3  # stamps in milliseconds may place an end just after the start that followed it
_FEW = 20
_MOSTLY = 0.9


@dataclass(frozen=True, slots=True)
class Streams:
    """Requests as streams.

    Attributes:
        stream: (n,) number of the stream.
        turn: (n,) place in the stream, from 1.
        think_s: (n,) end of the one before to this arrival, NaN for the first.
        parent: (n,) row of the one before, -1 for none.
        late: requests that began while every stream allowed was busy: they continue the one that ended first.
    """

    stream: NDArray[np.int64]
    turn: NDArray[np.int64]
    think_s: NDArray[np.float64]
    parent: NDArray[np.int64]
    late: int


def streams_of(
    arrival_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    limit: int | None = None,
    group: NDArray[np.int64] | None = None,
) -> Streams:
    """Fewest streams of requests that do not overlap, at most ``limit``.

    Args:
        arrival_s: (n,) starts, ascending.
        end_s: (n,) ends.
        limit: how many streams there may be.
        group: (n,) numbers of sessions: a stream stays in one. None: all are in one.
    """
    n = arrival_s.size
    stream, turn = np.empty(n, np.int64), np.ones(n, np.int64)
    think, parent = np.full(n, np.nan), np.full(n, -1, np.int64)
    starts, stops = arrival_s.tolist(), end_s.tolist()
    groups = [0] * n if group is None else group.tolist()
    free: dict[int, tuple[list[float], list[int]]] = {}  # ends of the last request of each stream, ascending; and which
    count = late = 0
    for i in range(n):
        ends, last = free.setdefault(groups[i], ([], []))
        at = bisect_right(ends, starts[i] + SLACK_S) - 1
        if at < 0 and limit is not None and count >= limit:
            at, late = 0, late + 1
        if at < 0:
            stream[i], count = count, count + 1
        else:
            before = last.pop(at)
            think[i] = max(0.0, starts[i] - ends.pop(at))
            stream[i], turn[i], parent[i] = stream[before], turn[before] + 1, before
        at = bisect_right(ends, stops[i])
        ends.insert(at, stops[i])
        last.insert(at, i)
    return Streams(stream, turn, think, parent, late)


def in_flight(arrival_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """(n,) requests in flight just after each arrival, itself included; arrivals ascending."""
    ended = np.searchsorted(np.sort(end_s), arrival_s + SLACK_S, side="right")
    return np.asarray(np.arange(1, arrival_s.size + 1) - ended)


def kept_in_flight(arrival_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> int | None:
    """The number of requests that was in flight all the time, as a closed loop keeps it; None if there is none.

    That is the peak, two or more, if nine in ten arrivals after the first so many bring the number back to it.
    """
    if arrival_s.size < _FEW:
        return None
    flying = in_flight(arrival_s, end_s)
    peak = int(flying.max())
    if peak < 2 or arrival_s.size < 2 * peak:
        return None
    return peak if float((flying[peak:] == peak).mean()) >= _MOSTLY else None
