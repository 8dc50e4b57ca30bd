"""How long ``Router.decide`` takes while requests come, stream and go."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from .router import Router

STREAMS_PER_WORKER = 16


def measure(policy_dir: Path, n_workers: int = 64, decisions: int = 3000, warm_up: int = 500) -> dict[str, Any]:
    """Percentiles of ``decide`` at ``n_workers`` workers, a quarter of them prefill workers.

    Wall time is what a router waits; CPU time leaves out what other processes took from this one, and *undisturbed*
    counts only the decisions during which the system did not take the processor away (None where that is not known).
    """
    rng = random.Random(0)
    n_prefill = max(1, n_workers // 4)
    roles = ["prefill"] * n_prefill + ["decode"] * (n_workers - n_prefill)
    router = Router(policy_dir, [{"id": f"worker-{i}", "role": role} for i, role in enumerate(roles)])
    waiting: list[str] = []
    streaming: list[str] = []
    wall_us, cpu_us, undisturbed_us = [], [], []
    now = 0.0
    for i in range(-warm_up - STREAMS_PER_WORKER * n_workers, decisions):
        now += 0.01
        request = {
            "id": f"request-{i}",
            "prompt_tokens": int(rng.lognormvariate(7.0, 1.0)) + 1,
            "session": f"session-{rng.randrange(2000)}",
        }
        hints = {f"worker-{rng.randrange(n_workers)}": rng.randrange(4096) for _ in range(3)}
        switches = preemptions()
        wall, cpu = perf_counter_ns(), thread_time_ns()
        decision = router.decide(request, now=now, cached=hints)
        cpu, wall = thread_time_ns() - cpu, perf_counter_ns() - wall
        if i >= 0:
            wall_us.append(wall / 1e3)
            cpu_us.append(cpu / 1e3)
            if preemptions() == switches:
                undisturbed_us.append(wall / 1e3)
        if decision.kind != "route":
            continue
        router.on_dispatched(request["id"], now)
        waiting.append(str(request["id"]))
        if len(waiting) > 2 * n_prefill:
            first = waiting.pop(rng.randrange(n_prefill))
            router.on_prefill_done(first, now)
            if decision.late:
                router.on_bound(first, router.bind_decode(first, now), now)
            router.on_first_token(first, now)
            streaming.append(first)
        for _ in range(min(8, len(streaming))):
            router.on_token(streaming[rng.randrange(len(streaming))], now)
        if len(streaming) > STREAMS_PER_WORKER * n_workers:
            router.on_finished(streaming.pop(rng.randrange(len(streaming))), now)
    return {
        "workers": n_workers,
        "decisions": len(wall_us),
        "wall_p50_us": percentile(wall_us, 0.50),
        "wall_p99_us": percentile(wall_us, 0.99),
        "cpu_p50_us": percentile(cpu_us, 0.50),
        "cpu_p99_us": percentile(cpu_us, 0.99),
        "preempted": None if preemptions() is None else len(wall_us) - len(undisturbed_us),
        "undisturbed_p99_us": None if preemptions() is None else percentile(undisturbed_us, 0.99),
    }


def preemptions() -> int | None:
    """How often the system has taken the processor away from this thread; None where it does not say."""
    with suppress(ImportError, AttributeError):
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw  # Linux
    return None


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` of the sorted values do not exceed."""
    ranked = sorted(values)
    return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 1) if ranked else 0.0
