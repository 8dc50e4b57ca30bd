"""Splitwise's end-to-end measurements (perf_model.csv): prompt and token times of whole models on DGX machines.

One axis moves at a time, five repeats a point; the median counts. Two things have to be undone:

* a run may stop before ``token_size`` tokens, so the tokens it made are counted from its times, and a decode's
  context is the prompt plus half of them;
* prompts of a batch beyond PROMPT_BATCH_TOKENS tokens did not run as one step (8 x 512 tokens take 1.16 times as
  long as one prompt of 4,096, 16 x 512 take 1.34 times as long as one of 8,192), so they are left out.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from envs.hardware.sources.files import Origin, Table, check_counts, check_times, merge_repeats, read_table
from envs.hardware.steps import StepPoint, ordered

SPLITWISE = Origin(
    name="Splitwise perf_model.csv",
    repository="Mutinifni/splitwise-sim",
    commit="8f99e7dc9b407f4ce2488d03dd44c0b8b946dab0",
    licence="MIT",
    attribution="Pratyush Patel et al., Splitwise, ISCA 2024",
)
TABLE = "measurements/splitwise/perf_model.llama2-70b.csv"
PROMPT_BATCH_TOKENS = 2048
POINT = ["prompt_size", "batch_size", "token_size"]


def splitwise_steps(data_dir: Path, hardware: str, tensor_parallel: int) -> tuple[list[StepPoint], Table]:
    """Prefill and decode steps of Llama2-70B.

    Args:
        data_dir: the data folder.
        hardware: ``a100-80gb`` or ``h100-80gb``.
        tensor_parallel: GPUs of the run.

    Raises:
        MeasurementError: a missing column, a time that is none, repeats that contradict each other, no such runs.
    """
    times = {"prompt_time": pl.Float64, "token_time": pl.Float64, "e2e_time": pl.Float64}
    axes = dict.fromkeys([*POINT, "tensor_parallel"], pl.Int64)
    table = read_table(data_dir, TABLE, {"hardware": pl.String, **axes, **times})
    for column in times:
        check_times(table, column)
    check_counts(table, list(axes))
    known = table.frame.select("hardware", "tensor_parallel").unique().sort("hardware", "tensor_parallel")
    if (blank := table.frame["hardware"].is_null().arg_true()).len():
        raise table.error(f"row {blank[0] + 1}: hardware is empty: expected a machine ({blank.len()} such rows)")
    frame = table.frame.filter((pl.col("hardware") == hardware) & (pl.col("tensor_parallel") == tensor_parallel))
    if frame.is_empty():
        held = ", ".join(f"{name} x {gpus}" for name, gpus in known.iter_rows())
        raise table.error(f"no runs on {hardware} with tensor_parallel {tensor_parallel}: the file has {held}")
    runs = Table(table.relative, table.sha256, frame)
    made = (pl.col("e2e_time") - pl.col("prompt_time")) / pl.col("token_time")
    merged = frame.group_by(POINT).agg(made=made.median())
    for column in ("prompt_time", "token_time"):  # e2e_time differs between repeats that stop at different tokens
        merged = merged.join(merge_repeats(runs, POINT, column).frame, on=POINT)
    prompts = merged.group_by("prompt_size", "batch_size").agg(pl.col("prompt_time").median())
    points = [
        StepPoint("prefill", n * batch, batch * n * n / 2, 0, 0, time_ms * 1e-3)
        for n, batch, time_ms in prompts.iter_rows()
        if batch == 1 or n * batch <= PROMPT_BATCH_TOKENS
    ]
    # Runs that stopped at the same token are one point, whatever limit they were given.
    kv = (pl.col("batch_size") * (pl.col("prompt_size") + pl.col("made") / 2)).round().cast(pl.Int64)
    decodes = merged.with_columns(kv=kv).group_by("batch_size", "kv").agg(pl.col("token_time").median())
    for batch, tokens, time_ms in decodes.iter_rows():
        points.append(StepPoint("decode", 0, 0.0, batch, tokens, time_ms * 1e-3))
    return ordered(points), table
