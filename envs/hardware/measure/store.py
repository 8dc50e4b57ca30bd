"""Measured rows on disk: one Parquet file a table, written whole or not at all, kept and added to by a later run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import polars as pl

from envs.hardware.errors import MeasurementError
from envs.hardware.measure.machine import Machine
from envs.hardware.measure.ops import OPS
from envs.hardware.measure.points import Op, Point, Value
from envs.hardware.measure.timing import Timing
from envs.hardware.sources.files import check_times, read_table

_KINDS: dict[str, type[pl.DataType]] = {
    "latency": pl.Float64,
    "latency_p25": pl.Float64,
    "latency_p75": pl.Float64,
    "repeats": pl.Int64,
    "calls": pl.Int64,
    "captured": pl.Boolean,
    "kernel_source": pl.String,
}
MEASURED = {field.name: _KINDS[field.name] for field in fields(Timing)}
"""Columns of a measurement, times in ms."""
PLACE: dict[str, type[pl.DataType]] = {
    "framework": pl.String,
    "version": pl.String,
    "device": pl.String,
    "clock_mhz": pl.Float64,
}
_TYPES: dict[type, type[pl.DataType]] = {str: pl.String, int: pl.Int64, float: pl.Float64}

Row = dict[str, Value | None]


def schema(op: Op) -> dict[str, type[pl.DataType]]:
    """Columns of a table, in order."""
    constants = {name: _TYPES[type(value)] for name, value in op.constants.items()}
    return {**PLACE, **constants, **op.keys, **MEASURED}


class Store:
    """The tables of one folder."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        """Read what is there.

        Raises:
            MeasurementError: a table that lacks a column, or holds times that are none.
        """
        self.folder, self.machine = folder, machine
        self.frames: dict[str, pl.DataFrame] = {}
        self.pending: dict[str, list[Row]] = {}
        for name, op in OPS.items():
            if (folder / op.file).exists():
                table = read_table(folder, op.file, schema(op))
                for column in ("latency", "latency_p25", "latency_p75"):
                    check_times(table, column)
                self.frames[name] = table.frame

    def done(self, points: Sequence[Point]) -> set[Point]:
        """Those of ``points`` that were measured."""
        held: dict[str, set[tuple[Value, ...]]] = {}
        for name, frame in self.frames.items():
            held[name] = set(frame.select(list(OPS[name].keys)).iter_rows())
        return {
            point
            for point in points
            if tuple(point.at[column] for column in OPS[point.op].keys) in held.get(point.op, set())
        }

    def add(self, point: Point, timing: Timing) -> None:
        """Keep a row until :meth:`flush`.

        Raises:
            MeasurementError: a time that is none.
        """
        if not (timing.latency > 0.0 and timing.latency < float("inf")):
            raise MeasurementError(f"{point.label()}: latency = {timing.latency} ms: expected a finite time above 0")
        op = OPS[point.op]
        row: Row = {"framework": "torch", "version": self.machine.torch, "device": self.machine.name}
        row |= {**op.constants, **point.at}
        row |= {name: getattr(timing, name) for name in MEASURED}
        self.pending.setdefault(point.op, []).append(row)

    def flush(self, clock_mhz: float | None) -> None:
        """Write the tables that have new rows.

        Args:
            clock_mhz: clock of the device while they were measured, None where it is not known.
        """
        for name, rows in self.pending.items():
            op = OPS[name]
            frame = pl.DataFrame([{**row, "clock_mhz": clock_mhz} for row in rows], schema=schema(op))
            if name in self.frames:
                frame = pl.concat([self.frames[name], frame])
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f".{op.file}.{os.getpid()}"
            frame.write_parquet(part)
            part.replace(self.folder / op.file)
            self.frames[name] = frame
        self.pending.clear()
