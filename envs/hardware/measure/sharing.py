"""Two phases on one GPU: each alone under a limit of SMs, and both at once on two streams.

A limit is a CUDA green context (torch makes one of a number of SMs where driver and build support it; the driver deals
SMs out by eights, so a share is rounded to that and ``kernel_source`` says how many it was). Limits through MPS are set
before a process starts (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE): a run under one records it in its machine record; this
command starts no MPS daemon. At once, the measured phase runs unlimited or limited beside the other one, which is kept
busy without a limit of its own. Both phases are one layer each, large enough that launches hide.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
MOST_REPLAYS = 256
SMS = 8
"""SMs come in groups of so many (of 2 before compute capability 9.0)."""


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
    count = share_sms(share, lab.sms)
    # The context is held as long as its stream is used: it takes the stream along when it goes.
    context = None if share == 1.0 else _limited(count)
    stream = torch.cuda.Stream() if context is None else context.Stream()
    other = next(name for name in PHASES if name != phase)
    with torch.inference_mode():
        stack = Stack(lab)
        mine = stack.prepare(PHASES[phase], layers=1, head=False)
        graph = _busy(torch, stack.prepare(PHASES[other], layers=1, head=False)) if beside else None
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(BURST):
                mine()
        torch.cuda.synchronize()
        samples = overlapped(lambda replays: _burst(torch, stream, mine, graph, replays))
    source = "stream" if context is None else f"green context, {count} of {lab.sms} SMs"
    return summarise(samples, BURST, captured=False).named(source)


def share_sms(share: float, sms: int) -> int:
    """SMs of a share, by eights."""
    return sms if share == 1.0 else max(SMS, round(share * sms / SMS) * SMS)


def overlapped(burst: Callable[[int], tuple[float, bool]]) -> list[float]:
    """REPEATS times of bursts throughout which the other phase ran; it is given more to do until that holds.

    Args:
        burst: replays of the other phase -> (milliseconds of a call, whether the other phase outlasted it).

    Raises:
        NotMeasuredError: the other phase ended first even with MOST_REPLAYS replays.
    """
    replays, samples = 4, list[float]()
    while len(samples) < REPEATS:
        time_ms, outlasted = burst(replays)
        if outlasted:
            samples.append(time_ms)
        elif replays < MOST_REPLAYS:
            replays *= 2
        else:
            raise NotMeasuredError("the other phase ended first: the two did not overlap throughout")
    return samples


def _busy(torch: Any, theirs: Callable[[], Any]) -> Any:
    """A graph of BURST calls: queued in one launch, so that the other stream's launches do not wait behind it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        theirs()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(BURST):
            theirs()
    return graph


def _limited(count: int) -> Any:
    """A green context of ``count`` SMs.

    Raises:
        NotMeasuredError: driver or build make no green contexts.
    """
    try:
        from torch.cuda.green_contexts import GreenContext

        return GreenContext.create(num_sms=count, device_id=0)
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        raise NotMeasuredError(f"no green contexts here: {' '.join(str(error).split())[:200]}") from None


def _burst(torch: Any, stream: Any, mine: Callable[[], Any], graph: Any, replays: int) -> tuple[float, bool]:
    """Milliseconds of one of BURST calls, and whether ``graph``, replayed before them, outlasted them (True: none).

    By the host's clock: an event belongs to a context, and the stream may be another's. A burst takes milliseconds.
    """
    torch.cuda.synchronize()
    last = None
    if graph is not None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(replays):
                graph.replay()
            last = torch.cuda.Event()
            last.record()
    began = time.perf_counter()
    with torch.cuda.stream(stream):
        for _ in range(BURST):
            mine()
    stream.synchronize()
    took_s = time.perf_counter() - began
    outlasted = last is None or not last.query()
    torch.cuda.synchronize()
    return took_s * 1e3 / BURST, outlasted


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Time of a phase over its time alone on all SMs."""

    phase: str
    sm_share: float
    beside: bool
    slowdown: float


def share_slowdowns(frame: pl.DataFrame) -> list[Slowdown]:
    """Every row but those alone on all SMs, which all others are held against; none where those are missing.

    Args:
        frame: rows of ``sm_share.parquet``.
    """
    whole = {
        phase: latency
        for phase, share, beside, latency in frame.select("phase", "sm_share", "beside", "latency").iter_rows()
        if share == 1.0 and not beside
    }
    rows = frame.sort("phase", "beside", "sm_share", descending=[True, False, True])
    return [
        Slowdown(phase, share, beside, latency / whole[phase])
        for phase, share, beside, latency in rows.select("phase", "sm_share", "beside", "latency").iter_rows()
        if phase in whole and (beside or share < 1.0)
    ]


SM_SHARE = Op(
    file="sm_share.parquet",
    keys={"phase": pl.String, "sm_share": pl.Float64, "beside": pl.Boolean},
    constants={"op_name": "sm_share"},
    points=points,
    measure=measure,
    meaning="one layer of a phase under a share of the SMs, alone and beside the other phase",
)
