"""Statistics of a trace: load, burstiness, lengths, sessions, and what a prefix cache would hit."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.prefix_cache import hit_curve
from traces.trace import Trace
from traces.transform import session_starts

LEVELS = {"p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
SCALES_S = (1, 10, 60)
CURVE_SCALES_S = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600)
RATE_BINS = 120
"""Most intervals of the rate over time; none is shorter than a second."""


def describe(trace: Trace) -> dict[str, Any]:
    """A summary, units in the keys; what a trace does not have is left out, and said in ``lacks``.

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
        "rate_per_s": trace.rate_per_s if trace.duration_s > 0 else None,
    }
    stats |= _arrivals(trace)
    for column in ("prompt_tokens", "output_tokens"):
        stats |= spread(frame[column], column)
        stats[f"{column}_total"] = int(frame[column].sum())
    correlation = frame.select(pl.corr("prompt_tokens", "output_tokens", method="spearman")).item()
    if correlation is not None and np.isfinite(correlation):
        stats["prompt_output_rank_correlation"] = float(correlation)
    stats |= _sessions(trace)
    for column in ("class", "tenant", "model"):
        if column in frame.columns:
            counts = frame[column].drop_nulls().value_counts(sort=True).head(20)
            stats[f"{column}_requests"] = dict(zip(counts[column].to_list(), counts["count"].to_list(), strict=True))
    if "cancel_after_s" in frame.columns:
        stats["cancelled_share"] = 1.0 - frame["cancel_after_s"].null_count() / len(trace)
    stats |= _prefixes(trace)
    stats["lacks"] = lacks(trace)
    stats["provenance"] = list(trace.provenance)
    return stats


def lacks(trace: Trace) -> list[str]:
    """What the trace does not hold, and what that means for a comparison on it; sentences."""
    found = []
    if not trace.prefix_block_tokens:
        found.append("no prefix information: prefix-aware policies are not ranked on this trace")
    if not trace.n_sessions:
        found.append("no sessions: every request stands alone, and policies that keep sessions together see none")
    if not {"ttft_s", "tpot_s"} <= set(trace.frame.columns):
        found.append("no end stamps: what a request took on its own cluster is not in the trace")
    if trace.n_sessions and trace.replay == "open":
        later = trace.frame.filter(pl.col("turn") > 1)
        if later.height and later["think_s"].null_count():
            found.append("no think times: replay=closed is not possible")
    if trace.n_sessions and any("assumed service" in note for note in trace.provenance):
        some = any(note.startswith("think times as recorded, but for") for note in trace.provenance)
        which = "some think times are" if some else "think times are"
        found.append(f"{which} not as they were: they rest on an assumed service time (below)")
    return found


def _arrivals(trace: Trace) -> dict[str, Any]:
    stats: dict[str, Any] = {}
    arrival = fixed_arrivals(trace)
    gaps = np.diff(arrival)
    if gaps.size and gaps.mean() > 0:
        stats["arrival_gap_mean_s"] = float(gaps.mean())
        stats["arrival_gap_cv"] = float(gaps.std() / gaps.mean())
    for scale_s in SCALES_S:
        index = dispersion(arrival, trace.duration_s, scale_s)
        if index is not None:
            stats[f"arrival_dispersion_{scale_s}s"] = index
    curve = [(s, dispersion(arrival, trace.duration_s, s)) for s in CURVE_SCALES_S]
    stats["arrival_dispersion_curve"] = {
        "scale_s": [s for s, index in curve if index is not None],
        "index": [index for _, index in curve if index is not None],
    }
    if trace.duration_s > 0:
        edges = np.linspace(0.0, trace.duration_s, int(np.clip(trace.duration_s, 1, RATE_BINS)) + 1)
        counts = np.histogram(arrival, edges)[0]
        stats["arrival_rate"] = {
            "start_s": edges[:-1].tolist(),
            "end_s": edges[1:].tolist(),
            "per_s": (counts / np.diff(edges)).tolist(),
        }
    return stats


def _sessions(trace: Trace) -> dict[str, Any]:
    if not trace.n_sessions:
        return {}
    frame = trace.frame
    turns = np.bincount(frame["session"].to_numpy()[frame["session"].to_numpy() >= 0])
    stats = spread(pl.Series(turns), "turns")
    stats["later_turns_share"] = float((frame["turn"] > 1).to_numpy().mean())
    stats["in_sessions_of_two_or_more_share"] = float(turns[turns > 1].sum() / len(trace))
    order = np.lexsort((frame["turn"].to_numpy(), frame["session"].to_numpy()))
    prompt, session = frame["prompt_tokens"].to_numpy()[order], frame["session"].to_numpy()[order]
    later = (session[1:] == session[:-1]) & (session[1:] >= 0)
    if later.any():
        stats["shrinking_prompts_share_of_later_turns"] = float((prompt[1:] < prompt[:-1])[later].mean())
    think = frame["think_s"].drop_nulls()
    if think.len():
        stats |= spread(think, "think_s")
    notes = [note for note in trace.provenance if "session" in note or "think time" in note]
    stats["sessions_how"] = notes or ["as the trace has them"]
    return stats


def _prefixes(trace: Trace) -> dict[str, Any]:
    if not trace.prefix_block_tokens:
        return {}
    curve = hit_curve(trace)
    return {
        "prefix_block_tokens": trace.prefix_block_tokens,
        "prefix_ids": trace.n_prefix_ids,
        "ideal_block_hit_share": ideal_hit_share(trace, outputs=False),
        "ideal_block_hit_share_with_outputs": ideal_hit_share(trace),
        "cache_tokens_for_half_of_the_hits": curve.blocks_for(0.5) * trace.prefix_block_tokens,
        "cache_tokens_for_nine_in_ten_hits": curve.blocks_for(0.9) * trace.prefix_block_tokens,
        "hit_curve": curve.points(),
        "hit_curve_prompts_alone": hit_curve(trace, outputs=False).points(),
    }


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


def spread(values: pl.Series, name: str) -> dict[str, Any]:
    """Mean and quantiles of a column, keys with ``name`` before them."""
    stats = {f"{name}_mean": float(values.to_numpy().mean())}
    return stats | {f"{name}_{label}": float(np.quantile(values.to_numpy(), q)) for label, q in LEVELS.items()}
