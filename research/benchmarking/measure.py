"""Shared by the subjects: timing, and a case as a row of figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIB_PER_GIB = 2**20


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """(median CPU seconds, median wall seconds, last result) of ``repeats`` calls after one warm-up."""
    result = work()
    cpu, wall = [], []
    for _ in range(repeats):
        c, w = time.process_time(), time.perf_counter()
        result = work()
        cpu.append(time.process_time() - c)
        wall.append(time.perf_counter() - w)
    return statistics.median(cpu), statistics.median(wall), result


def row(case: str, count: int, what: str, cpu_s: float, wall_s: float, **more: Any) -> dict[str, Any]:
    """One case: ``count`` of ``what`` in so many seconds, and whatever else is worth a word."""
    return {
        "case": case,
        "count": count,
        "unit": what,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "per_cpu_s": count / cpu_s,
        "per_wall_s": count / wall_s,
        **more,
    }


def peak_rss_gib() -> float:
    """Most memory this process ever held.

    Linux counts it in the process's own memory map. What ``getrusage`` says there is not used: a new process starts
    with the peak of the one that made it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / KIB_PER_GIB
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (KIB_PER_GIB * 1024 if sys.platform == "darwin" else KIB_PER_GIB)
