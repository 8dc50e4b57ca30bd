"""How far predictions are from measurements: mean and median absolute percentage error, with intervals.

Runs of one campaign, model, GPU, engine and precision share their error, so the interval resamples those clusters, not
runs (percentile bootstrap). Errors are predicted over measured, less 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from research.validating.parts import cluster_of_errors, tokens_per_gpu
from research.validating.protocols import PROTOCOLS, protocol_of
from research.validating.rules import arithmetic_share

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "tokens_per_gpu": "tokens/s per GPU"}
SOURCES = {"predicted": "simulator", "rule": "one-line rule", "aic": "aiconfigurator, static"}
GROUPS = ("engine", "gpu", "weights", "precision", "lengths", "layout", "protocol", "concurrency", "arithmetic")
RESAMPLES = 2000
SEED = 20260601
FEWEST_CLUSTERS = 3
"""Fewer clusters than this give no interval."""

ABOVE_PEAK = "above the GPUs' peak"
"""Value of ``arithmetic`` of a run that implies more than its recorded GPUs can do."""

FEWEST_RUNS = 2
"""A table of one run meets or misses no bar."""

COVERAGE = 0.95
"""Share of a part's runs that must be predicted before a bar is called met or missed."""

BARS = {
    ("colocated_dense", "tpot", "mape"): 9.0,
    ("colocated_dense", "tpot", "median"): 7.0,
    ("colocated_dense", "tokens_per_gpu", "mape"): 11.0,
    ("colocated_dense", "tokens_per_gpu", "median"): 7.0,
    ("colocated_dense", "ttft", "median"): 20.0,
    ("disaggregated", "tpot", "mape"): 20.0,
    ("disaggregated", "tpot", "median"): 12.0,
    ("disaggregated", "tokens_per_gpu", "mape"): 14.0,
    ("disaggregated", "tokens_per_gpu", "median"): 11.0,
    ("disaggregated", "ttft", "median"): 25.0,
}
"""(part, metric, statistic) -> per cent that an error may have; between half and three quarters of what a first study
with laws from op tables had.
"""


def gathered(
    runs: pl.DataFrame, predictions: Mapping[str, Mapping[str, Any]], rule: Sequence[Any], aic: Sequence[Any]
) -> pl.DataFrame:
    """One row a run: measured, predicted, the range over unknown rounds, the rule, aiconfigurator; times in seconds.

    Args:
        runs: (n,) measured runs with the columns of ``parts.select``.
        predictions: by run id, from ``work.predict``.
        rule: (n,) pairs (TTFT, TPOT) of the one-line rule, or None.
        aic: (n,) pairs of aiconfigurator, None where a part does not match.
    """
    rows = []
    for run, own, static in zip(runs.iter_rows(named=True), rule, aic, strict=True):
        got = predictions[str(run["run"])]
        row: dict[str, Any] = {"run": run["run"], "missing": got.get("missing"), "profile": got.get("profile")}
        row |= {"budget_tokens": got.get("budget_tokens"), "role": got.get("role")}
        protocol = protocol_of(str(run["campaign"]))
        row["protocol"] = protocol.name
        share = arithmetic_share(run)
        row["arithmetic"] = "not checked" if share is None else ABOVE_PEAK if share > 1.0 else "within peak"
        row["mean_output_tokens"] = protocol.mean_tokens(int(run["output_tokens"]))
        served = got.get("rounds") or []
        middle = served[(len(served) - 1) // 2] if served else {}
        for name in ("ttft", "tpot"):
            values = [r[f"{name}_s"] for r in served if r[f"{name}_s"] is not None]
            row[f"predicted_{name}_s"] = middle.get(f"{name}_s")
            row[f"low_{name}_s"], row[f"high_{name}_s"] = (min(values), max(values)) if values else (None, None)
        row["preemptions"] = middle.get("preemptions")
        for source, pair in (("rule", own), ("aic", static)):
            ttft, tpot = pair if pair is not None else (None, None)
            row |= {f"{source}_ttft_s": ttft, f"{source}_tpot_s": tpot}
        rows.append(row)
    schema = dict.fromkeys(("run", "missing", "profile", "role", "protocol", "arithmetic"), pl.String)
    frame = pl.DataFrame(rows, infer_schema_length=None).cast({k: v for k, v in schema.items()})
    numbers = [c for c in frame.columns if c.endswith("_s")]
    frame = runs.join(frame.with_columns(pl.col(numbers).cast(pl.Float64)), on="run")
    frame = frame.rename({"ttft_s": "measured_ttft_s", "tpot_s": "measured_tpot_s"})
    users, output, gpus = pl.col("users"), pl.col("mean_output_tokens"), pl.col("gpus")
    for source in ("measured", *SOURCES):
        rate = tokens_per_gpu(users, output, pl.col(f"{source}_ttft_s"), pl.col(f"{source}_tpot_s"), gpus)
        frame = frame.with_columns(rate.alias(f"{source}_tokens_per_gpu"))
    return frame.with_columns(
        error_cluster=cluster_of_errors(),
        concurrency=pl.when(users <= 32).then(pl.lit("<=32")).when(users <= 256).then(pl.lit("33-256")).otherwise(
            pl.lit(">256")
        ),
    )  # fmt: skip


def column(source: str, metric: str) -> str:
    """Column of a metric of a source (``measured``, ``predicted``, ``rule``, ``aic``, ``low``, ``high``)."""
    return f"{source}_{metric}" if metric == "tokens_per_gpu" else f"{source}_{metric}_s"


def errors_percent(frame: pl.DataFrame, source: str, metric: str) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Signed errors in per cent of the runs that have both values, and their clusters, each (k,)."""
    both = frame.select(
        value=pl.col(column(source, metric)), truth=pl.col(column("measured", metric)), cluster="error_cluster"
    ).drop_nulls()
    error = 100.0 * (both["value"].to_numpy() / both["truth"].to_numpy() - 1.0)
    return error, both["cluster"].to_numpy()


def score(frame: pl.DataFrame, source: str, metric: str) -> dict[str, Any] | None:
    """MAPE, median, bias (median signed error) in per cent with 95 % intervals; None without a run to score."""
    error, clusters = errors_percent(frame, source, metric)
    if error.size == 0:
        return None
    size = np.abs(error)
    low, high = interval(size, clusters, (np.mean, np.median))
    return {
        "source": source,
        "metric": metric,
        "runs": int(error.size),
        "clusters": len(set(clusters.tolist())),
        "mape_percent": float(size.mean()),
        "mape_low_percent": low[0],
        "mape_high_percent": high[0],
        "median_percent": float(np.median(size)),
        "median_low_percent": low[1],
        "median_high_percent": high[1],
        "median_signed_error_percent": float(np.median(error)),
    }


def interval(
    values: NDArray[np.float64], clusters: NDArray[Any], statistics: Sequence[Any]
) -> tuple[list[float], list[float]]:
    """95 % percentile bootstrap over whole clusters of each statistic; NaN for fewer than FEWEST_CLUSTERS.

    Args:
        values: (k,) what is averaged.
        clusters: (k,) what each belongs to.
        statistics: functions of an array.
    """
    parts = [values[clusters == name] for name in dict.fromkeys(clusters.tolist())]
    if len(parts) < FEWEST_CLUSTERS:
        return [float("nan")] * len(statistics), [float("nan")] * len(statistics)
    rng = np.random.default_rng(SEED)
    drawn = []
    for _ in range(RESAMPLES):
        sample = np.concatenate([parts[i] for i in rng.integers(0, len(parts), len(parts))])
        drawn.append([float(statistic(sample)) for statistic in statistics])
    low, high = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    return low.tolist(), high.tolist()


def by_rounds(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """MAPE and median where rounds are not known, at the fewest and at the most rounds: the protocol's uncertainty.

    Mean TTFT falls with the number of rounds (the first round starts all at once), so the ends of a run's range are
    those of the rounds.
    """
    unknown = frame.filter(pl.col("protocol").is_in([p.name for p in PROTOCOLS if len(p.rounds) > 1]))
    rows = []
    for metric in ("ttft", "tpot"):
        for end in ("low", "predicted", "high"):
            found = score(unknown, end, metric)
            if found is not None:
                rows.append({**found, "source": {"low": "lowest", "high": "highest"}.get(end, "scored")})
    return rows


def table(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Scores of the simulator, the rule and aiconfigurator: overall, then the simulator's by group.

    Where the rule or aiconfigurator covers only some runs, the simulator's score on just those stands beside it
    (source ``predicted on rule`` and ``predicted on aic``).
    """
    rows: list[dict[str, Any]] = []

    def add(group: str, value: str, found: dict[str, Any] | None, source: str | None = None) -> None:
        if found is not None:
            rows.append({"group": group, "value": value, **found, **({"source": source} if source else {})})

    for metric in METRICS:
        for source in SOURCES:
            add("all", "all", score(frame, source, metric))
            if source != "predicted":
                common = frame.filter(pl.col(column(source, metric)).is_not_null())
                add("all", "all", score(common, "predicted", metric), f"predicted on {source}")
        possible = frame.filter(pl.col("arithmetic") != ABOVE_PEAK)
        if possible.height < frame.height:
            add("possible", "all", score(possible, "predicted", metric))
        for group in GROUPS:
            for value in frame[group].unique().sort().to_list():
                add(group, str(value), score(frame.filter(pl.col(group) == value), "predicted", metric))
    return rows


def against_bars(part: str, rows: Sequence[Mapping[str, Any]], runs: int) -> list[dict[str, Any]]:
    """The bars of a part, what was reached on how many of its ``runs``, and whether that is enough.

    ``met`` is None where fewer than :data:`COVERAGE` of the runs are predicted, and for fewer than
    :data:`FEWEST_RUNS`. ``possible_percent``: the same without
    runs that imply more arithmetic than the recorded GPUs have; beside it, since the rules of exclusion were fixed
    before, and do not know this one.
    """
    out = []
    for (where, metric, statistic), bar in BARS.items():
        if where != part:
            continue
        found = [r for r in rows if (r["group"], r["metric"], r["source"]) == ("all", metric, "predicted")]
        possible = [r for r in rows if (r["group"], r["metric"], r["source"]) == ("possible", metric, "predicted")]
        reached = found[0][f"{statistic}_percent"] if found else None
        enough = bool(found) and found[0]["runs"] >= max(COVERAGE * runs, FEWEST_RUNS)
        out.append(
            {
                "metric": metric,
                "statistic": statistic,
                "bar_percent": bar,
                "reached_percent": reached,
                "possible_percent": possible[0][f"{statistic}_percent"] if possible else None,
                "runs": found[0]["runs"] if found else 0,
                "of": runs,
                "met": reached <= bar if enough and reached is not None else None,
            }
        )
    return out
