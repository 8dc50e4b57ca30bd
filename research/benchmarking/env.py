"""``research.benchmark env``: decisions a second of the batch environment."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from research.benchmarking.measure import row

DEFAULTS = {"repeats": 5}
HOW = "one process, median of {repeats}"
NEXT = "python -m research.compare"


def rows(config: DictConfig) -> list[dict[str, Any]]:
    """The cases."""
    from research.training import throughput

    found = []
    for num_envs in (64, 256):
        got = throughput(num_envs=num_envs, data_dir=config.data_dir, repeats=int(config.repeats))
        count = got["decisions"]
        where = f"{got['trace']} {got['cluster']} at {got['rate_per_s']:g}/s"
        case = f"PDRouting {where}, first legal candidate, batch {num_envs}"
        found.append(row(case, count, "decisions", count / got["decisions_per_cpu_s"], count / got["decisions_per_s"]))
    return found
