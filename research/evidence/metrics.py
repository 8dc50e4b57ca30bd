"""What one run was like: from a simulator's result to a flat dict of numbers, units in the keys.

Only requests that arrive in the measured part of the window count (:func:`measured_interval`), so that a cluster
that starts empty and drains at the end does not flatter anybody. Three kinds are of the whole run, lead-in included,
since the simulator sums them: gaps between tokens (``tbt_*``), utilisation, and the workers' totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from envs.cluster.result import SimResult

Metrics = dict[str, float | None]
"""Values by name; None where nothing was there to measure (no request with two tokens: no TPOT)."""

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
TBT_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

HIGHER_IS_BETTER = ("goodput_per_s", "goodput_per_gpu_per_s", "attainment", "feasible_attainment", "hit_rate")


@dataclass(frozen=True, slots=True)
class Interval:
    """Measured part of a run, in seconds from its start; ``end_s`` is not included."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end_s - self.start_s


def measured_interval(lead_s: float, length_s: float, skip_first: float, skip_last: float) -> Interval:
    """The middle of a window of ``length_s`` that starts at ``lead_s``: without its first and last shares.

    It is a part of the *offered* time, so it is the same for every policy.
    """
    return Interval(lead_s + length_s * skip_first, lead_s + length_s * (1.0 - skip_last))


def measure(result: SimResult, interval: Interval) -> Metrics:
    """All metrics of one run.

    Args:
        result: what the simulator returned.
        interval: measured part; a request belongs to it by its arrival. (A turn that never arrived, because an
            earlier one of its session was refused, belongs to it by the moment it was cancelled.)
    """
    requests = result.requests.join(
        result.workers.select(pl.col("worker").alias("decode_worker"), pl.col("role").alias("decode_role")),
        on="decode_worker",
        how="left",
    ).with_columns(
        pl.coalesce("arrival_s", "finish_s", pl.lit(0.0)).alias("at_s"),
        (pl.col("status") == "served").alias("served"),
        (
            (pl.col("idle_ttft_s") <= pl.col("slo_ttft_s"))
            & ~(pl.col("idle_tpot_s") > pl.col("slo_tpot_s")).fill_null(False)
        )
        .fill_null(False)
        .alias("feasible"),
    )
    inside = pl.col("at_s").is_between(interval.start_s, interval.end_s, closed="left")
    ended = pl.col("finish_s").is_between(interval.start_s, interval.end_s, closed="left") & pl.col("served")
    out: Metrics = dict(requests.filter(inside).select(_request_expressions(interval, result.gpus)).row(0, named=True))
    out |= (
        requests.filter(ended)
        .select(
            (pl.len() / interval.seconds).alias("completed_per_s"),
            (pl.col("emitted_tokens").sum() / interval.seconds).alias("output_tokens_per_s"),
            (pl.col("prompt_tokens").sum() / interval.seconds).alias("prompt_tokens_per_s"),
        )
        .row(0, named=True)
    )
    out |= tbt_quantiles(result)
    out |= worker_metrics(result)
    out["span_s"] = result.span_s
    out["decisions"] = float(result.decisions)
    out["extrapolated_steps_share"] = result.extrapolated_share
    out["gpus"] = float(result.gpus)
    return {name: None if value is None or value != value else float(value) for name, value in out.items()}


def _request_expressions(interval: Interval, gpus: int) -> list[pl.Expr]:
    met = pl.col("slo_met").fill_null(False)
    local = pl.col("local").cast(pl.Boolean)
    remote = pl.col("served") & ~local
    routed = pl.col("decode_worker").is_not_null() & (pl.col("decode_worker") >= 0)
    deflected = local & (pl.col("decode_role") == "decode")
    expressions = [
        pl.len().cast(pl.Float64).alias("requests"),
        (pl.len() / interval.seconds).alias("offered_per_s"),
        (met.sum() / interval.seconds).alias("goodput_per_s"),
        (met.sum() / interval.seconds / gpus).alias("goodput_per_gpu_per_s"),
        met.mean().alias("attainment"),
        met.filter(pl.col("feasible")).mean().alias("feasible_attainment"),
        (1.0 - pl.col("feasible").mean()).alias("infeasible_share"),
        (pl.col("ttft_s") <= pl.col("slo_ttft_s")).fill_null(False).mean().alias("ttft_attainment"),
        (pl.col("tpot_s") <= pl.col("slo_tpot_s"))
        .filter(pl.col("tpot_s").is_not_null())
        .mean()
        .alias("tpot_attainment"),
        pl.col("pulled_bytes").sum().alias("kv_moved_bytes"),
        (
            pl.col("cached_tokens").filter(pl.col("served")).sum()
            / pl.col("prompt_tokens").filter(pl.col("served")).sum()
        ).alias("hit_rate"),
        (deflected.sum() / routed.sum()).alias("deflected_share"),
        (local.sum() / routed.sum()).alias("local_share"),
        pl.col("preemptions").sum().alias("preemptions"),
        pl.col("holds").sum().alias("holds"),
        (pl.col("prefill_start_s") - pl.col("routed_s")).mean().alias("prefill_wait_mean_s"),
        (pl.col("prefill_done_s") - pl.col("prefill_start_s")).mean().alias("prefill_run_mean_s"),
        (pl.col("first_token_s") - pl.col("prefill_done_s")).filter(remote).mean().alias("handover_mean_s"),
    ]
    expressions += [
        (pl.col("status") == name).sum().alias(name) for name in ("served", "rejected", "cancelled", "failed")
    ]
    for name in ("ttft", "tpot", "e2e"):
        column = pl.col(f"{name}_s").filter(pl.col("served"))
        expressions.append(column.mean().alias(f"{name}_mean_s"))
        expressions += [
            column.quantile(q, interpolation="linear").alias(f"{name}_{label}_s") for label, q in QUANTILES.items()
        ]
    return expressions


def tbt_quantiles(result: SimResult) -> Metrics:
    """Quantiles of the gaps between tokens from the histogram, linear within a bin (bins are 3 % wide)."""
    from envs.cluster.problem import tbt_bin_edges_s

    edges = tbt_bin_edges_s()
    bins = (
        pl.DataFrame({"low_s": edges, "count": result.tbt_counts})
        .with_columns(pl.col("low_s").shift(-1).fill_null(2 * edges[-1] - edges[-2]).alias("high_s"))
        .with_columns(pl.col("count").cum_sum().alias("until"))
        .with_columns((pl.col("until") - pl.col("count")).alias("before"))
        .filter(pl.col("count") > 0)
    )
    total = int(bins["count"].sum())
    out: Metrics = {"tbt_samples": float(total)}
    for label, q in TBT_QUANTILES.items():
        rank = q * total
        inside = (rank - pl.col("before")) / pl.col("count")
        value = (pl.col("low_s") + inside * (pl.col("high_s") - pl.col("low_s"))).first()
        out[f"tbt_{label}_s"] = bins.filter(pl.col("until") >= rank).select(value).item() if total else None
    return out


def worker_metrics(result: SimResult) -> Metrics:
    """Utilisation (share of the span spent in steps) by role, and totals, over the whole run."""
    by_role = result.workers.group_by("role", maintain_order=True).agg(
        ((pl.col("prefill_s") + pl.col("decode_s") + pl.col("mixed_s")).sum() / (pl.len() * result.span_s)).alias(
            "busy"
        )
    )
    out: Metrics = {f"utilisation_{role}": busy for role, busy in by_role.select("role", "busy").iter_rows()}
    out |= result.workers.select(
        ((pl.col("prefill_s") + pl.col("decode_s") + pl.col("mixed_s")).sum() / (pl.len() * result.span_s)).alias(
            "utilisation"
        ),
        pl.col("prefill_s").sum().alias("prefill_steps_s"),
        pl.col("mixed_s").sum().alias("mixed_steps_s"),
        pl.col("decode_s").sum().alias("decode_steps_s"),
        pl.col("steps").sum().alias("steps"),
        pl.col("evictions").sum().alias("evicted_prefix_blocks"),
        pl.col("peak_kv_usage").max().alias("peak_kv_usage"),
    ).row(0, named=True)
    return out
