"""All-reduce tables: how captured and other launches are told apart, and rows that another version shows as disturbed.

Of one table (H100, TRT-LLM 1.2.0rc5) single rows take two to three times as long as larger messages beside them, and as
the same messages under every other version: a disturbed measurement, not an engine's choice. A row that takes more than
DISTURBED times what each other measured version takes is read as the slowest of those.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from envs.hardware.sources.files import Table, check_times, merge_repeats, read_table

FILE = "custom_allreduce_perf.parquet"
KEYS = ["num_gpus", "message_size", "captured"]
DISTURBED = 2.0
OTHERS = 2
"""Least number of other versions that must agree."""


def read_allreduce(data_dir: Path, relative: str) -> Table:
    """One version's all-reduces, repeats merged, disturbed rows replaced.

    Args:
        data_dir: what paths are relative to.
        relative: path of the version's file.

    Raises:
        MeasurementError: the file is missing or holds what cannot be a measurement.
    """
    table = _read(data_dir, relative)
    versions = (data_dir / relative).parent.parent
    others = [
        _read(data_dir, str(path.relative_to(data_dir))).frame
        for path in sorted(versions.glob(f"*/{FILE}"))
        if path != data_dir / relative
    ]
    if len(others) < OTHERS:
        return table
    beside = pl.concat([frame.select(*KEYS, "latency") for frame in others])
    beside = beside.group_by(KEYS).agg(slowest=pl.col("latency").max(), versions=pl.len())
    disturbed = (pl.col("latency") > DISTURBED * pl.col("slowest")) & (pl.col("versions") >= OTHERS)
    frame = table.frame.join(beside, on=KEYS, how="left", maintain_order="left").with_columns(
        latency=pl.when(disturbed).then(pl.col("slowest")).otherwise(pl.col("latency"))
    )
    return Table(table.relative, table.sha256, frame.drop("slowest", "versions"))


def _read(data_dir: Path, relative: str) -> Table:
    columns = {"num_gpus": pl.Int64, "message_size": pl.Int64, "latency": pl.Float64}
    table = read_table(data_dir, relative, columns, {"backend": pl.String})
    # Engines that measure both ways say so in `backend`; the others measure captured launches.
    captured = ~pl.col("backend").str.ends_with("eager") if "backend" in table.frame.columns else pl.lit(True)
    frame = table.frame.with_columns(captured=captured)
    table = Table(table.relative, table.sha256, frame)
    check_times(table, "latency")
    return merge_repeats(table, KEYS, "latency")
