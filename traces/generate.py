"""Generators with stated parameters, and ways to make a trace longer. Fitted ones are in ``traces.default``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces import transform
from traces.errors import TraceError
from traces.trace import Trace

Lengths = tuple[int, int]


def poisson_trace(
    rate_per_s: float, duration_s: float, prompt_tokens: int, output_tokens: int, *, seed: int = 0
) -> Trace:
    """Poisson arrivals of equal requests, open replay (queueing theory's M/D/1, for one).

    Raises:
        TraceError: a rate or duration that is not positive, or no arrival at all.
    """
    starts = _poisson("poisson_trace", rate_per_s, duration_s, np.random.default_rng(seed))
    return Trace.build(
        f"poisson_{rate_per_s:g}",
        {
            "arrival_s": starts,
            "prompt_tokens": np.full(starts.size, prompt_tokens),
            "output_tokens": np.full(starts.size, output_tokens),
        },
        provenance=[f"generated: Poisson, {rate_per_s:g}/s for {duration_s:g} s, seed {seed}"],
        duration_s=duration_s,
    )


def two_turn_sessions(
    qps: float,
    duration_s: float,
    *,
    turn1: Lengths = (128, 128),
    turn2: Sequence[Lengths] = ((64, 64),),
    think_s: float = 0.0,
    block_tokens: int = 16,
    seed: int = 0,
) -> Trace:
    """Two-turn conversations that start as a Poisson process; the second turn follows in closed loop.

    Args:
        qps: conversations a second.
        duration_s: how long they start for.
        turn1: (new prompt tokens, output tokens) of the first turn.
        turn2: likewise of the second, one of these for each conversation, evenly drawn. Its prompt is the whole
            first turn, prompt and output, and the new tokens.
        think_s: end of turn 1 to arrival of turn 2.
        block_tokens: prefix block; conversations share none.
        seed: of starts and choices.

    Raises:
        TraceError: an argument out of range.
    """
    name = "two_turn_sessions"
    if not turn2 or min(*turn1, *(v for pair in turn2 for v in pair)) < 1:
        raise TraceError(file=name, column="turn2", value=(turn1, turn2), expected="lengths of 1 token or more")
    if block_tokens < 1:
        raise TraceError(file=name, column="block_tokens", value=block_tokens, expected="1 or more")
    rng = np.random.default_rng(seed)
    starts = _poisson(name, qps, duration_s, rng)
    n = starts.size
    choice = np.asarray(turn2, np.int64)[rng.integers(len(turn2), size=n)]
    first, second = sum(turn1), sum(turn1) + choice[:, 0]
    total = second + choice[:, 1]
    lengths = np.c_[np.full(n, first // block_tokens), total // block_tokens].ravel()
    base = np.repeat(np.r_[0, np.cumsum(total // block_tokens)[:-1]], 2)
    offsets = np.r_[0, np.cumsum(lengths)]
    ids = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - base, lengths)
    return Trace.build(
        f"two_turn_{turn1[0]}_{turn1[1]}_{qps:g}",
        {
            "arrival_s": np.repeat(starts, 2) + np.tile([0.0, think_s], n),
            "session": np.repeat(np.arange(n), 2),
            "turn": np.tile([1, 2], n),
            "think_s": pl.Series(np.tile([np.nan, think_s], n)).fill_nan(None),
            "prompt_tokens": np.c_[np.full(n, turn1[0]), second].ravel(),
            "output_tokens": np.c_[np.full(n, turn1[1]), choice[:, 1]].ravel(),
        },
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block_tokens,
        replay="closed",
        provenance=[
            f"generated: two-turn sessions, Poisson {qps:g}/s for {duration_s:g} s, turn 1 {tuple(turn1)}, turn 2 "
            f"{[tuple(pair) for pair in turn2]}, think {think_s:g} s, seed {seed}; nominal turn 2: start + think"
        ],
        duration_s=duration_s,
    )


def replicate(trace: Trace, n_requests: int, *, how: str = "concatenate", shift_s: float = 0.0, seed: int = 0) -> Trace:
    """A longer or denser trace from copies of one. Copies share no session and no prefix.

    Args:
        trace: the trace.
        n_requests: requests wanted: the first ones in time are kept (in closed replay the first whole sessions,
            which may end slightly above).
        how: ``concatenate``: copies one after the other, ``duration_s`` apart: the same rate and burstiness for
            longer. ``superpose``: copies at the same time, the starts of each rotated by a random shift: a higher
            rate, and smoother for its rate than the original (bursts average out: with m copies the counts' standard
            deviation over their mean falls about as 1/sqrt(m)), unlike :func:`traces.transform.scale_rate`.
        shift_s: gap between concatenated copies.
        seed: of the shifts.

    Raises:
        TraceError: an unknown ``how``, or fewer than one request.
    """
    if how not in ("concatenate", "superpose"):
        raise TraceError(file=trace.name, column="how", value=how, expected="concatenate or superpose")
    if n_requests < 1:
        raise TraceError(file=trace.name, column="n_requests", value=n_requests, expected="1 or more")
    n = len(trace)
    copies = -(-n_requests // n)
    rng = np.random.default_rng(seed)
    arrival = trace.frame["arrival_s"].to_numpy()
    start = transform.session_starts(trace)
    start = np.where(np.isnan(start), arrival, start)
    period = trace.duration_s + shift_s
    parts = []
    for copy in range(copies):
        if how == "concatenate":
            parts.append(arrival + copy * period)
        else:
            turned = (start + (rng.random() * period if copy else 0.0)) % period
            parts.append(turned + (arrival - start))
    session = trace.frame["session"].to_numpy()
    sessions = np.where(session >= 0, session + np.arange(copies)[:, None] * max(trace.n_sessions, 1), -1)
    lengths = np.tile(np.diff(trace.chain_offsets), copies)
    ids = trace.chain_ids.astype(np.int64) + np.arange(copies)[:, None] * max(trace.n_prefix_ids, 1)
    frame = pl.concat([trace.frame] * copies, rechunk=True).with_columns(
        arrival_s=pl.Series(np.concatenate(parts)), session=pl.Series(sessions.ravel())
    )
    last = transform.last_start_s(np.concatenate(parts), frame, trace.replay)
    whole = Trace.build(
        f"{trace.name}x{n_requests}",
        frame,
        chain_offsets=np.r_[0, np.cumsum(lengths)],
        chain_ids=ids.ravel(),
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, f"{copies} copies, {how}, seed {seed}, cut to {n_requests} requests"),
        duration_s=max(period * copies if how == "concatenate" else period, last),
    )
    return _cut(whole, n_requests)


def _cut(trace: Trace, n_requests: int) -> Trace:
    """The first ``n_requests`` in time; by whole sessions where later turns have no fixed time."""
    if len(trace) <= n_requests:
        return trace
    if trace.replay == "open" or not trace.n_sessions:
        keep = np.arange(len(trace)) < n_requests
    else:
        start = transform.session_starts(trace)
        start = np.where(np.isnan(start), trace.frame["arrival_s"].to_numpy(), start)
        keep = start <= np.partition(start, n_requests - 1)[n_requests - 1]
    kept = trace.frame["arrival_s"].to_numpy()[keep & (trace.frame["turn"].to_numpy() == 1)]
    end = float(kept.max()) if trace.replay != "open" else float(trace.frame["arrival_s"].to_numpy()[keep].max())
    return transform.subset(
        trace, keep, start_s=0.0, duration_s=end, name=trace.name, note=f"cut to {int(keep.sum())} requests"
    )


def _poisson(name: str, rate: float, duration_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    for column, value in (("rate_per_s", rate), ("duration_s", duration_s)):
        if not 0 < value < np.inf:
            raise TraceError(file=name, column=column, value=value, expected="a positive number")
    n = rng.poisson(rate * duration_s)
    if n == 0:
        raise TraceError(file=name, column="rate_per_s", value=rate, expected="a rate that gives an arrival at all")
    return np.sort(rng.random(n) * duration_s)
