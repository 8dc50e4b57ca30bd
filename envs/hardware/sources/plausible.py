"""Op times that no such GPU can have, table by table: most often a table in another unit than its column says.

A composed step hides an op that is a thousand times too fast: attention in seconds read as milliseconds only makes
prompts a little quicker. So each table's largest rows are held against what peak arithmetic and peak bandwidth allow.
"""

from __future__ import annotations

import polars as pl

from envs.hardware.gpu import Gpu
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
        table = ops.tables[name]
        large = table.frame.with_columns(bound=bound * 1e3).filter(pl.col("bound") >= LARGE_MS)
        bad = large.filter(
            (pl.col("latency") < FASTEST * pl.col("bound")) | (pl.col("latency") > SLOWEST * pl.col("bound"))
        )
        if bad.height:
            row = bad.row(0, named=True)
            low, high = FASTEST * row["bound"], SLOWEST * row["bound"]
            point = ", ".join(f"{key}={row[key]}" for key in row if key not in ("latency", "bound"))
            raise table.error(
                f"latency = {row['latency']:.4g} ms at {point}: expected {low:.4g} to {high:.4g} ms on {gpu.name} "
                f"({bad.height} such rows); are the units swapped?"
            )
