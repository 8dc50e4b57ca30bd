"""Clients who give up, and who try again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError, nearest
from traces.transforms.rows import MAX_REQUESTS, gather_chains, number, rebuild, seeded, shorten_chains, starts

if TYPE_CHECKING:
    from traces.trace import Trace

LAWS = ("exponential", "fixed")
MAX_RETRIES = 1000


def cancel(
    trace: Trace,
    chance: float,
    *,
    after_s: float,
    law: str = "exponential",
    retry: float = 0.0,
    retry_after_s: float = 0.0,
    retries: int = 1,
    seed: int = 0,
    cuts_s: Sequence[float] = (),
) -> Trace:
    """Some clients cancel, and some of those send the request again.

    Each request gets, independently and with probability ``chance``, a time after its arrival at which its client gives
    up (``cancel_after_s``): one that is served by then is not touched by it. A cancelled one is sent again with
    chance ``retry``, ``retry_after_s`` after that time, as a request of its own without a session: the same lengths
    and the same prompt blocks. It is cancelled and sent again by the same chances, ``retries`` times at most.

    The retry is in the trace whether or not the request was served before its client gave up: rates and times are
    the law's, not an answer to what the cluster did.

    Args:
        trace: the trace, without cancel times of its own.
        chance: of a request to be given up, above 0 and at most 1.
        after_s: mean time until then, above 0.
        law: of that time: ``exponential`` or ``fixed``.
        retry: chance of a cancelled request to be sent again, 0 to 1.
        retry_after_s: pause before that.
        retries: most retries of one request, 1000 or fewer.
        seed: of all draws.
        cuts_s: end of train and of validation, if any: a retry in test of what began in train is left out, as later
            turns of a session are by the rule ``apart`` (:func:`traces.transform.cut_zones`). A retry has no session
            that would tell.

    Raises:
        TraceError: an argument out of range, an unknown law, or a trace with cancel times.
    """
    number(trace, "chance", chance, low=0, high=1)
    number(trace, "after_s", after_s, low=0, ends=False)
    number(trace, "retry", retry, low=0, high=1)
    number(trace, "retry_after_s", retry_after_s, low=0)
    number(trace, "retries", retries, low=0, high=MAX_RETRIES, whole=True)
    if law not in LAWS:
        expected = f"one of {', '.join(LAWS)}{nearest(str(law), LAWS)}"
        raise TraceError(file=trace.name, column="law", value=law, expected=expected)
    if "cancel_after_s" in trace.frame.columns and trace.frame["cancel_after_s"].null_count() < len(trace):
        expected = "a trace without cancel times of its own"
        raise TraceError(file=trace.name, column="cancel_after_s", expected=expected)
    rng = seeded(trace, seed)

    def drawn(n: int) -> NDArray[np.float64]:
        times = rng.exponential(after_s, n) if law == "exponential" else np.full(n, float(after_s))
        return np.where(rng.random(n) < chance, times, np.nan)

    arrival, index = trace.frame["arrival_s"].to_numpy(), np.arange(len(trace))
    times = drawn(index.size)
    waves = [(index, arrival, times)]
    trained = np.zeros(index.size, np.bool_) if not cuts_s else starts(trace) < cuts_s[0]
    lost = leaked = 0
    for _ in range(retries if retry > 0 else 0):
        index, arrival, times = waves[-1]
        again = ~np.isnan(times) & (rng.random(index.size) < retry)
        sent = arrival + times + retry_after_s
        kept = again & (sent <= trace.duration_s)
        lost += int((again & ~kept).sum())
        if cuts_s:
            leaks = kept & trained[index] & (sent >= cuts_s[1])
            leaked += int(leaks.sum())
            kept &= ~leaks
        if not kept.any():
            break
        waves.append((index[kept], sent[kept], drawn(int(kept.sum()))))
        if sum(wave[0].size for wave in waves) > MAX_REQUESTS:
            expected = f"fewer: the trace would have more than {MAX_REQUESTS:,} requests"
            raise TraceError(file=trace.name, column="retries", value=retries, expected=expected)
    rows = np.concatenate([wave[0] for wave in waves])
    times = np.concatenate([wave[2] for wave in waves])
    new = np.arange(rows.size) >= len(trace)
    frame = trace.frame[rows].with_columns(
        pl.Series("arrival_s", np.concatenate([wave[1] for wave in waves])),
        pl.Series("cancel_after_s", times).fill_nan(None),
        pl.when(pl.Series(new)).then(-1).otherwise(pl.col("session")).alias("session"),
        pl.when(pl.Series(new)).then(1).otherwise(pl.col("turn")).alias("turn"),
        pl.when(pl.Series(new)).then(None).otherwise(pl.col("think_s")).alias("think_s"),
    )
    offsets, ids = gather_chains(trace.chain_offsets, trace.chain_ids, rows)
    if trace.prefix_block_tokens:  # another answer completes other blocks
        prompt = frame["prompt_tokens"].to_numpy() // trace.prefix_block_tokens
        lengths = np.diff(offsets)
        offsets, ids = shorten_chains(offsets, ids, np.where(new, np.minimum(lengths, prompt), lengths))
    asked = int((~np.isnan(times)).sum())
    note = (
        f"clients: {asked} of {rows.size} requests cancelled after {after_s:g} s ({law}, chance {chance:g}), "
        f"{int(new.sum())} of them retries (chance {retry:g}, {retry_after_s:g} s later, at most {retries}), "
        f"seed {seed}" + (f"; {lost} retries after the end left out" if lost else "")
    )
    note += f"; {leaked} retries in test of sessions in train left out" if leaked else ""
    return rebuild(trace, frame, f"{trace.name}~cancelled", note, offsets=offsets, ids=ids)
