"""Measure until the points or the minutes are used up; what is measured is on disk and is not measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError
from envs.hardware.measure.lab import Lab
from envs.hardware.measure.machine import Clocks, Machine, read_machine, this_machine, write_machine
from envs.hardware.measure.ops import OPS
from envs.hardware.measure.plan import seconds
from envs.hardware.measure.points import Point, Scope, scope_of
from envs.hardware.measure.store import Store
from envs.hardware.measure.timing import warm
from envs.hardware.model_shape import ModelShape

FLUSH_S = 10.0
FP8_CAPABILITY = (8, 9)
"""First compute capability whose tensor cores multiply fp8."""

Tell = Callable[[int, int, Point], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """A device that is ready to be measured."""

    lab: Lab
    machine: Machine
    scope: Scope


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did.

    Attributes:
        measured: points measured now.
        kept: points that were there before.
        left: points that the time did not reach.
        skipped: point in words -> why it could not be measured.
        elapsed_s: how long it took.
    """

    measured: int
    kept: int
    left: int
    skipped: dict[str, str]
    elapsed_s: float


def open_bench(device: str, shape: ModelShape) -> Bench:
    """Import torch and look at the device.

    Raises:
        MeasurementError: no torch, or no such device.
    """
    try:
        import torch
    except ImportError:
        raise MeasurementError("action=measure needs torch: expected the extra rl (pip install 'pdgym[rl]')") from None
    if device == "cuda" and not (torch.cuda.is_available() and torch.version.cuda):
        raise MeasurementError(
            f"device=cuda: torch {torch.__version__} sees no NVIDIA GPU: expected one and a CUDA build of torch; "
            "plan=true prints what would be measured, device=cpu model=toy tries the command out"
        )
    if device == "cpu":
        torch.set_num_threads(1)  # threads that wait for a neighbour would be most of what is measured
    machine = this_machine(torch, device, shape.name, sizes(shape))
    fp8 = device == "cuda" and tuple(map(int, machine.capability.split("."))) >= FP8_CAPABILITY
    torch.manual_seed(0)
    lab = Lab(torch, device, shape, machine.l2_bytes, machine.sms)
    return Bench(lab, machine, scope_of(device, fp8, machine.gpus))


def check_dense(shape: ModelShape) -> None:
    """What is measured is a dense model's layer with full attention.

    Raises:
        MeasurementError: a model of other layers.
    """
    kinds = sorted({group.kind for group in shape.attention})
    other = ["experts"] if shape.experts else [f"{kind} attention" for kind in kinds if kind != "full"]
    if other:
        raise MeasurementError(
            f"model={shape.name}: has layers with {', '.join(other)}: expected a dense model with full attention, such "
            "as llama-3.1-8b; other layers are not measured"
        )


def sizes(shape: ModelShape) -> dict[str, Any]:
    """What of a shape decides the kernels."""
    names = ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary", "layers")
    return {name: getattr(shape, name) for name in names}


def open_store(folder: Path, machine: Machine) -> Store:
    """The folder's tables, if they are of this machine.

    Raises:
        MeasurementError: another machine's, or tables that cannot be used.
    """
    before = read_machine(folder)
    if before is not None:
        machine.check_same(before, folder)
    elif any((folder / op.file).exists() for op in OPS.values()):
        raise MeasurementError(f"{folder}: tables without machine.json: expected both, or an empty out=DIR")
    return Store(folder, machine)


def measure(bench: Bench, store: Store, points: Sequence[Point], minutes: float, tell: Tell) -> Outcome:
    """Measure ``points`` in order.

    Args:
        bench: the device.
        store: where rows go.
        points: the most telling first.
        minutes: no point is begun that is not estimated to end within them.
        tell: told (points looked at, points, the next one).

    Raises:
        MeasurementError: a time that is none.
    """
    device = bench.machine.device
    write_machine(store.folder, bench.machine)
    done = store.done(points)
    began = flushed = time.perf_counter()
    measured, left = 0, 0
    skipped: dict[str, str] = {}
    with Clocks(bench.lab.torch, device) as clocks:
        try:
            if len(done) < len(points):
                warm(bench.lab)
            for index, point in enumerate(points):
                if point in done:
                    continue
                now = time.perf_counter()
                if now - began + seconds(point, device) > minutes * 60.0:
                    left += 1
                    continue
                tell(index, len(points), point)
                reason = ""
                try:
                    store.add(point, OPS[point.op].measure(point, bench.lab))
                    measured += 1
                except RuntimeError as error:  # also NotMeasuredError, out of memory, and kernels that a build lacks
                    reason = " ".join(str(error).split())[:300] or type(error).__name__
                if reason:  # only now, when the error holds no operands any more
                    skipped[point.label()] = reason
                    _clear(bench, point, reason)
                if now - flushed > FLUSH_S:
                    store.flush(clocks.take())
                    flushed = now
        finally:
            store.flush(clocks.take())
    return Outcome(measured, len(done), left, skipped, time.perf_counter() - began)


def _clear(bench: Bench, point: Point, reason: str) -> None:
    """Free what a failed point held, and leave the stream of a capture that failed.

    Raises:
        MeasurementError: the device does not answer any more.
    """
    torch = bench.lab.torch
    if not bench.lab.cuda:
        return
    try:
        torch.cuda.synchronize()
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.empty_cache()
    except RuntimeError:
        raise MeasurementError(
            f"{point.label()}: the GPU stopped answering ({reason[:200]}); what was measured before is kept: run the "
            "command again"
        ) from None
