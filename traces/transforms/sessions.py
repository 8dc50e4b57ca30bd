"""Sessions drawn anew, and sessions or requests chosen by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError, nearest
from traces.transforms.copies import check_prefixes, copied, strata
from traces.transforms.rows import number, seeded, starts, subset, units

if TYPE_CHECKING:
    from traces.trace import Trace

BY = ("session", "request")


def resample(trace: Trace, *, seed: int = 0, prefixes: str = "own", cuts_s: Sequence[float] = ()) -> Trace:
    """A bootstrap of the trace: starts stay, the sessions that start there are drawn with replacement.

    Of requests without a session each is drawn likewise. The process of starts is thus the trace's own; numbers of
    requests and tokens vary. In open replay a turn that
    would come after the end comes as much after the beginning, in a session of its own, so that the load is whole.

    Args:
        trace: the trace.
        seed: of the draws.
        prefixes: what copies of one session share, see :mod:`traces.transforms.copies`.
        cuts_s: draw among the sessions that start between the same two of these times, and turn over inside them,
            so that nothing moves from one zone into another.

    Raises:
        TraceError: an unknown ``prefixes``, or no such seed.
    """
    check_prefixes(trace, prefixes)
    rng = seeded(trace, seed)
    unit, start = units(trace), starts(trace)
    rows = np.argsort(unit, kind="stable")
    sizes = np.bincount(unit)
    first = np.cumsum(sizes) - sizes
    begins = start[rows[first]]
    edges = strata(trace, cuts_s)
    at = np.clip(np.searchsorted(edges, begins, side="right") - 1, 0, edges.size - 2)
    drawn = np.empty(sizes.size, np.int64)
    for stratum in range(edges.size - 1):
        inside = np.flatnonzero(at == stratum)
        if inside.size:
            drawn[inside] = rng.choice(inside, inside.size)
    # Rows of every drawn session, at the place of the one that started there.
    count = sizes[drawn]
    place = np.repeat(np.arange(drawn.size), count)
    index = rows[np.repeat(first[drawn] - (np.cumsum(count) - count), count) + np.arange(count.sum())]
    arrival = begins[place] + (trace.frame["arrival_s"].to_numpy() - start)[index]
    wrapped = np.zeros(index.size, np.int64)
    if trace.replay == "open":
        low, high = edges[at][place], edges[at + 1][place]
        past = arrival > high
        wrapped = np.where(past, np.ceil((arrival - high) / np.where(past, high - low, 1.0)), 0).astype(np.int64)
        arrival = arrival - wrapped * (high - low)
    copy = _occurrence(drawn)[place]
    note = (
        f"resampled: {drawn.size} starts kept, sessions drawn with replacement, {np.unique(drawn).size} of them "
        f"different, seed {seed}, prefixes {prefixes}"
    )
    return copied(trace, index, copy, arrival, wrapped, prefixes, f"{trace.name}~resampled{seed}", note)


def _occurrence(drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) how often each value came before."""
    order = np.argsort(drawn, kind="stable")
    ordered = drawn[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    begin = np.maximum.accumulate(np.where(first, np.arange(drawn.size), 0))
    out = np.empty(drawn.size, np.int64)
    out[order] = np.arange(drawn.size) - begin
    return out


def select(
    trace: Trace,
    *,
    classes: Sequence[str] | str | None = None,
    tenants: Sequence[str] | str | None = None,
    models: Sequence[str] | str | None = None,
    prompt_tokens: Sequence[float | None] | None = None,
    output_tokens: Sequence[float | None] | None = None,
    turns: Sequence[float | None] | None = None,
    by: str = "session",
) -> Trace:
    """Keep what is of some classes, tenants, models, lengths and turns; everything given must hold.

    Args:
        trace: the trace.
        classes: names; likewise ``tenants`` and ``models``.
        tenants: see classes.
        models: see classes.
        prompt_tokens: (lowest, highest), inclusive, null for no bound; likewise ``output_tokens`` and ``turns``.
        output_tokens: see prompt_tokens.
        turns: by session: its number of turns; by request: which turn it is.
        by: ``session``: sessions of which every request fits, whole. ``request``: the requests that fit; the turns
            left of a session are counted anew, and each keeps the think time that it had.

    Raises:
        TraceError: a name that the trace does not have, no range, nothing to choose by, or nothing left.
    """
    if by not in BY:
        expected = f"one of {', '.join(BY)}{nearest(str(by), BY)}"
        raise TraceError(file=trace.name, column="by", value=by, expected=expected)
    frame, unit = trace.frame, units(trace)
    keep, said = np.ones(len(trace), np.bool_), []
    for option, column, names in (
        ("classes", "class", classes),
        ("tenants", "tenant", tenants),
        ("models", "model", models),
    ):
        if names is not None:
            wanted = _names(trace, option, names)
            keep &= _named(trace, option, column, wanted)
            said.append(f"{option} {', '.join(wanted)}")
    turn = np.bincount(unit)[unit] if by == "session" else frame["turn"].to_numpy()
    for option, values, bounds in (
        ("prompt_tokens", frame["prompt_tokens"].to_numpy(), prompt_tokens),
        ("output_tokens", frame["output_tokens"].to_numpy(), output_tokens),
        ("turns", turn, turns),
    ):
        if bounds is not None:
            low, high = _range(trace, option, bounds)
            keep &= (values >= low) & (values <= high)
            said.append(f"{option} {low:g} to {high:g}")
    if not said:
        expected = "something to choose by: classes, tenants, models, prompt_tokens, output_tokens or turns"
        raise TraceError(file=trace.name, column="filter", expected=expected)
    if by == "session":
        unfit = np.zeros(int(unit.max()) + 1, np.bool_)
        unfit[unit[~keep]] = True
        keep = ~unfit[unit]
    note = f"filtered by {by}: {'; '.join(said)}: {int(keep.sum())} of {len(trace)} requests kept"
    return subset(trace, keep, start_s=0.0, duration_s=trace.duration_s, name=f"{trace.name}~filtered", note=note)


def _names(trace: Trace, option: str, names: object) -> list[str]:
    """One name or a list of them, numbers by their digits."""
    given = list(names) if isinstance(names, list | tuple | set) else [names]
    if not given or any(isinstance(name, bool) or not isinstance(name, str | int | float) for name in given):
        raise TraceError(file=trace.name, column=option, value=names, expected="a name, or a list of names")
    return [str(name) for name in given]


def _named(trace: Trace, option: str, column: str, wanted: list[str]) -> NDArray[np.bool_]:
    if column not in trace.frame.columns:
        raise TraceError(file=trace.name, column=option, value=wanted, expected=f"a trace with a column {column!r}")
    known = trace.frame[column].drop_nulls().unique().sort().to_list()
    for name in wanted:
        if name not in known:
            expected = f"of {', '.join(known[:20])}{nearest(name, known)}"
            raise TraceError(file=trace.name, column=option, value=name, expected=expected)
    return np.asarray(trace.frame[column].is_in(wanted).fill_null(False).to_numpy())


def _range(trace: Trace, option: str, bounds: object) -> tuple[float, float]:
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        expected = "[lowest, highest], null for no bound"
        raise TraceError(file=trace.name, column=option, value=bounds, expected=expected)
    low = 0.0 if bounds[0] is None else number(trace, option, bounds[0], low=0)
    high = np.inf if bounds[1] is None else number(trace, option, bounds[1], low=low)
    return low, high
