"""Measured transfers: bytes over a link in one piece, fitted as ``t = base + bytes / bandwidth``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.files import Origin, Table, check_counts, check_times, merge_repeats, read_table

VIDUR = Origin(
    name="vidur NCCL send_recv profiles",
    repository="microsoft/vidur",
    commit="7d47513363ec447a741ac5e47241580b47724fbf",
    licence="MIT",
    attribution="Microsoft, measured between two GPUs",
)
MOONCAKE = Origin(
    name="Mooncake connector benchmark, vLLM 0.11.2.dev358, Qwen3-8B TP8 on 2 x 8 H800, 8 x CX-7 RoCE",
    repository="kvcache-ai/Mooncake",
    commit="3b5a594133958449a1feaf1c9e0fc1b553e34a28",
    licence="Apache-2.0",
    attribution="Mooncake authors",
)
MOONCAKE_TABLE = "measurements/mooncake_pd/kv_transfer.csv"
QWEN3_8B_KV_BYTES = 2 * 36 * 8 * 128 * 2  # K and V x layers x KV heads x head dim x 2 bytes

FASTEST_BYTES_PER_S = 2e12
"""No link between two workers is faster: a transfer beyond it has the wrong unit."""
SLOWEST_S, SLOWEST_BYTES_PER_S = 0.01, 4e8
"""No measured link is slower than this base and bandwidth together: an unintended fallback to TCP was seen at 0.5 GB/s
(vllm-project/vllm#52607). A unit is a thousand, and NCCL between two GPUs of a node takes 0.2 ms for 64 MiB."""


@dataclass(frozen=True, slots=True)
class TransferFit:
    """A link's fitted law with its errors in percent, and what it was fitted to."""

    base_s: float
    bandwidth_bytes_per_s: float
    points: int
    bytes_range: tuple[float, float]
    mape: float
    median: float
    worst: float
    held_out_mape: float
    origin: Origin
    files: tuple[tuple[str, str], ...]


def fit_transfers(size: NDArray[np.float64], time_s: NDArray[np.float64]) -> tuple[float, float]:
    """(base_s, bandwidth in bytes/s) of least squared relative error, neither negative.

    Args:
        size: bytes, shape (n,).
        time_s: shape (n,).

    Raises:
        MeasurementError: fewer than 3 sizes, times that no link has, or times that do not grow with size.
    """
    if len(np.unique(size)) < 3:
        raise MeasurementError(f"{len(np.unique(size))} transfer sizes: expected at least 3 for a base and a bandwidth")
    bad = (time_s < size / FASTEST_BYTES_PER_S) | (time_s > SLOWEST_S + size / SLOWEST_BYTES_PER_S)
    if bad.any():
        first = int(np.argmax(bad))
        raise MeasurementError(
            f"{size[first]:g} bytes in {time_s[first]:g} s: expected at most {FASTEST_BYTES_PER_S / 1e9:g} GB/s and at "
            f"least {SLOWEST_BYTES_PER_S / 1e9:g} GB/s after {SLOWEST_S:g} s; are the units swapped?"
        )
    from scipy.optimize import nnls

    plane = np.column_stack([np.full_like(size, 1e-6), size * 1e-9]) / time_s[:, None]
    base, slope = nnls(plane, np.ones_like(time_s))[0]
    if slope == 0.0:
        raise MeasurementError("transfer times do not grow with size: expected a bandwidth")
    return float(base * 1e-6), float(1e9 / slope)


def fit_send_recv(data_dir: Path, machine: str, same_node: bool) -> TransferFit:
    """NCCL send and receive between two GPUs of one node, or of two.

    Args:
        data_dir: the data folder.
        machine: folder of the profile, such as ``h100_dgx``.
        same_node: both GPUs in one node.

    Raises:
        MeasurementError: missing or implausible measurements.
    """
    columns = {"size": pl.Float64, "devices_per_node": pl.Int64, "time_stats.send_recv.median": pl.Float64}
    table = read_table(data_dir, f"measurements/vidur/profiling/network/{machine}/send_recv.csv.gz", columns)
    check_times(table, "time_stats.send_recv.median")
    check_counts(table, ["devices_per_node"])
    _check_sizes(table, "size")
    frame = table.frame.filter(pl.col("devices_per_node") == (2 if same_node else 1))
    frame = frame.rename({"time_stats.send_recv.median": "time_ms"})
    return _fit(Table(table.relative, table.sha256, frame), VIDUR)


def fit_mooncake(data_dir: Path) -> TransferFit:
    """KV transfer of a whole prompt by the Mooncake connector between two 8-GPU workers."""
    columns = {"prompt_tokens": pl.Float64, "transfer_ms": pl.Float64}
    table = read_table(data_dir, MOONCAKE_TABLE, columns)
    _check_sizes(table, "prompt_tokens")
    frame = table.frame.select(size=pl.col("prompt_tokens") * QWEN3_8B_KV_BYTES, time_ms=pl.col("transfer_ms"))
    return _fit(Table(table.relative, table.sha256, frame), MOONCAKE)


def _check_sizes(table: Table, column: str) -> None:
    """Something was sent each time."""
    bad = table.frame.with_row_index("row").filter((pl.col(column) >= 1.0).fill_null(False).not_())
    if bad.height:
        raise table.error(
            f"row {bad['row'][0] + 1}: {column} = {bad[column][0]}: expected at least 1 ({bad.height} such rows)"
        )


def _fit(table: Table, origin: Origin) -> TransferFit:
    check_times(table, "time_ms")
    table = merge_repeats(table, ["size"], "time_ms")
    frame = table.frame.sort("size")
    size, time_s = frame["size"].to_numpy(), frame["time_ms"].to_numpy() * 1e-3
    try:
        base, bandwidth = fit_transfers(size, time_s)
    except MeasurementError as error:
        raise table.error(str(error)) from None
    relative = np.abs((base + size / bandwidth) / time_s - 1.0) * 100.0
    held = np.empty_like(time_s)
    for fold in range(4):
        out = np.arange(len(size)) % 4 == fold
        fold_base, fold_bandwidth = fit_transfers(size[~out], time_s[~out])
        held[out] = np.abs((fold_base + size[out] / fold_bandwidth) / time_s[out] - 1.0) * 100.0
    return TransferFit(
        base_s=base,
        bandwidth_bytes_per_s=bandwidth,
        points=len(size),
        bytes_range=(float(size[0]), float(size[-1])),
        mape=float(relative.mean()),
        median=float(np.median(relative)),
        worst=float(relative.max()),
        held_out_mape=float(held.mean()),
        origin=origin,
        files=((table.relative, table.sha256),),
    )
