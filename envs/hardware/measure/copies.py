"""Copies of one piece: within the device, from and to the host (pinned and pageable), and between two GPUs."""

from __future__ import annotations

from typing import Any

import polars as pl

from envs.hardware.measure.lab import Lab
from envs.hardware.measure.points import NotMeasuredError, Op, Point, Scope, unique
from envs.hardware.measure.timing import Timing, time_calls
from envs.hardware.model_shape import ModelShape

SIZES = tuple(2**power for power in (14, 16, 18, 20, 22, 24, 26, 28))
DIRECTIONS = {"within": False, "to_device": True, "from_device": True, "to_device_pageable": False, "peer": False}
"""Direction -> whether host memory is pinned."""


def points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Every direction there is, every size."""
    names = ["within"] if scope.device == "cpu" else [d for d in DIRECTIONS if d != "peer" or scope.gpus > 1]
    sizes = SIZES[:4] if scope.device == "cpu" else SIZES
    found = []
    for name in names:
        for i, size in enumerate(sizes):
            moved = (2.0 if name == "within" else 1.0) * size  # reading and writing count within one memory
            found.append(Point("copies", (("direction", name), ("size_bytes", size)), i % 2, 0.0, moved, 2.0 * size))
    return unique(found)


def measure(point: Point, lab: Lab) -> Timing:
    """Time one copy; ``latency`` is that of a copy launched by itself, base and bytes together."""
    direction, size = str(point.at["direction"]), int(point.at["size_bytes"])
    torch = lab.torch
    lab.need(point.held_bytes)
    if direction == "peer" and (not lab.cuda or torch.cuda.device_count() < 2):
        raise NotMeasuredError("expected two GPUs")

    def held(device: str) -> Any:
        pin = device == "cpu" and DIRECTIONS[direction]
        return torch.ones(size, dtype=torch.uint8, device=device, pin_memory=pin)

    ends = {
        "within": (lab.device, lab.device),
        "to_device": ("cpu", lab.device),
        "to_device_pageable": ("cpu", lab.device),
        "from_device": (lab.device, "cpu"),
        "peer": ("cuda:0", "cuda:1"),
    }[direction]
    source, target = (held(end) for end in ends)

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    return time_calls(lab, [copy], captured=False).named("torch.Tensor.copy_")


COPIES = Op(
    file="copies.parquet",
    keys={"direction": pl.String, "size_bytes": pl.Int64},
    constants={"op_name": "copy"},
    points=points,
    measure=measure,
    meaning="copies within the device, from and to the host, between GPUs",
)
