"""What can be done to a trace. Each step leaves a line in its provenance."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError, nearest

if TYPE_CHECKING:
    from traces.trace import Trace

ACROSS = ("drop", "whole", "restart")


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


def window(trace: Trace, start_s: float, end_s: float, *, across: str | None = None) -> Trace:
    """Requests with ``start_s <= arrival_s < end_s``, re-based to start at 0. No session is in two windows.

    Args:
        trace: the trace.
        start_s: start, seconds.
        end_s: end, seconds; what arrives exactly at the end of the trace belongs to its last window.
        across: what happens to a session that crosses the cut. ``drop``: it belongs to the window in which it
            starts, and its turns after the cut are left out. ``whole``: it belongs, with all its turns, to the
            window in which it starts. ``restart``: its turns in this window become a session of their own,
            counted from turn 1, so that the offered load stays whole (the pieces are then of one conversation).
            None: ``drop`` in open replay, ``whole`` otherwise (later turns have no fixed time there).

    Raises:
        TraceError: an empty window, or an unknown ``across``.
    """
    if across is None:
        across = "drop" if trace.replay == "open" else "whole"
    if across not in ACROSS:
        expected = f"one of {', '.join(ACROSS)}{nearest(across, ACROSS)}"
        raise TraceError(file=trace.name, column="across", value=across, expected=expected)
    if not 0 <= start_s < end_s:
        raise TraceError(file=trace.name, column="window", value=(start_s, end_s), expected="0 <= start_s < end_s")
    arrival = trace.frame["arrival_s"].to_numpy()
    last = end_s >= trace.duration_s
    inside = (arrival >= start_s) & ((arrival < end_s) | last)
    keep = inside
    if across != "restart" and trace.n_sessions:
        start = session_starts(trace)
        begins = np.isnan(start) | ((start >= start_s) & ((start < end_s) | last))
        keep = begins & (inside | ((across == "whole") & ~np.isnan(start)))
    duration_s = min(end_s, trace.duration_s) - start_s
    if across == "restart" and trace.replay != "open" and last:
        duration_s = max(duration_s, float(arrival[-1]) - start_s)  # nominal arrivals may lie after the last start
    left = int((inside & ~keep).sum())
    name = f"{trace.name}[{start_s:g},{end_s:g})"
    note = f"window [{start_s:g}, {end_s:g}) s, sessions across the cut: {across}, {left} turns inside left out"
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
        parts[zone] = window(trace, start * trace.duration_s, end * trace.duration_s)
        start = end
    return parts


def windows(trace: Trace, n: int, *, across: str | None = None) -> list[Trace]:
    """``n`` disjoint windows of equal length over the whole duration.

    ``across`` is that of :func:`window`; None here means ``restart`` in open replay, ``whole`` otherwise: windows
    are replicates of the offered load, which ``drop`` would thin out towards first turns.
    """
    if across is None:
        across = "restart" if trace.replay == "open" else "whole"
    if n < 1:
        raise TraceError(file=trace.name, column="windows", value=n, expected="1 or more")
    edges = [trace.duration_s * i / n for i in range(n)] + [trace.duration_s]
    return [window(trace, a, b, across=across) for a, b in pairwise(edges)]


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Compress time by ``factor``: burstiness keeps its shape in requests, not in seconds.

    Open replay: every arrival is divided by ``factor``. Closed and clients: session starts only; the gaps
    within a session are kept, as think times are.

    Raises:
        TraceError: a factor that is not a positive number.
    """
    if not 0 < factor < np.inf:
        raise TraceError(file=trace.name, column="scale_rate", value=factor, expected="a positive factor")
    if factor == 1:
        return trace
    arrival = trace.frame["arrival_s"].to_numpy()
    scaled = arrival / factor
    what = "arrivals"
    if trace.replay != "open" and trace.n_sessions:
        start = session_starts(trace)
        scaled = np.where(np.isnan(start), scaled, start / factor + (arrival - start))
        what = "session starts"
    return type(trace).build(
        f"{trace.name}*{factor:g}",
        trace.frame.with_columns(pl.Series("arrival_s", scaled)),
        chain_offsets=trace.chain_offsets,
        chain_ids=trace.chain_ids,
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, f"time compressed by {factor:g} ({what})"),
        duration_s=max(trace.duration_s / factor, last_start_s(scaled, trace.frame, trace.replay)),
    )


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
