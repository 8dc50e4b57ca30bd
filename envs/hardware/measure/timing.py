"""How long a call takes: warm-up, cold operands, repeats, median and quartiles.

On a GPU the calls are captured in one CUDA graph and replayed between two events, so that launches by the host do
not count where an engine would not pay them; before each repeat the last cache is overwritten. What an engine runs
uncaptured is launched call by call between the events. On a CPU each call is timed by ``perf_counter``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs.hardware.measure.lab import Lab

WARM_UP = 3
REPEATS = {"cuda": 20, "cpu": 5}
LEAST_REPEATS = 5
LONGEST_S = 1.0
"""Repeats beyond LEAST_REPEATS stop once they have taken this long together."""

WARM_S = 2.0
"""A GPU at rest clocks low; it is kept busy for so long before the first point."""

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one call over some repeats, in milliseconds as the tables have them.

    Attributes:
        latency: median.
        latency_p25: lower quartile.
        latency_p75: upper quartile.
        repeats: how many times were taken.
        calls: calls between two events; each time is divided by them.
        captured: whether the calls were replayed from a CUDA graph.
        kernel_source: what ran.
    """

    latency: float
    latency_p25: float
    latency_p75: float
    repeats: int
    calls: int
    captured: bool
    kernel_source: str = ""

    def named(self, kernel_source: str) -> Timing:
        """The same, with what ran."""
        return replace(self, kernel_source=kernel_source)


def summarise(samples_ms: Sequence[float], calls: int, captured: bool) -> Timing:
    """Median and quartiles of ``samples_ms``, shape (repeats,), each the time of one call."""
    low, middle, high = np.percentile(np.asarray(samples_ms, dtype=np.float64), [25.0, 50.0, 75.0])
    return Timing(float(middle), float(low), float(high), len(samples_ms), calls, captured)


def warm(lab: Lab) -> None:
    """Let the clocks of a GPU rise."""
    if not lab.cuda:
        return
    x = lab.random(4096, 4096)
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_S:
        for _ in range(8):
            lab.torch.nn.functional.linear(x, x)
        lab.torch.cuda.synchronize()


def time_calls(lab: Lab, calls: Sequence[Call], captured: bool = True) -> Timing:
    """Time of one of ``calls``, which are alike.

    Args:
        lab: where they run.
        calls: made one after the other between two readings of the clock.
        captured: replay them from a CUDA graph (on a GPU).
    """
    with lab.torch.inference_mode():
        if not lab.cuda:
            return _on_cpu(calls)
        return _on_cuda(lab, calls, captured)


def _on_cpu(calls: Sequence[Call]) -> Timing:
    calls[0]()
    samples: list[float] = []
    for _ in range(REPEATS["cpu"]):
        start = time.perf_counter()
        for call in calls:
            call()
        samples.append((time.perf_counter() - start) * 1e3 / len(calls))
    return summarise(samples, len(calls), captured=False)


def _on_cuda(lab: Lab, calls: Sequence[Call], captured: bool) -> Timing:
    torch = lab.torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:WARM_UP]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    play: Call
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        play = graph.replay
    else:

        def play() -> None:
            for call in calls:
                call()

    flush = torch.empty(2 * lab.l2_bytes, dtype=torch.int8, device="cuda")
    for _ in range(WARM_UP):
        play()
    torch.cuda.synchronize()
    samples: list[float] = []
    began = time.perf_counter()
    while len(samples) < REPEATS["cuda"]:
        if len(samples) >= LEAST_REPEATS and time.perf_counter() - began > LONGEST_S:
            break
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        play()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / len(calls))
    return summarise(samples, len(calls), captured)
