"""Op tables of multi-head latent attention: whole attention modules, or their kernels alone.

A *module* row holds everything from the layer's input to the output product (projections in ``gemm_type``, the
kernel, the products around it), as one GPU of ``num_heads`` heads runs it. A *kernel* row holds attention alone. Where
an engine has both, the module counts: what it takes beyond its products from the GEMM table is attention.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from envs.hardware.sources.files import Table, check_times, read_table

LATENT = {
    "module": {"context": "mla_context_module_perf.parquet", "generation": "mla_generation_module_perf.parquet"},
    "kernel": {"context": "context_mla_perf.parquet", "generation": "generation_mla_perf.parquet"},
}
"""Kind of table -> phase -> file, the preferred kind first."""


def read_latent(home: Path, relative: str, phase: str) -> Table:
    """One table, with ``tokens``: of each prompt, or of each decode's context with the token it makes.

    Args:
        home: folder that ``relative`` is below.
        relative: the file.
        phase: ``context`` or ``generation``.

    Raises:
        MeasurementError: no such file, a missing column, a time that is none.
    """
    axis = "isl" if phase == "context" else "step"
    sizes = dict.fromkeys(("num_heads", "batch_size", axis), pl.Int64)
    words = {"kv_cache_dtype": pl.String}
    optional = {"gemm_type": pl.String, "kernel_source": pl.String}
    table = read_table(home, relative, {**words, **sizes, "latency": pl.Float64}, optional)
    check_times(table, "latency")
    module = "gemm_type" in table.frame.columns
    # A kernel's step counts the cached tokens; a module's the token that it makes too.
    frame = table.frame.with_columns(tokens=pl.col(axis) + (1 if phase == "generation" and not module else 0))
    keys = ["kv_cache_dtype", "num_heads", "batch_size", "tokens", *(["gemm_type"] if module else [])]
    return fastest(Table(relative, table.sha256, frame), keys)


def fastest(table: Table, keys: list[str]) -> Table:
    """The fastest kernel's time at each point, of its repeats the median."""
    kernel = ["kernel_source"] if "kernel_source" in table.frame.columns else []
    repeats = table.frame.group_by([*keys, *kernel], maintain_order=True).agg(pl.median("latency"))
    return Table(table.relative, table.sha256, repeats.group_by(keys, maintain_order=True).agg(pl.min("latency")))
