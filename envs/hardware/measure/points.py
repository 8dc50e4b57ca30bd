"""What is measured: one point is one row of one table, with how much work it is and how much it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from envs.hardware.model_shape import ModelShape

if TYPE_CHECKING:
    from envs.hardware.measure.lab import Lab
    from envs.hardware.measure.timing import Timing

Value = str | int | float | bool
Key = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to measure.

    Attributes:
        op: name of its table, a key of :data:`envs.hardware.measure.ops.OPS`.
        key: (column, value) pairs that name it within the table.
        priority: 0 tells most; what is measured first.
        flop: floating-point operations of one call.
        moved_bytes: bytes that one call must read and write.
        held_bytes: memory that measuring it takes.
    """

    op: str
    key: Key
    priority: int
    flop: float
    moved_bytes: float
    held_bytes: float

    @property
    def at(self) -> dict[str, Value]:
        """The key as a dict."""
        return dict(self.key)

    def label(self) -> str:
        """The point in words, for messages."""
        return f"{self.op} " + ", ".join(f"{name}={value}" for name, value in self.key)


@dataclass(frozen=True, slots=True)
class Scope:
    """How far the measurements reach.

    Attributes:
        device: ``cuda`` or ``cpu``.
        max_tokens: most tokens of one step.
        max_seqs: most decoding sequences.
        fp8: whether the GPU multiplies fp8 matrices.
        gpus: GPUs at hand.
    """

    device: str
    max_tokens: int
    max_seqs: int
    fp8: bool
    gpus: int

    def upto(self, values: Sequence[int], most: int) -> list[int]:
        """Those of ``values`` that are at most ``most``."""
        return [value for value in values if value <= most]


def scope_of(device: str, fp8: bool, gpus: int) -> Scope:
    """Full size on a GPU; on a CPU what takes seconds."""
    if device == "cpu":
        return Scope(device, max_tokens=64, max_seqs=4, fp8=False, gpus=0)
    return Scope(device, max_tokens=8192, max_seqs=256, fp8=fp8, gpus=gpus)


@dataclass(frozen=True, slots=True)
class Op:
    """One table.

    Attributes:
        file: its name.
        keys: columns that name a point, with their types.
        constants: further columns that a published table of this kind has, the same in each row.
        points: what there is to measure for a model within a scope.
        measure: times one point; raises NotMeasuredError with the reason where it cannot be.
        meaning: one line for the plan.
    """

    file: str
    keys: Mapping[str, type[pl.DataType]]
    constants: Mapping[str, Value]
    points: Callable[[ModelShape, Scope], list[Point]]
    measure: Callable[[Point, Lab], Timing]
    meaning: str


class NotMeasuredError(RuntimeError):
    """A point that this machine cannot measure, with the reason."""


def degrees(shape: ModelShape, scope: Scope) -> list[int]:
    """Tensor-parallel degrees whose slices are measured: those that divide heads, KV heads, width and vocabulary."""
    sizes = (shape.heads, shape.kv_heads, shape.intermediate, shape.vocabulary)
    return [tp for tp in (1, 2, 4, 8) if all(size % tp == 0 for size in sizes)]


def unique(points: Sequence[Point]) -> list[Point]:
    """Points in order of priority, each key once (its most urgent)."""
    kept: dict[tuple[str, Key], Point] = {}
    for point in sorted(points, key=lambda p: p.priority):
        kept.setdefault((point.op, point.key), point)
    return list(kept.values())
