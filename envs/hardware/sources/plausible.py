"""Op times that no such GPU can have, table by table: most often a table in another unit than its column says.

A composed step hides an op that is a thousand times too fast: attention in seconds read as milliseconds only makes
prompts a little quicker. So each table's largest rows are held against what peak arithmetic and peak bandwidth allow.
"""

from __future__ import annotations

import polars as pl

from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import LOGIT_BYTES, ModelShape
from envs.hardware.sources.files import Table
from envs.hardware.sources.llmservingsim import OpProfile
from envs.hardware.sources.op_tables import OpTables

FASTEST, SLOWEST = 0.1, 300.0
"""Plausible times as multiples of the bound. Ten times faster is room for what a sheet does not list (int8 products,
caches); an all-reduce crosses a link, not the memory, hence slow. A unit is a thousand."""
LARGE_MS = 0.1
"""Rows whose bound is less are launch and cache, which no data sheet bounds."""
BYTES = 2
FP8_BYTES = 1


def check_ops(ops: OpTables, gpu: Gpu) -> None:
    """Hold every table against the GPU's data sheet.

    Raises:
        MeasurementError: names file, row, time and the plausible range.
    """
    peak = max(gpu.flop_per_s.values())
    cells = pl.col("batch_size").cast(pl.Float64) * pl.col("tokens")
    heads, head_dim = pl.col("num_heads").cast(pl.Float64), pl.col("head_dim")
    held = pl.when(pl.col("kv_cache_dtype") == "bfloat16").then(BYTES).otherwise(FP8_BYTES)
    bounds = {
        "gemm": 2.0 * pl.col("m").cast(pl.Float64) * pl.col("n") * pl.col("k") / peak,
        "context": 2.0 * heads * head_dim * cells * pl.col("tokens") / peak,
        "generation": 2.0 * cells * pl.col("num_key_value_heads") * head_dim * held / gpu.memory_bytes_per_s,
        "allreduce": pl.col("message_size").cast(pl.Float64) * BYTES / gpu.memory_bytes_per_s,
    }
    for name, bound in bounds.items():
        if name not in ops.tables:
            continue
        _check(ops.tables[name], "latency", "ms", bound * 1e3, LARGE_MS, gpu)


def check_profile(profile: OpProfile, shape: ModelShape, gpu: Gpu) -> None:
    """Hold every table of an op profile of a dense 16-bit model on one GPU against the GPU's data sheet.

    Raises:
        MeasurementError: names file, row, time and the plausible range.
    """
    peak, bandwidth = gpu.peak("bf16") / 1e6, gpu.memory_bytes_per_s / 1e6
    heads = shape.heads * shape.head_dim
    width = {
        "qkv_proj": heads + 2 * shape.kv_heads * shape.head_dim,
        "o_proj": heads,
        "gate_up_proj": 2 * shape.intermediate,
        "down_proj": shape.intermediate,
    }
    params = pl.col("layer").replace_strict(width, default=0) * float(shape.hidden)
    read, computed = params * BYTES / bandwidth, params * 2.0 * pl.col("tokens") / peak
    head = shape.vocabulary * shape.hidden * float(BYTES) / bandwidth
    logits = pl.col("sequences") * float(shape.vocabulary) * LOGIT_BYTES / bandwidth
    chunk, before = pl.col("prefill_chunk").cast(pl.Float64), pl.col("kv_prefill")
    prompt = 4.0 * heads * chunk * (before + chunk / 2) / peak
    cells = pl.col("n_decode").cast(pl.Float64) * pl.col("kv_decode")
    decodes = 2.0 * BYTES * shape.kv_heads * shape.head_dim * cells / bandwidth
    tables: tuple[tuple[Table, pl.Expr], ...] = (
        (profile.dense, pl.max_horizontal(read, computed)),
        (profile.sequences, pl.when(pl.col("layer") == "lm_head").then(head).otherwise(logits)),
        (profile.attention, pl.max_horizontal(prompt, decodes)),
    )
    for table, bound in tables:
        _check(table, "time_us", "us", bound, LARGE_MS * 1e3, gpu)


def _check(table: Table, column: str, unit: str, bound: pl.Expr, least: float, gpu: Gpu) -> None:
    """Rows whose bound is at least ``least`` lie between FASTEST and SLOWEST times it."""
    large = table.frame.with_columns(bound=bound).filter(pl.col("bound") >= least)
    bad = large.filter((pl.col(column) < FASTEST * pl.col("bound")) | (pl.col(column) > SLOWEST * pl.col("bound")))
    if bad.height:
        row = bad.row(0, named=True)
        low, high = FASTEST * row["bound"], SLOWEST * row["bound"]
        point = ", ".join(f"{key}={row[key]}" for key in row if key not in (column, "bound"))
        raise table.error(
            f"{column} = {row[column]:.4g} {unit} at {point}: expected {low:.4g} to {high:.4g} {unit} on {gpu.name} "
            f"({bad.height} such rows); are the units swapped?"
        )
