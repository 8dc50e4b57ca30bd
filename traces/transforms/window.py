"""Cuts in time: windows, splits, zones. No session is in two parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traces.errors import TraceError, nearest
from traces.transforms.rows import count_turns, number, rebuild, session_starts, starts, subset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from traces.trace import Trace

ACROSS = ("drop", "whole", "restart")
ZONES = ("train", "validation", "test")
ZONE_RULES = ("apart", *ACROSS)
SHARES = (0.4, 0.2, 0.4)
"""Of the duration, where a trace has no fixed cuts."""


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
    _check_rule(trace, across, ACROSS)
    if across == "whole" and trace.replay == "open" and trace.n_sessions:
        expected = "drop or restart: in open replay a turn has its own time, which a later window may hold"
        raise TraceError(file=trace.name, column="across", value=across, expected=expected)
    for option, value in (("start_s", start_s), ("end_s", end_s)):
        number(trace, option, value, low=0)
    _check_span(trace, start_s, end_s)
    arrival = trace.frame["arrival_s"].to_numpy()
    last = end_s >= trace.duration_s
    inside = (arrival >= start_s) & ((arrival < end_s) | last)
    keep = inside
    if across != "restart" and trace.n_sessions:
        start = session_starts(trace)
        begins = np.isnan(start) | ((start >= start_s) & ((start < end_s) | last))
        keep = begins & (inside | ((across == "whole") & ~np.isnan(start)))
    return _part(trace, keep, inside, start_s, end_s, across)


def _check_span(trace: Trace, start_s: float, end_s: float) -> None:
    if not start_s < end_s:
        raise TraceError(file=trace.name, column="window", value=(start_s, end_s), expected="start_s below end_s")


def _part(
    trace: Trace, keep: NDArray[np.bool_], inside: NDArray[np.bool_], start_s: float, end_s: float, across: str
) -> Trace:
    duration_s = min(end_s, trace.duration_s) - start_s
    if across in ("restart", "apart") and trace.replay != "open" and end_s >= trace.duration_s:
        # Nominal arrivals may lie after the last start.
        duration_s = max(duration_s, float(trace.frame["arrival_s"][-1]) - start_s)
    left = int((inside & ~keep).sum())
    name = f"{trace.name}[{start_s:g},{end_s:g})"
    note = f"window [{start_s:g}, {end_s:g}) s, sessions across the cut: {across}, {left} turns inside left out"
    return subset(trace, keep, start_s=start_s, duration_s=duration_s, name=name, note=note)


def check_zone_rule(trace: Trace, across: str | None) -> None:
    """Raise unless ``across`` is a rule of :func:`cut_zones`, or None."""
    if across is not None:
        _check_rule(trace, across, ZONE_RULES)


def zone_cuts(trace: Trace) -> tuple[float, float, float]:
    """End of train, of validation and of test, seconds: 40, 20 and 40 % of the duration."""
    return (SHARES[0] * trace.duration_s, (SHARES[0] + SHARES[1]) * trace.duration_s, trace.duration_s)


def cut_zones(trace: Trace, cuts_s: Sequence[float], *, across: str | None = None) -> dict[str, Trace]:
    """``train``, ``validation`` and ``test``, in order of time.

    Args:
        trace: the trace.
        cuts_s: end of train, of validation and of test, seconds.
        across: ``drop``, ``whole`` or ``restart``, see :func:`window`, or ``apart``: as ``restart``, but a session
            with a turn in train leaves none in test, so that what was trained on is never tested on, and the load
            of validation, on which no more than a rate is found, is whole. None: ``apart`` in open replay,
            ``whole`` otherwise. Numbers lost by each rule: docs/traces/transforms.md.

    Raises:
        TraceError: a zone without a request, or an unknown ``across``.
    """
    if across is None:
        across = "apart" if trace.replay == "open" else "whole"
    _check_rule(trace, across, ZONE_RULES)
    parts, start_s = {}, 0.0
    for zone, cut_s in zip(ZONES, cuts_s, strict=True):
        end_s = min(cut_s, trace.duration_s) if zone == "test" else cut_s
        _check_span(trace, start_s, end_s)
        if across != "apart":
            parts[zone] = window(trace, start_s, end_s, across=across)
        else:
            arrival = trace.frame["arrival_s"].to_numpy()
            inside = (arrival >= start_s) & ((arrival < end_s) | (end_s >= trace.duration_s))
            keep = inside & (starts(trace) >= cuts_s[0]) if zone == "test" else inside
            parts[zone] = _part(trace, keep, inside, start_s, end_s, across)
        start_s = end_s
    return parts


def cut_sessions(trace: Trace, cuts_s: Sequence[float]) -> Trace:
    """Sessions of open replay end where zones end, under the rule ``apart`` of :func:`cut_zones`.

    What a zone's sessions become is then known before requests are moved or drawn inside zones. In other replay modes
    a session belongs to the zone it starts in, and nothing is done.

    Args:
        trace: the trace.
        cuts_s: end of train and of validation, seconds.
    """
    if trace.replay != "open" or not trace.n_sessions:
        return trace
    edges = np.asarray(cuts_s[:2])

    def zone_of(times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(edges, times_s, side="right")

    keep = (zone_of(trace.frame["arrival_s"].to_numpy()) < 2) | (zone_of(starts(trace)) > 0)
    left = int((~keep).sum())
    if left:
        trace = subset(trace, keep, start_s=0.0, duration_s=trace.duration_s, name=trace.name)
    at = zone_of(trace.frame["arrival_s"].to_numpy())
    session = trace.frame["session"].to_numpy()
    pieces = np.where(session >= 0, session * 3 + at, -1)
    cut = np.unique(pieces[session >= 0]).size - trace.n_sessions
    if not cut and not left:
        return trace
    note = f"{cut} sessions cut at {edges[0]:g} or {edges[1]:g} s, {left} turns in test of sessions in train left out"
    frame = count_turns(trace.frame.with_columns(pl.Series("session", pieces)))
    return rebuild(trace, frame, trace.name, note)


def losses(trace: Trace, cuts_s: Sequence[float]) -> dict[str, dict[str, int]]:
    """Requests of each zone by their stamps, and how many of them each rule for open replay loses.

    ``crossing``: their session began in an earlier zone. ``drop`` loses all of these, ``apart`` those in test from
    train, ``restart`` none.
    """
    arrival, start = trace.frame["arrival_s"].to_numpy(), starts(trace)
    edges = np.asarray(cuts_s[:2])
    end_s = cuts_s[2]
    at, begun = np.searchsorted(edges, arrival, side="right"), np.searchsorted(edges, start, side="right")
    observed = (arrival < end_s) | (end_s >= trace.duration_s)
    counts = {}
    for i, zone in enumerate(ZONES):
        inside = (at == i) & observed
        crossing = inside & (begun < i)
        counts[zone] = {
            "inside": int(inside.sum()),
            "crossing": int(crossing.sum()),
            "lost_by_drop": int(crossing.sum()),
            "lost_by_apart": int((crossing & (begun == 0)).sum()) if zone == "test" else 0,
            "lost_by_restart": 0,
        }
    return counts


def split(
    trace: Trace, train: float = 0.4, validation: float = 0.2, test: float = 0.4, *, across: str | None = None
) -> dict[str, Trace]:
    """Cut by time into ``train``, ``validation`` and ``test``, in that order, with no session across a cut.

    Args:
        trace: the trace.
        train: share of the duration, above 0; likewise ``validation`` and ``test``. They sum to at most 1.
        validation: see train.
        test: see train.
        across: see :func:`cut_zones`; None here is that of :func:`window`, which keeps strictly to whole sessions.

    Raises:
        TraceError: shares that are no shares, or a part without a request.
    """
    shares = {"train": train, "validation": validation, "test": test}
    if not all(share > 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
        raise TraceError(file=trace.name, column="split", value=shares, expected="shares above 0 that sum to at most 1")
    ends = [train, train + validation, train + validation + test]
    cuts_s = [(1.0 if end > 1 - 1e-9 else end) * trace.duration_s for end in ends]
    return cut_zones(trace, cuts_s, across=across or ("drop" if trace.replay == "open" else "whole"))


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


def _check_rule(trace: Trace, across: str, rules: Sequence[str]) -> None:
    if across not in rules:
        expected = f"one of {', '.join(rules)}{nearest(str(across), rules)}"
        raise TraceError(file=trace.name, column="across", value=across, expected=expected)
