"""The project's own tables (``action=measure``): step times of a profile from one folder of them.

In bf16 on one GPU the whole measured steps are the points of the fit. Else steps are composed from the folder's op
tables; several GPUs need ``custom_allreduce_perf.parquet`` beside them, in the published layout, which ``measure`` does
not write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from envs.hardware.errors import MeasurementError
from envs.hardware.gpu import Gpu
from envs.hardware.measure.machine import Machine, read_machine
from envs.hardware.measure.ops import OPS
from envs.hardware.measure.run import sizes
from envs.hardware.model_shape import ModelShape
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.files import Origin, Table, check_counts, check_times, merge_repeats, read_table
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.op_tables import OpTables
from envs.hardware.sources.plausible import check_ops
from envs.hardware.steps import StepPoint, ordered

ALLREDUCE = "custom_allreduce_perf.parquet"
_SHAPE = ("num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Step times of a folder.

    Attributes:
        points: in order.
        origin: machine and software.
        files: (path, sha256) of every table read.
        kind: ``measured`` (whole steps) or ``estimated`` (composed).
        method: in words, for the profile.
    """

    points: list[StepPoint]
    origin: Origin
    files: list[tuple[str, str]]
    kind: str
    method: str


def measured_steps(
    folder: Path,
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    limits: tuple[int, int, int],
) -> MeasuredSteps:
    """Read one folder that ``action=measure`` wrote.

    Args:
        folder: of the tables.
        shape: the model; the folder must be of the same.
        gpu: sheet of the GPU that was measured.
        tensor_parallel: GPUs of a worker.
        precision: of the weights.
        kv_precision: of the cache.
        limits: most new tokens, decodes and KV tokens of a step.

    Raises:
        MeasurementError: no such folder, another model's, measured on a CPU, tables missing or implausible.
    """
    machine = measured_machine(folder, shape)
    if tensor_parallel == 1 and (precision, kv_precision) == ("bf16", "bf16"):
        points, table = whole_steps(folder, limits)
        files = [(f"{folder.name}/{table.relative}", table.sha256)]
        method = "whole steps of all layers with random weights, torch kernels, nothing of the host's own work"
        return MeasuredSteps(points, origin(machine), files, "measured", method)
    composer = measured_composer(folder, shape, gpu, tensor_parallel, precision, kv_precision)
    method = "engine steps composed layer by layer from op times measured on the GPU with torch kernels"
    points = compose_steps(composer, *limits)
    return MeasuredSteps(points, origin(machine), op_files(folder, composer), "estimated", method)


def measured_machine(folder: Path, shape: ModelShape) -> Machine:
    """The machine of a folder whose tables may make a profile of ``shape``.

    Raises:
        MeasurementError: no such folder, another model's, measured on a CPU.
    """
    machine = read_machine(folder)
    if machine is None:
        raise MeasurementError(f"{folder}: no machine.json: expected a folder that action=measure wrote")
    if machine.device != "cuda":
        raise MeasurementError(f"{folder}: measured on a {machine.device}: expected a GPU's tables for a profile")
    if machine.shape != sizes(shape):
        raise MeasurementError(
            f"{folder}: measured for {machine.model} with {machine.shape}: expected {shape.name} with {sizes(shape)}"
        )
    return machine


def measured_composer(
    folder: Path, shape: ModelShape, gpu: Gpu, tensor_parallel: int, precision: str, kv_precision: str
) -> Composer:
    """A composer over the folder's op tables; ops are counted as they were timed.

    Raises:
        MeasurementError: tables missing or implausible; see :func:`measured_machine`.
    """
    ops = measured_ops(folder, measured_machine(folder, shape), tensor_parallel)
    check_ops(ops, gpu)
    return Composer(ops, shape, gpu, tensor_parallel, precision, kv_precision)


def op_files(folder: Path, composer: Composer) -> list[tuple[str, str]]:
    """(path, sha256) of the op tables, by the folder's name: where it lies is nobody's business."""
    return [(f"{folder.name}/{name}", digest) for name, digest in composer.ops.files()]


def origin(machine: Machine) -> Origin:
    """Where the tables come from, for the profile."""
    cap = "unknown" if machine.power_cap_w is None else f"{machine.power_cap_w:g} W"
    return Origin(
        name=f"own measurement on {machine.name}, driver {machine.driver}, CUDA {machine.cuda}, power cap {cap}",
        repository="none: python -m research.calibrate action=measure",
        commit=f"torch {machine.torch}",
        licence="none stated: whoever measured owns the tables",
        attribution="whoever ran the command",
    )


def whole_steps(folder: Path, limits: tuple[int, int, int]) -> tuple[list[StepPoint], Table]:
    """The folder's whole steps with attention, inside ``limits`` (new tokens, decodes, KV tokens).

    Raises:
        MeasurementError: a missing column, a time that is none, repeats that contradict each other.
    """
    op = OPS["steps"]
    table = read_table(folder, op.file, {**op.keys, "latency": pl.Float64})
    check_times(table, "latency")
    keys = list(op.keys)
    check_counts(table, ["new", "cached", "batch", "context"])
    merged = merge_repeats(table, keys, "latency")
    max_new, max_seqs, max_kv = limits
    points = [
        StepPoint(str(kind), new, new * (cached + new / 2), batch, batch * context, latency * 1e-3)
        for kind, new, cached, batch, context, attention, latency in merged.frame.select(*keys, "latency").iter_rows()
        if attention and new + batch <= max_new and batch <= max_seqs and batch * context <= max_kv
    ]
    return ordered(points), table


def measured_ops(folder: Path, machine: Machine, tensor_parallel: int = 1) -> OpTables:
    """The folder's op tables, as :class:`OpTables`.

    Raises:
        MeasurementError: a table is missing or holds what cannot be a measurement.
    """
    tables = {"gemm": _read(folder, "gemm_perf.parquet", ["gemm_dtype", "m", "n", "k"])}
    for phase, axis in (("context", "isl"), ("generation", "step")):
        tables[phase] = _attention(folder, phase, axis)
    if tensor_parallel > 1:
        if not (folder / ALLREDUCE).is_file():
            raise MeasurementError(
                f"{folder}: no {ALLREDUCE}: expected all-reduce times for tensor_parallel = {tensor_parallel}, in the "
                "published layout (num_gpus, message_size in elements, latency in ms); action=measure has none"
            )
        table = _read(folder, ALLREDUCE, ["num_gpus", "message_size"])
        frame = table.frame.with_columns(captured=pl.lit(True))
        both = pl.concat([frame, frame.with_columns(captured=pl.lit(False))])
        tables["allreduce"] = Table(table.relative, table.sha256, both)
    return OpTables(machine.name, "torch", machine.torch, tables)


_TYPES: Mapping[str, type[pl.DataType]] = {"gemm_dtype": pl.String, "kv_cache_dtype": pl.String}


def _read(folder: Path, file: str, keys: list[str]) -> Table:
    columns = {name: _TYPES.get(name, pl.Int64) for name in keys} | {"latency": pl.Float64}
    table = read_table(folder, file, columns)
    check_times(table, "latency")
    check_counts(table, [name for name in keys if name not in _TYPES])
    return merge_repeats(table, keys, "latency")


def _attention(folder: Path, phase: str, axis: str) -> Table:
    file = OPS[f"{phase}_attention"].file
    keys: dict[str, type[pl.DataType]] = {
        "batch_size": pl.Int64,
        axis: pl.Int64,
        **{name: _TYPES.get(name, pl.Int64) for name in _SHAPE},
    }
    table = read_table(folder, file, {**keys, "kernel_source": pl.String, "latency": pl.Float64})
    check_times(table, "latency")
    check_counts(table, ["batch_size", axis])
    # One kernel: the one with most rows; the others were measured beside it.
    counts = table.frame.group_by("kernel_source").len().sort(["len", "kernel_source"])
    frame = table.frame.filter(pl.col("kernel_source") == counts["kernel_source"][-1])
    frame = frame.with_columns(tokens=pl.col(axis) + (1 if phase == "generation" else 0))
    return merge_repeats(Table(table.relative, table.sha256, frame), ["batch_size", "tokens", *_SHAPE], "latency")
