"""What can be done to a trace. Each step leaves a line in its provenance."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError, nearest

if TYPE_CHECKING:
    from traces.trace import Trace

ACROSS = ("drop", "restart")


def gather_chains(
    offsets: NDArray[np.int64], ids: NDArray[Any], index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets and ids of the chains at ``index`` (rows from 0), in that order."""
    lengths = np.diff(offsets)[index]
    new = np.zeros(index.size + 1, np.int64)
    np.cumsum(lengths, out=new[1:])
    take = np.repeat(offsets[:-1][index] - new[:-1], lengths) + np.arange(new[-1])
    return new, ids[take]


def subset(trace: Trace, keep: NDArray[np.bool_], *, start_s: float, duration_s: float, name: str, note: str) -> Trace:
    """Keep some requests; arrivals are counted from ``start_s``, turns of each session from 1 again.

    The first kept turn of a session has no think time. Prefix ids are renumbered; equal stays equal.
    """
    index = np.flatnonzero(keep)
    if not index.size:
        raise TraceError(file=trace.name, expected=f"at least one request left ({note})")
    frame = trace.frame[index]
    order = np.argsort(frame["session"].to_numpy(), kind="stable")
    session = frame["session"].to_numpy()[order]
    first = np.r_[True, session[1:] != session[:-1]] | (session < 0)
    start = np.maximum.accumulate(np.where(first, np.arange(session.size), 0))
    turn = np.empty(index.size, np.int64)
    turn[order] = np.arange(session.size) - start + 1
    frame = frame.with_columns(
        pl.Series("turn", turn),
        pl.col("arrival_s") - start_s,
        pl.when(pl.Series(turn == 1)).then(None).otherwise(pl.col("think_s")).alias("think_s"),
    )
    offsets, ids = gather_chains(trace.chain_offsets, trace.chain_ids, index)
    return type(trace).build(
        name,
        frame,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, note),
        duration_s=duration_s,
    )


def window(trace: Trace, start_s: float, end_s: float, *, across: str = "drop") -> Trace:
    """Requests with ``start_s <= arrival_s < end_s``, re-based to start at 0. No session crosses the cut.

    Args:
        trace: the trace.
        start_s: start, seconds.
        end_s: end, seconds; a request that arrives exactly at the end of the trace belongs to its last window.
        across: what happens to a session that does cross. ``drop``: it belongs to the window in which it
            starts; its turns in others are left out (for train / test splits: no conversation is seen twice).
            ``restart``: its turns in this window become a session of their own, counted from turn 1 (for
            replicate windows: the offered load stays whole).

    Raises:
        TraceError: an empty window, or an unknown ``across``.
    """
    if across not in ACROSS:
        expected = f"one of {', '.join(ACROSS)}{nearest(across, ACROSS)}"
        raise TraceError(file=trace.name, column="across", value=across, expected=expected)
    if not 0 <= start_s < end_s:
        raise TraceError(file=trace.name, column="window", value=(start_s, end_s), expected="0 <= start_s < end_s")
    arrival = trace.frame["arrival_s"].to_numpy()
    inside = (arrival >= start_s) & ((arrival < end_s) | (end_s >= trace.duration_s))
    keep = inside
    if across == "drop" and trace.n_sessions:
        session = trace.frame["session"].to_numpy()
        begins = np.zeros(trace.n_sessions + 1, np.bool_)  # the last entry serves session -1
        begins[session[inside & (trace.frame["turn"].to_numpy() == 1)]] = True
        begins[-1] = True
        keep = inside & begins[session]
    duration_s = min(end_s, trace.duration_s) - start_s
    name = f"{trace.name}[{start_s:g},{end_s:g})"
    dropped = int(inside.sum() - keep.sum())
    note = f"window [{start_s:g}, {end_s:g}) s, sessions across the cut: {across} ({dropped} turns dropped)"
    return subset(trace, keep, start_s=start_s, duration_s=duration_s, name=name, note=note)


def split(trace: Trace, train: float = 0.4, validation: float = 0.2, test: float = 0.4) -> dict[str, Trace]:
    """Cut by time into ``train``, ``validation`` and ``test``, in that order, with no session across a cut.

    Args:
        trace: the trace.
        train: share of the duration, above 0; likewise ``validation`` and ``test``. They sum to at most 1.
        validation: see train.
        test: see train.

    Raises:
        TraceError: shares that are no shares, or a part without a request.
    """
    shares = {"train": train, "validation": validation, "test": test}
    if not all(share > 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
        raise TraceError(file=trace.name, column="split", value=shares, expected="shares above 0 that sum to at most 1")
    parts, start = {}, 0.0
    for zone, share in shares.items():
        end = min(start + share, 1.0)
        if end > 1 - 1e-9:
            end = 1.0
        parts[zone] = window(trace, start * trace.duration_s, end * trace.duration_s, across="drop")
        start = end
    return parts


def windows(trace: Trace, n: int, *, across: str = "restart") -> list[Trace]:
    """``n`` disjoint windows of equal length over the whole duration; see :func:`window` for ``across``."""
    if n < 1:
        raise TraceError(file=trace.name, column="windows", value=n, expected="1 or more")
    edges = [trace.duration_s * i / n for i in range(n)] + [trace.duration_s]
    return [window(trace, a, b, across=across) for a, b in pairwise(edges)]


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Compress time by ``factor``: burstiness keeps its shape in requests, not in seconds.

    Open replay: every arrival is divided by ``factor``. Closed and clients: session starts only; the gaps
    within a session are kept, as think times are (the duration is compressed all the same, and grows to the
    last arrival where a session lasts longer).

    Raises:
        TraceError: a factor that is not a positive number.
    """
    if not 0 < factor < np.inf:
        raise TraceError(file=trace.name, column="scale_rate", value=factor, expected="a positive factor")
    if factor == 1:
        return trace
    arrival = trace.frame["arrival_s"].to_numpy()
    scaled = arrival / factor
    if trace.replay != "open" and trace.n_sessions:
        start = session_starts(trace)
        scaled = np.where(np.isnan(start), scaled, start / factor + (arrival - start))
    what = "arrivals" if trace.replay == "open" else "session starts"
    duration_s = max(trace.duration_s / factor, float(scaled.max()))
    return type(trace).build(
        f"{trace.name}*{factor:g}",
        trace.frame.with_columns(pl.Series("arrival_s", scaled)),
        chain_offsets=trace.chain_offsets,
        chain_ids=trace.chain_ids,
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, f"time compressed by {factor:g} ({what})"),
        duration_s=duration_s,
    )


def session_starts(trace: Trace) -> NDArray[np.float64]:
    """(n,) arrival of the first turn of each request's session, NaN without a session."""
    session = trace.frame["session"].to_numpy()
    starts = np.full(trace.n_sessions + 1, np.nan)
    first = (session >= 0) & (trace.frame["turn"].to_numpy() == 1)
    starts[session[first]] = trace.frame["arrival_s"].to_numpy()[first]
    return np.asarray(starts[session])


def with_duration(trace: Trace, duration_s: float) -> Trace:
    """State the observed time (at least the last arrival)."""
    return replace(trace, duration_s=duration_s)
