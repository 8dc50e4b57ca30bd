"""Measured serving runs of whole engines (aiconfigurator's silicon table): mean TTFT and TPOT at a fixed concurrency.

A run is colocated (``agg``) or disaggregated (``disagg``) with so many prefill and decode workers. Runs are excluded
by the rules of :data:`RULES`, in their order, each for a reason that can be seen without predicting anything; the
rules were fixed before any error of a prediction was looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from envs.hardware.sources.files import Origin, Table, check_times, read_table
from envs.hardware.sources.recorded_layout import counted_once

SILICON = Origin(
    name="aiconfigurator silicon_sample.csv",
    repository="ai-dynamo/aiconfigurator",
    commit="095f58a51c4ca8e61b66ec108d86f223f8d559ce",
    licence="Apache-2.0",
    attribution="NVIDIA Corporation and SemiAnalysis InferenceX, measured on the named GPUs",
)
TABLE = "measurements/silicon_e2e/silicon_sample.h100_b200_gb200.csv.gz"

SAME_WEIGHTS = {"deepseek-ai/DeepSeek-V3": "deepseek-ai/DeepSeek-R1"}
"""Models of one architecture, under whose names the same runs were filed."""

_PARALLEL = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_AXES = (
    *_PARALLEL,
    *(f"{phase}_{axis}" for phase in ("prefill", "decode") for axis in ("num_workers", *_PARALLEL)),
)
_WORDS = ("id", "silicon_data_source", "backend", "backend_version", "model_path", "system", "precision", "mode")
_TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")

COLUMNS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(_WORDS, pl.String),
    **dict.fromkeys(("isl", "osl", *_AXES), pl.Int64),
    **dict.fromkeys(_TIMES, pl.Float64),
}
"""Columns that are read, times in ms."""

MEDIAN_MS = {"silicon_ttft_ms": (1.0, 120_000.0), "silicon_tpot_ms": (0.1, 1_000.0)}
"""Between these the middle of a table lies, whatever the engines."""

REPEATS_APART = 3.0
"""Factor that repeats of a kept run may be apart; the public table's are 2.1 (TTFT) and 1.4 (TPOT) apart at most."""

RULES: dict[str, str] = {
    "no concurrency": "the number of concurrent users was not recorded",
    "no worker counts": "disaggregated, but the numbers of prefill and decode workers were not recorded",
    "contradictory parallelism": "a recorded degree of parallelism is 0",
    "impossible parallelism": "a tensor-parallel degree that divides no attention heads (a whole deployment as one)",
    "repeated filing": "the same measurement, to the last digit, was filed before (often under a second model name)",
    "unfinished": "its source calls the run work in progress",
}
"""Why a run is excluded: rule -> reason. The first that applies counts."""


@dataclass(frozen=True, slots=True)
class ServingRuns:
    """The table, read.

    Attributes:
        kept: (n,) runs: ``run, engine, engine_version, model, gpu, precision, layout`` (``colocated`` or
            ``disaggregated``), ``prompt_tokens, output_tokens, users``, the degrees of parallelism (colocated: ``tp,
            pp, dp, moe_tp, moe_ep``; else the same with ``prefill_`` and ``decode_``, and ``prefill_workers,
            decode_workers``), ``gpus``, ``ttft_s, tpot_s``, ``campaign``.
        excluded: (m,) ``run`` and ``rule``.
        table: the file.
    """

    kept: pl.DataFrame
    excluded: pl.DataFrame
    table: Table


def serving_runs(data_dir: Path, relative: str = TABLE) -> ServingRuns:
    """Read the runs and apply the rules.

    Args:
        data_dir: the data folder.
        relative: path of the table below it (or elsewhere, if absolute): other GPUs' runs in the same form.

    Raises:
        MeasurementError: no such file, a missing column, a time that is none, times in another unit, a length or layout
            that is none, repeats of a run that contradict each other.
    """
    table = read_table(data_dir, relative, COLUMNS)
    for column in _TIMES:
        check_times(table, column)
    frame = _renamed(table.frame)
    reason = pl.coalesce(
        *(pl.when(condition.fill_null(False)).then(pl.lit(rule)) for rule, condition in _conditions().items())
    )
    frame = frame.with_columns(rule=reason)
    kept = frame.filter(pl.col("rule").is_null()).drop("rule", "unfinished").with_columns(gpus=_gpus())
    _check(table, kept)
    return ServingRuns(counted_once(kept), frame.filter(pl.col("rule").is_not_null()).select("run", "rule"), table)


def _check(table: Table, kept: pl.DataFrame) -> None:
    """Lengths above 0, a known layout, each run once, times that can be in ms, kept repeats that agree."""
    frame = table.frame.with_row_index("row")
    for what, bad in (
        ("isl and osl: expected prompt and output tokens above 0", (pl.col("isl") < 1) | (pl.col("osl") < 1)),
        ("mode: expected agg or disagg", ~pl.col("mode").is_in(["agg", "disagg"])),
        ("id: expected each run once", ~pl.col("id").is_first_distinct()),
        (
            f"{', '.join(_PARALLEL)}: expected no degree below 0, of a phase neither",
            pl.any_horizontal((pl.col(_AXES) < 0).fill_null(False)),
        ),
    ):
        rows = frame.filter(bad.fill_null(True))["row"]
        if rows.len():
            raise table.error(f"row {rows[0] + 1}: {what} ({rows.len()} such rows)")
    for column, (least, most) in MEDIAN_MS.items():
        middle = float(np.median(table.frame[column].to_numpy()))
        if not least <= middle <= most:
            unit, change = ("seconds", "multiply") if middle < least else ("microseconds", "divide")
            raise table.error(
                f"{column}: its median is {middle:.3g} ms: {unit} under a name that says ms? Expected milliseconds, "
                f"a median of {least:g} to {most:g} ms: {change} the column by 1000"
            )
    same = [name for name in kept.columns if name not in ("run", "ttft_s", "tpot_s")]
    number = dict(zip(frame["id"], frame["row"] + 1, strict=True))
    for name, column in zip(("ttft_s", "tpot_s"), _TIMES, strict=True):
        low, high = (pl.col("run", name).sort_by(name).get(at).name.suffix(end) for at, end in ((0, "0"), (-1, "1")))
        ends = kept.group_by(same, maintain_order=True).agg(low, high)
        for a, b, short, long in ends.select("run0", "run1", f"{name}0", f"{name}1").iter_rows():
            if long > REPEATS_APART * short:
                raise table.error(
                    f"rows {number[a]} (id {a}) and {number[b]} (id {b}): one configuration, lengths, users, engine "
                    f"version and campaign, but {column} = {1e3 * short:.6g} and {1e3 * long:.6g}: expected repeats "
                    f"within a factor of {REPEATS_APART:g}: drop the wrong one, or name their campaigns apart"
                )


def _renamed(frame: pl.DataFrame) -> pl.DataFrame:
    source = pl.col("silicon_data_source")
    short = {
        "tp_size": "tp",
        "pp_size": "pp",
        "attention_dp_size": "dp",
        "moe_tp_size": "moe_tp",
        "moe_ep_size": "moe_ep",
    }
    degrees = {f"{phase}{old}": f"{phase}{new}" for phase in ("", "prefill_", "decode_") for old, new in short.items()}
    return frame.select(
        pl.col("id").alias("run"),
        pl.col("backend").alias("engine"),
        pl.col("backend_version").alias("engine_version"),
        pl.col("model_path").alias("model"),
        pl.col("system").alias("gpu"),
        "precision",
        pl.when(pl.col("mode") == "agg").then(pl.lit("colocated")).otherwise(pl.lit("disaggregated")).alias("layout"),
        pl.col("isl").alias("prompt_tokens"),
        pl.col("osl").alias("output_tokens"),
        source.str.extract(r"silicon_concurrency=(\d+)").cast(pl.Int64).alias("users"),
        *(pl.col(old).alias(new) for old, new in degrees.items()),
        pl.col("prefill_num_workers").alias("prefill_workers"),
        pl.col("decode_num_workers").alias("decode_workers"),
        (pl.col("silicon_ttft_ms") / 1e3).alias("ttft_s"),
        (pl.col("silicon_tpot_ms") / 1e3).alias("tpot_s"),
        source.str.extract(r"^(?:source_file=)?([^;]*)").alias("campaign"),
        source.str.contains("wip=True", literal=True).alias("unfinished"),
    )


def _conditions() -> dict[str, pl.Expr]:
    split = pl.col("layout") == "disaggregated"
    degrees = [
        f"{phase}{axis}" for phase in ("", "prefill_", "decode_") for axis in ("tp", "pp", "dp", "moe_tp", "moe_ep")
    ]
    measurement = pl.struct(
        pl.col("model").replace(SAME_WEIGHTS),
        "gpu",
        "engine",
        "prompt_tokens",
        "output_tokens",
        "users",
        "ttft_s",
        "tpot_s",
    )
    conditions = (
        pl.col("users").is_null(),
        split & (pl.col("prefill_workers").is_null() | pl.col("decode_workers").is_null()),
        pl.any_horizontal(*(pl.col(name) == 0 for name in degrees)),
        # Heads come in powers of two: tp & (tp - 1) is 0 for those only.
        pl.any_horizontal(*((pl.col(name) & (pl.col(name) - 1)) != 0 for name in degrees if name.endswith("tp"))),
        ~measurement.is_first_distinct(),
        pl.col("unfinished"),
    )
    return dict(zip(RULES, conditions, strict=True))


def _gpus() -> pl.Expr:
    """GPUs of a run: data-parallel ranks of an attention layer are GPUs of their own; experts share them."""

    def one(phase: str) -> pl.Expr:
        return pl.col(f"{phase}tp") * pl.col(f"{phase}pp") * pl.col(f"{phase}dp").fill_null(1)

    split = pl.col("prefill_workers") * one("prefill_") + pl.col("decode_workers") * one("decode_")
    return pl.when(pl.col("layout") == "disaggregated").then(split).otherwise(one(""))
