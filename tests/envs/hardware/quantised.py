"""Toy op tables with a quantised type beside the 16-bit one, for the engines that time it in different ways."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.envs.hardware import tables
from tests.envs.hardware.tables import ENGINE, write, write_tables

EXTRA_MS = {"trtllm": 0.010, "vllm": 0.003, "sglang": 0.0}
"""What the toy tables' fp8 products take beyond 16-bit ones of half the bytes."""


def of(path: Path, engine: str) -> Path:
    """The same table of another engine."""
    return Path(*(engine if part == ENGINE else part for part in path.parts))


def write_engine(data_dir: Path, engine: str, dtype: str = "fp8") -> Path:
    """Toy tables of one engine with ``dtype`` products; returns ``data_dir``."""
    write_tables(data_dir)
    small = [(m, n, k) for m in tables.POWERS for n in (128, 256) for k in (128, 256)]
    gemm = pl.concat([pl.read_parquet(data_dir / tables.GEMM), pl.DataFrame([_row("bfloat16", *at) for at in small])])
    extra = pl.col("latency") / 2 + EXTRA_MS[engine] + 0.002
    quantised = gemm.with_columns(gemm_dtype=pl.lit(dtype), latency=extra)
    cached = pl.concat([gemm, quantised])
    write(data_dir / of(tables.GEMM, engine), cached)
    for path in (tables.CONTEXT, tables.GENERATION):
        frame = pl.read_parquet(data_dir / path)
        half = frame.with_columns(kv_cache_dtype=pl.lit("fp8"), latency=pl.col("latency") * 0.6)
        write(data_dir / of(path, engine), pl.concat([frame, half]))
    allreduce = pl.read_parquet(data_dir / tables.ALLREDUCE)
    if engine == "trtllm":
        allreduce = allreduce.filter(pl.col("backend") == "vllm_graph").drop("backend")
    write(data_dir / of(tables.ALLREDUCE, engine), allreduce)
    return data_dir


def _row(dtype: str, m: int, n: int, k: int) -> dict[str, object]:
    return {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": tables.gemm_ms(m, n, k)}
