"""A user's own log replayed on the simulated cluster: per-request and per-worker error, by how loaded it was.

Load of a request is the number of others in flight when it arrived, by the log's own times (arrival to arrival +
TTFT + TPOT x (output - 1)); load levels are its terciles. Errors are simulated over logged, less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.cluster.result import SimResult
from envs.cluster.spec import ClusterSpec
from research.errors import ResearchError
from research.evidence.ranking import has_prefixes
from traces import Trace

LEVELS = ("low", "middle", "high")
TIMES = ("ttft", "tpot")
OTHER_UNIT = (300.0, 3000.0)
"""Ratios of simulated to logged (or the reverse) that are taken for another unit."""


def compared(result: SimResult, trace: Trace) -> pl.DataFrame:
    """One row a request that was served in both: workers, load, logged and simulated times, errors in per cent.

    Raises:
        ResearchError: the log has no times to compare with.
    """
    log = trace.frame
    lacking = [f"{name}_s" for name in TIMES if f"{name}_s" not in log.columns]
    if len(lacking) == len(TIMES):
        raise ResearchError(
            f"trace {trace.name}: a backtest compares with the logged times, and it has neither ttft_s nor tpot_s; "
            "trace.options.columns.ttft_s=NAME maps a table's own columns"
        )
    now = result.requests
    frame = pl.DataFrame(
        {
            "request": np.arange(len(trace)),
            "arrival_s": now["arrival_s"],
            "prompt_tokens": log["prompt_tokens"],
            "output_tokens": log["output_tokens"],
            "prefill_worker": now["prefill_worker"],
            "decode_worker": now["decode_worker"],
            "in_flight": in_flight(log),
            "served": now["status"] == "served",
            **{f"logged_{name}_s": _column(log, f"{name}_s") for name in TIMES},
            **{f"simulated_{name}_s": now[f"{name}_s"] for name in TIMES},
        }
    )
    for name in TIMES:
        ratio = pl.col(f"simulated_{name}_s") / pl.col(f"logged_{name}_s")
        frame = frame.with_columns(
            pl.when(pl.col(f"logged_{name}_s") > 0).then(100.0 * (ratio - 1.0)).alias(f"{name}_error_percent")
        )
    return frame.filter("served").drop("served").with_columns(level=_levels(frame.filter("served")["in_flight"]))


def unit_doubts(frame: pl.DataFrame) -> list[str]:
    """A sentence for each time whose median ratio of simulated to logged, or the reverse, is in :data:`OTHER_UNIT`."""
    found = []
    for name in TIMES:
        logged = frame.filter(pl.col(f"logged_{name}_s") > 0, pl.col(f"simulated_{name}_s").is_not_null())
        if logged.is_empty():
            continue
        own, now = logged[f"logged_{name}_s"], logged[f"simulated_{name}_s"]
        ratio = float(np.median((now / own).to_numpy()))
        low, high = OTHER_UNIT
        for lowest, highest, said in (
            (1.0 / high, 1.0 / low, "milliseconds read as seconds"),
            (low, high, "seconds read as milliseconds"),
        ):
            if lowest <= ratio <= highest:
                logs, runs = (float(np.median(side.to_numpy())) for side in (own, now))
                found.append(
                    f"{name}_s is {logs:.3g} s in the log and {runs:.3g} s in the simulation (medians): {said}?"
                )
    return found


def swap_doubts(frame: pl.DataFrame) -> list[str]:
    """A sentence where TTFT is below TPOT in most requests of the log, and is not in most of the simulation."""

    def below(side: str) -> tuple[int, int]:
        both = frame.drop_nulls([f"{side}_{name}_s" for name in TIMES])
        return both.filter(pl.col(f"{side}_ttft_s") < pl.col(f"{side}_tpot_s")).height, both.height

    (logged, of), (simulated, of_simulated) = below("logged"), below("simulated")
    if 2 * logged <= of or 2 * simulated > of_simulated:
        return []
    return [
        f"ttft_s is below tpot_s in {logged} of {of} requests of the log, in {simulated} of {of_simulated} of the "
        "simulation: swapped columns?"
    ]


def check_times(frame: pl.DataFrame, trace: Trace, options: Mapping[str, Any]) -> list[str]:
    """:func:`swap_doubts` and :func:`unit_doubts`: a question unless the trace's ``options`` answer it.

    Raises:
        ResearchError: a doubt, and neither ``latency_unit`` nor ``implausible=keep`` was given.
    """
    swapped, units = swap_doubts(frame), unit_doubts(frame)
    doubts = [*swapped, *units]
    answered = options.get("latency_unit", "auto") != "auto" or options.get("implausible") == "keep"
    if doubts and not answered:
        turn = (
            "name swapped columns the other way round, trace.options.columns.ttft_s=NAME "
            "trace.options.columns.tpot_s=NAME; if they are as they should be, "
        )
        raise ResearchError(
            f"trace {trace.name}: {' '.join(doubts)} No mark is left: {turn if swapped else ''}say the unit with "
            "trace.options.latency_unit=ms (or s, us, ns; a table or gateway log; another file as trace.format=table), "
            "or name the column by its unit, trace.options.columns.ttft_s=ttft_ms"
        )
    return doubts


def cautions(trace: Trace, cluster: ClusterSpec) -> list[str]:
    """What a reader of the errors should know of the log."""
    cached = any(worker.prefix_cache for worker in cluster.workers if worker.can_prefill)
    if has_prefixes(trace) or not cached:
        return []
    sessions = " trace.options.context=grows assumes them from its sessions," if trace.n_sessions else ""
    return [
        f"the log of {trace.name} has no prefixes, and the prefix cache of {cluster.name} is on: hits of the real "
        "cluster are not in the log, so TTFT comes out too long where prompts were cached. Give it prefixes (a column "
        f"hash_ids; python -m research.traces action=hash makes it from prompts;{sessions} docs/traces/tables.md), or "
        "set cluster.prefix_cache=false if the real cluster has no such cache"
    ]


def in_flight(log: pl.DataFrame) -> NDArray[np.int64]:
    """(n,) other requests in flight at each arrival, by the log's times; without times it is an instant."""
    start = log["arrival_s"].to_numpy()
    ttft = _column(log, "ttft_s").fill_null(0.0).to_numpy()
    tpot = _column(log, "tpot_s").fill_null(0.0).to_numpy()
    end = start + ttft + tpot * np.maximum(log["output_tokens"].to_numpy() - 1, 0)
    came = np.searchsorted(np.sort(start), start, side="right")
    gone = np.searchsorted(np.sort(end), start, side="right")
    alone = end <= start  # it is gone in the instant in which it came
    return (came - gone - np.where(alone, 0, 1)).astype(np.int64).clip(min=0)


def errors(frame: pl.DataFrame) -> dict[str, Any]:
    """Scores of all requests, by load level, by worker, and by worker and level."""
    prefill = pl.when(pl.col("prefill_worker") < 0).then(pl.col("decode_worker")).otherwise(pl.col("prefill_worker"))
    frame = frame.with_columns(prefill_worker=prefill)
    out: dict[str, Any] = {"all": {name: _score(frame, name) for name in TIMES}, "levels": [], "workers": []}
    for level in LEVELS:
        own = frame.filter(level=level)
        if own.height:
            span = [int(own["in_flight"].min()), int(own["in_flight"].max())]  # type: ignore[arg-type]
            out["levels"].append({"level": level, "in_flight": span, **{n: _score(own, n) for n in TIMES}})
    workers = sorted({*frame["prefill_worker"].unique(), *frame["decode_worker"].unique()})
    for worker in workers:
        # TTFT is the prefilling worker's doing, TPOT the decoding one's.
        by_phase = {"ttft": frame.filter(prefill_worker=worker), "tpot": frame.filter(decode_worker=worker)}
        row: dict[str, Any] = {"worker": worker, **{n: _score(own, n) for n, own in by_phase.items()}}
        row["levels"] = {
            level: {n: _score(own.filter(level=level), n) for n, own in by_phase.items()} for level in LEVELS
        }
        out["workers"].append(row)
    return out


def _score(frame: pl.DataFrame, name: str) -> dict[str, Any] | None:
    error = frame[f"{name}_error_percent"].drop_nulls().to_numpy()
    if error.size == 0:
        return None
    size = np.abs(error)
    logged, now = (frame[f"{side}_{name}_s"].drop_nulls().to_numpy() for side in ("logged", "simulated"))
    quantiles: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        "requests": int(error.size),
        "median_signed_error_percent": float(np.median(error)),
        "median_abs_error_percent": float(np.median(size)),
        "p90_abs_error_percent": float(np.quantile(size, 0.9)),
        **{
            f"{q}_error_percent": 100.0 * float(np.quantile(now, at) / np.quantile(logged, at) - 1.0)
            for q, at in quantiles.items()
            if np.quantile(logged, at) > 0
        },
    }


def _levels(load: pl.Series) -> pl.Series:
    """Terciles by value: equal loads are of one level."""
    if load.is_empty():
        return pl.Series([], dtype=pl.String)
    low, high = (float(load.quantile(q, "lower") or 0) for q in (1 / 3, 2 / 3))
    return pl.select(
        pl.when(load <= low).then(pl.lit(LEVELS[0])).when(load <= high).then(pl.lit(LEVELS[1])).otherwise(
            pl.lit(LEVELS[2])
        )
    ).to_series()  # fmt: skip


def _column(log: pl.DataFrame, name: str) -> pl.Series:
    return log[name].cast(pl.Float64) if name in log.columns else pl.Series([None] * log.height, dtype=pl.Float64)
