"""Step times, the common form between measurement sources and the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import ModelShape

KINDS = ("prefill", "append", "decode", "mixed")

FASTEST, SLOWEST = 0.95, 30.0
"""Plausible step times, as multiples of the time that peak arithmetic or peak bandwidth alone would take."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One engine step and its time.

    Attributes:
        kind: one of KINDS; append is prefill over cached tokens, mixed is prefill and decodes in one step.
        new: prompt tokens computed.
        attention: sum over the prompts of ``chunk * (cached + chunk / 2)``.
        seqs: decoding sequences.
        kv: context tokens that the decodes attend to.
        time_s: how long the step takes.
    """

    kind: str
    new: int
    attention: float
    seqs: int
    kv: int
    time_s: float

    @property
    def region(self) -> str:
        """The part of the plane it lies in, for errors by region."""
        if self.kind in ("prefill", "append"):
            return f"{self.kind} {'short' if self.new <= 512 else 'long'}"
        if self.kind == "decode":
            return f"decode {'small' if self.seqs <= 16 else 'large'} batch"
        return "mixed"


REGIONS = (
    "prefill short",
    "prefill long",
    "append short",
    "append long",
    "decode small batch",
    "decode large batch",
    "mixed",
)


def ordered(points: Sequence[StepPoint]) -> list[StepPoint]:
    """Points in one fixed order, so that what is held out does not depend on how a source lists them."""
    return sorted(points, key=lambda p: (KINDS.index(p.kind), p.new, p.attention, p.seqs, p.kv))


def times_s(points: Sequence[StepPoint]) -> NDArray[np.float64]:
    """Measured times, shape (n,)."""
    return np.array([point.time_s for point in points], dtype=np.float64)


def check_plausible(
    points: Sequence[StepPoint],
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    launch_s: float = 0.0,
) -> None:
    """Refuse times that no such GPU can have: most often milliseconds read as seconds, or the reverse.

    Args:
        points: steps.
        shape: the model.
        gpu: the GPU.
        tensor_parallel: GPUs that share the model.
        precision: of the weights.
        kv_precision: of the cache.
        launch_s: time that launching a step may take the host, whatever the GPU does.

    Raises:
        MeasurementError: names the step, its time and the plausible range.
    """
    weights = shape.weight_bytes(precision)
    kv_bytes = shape.kv_bytes(1, kv_precision)
    for point in points:
        flop = shape.flop(point.new + point.seqs, point.attention, max(1, point.seqs)) + (
            shape.flop(0, float(point.kv), 0)
        )
        peak_s = flop / (gpu.peak(precision) * tensor_parallel)
        memory_s = (weights + kv_bytes * point.kv) / (gpu.memory_bytes_per_s * tensor_parallel)
        bound_s = max(peak_s, memory_s)
        low, high = FASTEST * bound_s, SLOWEST * bound_s + launch_s
        if not low <= point.time_s <= high:
            raise MeasurementError(
                f"{point.kind} step of {point.new} new tokens and {point.seqs} decodes over {point.kv} tokens takes "
                f"{point.time_s:.4g} s: expected {low:.4g} to {high:.4g} s for {shape.name} in {precision} on "
                f"{tensor_parallel} x {gpu.name}; are the units swapped?"
            )
