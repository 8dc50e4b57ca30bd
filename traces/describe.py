"""Statistics of a trace: load, burstiness, lengths, sessions, and what an endless prefix cache would hit."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.trace import Trace
from traces.transform import session_starts

LEVELS = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
SCALES_S = (1, 10, 60)


def describe(trace: Trace) -> dict[str, Any]:
    """A flat summary, units in the keys; what a trace does not have is left out.

    ``arrival_*`` are of requests in open replay and of session starts otherwise. The index of dispersion is
    variance over mean of the counts in intervals of that length: 1 for Poisson, more for bursts.
    """
    frame = trace.frame
    stats: dict[str, Any] = {
        "name": trace.name,
        "sha256": trace.sha256,
        "replay": trace.replay,
        "requests": len(trace),
        "sessions": trace.n_sessions,
        "duration_s": trace.duration_s,
        "rate_per_s": trace.rate_per_s,
    }
    arrival = fixed_arrivals(trace)
    gaps = np.diff(arrival)
    if gaps.size and gaps.mean() > 0:
        stats["arrival_gap_mean_s"] = float(gaps.mean())
        stats["arrival_gap_cv"] = float(gaps.std() / gaps.mean())
    for scale_s in SCALES_S:
        index = dispersion(arrival, trace.duration_s, scale_s)
        if index is not None:
            stats[f"arrival_dispersion_{scale_s}s"] = index
    for column in ("prompt_tokens", "output_tokens"):
        stats |= _spread(frame[column], column)
        stats[f"{column}_total"] = int(frame[column].sum())
    if trace.n_sessions:
        turns = frame.filter(pl.col("session") >= 0).group_by("session").len()["len"]
        stats["turns_mean"] = float(turns.to_numpy().mean())
        stats["turns_max"] = int(turns.to_numpy().max())
        stats["later_turns_share"] = float((frame["turn"] > 1).to_numpy().mean())
        think = frame["think_s"].drop_nulls()
        if think.len():
            stats |= _spread(think, "think_s")
    if trace.prefix_block_tokens:
        stats["prefix_block_tokens"] = trace.prefix_block_tokens
        stats["prefix_ids"] = trace.n_prefix_ids
        stats["ideal_block_hit_share"] = ideal_hit_share(trace, outputs=False)
        stats["ideal_block_hit_share_with_outputs"] = ideal_hit_share(trace)
    stats["provenance"] = list(trace.provenance)
    return stats


def fixed_arrivals(trace: Trace) -> NDArray[np.float64]:
    """Sorted arrivals that the trace fixes: every one in open replay, else starts of sessions and lone requests."""
    arrival = trace.frame["arrival_s"].to_numpy()
    if trace.replay != "open" and trace.n_sessions:
        arrival = arrival[np.isnan(session_starts(trace)) | (trace.frame["turn"].to_numpy() == 1)]
    return np.sort(arrival)


def dispersion(arrival_s: NDArray[np.float64], duration_s: float, scale_s: float) -> float | None:
    """Index of dispersion of counts in whole intervals of ``scale_s``; None with fewer than eight intervals."""
    intervals = int(duration_s // scale_s)
    if intervals < 8:
        return None
    counts = np.histogram(arrival_s, intervals, (0.0, intervals * scale_s))[0]
    return float(counts.var() / counts.mean()) if counts.any() else None


def ideal_hit_share(trace: Trace, *, outputs: bool = True) -> float:
    """Share of full prompt blocks that an endless shared cache holds when their request arrives.

    Args:
        trace: a trace with prefix chains; 0.0 without.
        outputs: blocks completed by outputs enter the cache as well, at their request's arrival (they really do
            at its end: an upper bound for overlapping requests).
    """
    if not trace.prefix_block_tokens or not trace.chain_ids.size:
        return 0.0
    lengths = np.diff(trace.chain_offsets)
    row = np.repeat(np.arange(len(trace)), lengths)
    depth = np.arange(trace.chain_ids.size) - np.repeat(trace.chain_offsets[:-1], lengths)
    in_prompt = depth < (trace.frame["prompt_tokens"].to_numpy() // trace.prefix_block_tokens)[row]
    enters = np.ones(row.size, np.bool_) if outputs else in_prompt
    first = np.full(trace.n_prefix_ids, len(trace), np.int64)
    first[trace.chain_ids[enters][::-1]] = row[enters][::-1]  # the last write is the first appearance
    hit = first[trace.chain_ids] < row
    return float((hit & in_prompt).sum() / max(1, in_prompt.sum()))


def _spread(values: pl.Series, name: str) -> dict[str, float]:
    stats = {f"{name}_mean": float(values.to_numpy().mean())}
    return stats | {f"{name}_{label}": float(np.quantile(values.to_numpy(), q)) for label, q in LEVELS.items()}
