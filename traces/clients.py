"""Closed-loop benchmark clients: N users, each sends its next request when the last one has ended.

This is what benchmark tools do (a fixed concurrency), and what validation against their tables needs. A user is a
session, a round is a turn, the think time is 0, ``replay`` is ``clients``. The requests of a user are independent:
their prompts share nothing, although they share a session number.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.errors import TraceError, nearest
from traces.trace import Trace

STARTS = ("together", "staggered")


def client_trace(
    users: int,
    rounds: int,
    prompt_tokens: int,
    output_tokens: int,
    jitter: float = 0.0,
    start: str = "together",
    seed: int = 0,
    *,
    stagger_s: float = 0.1,
) -> Trace:
    """A benchmark at concurrency ``users``.

    Args:
        users: concurrent users.
        rounds: requests of each user, one after the other.
        prompt_tokens: mean prompt length.
        output_tokens: mean output length.
        jitter: lengths are drawn evenly from mean * [1 - jitter, 1 + jitter], prompt and output apart
            (``--random-range-ratio`` of vLLM's benchmark).
        start: ``together``: all users start at 0; ``staggered``: user i at ``i * stagger_s``.
        seed: of the lengths.
        stagger_s: step between staggered starts.

    Returns:
        A trace of ``users * rounds`` requests with replay ``clients``. Nominal arrivals of later rounds are their
        user's start: nothing else is known before a replay.

    Raises:
        TraceError: an argument out of range.
    """
    for column, value, low, high in (
        ("users", users, 1, 1_000_000),
        ("rounds", rounds, 1, 10_000_000),
        ("prompt_tokens", prompt_tokens, 1, MAX_TOKENS),
        ("output_tokens", output_tokens, 1, MAX_TOKENS),
        ("jitter", jitter, 0, 1),
        ("stagger_s", stagger_s, 0, 1e6),
    ):
        if not low <= value <= high:
            raise TraceError(file="client_trace", column=column, value=value, expected=f"{low:,} to {high:,}")
    starts = _starts("client_trace", users, start, stagger_s)
    rng = np.random.default_rng(seed)
    shape = (rounds, users)
    user = np.broadcast_to(np.arange(users), shape).ravel()
    note = f"{users} users, {rounds} rounds, jitter {jitter:g}, start {start}, seed {seed}"
    return Trace.build(
        f"clients_{users}x{rounds}_{prompt_tokens}_{output_tokens}",
        {
            "arrival_s": starts[user],
            "session": user,
            "turn": np.repeat(np.arange(1, rounds + 1), users),
            "think_s": _no_think(rounds, users),
            "prompt_tokens": _lengths(prompt_tokens, jitter, shape, rng),
            "output_tokens": _lengths(output_tokens, jitter, shape, rng),
        },
        replay="clients",
        provenance=[f"generated: benchmark clients, {note}"],
    )


def as_clients(
    trace: Trace, users: int, *, rounds: int | None = None, start: str = "together", stagger_s: float = 0.1
) -> Trace:
    """Deal a trace's requests, in order of arrival, to ``users`` clients in turn; stamps and sessions are dropped.

    Args:
        trace: the trace; lengths, classes and prefix chains are kept.
        users: concurrent users.
        rounds: requests of each user at most; None: as many as there are.
        start: see :func:`client_trace`.
        stagger_s: see :func:`client_trace`.

    Raises:
        TraceError: more users than requests, or an argument out of range.
    """
    if not 1 <= users <= len(trace):
        raise TraceError(file=trace.name, column="users", value=users, expected=f"1 to {len(trace):,} (requests)")
    if rounds is not None and rounds < 1:
        raise TraceError(file=trace.name, column="rounds", value=rounds, expected="1 or more")
    starts = _starts(trace.name, users, start, stagger_s)
    n = len(trace) if rounds is None else min(len(trace), rounds * users)
    row = np.arange(n)
    columns = trace.frame[:n].with_columns(
        arrival_s=pl.Series(starts[row % users]),
        session=pl.Series(row % users),
        turn=pl.Series(row // users + 1),
        think_s=pl.Series(np.where(row < users, np.nan, 0.0)).fill_nan(None),
    )
    return Trace.build(
        f"{trace.name}_{users}clients",
        columns,
        chain_offsets=trace.chain_offsets[: n + 1],
        chain_ids=trace.chain_ids[: trace.chain_offsets[n]],
        prefix_block_tokens=trace.prefix_block_tokens,
        replay="clients",
        classes=trace.classes,
        provenance=(*trace.provenance, f"dealt to {users} clients in turn, {n} requests, start {start}"),
    )


def _starts(name: str, users: int, start: str, stagger_s: float) -> NDArray[np.float64]:
    if start not in STARTS:
        expected = f"one of {', '.join(STARTS)}{nearest(str(start), STARTS)}"
        raise TraceError(file=name, column="start", value=start, expected=expected)
    return np.arange(users, dtype=np.float64) * (stagger_s if start == "staggered" else 0.0)


def _no_think(rounds: int, users: int) -> pl.Series:
    return pl.Series(np.r_[np.full(users, np.nan), np.zeros((rounds - 1) * users)]).fill_nan(None)


def _lengths(mean: int, jitter: float, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.int64]:
    low, high = max(1, int(np.floor(mean * (1 - jitter)))), int(np.ceil(mean * (1 + jitter)))
    return rng.integers(low, high, size=shape, endpoint=True).ravel()
