"""Op micro-benchmarks in the aiconfigurator layout: look-ups of measured GEMM, attention and all-reduce times.

Files: ``<root>/<gpu>/<op>/<engine>/<version>/*.parquet``, latency in ms, measured on real GPUs. ``step`` is the
cached length of a decode; ``message_size`` of an all-reduce counts elements (as bytes, the largest measured message
would move at half of NVLink's bandwidth). Look-ups interpolate between measured points and never beyond them.

Where a table holds several kernels for one head size, the one with the most rows counts (the engine's default; the
others were measured as alternatives). Prefill attention over an fp8 cache has fp8 queries where the engine's table has
such rows, as the engine then runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError, OutsideError, ProfileError, nearest
from envs.hardware.sources.allreduce import FILE as ALLREDUCE
from envs.hardware.sources.allreduce import read_allreduce
from envs.hardware.sources.files import Origin, Table, check_times, merge_repeats, read_table
from envs.hardware.sources.versions import nearest_version

AICONFIGURATOR = Origin(
    name="aiconfigurator-core 0.12.0 op micro-benchmarks",
    repository="ai-dynamo/aiconfigurator",
    commit="095f58a51c4ca8e61b66ec108d86f223f8d559ce",
    licence="Apache-2.0",
    attribution="NVIDIA Corporation, measured on the named GPU with the named engine's kernels",
)
ROOT = "measurements/aiconfigurator/data"
PACKAGE, PACKAGE_ROOT = "aiconfigurator_core", "aiconfigurator_core/systems/data"
"""The published package that holds the same folders for more GPUs; read where the data folder lacks a GPU."""
DTYPES = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "fp8_dynamic": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}
"""Profile precision -> the tables' dtype. The tables hold no fp16; bf16 kernels run at the same rate."""
READ_FROM = {"vllm": {"fp8_block": "sglang"}, "trtllm": {"nvfp4": "vllm"}}
"""Engine -> products whose rows are not those of the kernels that it serves with, and the engine whose rows are read
instead. vLLM's block-scaled fp8 was timed launch by launch (smallest products 55 to 170 us, where captured ones take 3
to 7); SGLang's captured rows are of the same kernels (DeepGEMM). TRT-LLM's nvfp4 was timed with the kernel that runs
when nothing was tuned (``collector/trtllm/collect_gemm.py`` never enters its ``autotune``, which an engine does as it
starts): its time follows the depth of the matrix whatever its width. vLLM's rows are of FlashInfer's kernels."""
FUSED_BY = {"vllm": "trtllm"}
"""Engine -> the one whose all-reduce kernel it runs where it fuses norms into it (by way of FlashInfer)."""
SMALL = 256
"""Sides of the matrices whose product is pure launch: their median time is a table's floor."""

ENGINES = ("vllm", "sglang", "trtllm")
"""Engines of which there are op tables."""

FloatArray = NDArray[np.float64]


def check_engine(engine: str, where: str = "") -> None:
    """Refuse an engine of which there are no op tables.

    Args:
        engine: its name.
        where: what the message begins with, such as a file.

    Raises:
        ProfileError: it names those of which there are.
    """
    if engine not in ENGINES:
        raise ProfileError(
            f"{where}engine = {engine!r}: unknown engine{nearest(engine, ENGINES)}: expected one of "
            f"{', '.join(ENGINES)}, whose op tables the adapter reads"
        )


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
    _curves: dict[tuple[object, ...], Curve | None] = field(default_factory=dict)
    _axes: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _floors: dict[str, float] = field(default_factory=dict)

    def files(self) -> list[tuple[str, str]]:
        """(path below the data folder, sha256) of every file read; another engine's only where its rows were used."""
        used = {str(key[0]) for key in self._curves}
        tables = [table for name, table in sorted(self.tables.items()) if " " not in name or name in used]
        return [(table.relative, table.sha256) for table in tables]

    def gemm_s(self, m: int, n: int, k: int, precision: str) -> float:
        """Time of an (m, k) x (k, n) product: over ``m`` along the measured curve, between grid values of n and k."""
        if m < 1:
            raise MeasurementError(f"gemm with m = {m}: expected at least 1")
        dtype = table_dtype(precision)
        ns = self._axis("n", dtype)
        parts = 1
        while n / parts > ns[-1]:  # wider than any measured matrix (a vocabulary): as several products
            parts += 1
        corners = [
            (weight_n * weight_k, grid_n, grid_k)
            for weight_n, grid_n in _bracket(ns, n / parts)
            for weight_k, grid_k in _bracket(self._axis("k", dtype), k)
        ]
        total = 0.0
        for weight, grid_n, grid_k in corners:
            point = {"gemm_dtype": dtype, "n": grid_n, "k": grid_k}
            total += weight * self._at(self._gemm(dtype), "m", m, point)
        return parts * total

    def context_attention_s(self, tokens: int, batch: int, heads: int, kv_heads: int, head_dim: int, kv: str) -> float:
        """Time of causal attention over ``batch`` prompts of ``tokens`` tokens, nothing cached."""
        point = attention_point(heads, kv_heads, head_dim, kv) | {"batch_size": batch}
        return self._at("context", "tokens", tokens, point)

    def generation_attention_s(
        self, context: int, batch: int, heads: int, kv_heads: int, head_dim: int, kv: str
    ) -> float:
        """Time of one decode step's attention: ``batch`` sequences, ``context`` tokens each (its own included)."""
        point = attention_point(heads, kv_heads, head_dim, kv) | {"batch_size": batch}
        return self._at("generation", "tokens", context, point)

    def decode_grid(self, heads: int, kv_heads: int, head_dim: int, kv: str) -> list[tuple[int, int]]:
        """Measured (batch, context) points."""
        frame = _where(self.tables["generation"].frame, attention_point(heads, kv_heads, head_dim, kv))
        return sorted((int(b), int(s)) for b, s in frame.select("batch_size", "tokens").iter_rows())

    def allreduce_s(self, elements: int, gpus: int, captured: bool) -> float:
        """Time of an all-reduce; ``captured``: launched from a CUDA graph, or where only such were measured."""
        if gpus == 1:
            return 0.0
        point: dict[str, object] = {"num_gpus": gpus, "captured": captured or self.launch_s() is None}
        return self._at("allreduce", "message_size", elements, point)

    def fused_allreduce_s(self, elements: int, gpus: int) -> float:
        """Time of an all-reduce that holds a norm: of the kernel it is made with, where that was measured."""
        if gpus == 1:
            return 0.0
        name = "allreduce fused" if "allreduce fused" in self.tables else "allreduce"
        return self._at(name, "message_size", elements, {"num_gpus": gpus, "captured": True})

    def gemm_floor_s(self, precision: str) -> float:
        """Median time of the smallest products: up to 8 rows, sides up to SMALL.

        Raises:
            OutsideError: no such product was measured.
        """
        dtype = table_dtype(precision)
        if dtype in self._floors:
            return self._floors[dtype]
        table = self.tables[self._gemm(dtype)]
        small = (pl.col("gemm_dtype") == dtype) & (pl.col("m") <= 8) & (pl.col("n") <= SMALL) & (pl.col("k") <= SMALL)
        median = table.frame.filter(small)["latency"].median()
        if median is None:
            raise OutsideError(f"{table.relative}: no {dtype} products with sides up to {SMALL}")
        self._floors[dtype] = float(median) * 1e-3  # type: ignore[arg-type, unused-ignore]
        return self._floors[dtype]

    def gemm_rows(self, precision: str) -> list[int]:
        """Numbers of rows (tokens) at which products were measured, increasing."""
        return self._axis("m", table_dtype(precision))

    def launch_s(self) -> float | None:
        """Time of the smallest all-reduce launched by itself, not from a captured graph: what a launch takes the host.

        None where the table holds captured launches only.
        """
        if "launch" not in self._floors:
            least = self.tables["allreduce"].frame.filter(~pl.col("captured"))["latency"].min()
            self._floors["launch"] = 0.0 if least is None else float(least) * 1e-3  # type: ignore[arg-type, unused-ignore]
        return self._floors["launch"] or None

    def _gemm(self, dtype: str) -> str:
        """The table that holds the products of this type."""
        return f"gemm {dtype}" if f"gemm {dtype}" in self.tables else "gemm"

    def _axis(self, column: str, dtype: str) -> list[int]:
        """Values of one matrix size in the GEMM table, increasing."""
        if (column, dtype) not in self._axes:
            frame = self.tables[self._gemm(dtype)].frame
            values = frame.filter(pl.col("gemm_dtype") == dtype)[column].unique().sort().to_list()
            if not values:
                known = ", ".join(sorted(frame["gemm_dtype"].unique()))
                raise self.tables["gemm"].error(f"no rows with gemm_dtype {dtype!r}: the file has {known}")
            self._axes[column, dtype] = values
        return self._axes[column, dtype]

    def curve(self, table: str, axis: str, point: dict[str, object]) -> Curve | None:
        """Measured times in ms along ``axis`` through ``point``; None where fewer than two were measured."""
        key = (table, *point.values())
        if key not in self._curves:
            self._curves[key] = _curve(_where(self.tables[table].frame, point), axis)
        return self._curves[key]

    def _at(self, table: str, axis: str, value: float, point: dict[str, object]) -> float:
        """Seconds at ``value`` on the curve along ``axis`` through ``point``."""
        curve = self.curve(table, axis, point)
        if curve is None or not curve.x[0] <= value <= curve.x[-1]:
            measured = "nothing here" if curve is None else f"{curve.x[0]:g} to {curve.x[-1]:g}"
            place = ", ".join(f"{name}={given}" for name, given in point.items())
            raise OutsideError(
                f"{self.tables[table].relative}: {axis} = {value} at {place} is outside the measurements ({measured})"
            )
        return curve.at(value) * 1e-3


def load_op_tables(data_dir: Path, gpu: str, engine: str, version: str | None, window: int = 0) -> OpTables:
    """Read one GPU's tables of one engine, each at the measured version nearest to ``version``.

    Args:
        data_dir: the data folder.
        gpu: folder of the GPU, such as ``h100_sxm``.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version; None: the newest measured. See :func:`nearest_version`.
        window: tokens that attention is limited to; 0: not limited.

    Raises:
        MeasurementError: a file is missing or holds what cannot be a measurement.
    """
    data_dir, root = tables_home(data_dir, gpu)

    def relative(op: str, file: str) -> str:
        folder = f"{root}/{gpu}/{op}/{engine}"
        return f"{folder}/{nearest_version(data_dir / folder, file, version)}/{file}"

    gemm_path = relative("gemm", "gemm_perf.parquet")
    tables = {"gemm": _read_gemm(data_dir, gemm_path)}
    shape = {"num_heads": pl.Int64, "num_key_value_heads": pl.Int64, "head_dim": pl.Int64, "kv_cache_dtype": pl.String}
    for phase, axis in (("context", "isl"), ("generation", "step")):
        columns = {"batch_size": pl.Int64, axis: pl.Int64, **shape, "attn_dtype": pl.String, "latency": pl.Float64}
        optional = {"window_size": pl.Int64, "kernel_source": pl.String}
        attention = read_table(data_dir, relative("attention", f"{phase}_attention_perf.parquet"), columns, optional)
        full = attention.frame
        if "window_size" in full.columns:
            full = full.filter(pl.col("window_size") == window)
        elif window:
            raise attention.error(f"no column window_size: expected attention over a window of {window} tokens")
        full = _default_kernel(_query_dtype(full))
        # A decode's step counts the cached tokens; its attention reads its own as well.
        full = full.with_columns(tokens=pl.col(axis) + (1 if phase == "generation" else 0))
        attention = Table(attention.relative, attention.sha256, full)
        tables[phase] = _checked(attention, ["batch_size", "tokens", *shape])
    tables["allreduce"] = read_allreduce(data_dir, relative("comm", ALLREDUCE))
    if engine in FUSED_BY:
        folder = f"{root}/{gpu}/comm/{FUSED_BY[engine]}"
        if (data_dir / folder).is_dir():
            path = f"{folder}/{nearest_version(data_dir / folder, ALLREDUCE, None)}/{ALLREDUCE}"
            tables["allreduce fused"] = read_allreduce(data_dir, path)
    for dtype, other in READ_FROM.get(engine, {}).items():
        folder = f"{root}/{gpu}/gemm/{other}"
        if (data_dir / folder).is_dir():
            path = f"{folder}/{nearest_version(data_dir / folder, 'gemm_perf.parquet', None)}/gemm_perf.parquet"
            products = _read_gemm(data_dir, path)
            if (products.frame["gemm_dtype"] == dtype).any():
                tables[f"gemm {dtype}"] = products
    return OpTables(gpu, engine, Path(gemm_path).parent.name, tables)


def _read_gemm(data_dir: Path, relative: str) -> Table:
    columns = {"gemm_dtype": pl.String, "m": pl.Int64, "n": pl.Int64, "k": pl.Int64, "latency": pl.Float64}
    return _checked(read_table(data_dir, relative, columns), ["gemm_dtype", "m", "n", "k"])


def has_tables(data_dir: Path, gpu: str) -> bool:
    """Whether op tables of this GPU are at hand: in the data folder, or in the installed package."""
    home, root = tables_home(data_dir, gpu)
    return (home / root / gpu).is_dir()


def tables_home(data_dir: Path, gpu: str) -> tuple[Path, str]:
    """The folder that paths of tables are relative to, and the path below it that GPUs' folders lie in."""
    if not (data_dir / ROOT / gpu).is_dir():
        found = find_spec(PACKAGE)
        places = [Path(place).parent for place in (found.submodule_search_locations or ())] if found else []
        for place in places:
            if (place / PACKAGE_ROOT / gpu).is_dir():
                return place, PACKAGE_ROOT
    return data_dir, ROOT


def _query_dtype(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows with 16-bit queries; with fp8 ones where cache and queries both are fp8 in the table."""
    both = (pl.col("attn_dtype") == "fp8") & (pl.col("kv_cache_dtype") == "fp8")
    if not frame.select(both.any()).item():
        return frame.filter(pl.col("attn_dtype") == "bfloat16")
    half = (pl.col("attn_dtype") == "bfloat16") & (pl.col("kv_cache_dtype") == "bfloat16")
    return frame.filter(both | half)


def _default_kernel(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of the kernel that has most rows, for each head size and cache."""
    if "kernel_source" not in frame.columns:
        return frame
    keys = ["head_dim", "kv_cache_dtype"]
    counts = frame.group_by([*keys, "kernel_source"]).len().sort([*keys, "len", "kernel_source"])
    return frame.join(counts.group_by(keys, maintain_order=True).last(), on=[*keys, "kernel_source"], how="semi")


def _checked(table: Table, keys: list[str]) -> Table:
    check_times(table, "latency")
    return merge_repeats(table, keys, "latency")


def attention_point(heads: int, kv_heads: int, head_dim: int, kv: str) -> dict[str, object]:
    """Columns that name attention of one head shape and cache."""
    return {
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "kv_cache_dtype": table_dtype(kv),
    }


def _where(frame: pl.DataFrame, point: dict[str, object]) -> pl.DataFrame:
    return frame.filter(*(pl.col(name) == value for name, value in point.items()))


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
        raise OutsideError(f"a matrix side of {value:g} is outside the measurements: up to {grid[-1]}")
    if grid[index] == value:
        return [(1.0, grid[index])]
    low, high = grid[index - 1], grid[index]
    share = (value - low) / (high - low)
    return [(1.0 - share, low), (share, high)]


def table_dtype(precision: str) -> str:
    """The tables' dtype of a precision.

    Raises:
        MeasurementError: there is none.
    """
    if precision not in DTYPES:
        raise MeasurementError(f"precision {precision!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[precision]
