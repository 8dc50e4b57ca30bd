"""Two phases on one GPU: each alone under a limit of SMs, and both at once on two streams.

A limit is a CUDA green context (torch makes one of a number of SMs where driver and build support it). Limits through
MPS are set before a process starts (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE): a run under one records it in its machine
record; this command starts no MPS daemon. At once, the measured phase runs unlimited or limited beside the other one,
which is kept busy without a limit of its own. Both phases are one layer each, large enough that launches hide.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from envs.hardware.measure.lab import Lab
from envs.hardware.measure.layers import Stack, Step, held_bytes, step_flop
from envs.hardware.measure.points import NotMeasuredError, Op, Point, Scope, unique
from envs.hardware.measure.timing import Timing, summarise
from envs.hardware.model_shape import ModelShape

PHASES = {"prefill": Step(new=2048), "decode": Step(batch=128, context=4096)}
SHARES = (1.0, 0.5, 0.25, 0.75, 0.125)
BURST = 8
REPEATS = 8


def points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Each phase at each share of SMs, alone and beside the other; on GPUs only."""
    if scope.device == "cpu":
        return []
    found = []
    for phase, step in PHASES.items():
        flop = step_flop(shape, step) / shape.layers * BURST
        held = 2 * sum(held_bytes(shape, s) for s in PHASES.values())
        for share in SHARES:
            for beside in (False, True):
                key = (("phase", phase), ("sm_share", share), ("beside", beside))
                found.append(Point("sm_share", key, 1 if share >= 0.5 else 2, flop, 0.0, held))
    return unique(found)


def measure(point: Point, lab: Lab) -> Timing:
    """Time one layer of a phase."""
    at = point.at
    phase, share, beside = str(at["phase"]), float(at["sm_share"]), bool(at["beside"])
    if not lab.cuda:
        raise NotMeasuredError("expected a GPU")
    lab.need(point.held_bytes)
    torch = lab.torch
    stream = torch.cuda.Stream() if share == 1.0 else _limited(lab, share)
    other = next(name for name in PHASES if name != phase)
    with torch.inference_mode():
        stack = Stack(lab)
        mine = stack.prepare(PHASES[phase], layers=1)
        theirs = stack.prepare(PHASES[other], layers=1)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(BURST):
                mine()
        torch.cuda.synchronize()
        samples = [_burst(torch, stream, mine, theirs if beside else None) for _ in range(REPEATS)]
    return summarise(samples, BURST, captured=False).named("stream" if share == 1.0 else "green context")


def _limited(lab: Lab, share: float) -> Any:
    """A stream on a share of the SMs.

    Raises:
        NotMeasuredError: driver or build make no green contexts.
    """
    try:
        from torch.cuda.green_contexts import GreenContext

        return GreenContext.create(num_sms=max(1, round(share * lab.sms)), device_id=0).Stream()  # type: ignore[attr-defined, unused-ignore]
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        raise NotMeasuredError(f"no green contexts here: {str(error).splitlines()[0]}") from None


def _burst(torch: Any, stream: Any, mine: Any, theirs: Any) -> float:
    """Milliseconds of one of BURST calls; ``theirs`` is queued before them and outlasts them."""
    torch.cuda.synchronize()
    last = None
    if theirs is not None:
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):
            for _ in range(4 * BURST):
                theirs()
            last = torch.cuda.Event()
            last.record()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        for _ in range(BURST):
            mine()
        end.record()
    end.synchronize()
    if last is not None and last.query():
        raise NotMeasuredError("the other phase ended first: the two did not overlap throughout")
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / BURST


SM_SHARE = Op(
    file="sm_share.parquet",
    keys={"phase": pl.String, "sm_share": pl.Float64, "beside": pl.Boolean},
    constants={"op_name": "sm_share"},
    points=points,
    measure=measure,
    meaning="one layer of a phase under a share of the SMs, alone and beside the other phase",
)
