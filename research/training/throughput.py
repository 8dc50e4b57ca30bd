"""How many decisions a second the environment takes in a native batch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np


def throughput(
    *,
    num_envs: int = 64,
    decisions: int = 400_000,
    repeats: int = 5,
    trace: str = "azure_conv",
    cluster: str = "2p2d",
    slo: str = "tight",
    rate_per_s: float | None = 30.0,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Step a batch under a trivial policy (the first legal candidate), episode restarts included.

    Args:
        num_envs: runs in the batch.
        decisions: decisions of one repetition, about.
        repeats: repetitions; the median counts.
        trace: catalogue name.
        cluster: layout.
        slo: ``tight`` or ``loose``.
        rate_per_s: offered rate; None: the trace's own.
        data_dir: folder of public traces.

    Returns:
        ``decisions_per_s`` (median over wall time), ``decisions_per_cpu_s`` (the same over CPU time of this process,
        which a loaded machine does not distort), and the settings.
    """
    from envs.episodes import make_pool
    from envs.vector import RoutingBatch

    pool = make_pool(trace=trace, clusters=[cluster], slo=slo, rate_per_s=rate_per_s, data_dir=data_dir)
    batch = RoutingBatch(num_envs, pool)
    batch.seed(range(num_envs))
    batch.reset()
    core = batch.core
    steps = max(1, decisions // num_envs)
    by_wall, by_cpu = [], []
    for repeat in range(repeats + 1):  # the first one warms up and is not counted
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(steps if repeat else min(steps, 600)):
            batch.step(core.masks.argmax(axis=1))
        if repeat:
            by_wall.append(steps * num_envs / (time.perf_counter() - wall_s))
            by_cpu.append(steps * num_envs / (time.process_time() - cpu_s))
    return {
        "decisions_per_s": float(np.median(by_wall)),
        "decisions_per_cpu_s": float(np.median(by_cpu)),
        "num_envs": num_envs,
        "trace": trace,
        "cluster": cluster,
        "slo": slo,
        "rate_per_s": rate_per_s,
        "decisions": steps * num_envs,
        "repeats": repeats,
    }
