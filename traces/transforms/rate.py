"""More or fewer requests a second. The ways differ in burstiness: docs/traces/transforms.md has a measured table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traces.errors import TraceError
from traces.transforms.copies import check_prefixes, copied, strata
from traces.transforms.rows import (
    MAX_REQUESTS,
    last_start_s,
    number,
    rebuild,
    seeded,
    session_starts,
    starts,
    subset,
    units,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traces.trace import Trace

SLACK = 0.05
"""Share by which stamps may be closer than the width that :func:`jitter` is told of: clocks are not exact."""


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Compress time by ``factor``: burstiness keeps its shape in requests, not in seconds.

    Open replay: every arrival is divided by ``factor``. Closed and clients: session starts only; the gaps
    within a session are kept, as think times are.

    Raises:
        TraceError: a factor that is not a positive number.
    """
    number(trace, "factor", factor, low=0, ends=False)
    if factor == 1:
        return trace
    arrival = trace.frame["arrival_s"].to_numpy()
    scaled = arrival / factor
    what = "arrivals"
    if trace.replay != "open" and trace.n_sessions:
        start = session_starts(trace)
        scaled = np.where(np.isnan(start), scaled, start / factor + (arrival - start))
        what = "session starts"
    return rebuild(
        trace,
        trace.frame.with_columns(pl.Series("arrival_s", scaled)),
        f"{trace.name}*{factor:g}",
        f"time compressed by {factor:g} ({what})",
        duration_s=trace.duration_s / factor,
    )


def thin(trace: Trace, keep: float, *, seed: int = 0, complement: bool = False) -> Trace:
    """Keep a share of the sessions, and of the requests without one, drawn independently; sessions stay whole.

    Counts come nearer to Poisson's than the trace's (dispersion D becomes 1 + keep (D - 1)); what sessions share
    of prefixes becomes rarer.

    Args:
        trace: the trace.
        keep: chance of each to stay, above 0 and below 1.
        seed: of the draw.
        complement: the ones that the same draw leaves out: the two traces are the whole one.

    Raises:
        TraceError: no such share, or nothing is left.
    """
    number(trace, "keep", keep, low=0, high=1, ends=False)
    unit = units(trace)
    stays = (seeded(trace, seed).random(int(unit.max()) + 1) < keep) != complement
    kept = stays[unit]
    what = f"{'all but ' if complement else ''}{keep:g}"
    note = f"thinned to {what} by session, seed {seed}: {int(kept.sum())} of {len(trace)} requests kept"
    return subset(
        trace, kept, start_s=0.0, duration_s=trace.duration_s, name=f"{trace.name}~{what.replace(' ', '-')}", note=note
    )


def superpose(
    trace: Trace, copies: int, *, seed: int = 0, prefixes: str = "own", cuts_s: Sequence[float] = ()
) -> Trace:
    """Copies of the trace on top of each other, each rotated in time by a random shift: a higher rate, smoother.

    With m copies the counts' standard deviation over their mean falls about as 1/sqrt(m), unlike
    :func:`scale_rate`. No session belongs to two copies.

    In open replay each copy is rotated request by request, and a session that runs over the end goes on at the
    beginning as a session of its own: no request is lost. Otherwise session starts are rotated.

    Args:
        trace: the trace.
        copies: how many in all, 1 or more, of 50 million requests together; the first is not shifted.
        seed: of the shifts.
        prefixes: what copies share, see :mod:`traces.transforms.copies`.
        cuts_s: rotate between these times only, so that nothing moves from one zone into another.

    Raises:
        TraceError: no such number, or an unknown ``prefixes``.
    """
    number(trace, "copies", copies, low=1, high=max(1, MAX_REQUESTS // len(trace)), whole=True)
    check_prefixes(trace, prefixes)
    rng = seeded(trace, seed)
    n = len(trace)
    arrival, start = trace.frame["arrival_s"].to_numpy(), starts(trace)
    edges = strata(trace, cuts_s)
    opened = trace.replay == "open"
    moved = arrival if opened else start
    at = np.clip(np.searchsorted(edges, moved, side="right") - 1, 0, edges.size - 2)
    low, length = edges[at], (edges[1:] - edges[:-1])[at]
    placed, piece = [arrival], [np.zeros(n, np.int64)]
    for _ in range(1, copies):
        shift = (rng.random(edges.size - 1) * (edges[1:] - edges[:-1]))[at]
        turned = np.where(length > 0, (moved - low + shift) % np.where(length > 0, length, 1.0), 0.0) + low
        placed.append(turned if opened else turned + (arrival - start))
        # A rotation cuts a session where it wraps, and where a stratum ends: pieces keep their turns in order.
        piece.append(2 * at + (moved - low + shift >= length) if opened else np.zeros(n, np.int64))
    index = np.tile(np.arange(n), copies)
    copy = np.repeat(np.arange(copies), n)
    note = f"superposed: {copies} copies rotated in time, seed {seed}, prefixes {prefixes}"
    return copied(
        trace, index, copy, np.concatenate(placed), np.concatenate(piece), prefixes, f"{trace.name}x{copies}", note
    )


def jitter(trace: Trace, width_s: float, *, seed: int = 0) -> Trace:
    """Spread coarse stamps evenly inside the ``width_s`` seconds that each stands for; turns keep their order.

    Open replay: every arrival. Closed and clients: session starts, and their turns move with them. Think times stay.

    Raises:
        TraceError: a width that is not positive, or stamps closer than that: they are not that coarse.
    """
    number(trace, "width_s", width_s, low=0, ends=False)
    rng = seeded(trace, seed)
    arrival, start = trace.frame["arrival_s"].to_numpy(), starts(trace)
    fixed = arrival if trace.replay == "open" else start
    stamps, at = np.unique(fixed, return_inverse=True)
    gaps = np.append(np.diff(stamps), np.inf)
    if gaps.min() < (1.0 - SLACK) * width_s:
        row = int(np.argmax(at.reshape(-1) == np.argmin(gaps) + 1)) + 1
        expected = f"stamps {width_s:g} s apart or more, which width_s={width_s:g} says they stand for"
        found = f"one {gaps.min():g} s after another"
        raise TraceError(file=trace.name, row=row, column="arrival_s", value=found, expected=expected)
    width = np.minimum(gaps, width_s)[at.reshape(-1)]  # a stamp's time ends where the next one's begins
    unit = units(trace)
    if trace.replay == "open":
        spread = arrival + _ordered(rng.random(len(trace)), unit, arrival) * width
        note = "every arrival"
    else:
        spread = arrival + rng.random(int(unit.max()) + 1)[unit] * width
        note = "session starts"
    frame = trace.frame.with_columns(pl.Series("arrival_s", spread))
    return rebuild(
        trace,
        frame,
        f"{trace.name}~{width_s:g}s",
        f"stamps of {width_s:g} s spread inside their width ({note}), seed {seed}",
        duration_s=max(trace.duration_s, last_start_s(spread, frame, trace.replay)),
    )


def _ordered(draws: NDArray[np.float64], unit: NDArray[np.int64], stamp: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draws such that those of one session at one stamp ascend; rows come in order of turn there."""
    by_draw = np.lexsort((draws, stamp, unit))
    by_row = np.lexsort((np.arange(unit.size), stamp, unit))
    out = np.empty_like(draws)
    out[by_row] = draws[by_draw]
    return out
