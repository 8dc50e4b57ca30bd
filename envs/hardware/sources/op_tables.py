"""Op micro-benchmarks in the aiconfigurator layout: look-ups of measured GEMM, attention and all-reduce times.

Files: ``<root>/<gpu>/<op>/<engine>/<version>/*.parquet``, latency in ms, measured on real GPUs. ``step`` is the
cached length of a decode; ``message_size`` of an all-reduce counts elements (as bytes, the largest measured message
would move at half of NVLink's bandwidth). Look-ups interpolate between measured points and never beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.files import Origin, Table, check_times, merge_repeats, read_table

AICONFIGURATOR = Origin(
    name="aiconfigurator-core 0.12.0 op micro-benchmarks",
    repository="ai-dynamo/aiconfigurator",
    commit="095f58a51c4ca8e61b66ec108d86f223f8d559ce",
    licence="Apache-2.0",
    attribution="NVIDIA Corporation, measured on the named GPU with the named engine's kernels",
)
ROOT = "measurements/aiconfigurator/data"
DTYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8"}
"""Profile precision -> the tables' dtype. The tables hold no fp16; bf16 kernels run at the same rate."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured values over one increasing axis, shape (n,), interpolated linearly in log-log."""

    x: FloatArray
    y: FloatArray

    def at(self, value: float) -> float:
        """Interpolated value; the axis' ends bound it."""
        return float(np.exp(np.interp(np.log(value), np.log(self.x), np.log(self.y))))


@dataclass(slots=True)
class OpTables:
    """The tables of one GPU, engine and version. Times are returned in seconds."""

    gpu: str
    engine: str
    version: str
    tables: dict[str, Table]
    _gemm: dict[tuple[str, int, int], Curve] = field(default_factory=dict)

    def files(self) -> list[tuple[str, str]]:
        """(path below the data folder, sha256) of every file read."""
        return [(table.relative, table.sha256) for _, table in sorted(self.tables.items())]

    def gemm_s(self, m: int, n: int, k: int, precision: str) -> float:
        """Time of an (m, k) x (k, n) product: over ``m`` along the measured curve, between grid values of n and k."""
        if m < 1:
            raise MeasurementError(f"gemm with m = {m}: expected at least 1")
        dtype = _dtype(precision)
        ns = self._axis("gemm", "n", dtype)
        parts = 1
        while n / parts > ns[-1]:  # wider than any measured matrix (a vocabulary): as several products
            parts += 1
        corners = [
            (weight_n * weight_k, grid_n, grid_k)
            for weight_n, grid_n in _bracket(ns, n / parts)
            for weight_k, grid_k in _bracket(self._axis("gemm", "k", dtype), k)
        ]
        total = 0.0
        for weight, grid_n, grid_k in corners:
            curve = self._gemm_curve(dtype, grid_n, grid_k)
            if not curve.x[0] <= m <= curve.x[-1]:
                raise self._beyond("gemm", f"m={m} at n={grid_n}, k={grid_k}", curve.x)
            total += weight * curve.at(m)
        return parts * total * 1e-3

    def context_attention_s(self, tokens: int, batch: int, heads: int, kv_heads: int, head_dim: int, kv: str) -> float:
        """Time of causal attention over ``batch`` prompts of ``tokens`` tokens, nothing cached."""
        frame = self._attention("context", heads, kv_heads, head_dim, kv)
        curve = _curve(frame.filter(pl.col("batch_size") == batch), "isl")
        if curve is None or not curve.x[0] <= tokens <= curve.x[-1]:
            raise self._beyond("context attention", f"{batch} x {tokens} tokens", None if curve is None else curve.x)
        return curve.at(tokens) * 1e-3

    def generation_attention_s(
        self, context: int, batch: int, heads: int, kv_heads: int, head_dim: int, kv: str
    ) -> float:
        """Time of one decode step's attention: ``batch`` sequences, ``context`` tokens each (its own included)."""
        frame = self._attention("generation", heads, kv_heads, head_dim, kv)
        curve = _curve(frame.filter(pl.col("batch_size") == batch).with_columns(pl.col("step") + 1), "step")
        if curve is None or not curve.x[0] <= context <= curve.x[-1]:
            raise self._beyond("generation attention", f"{batch} x {context} tokens", curve.x if curve else None)
        return curve.at(context) * 1e-3

    def decode_grid(self, heads: int, kv_heads: int, head_dim: int, kv: str) -> list[tuple[int, int]]:
        """Measured (batch, context) points."""
        frame = self._attention("generation", heads, kv_heads, head_dim, kv)
        return sorted((int(b), int(s) + 1) for b, s in frame.select("batch_size", "step").iter_rows())

    def allreduce_s(self, elements: int, gpus: int, captured: bool) -> float:
        """Time of an all-reduce; ``captured``: launched from a CUDA graph."""
        if gpus == 1:
            return 0.0
        frame = self.tables["allreduce"].frame.filter((pl.col("num_gpus") == gpus) & (pl.col("captured") == captured))
        curve = _curve(frame, "message_size")
        if curve is None or not curve.x[0] <= elements <= curve.x[-1]:
            raise self._beyond("all-reduce", f"{elements} elements on {gpus} GPUs", curve.x if curve else None)
        return curve.at(elements) * 1e-3

    def _axis(self, table: str, column: str, dtype: str) -> list[int]:
        frame = self.tables[table].frame.filter(pl.col("gemm_dtype") == dtype)
        if frame.is_empty():
            known = ", ".join(sorted(self.tables[table].frame["gemm_dtype"].unique()))
            raise self.tables[table].error(f"no rows with gemm_dtype {dtype!r}: the file has {known}")
        return sorted(frame[column].unique().to_list())

    def _gemm_curve(self, dtype: str, n: int, k: int) -> Curve:
        key = (dtype, n, k)
        if key not in self._gemm:
            frame = self.tables["gemm"].frame.filter(
                (pl.col("gemm_dtype") == dtype) & (pl.col("n") == n) & (pl.col("k") == k)
            )
            curve = _curve(frame, "m")
            if curve is None:
                raise self.tables["gemm"].error(f"no measurement at n={n}, k={k}, {dtype}")
            self._gemm[key] = curve
        return self._gemm[key]

    def _attention(self, phase: str, heads: int, kv_heads: int, head_dim: int, kv: str) -> pl.DataFrame:
        table = self.tables[phase]
        frame = table.frame.filter(
            (pl.col("num_heads") == heads)
            & (pl.col("num_key_value_heads") == kv_heads)
            & (pl.col("head_dim") == head_dim)
            & (pl.col("kv_cache_dtype") == _dtype(kv))
        )
        if frame.is_empty():
            raise table.error(f"no measurement with {heads} heads, {kv_heads} KV heads of {head_dim}, {kv} cache")
        return frame

    def _beyond(self, what: str, point: str, axis: FloatArray | None) -> MeasurementError:
        measured = "nothing at this point" if axis is None else f"{axis[0]:g} to {axis[-1]:g}"
        return MeasurementError(
            f"{self.gpu}, {self.engine} {self.version}: {what} of {point} is outside the measurements ({measured})"
        )


def load_op_tables(data_dir: Path, gpu: str, engine: str, version: str) -> OpTables:
    """Read one GPU's tables of one engine version.

    Args:
        data_dir: the data folder.
        gpu: folder of the GPU, such as ``h100_sxm``.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version, a folder name.

    Raises:
        MeasurementError: a file is missing or holds what cannot be a measurement.
    """
    base = f"{ROOT}/{gpu}"
    gemm_keys = ["gemm_dtype", "m", "n", "k"]
    gemm = read_table(
        data_dir,
        f"{base}/gemm/{engine}/{version}/gemm_perf.parquet",
        {"gemm_dtype": pl.String, "m": pl.Int64, "n": pl.Int64, "k": pl.Int64, "latency": pl.Float64},
    )
    tables = {"gemm": _checked(gemm, gemm_keys)}
    shape = {"num_heads": pl.Int64, "num_key_value_heads": pl.Int64, "head_dim": pl.Int64, "kv_cache_dtype": pl.String}
    for phase, axis in (("context", "isl"), ("generation", "step")):
        columns = {"batch_size": pl.Int64, axis: pl.Int64, **shape, "attn_dtype": pl.String, "latency": pl.Float64}
        relative = f"{base}/attention/{engine}/{version}/{phase}_attention_perf.parquet"
        attention = read_table(data_dir, relative, {**columns, **_optional(data_dir / relative, "window_size")})
        full = attention.frame.filter(pl.col("attn_dtype") == "bfloat16")
        if "window_size" in full.columns:
            full = full.filter(pl.col("window_size") == 0)
        attention = Table(attention.relative, attention.sha256, full)
        tables[phase] = _checked(attention, ["batch_size", axis, *shape])
    tables["allreduce"] = _read_allreduce(data_dir, f"{base}/comm/{engine}/{version}/custom_allreduce_perf.parquet")
    return OpTables(gpu, engine, version, tables)


def _read_allreduce(data_dir: Path, relative: str) -> Table:
    columns = {"num_gpus": pl.Int64, "message_size": pl.Int64, "latency": pl.Float64}
    table = read_table(data_dir, relative, {**columns, **_optional(data_dir / relative, "backend", pl.String)})
    # Engines that measure both ways say so in `backend`; the others measure captured launches.
    captured = ~pl.col("backend").str.ends_with("eager") if "backend" in table.frame.columns else pl.lit(True)
    frame = table.frame.with_columns(captured=captured)
    return _checked(Table(table.relative, table.sha256, frame), ["num_gpus", "message_size", "captured"])


def _checked(table: Table, keys: list[str]) -> Table:
    check_times(table, "latency")
    return merge_repeats(table, keys, "latency")


def _optional(path: Path, column: str, kind: type[pl.DataType] = pl.Int64) -> dict[str, type[pl.DataType]]:
    return {column: kind} if path.is_file() and column in pl.read_parquet_schema(path) else {}


def _curve(frame: pl.DataFrame, axis: str) -> Curve | None:
    if frame.height < 2:
        return None
    ordered = frame.sort(axis)
    return Curve(ordered[axis].cast(pl.Float64).to_numpy(), ordered["latency"].to_numpy())


def _bracket(grid: list[int], value: float) -> list[tuple[float, int]]:
    """Weights of the grid values around ``value``; below the grid its first value."""
    if value <= grid[0]:
        return [(1.0, grid[0])]
    index = int(np.searchsorted(np.asarray(grid, dtype=np.float64), value))
    if index == len(grid):
        raise MeasurementError(f"{value:g} is beyond the measured {grid[-1]}")
    if grid[index] == value:
        return [(1.0, grid[index])]
    low, high = grid[index - 1], grid[index]
    share = (value - low) / (high - low)
    return [(1.0 - share, low), (share, high)]


def _dtype(precision: str) -> str:
    if precision not in DTYPES:
        raise MeasurementError(f"precision {precision!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[precision]
