"""What will be measured, in which order, and how long that takes: made before anything runs, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.hardware.measure.ops import OPS
from envs.hardware.measure.points import Point, Scope
from envs.hardware.measure.timing import LEAST_REPEATS, LONGEST_S, REPEATS, WARM_UP
from envs.hardware.model_shape import ModelShape

ASSUMED = {"cuda": (2e14, 1e12), "cpu": (5e10, 5e9)}
"""FLOP/s and bytes/s that estimates count with: what a GPU of 2020 reaches, so newer ones are done sooner."""
OVERHEAD_S = {"cuda": 0.1, "cpu": 0.005}
"""Filling operands, capturing, reading the clock: each point, an assumption."""
CALLS = {"gemm": 16, "context_attention": 8, "append_attention": 8, "generation_attention": 8}


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One table of a plan: points, and seconds that they are estimated to take, by urgency."""

    op: str
    points: int
    kept: int
    seconds: float
    within: int


def all_points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Every point, the most telling first; within one urgency the tables in their order."""
    points = [point for op in OPS.values() for point in op.points(shape, scope)]
    return sorted(points, key=lambda p: p.priority)


def seconds(point: Point, device: str) -> float:
    """Estimated time of measuring a point."""
    flop_per_s, bytes_per_s = ASSUMED[device]
    once = max(point.flop / flop_per_s, point.moved_bytes / bytes_per_s)
    play = once * (CALLS.get(point.op, 1) if device == "cuda" else 1)
    repeats = min(REPEATS[device] * play, max(LEAST_REPEATS * play, LONGEST_S)) if device == "cuda" else 5 * play
    return OVERHEAD_S[device] + WARM_UP * play + repeats


def plan(points: Sequence[Point], done: set[Point], device: str, minutes: float) -> list[PlanRow]:
    """How many points each table has, how many are kept from before, and how many fit into the time.

    Args:
        points: in the order in which they are measured.
        done: those that were measured before.
        device: ``cuda`` or ``cpu``.
        minutes: time there is.
    """
    left = minutes * 60.0
    within: dict[str, int] = {}
    for point in points:
        if point in done:
            continue
        left -= seconds(point, device)
        if left < 0.0:
            break
        within[point.op] = within.get(point.op, 0) + 1
    rows = []
    for name in OPS:
        mine = [point for point in points if point.op == name]
        kept = sum(point in done for point in mine)
        total = sum(seconds(point, device) for point in mine if point not in done)
        rows.append(PlanRow(name, len(mine), kept, total, within.get(name, 0)))
    return rows
