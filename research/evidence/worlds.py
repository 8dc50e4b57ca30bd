"""Worlds that the measurements leave open: does the winner of a comparison hold in them?

World 0 is the nominal one. In world k >= 1 every profile's law is a draw from its uncertainty
(:func:`envs.hardware.uncertainty.draw`), the same for all policies, windows and loads; the policies go on predicting
with the nominal laws. Links and KV capacities are not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from research.evidence.summary import HEADLINE, Cell

if TYPE_CHECKING:
    from envs.cluster.spec import ClusterSpec
    from envs.hardware.profile import Profile
    from research.choices import PolicyChoice
    from research.study import Study

HOLDS = 0.95
"""Share of the draws in which a winner has to win to be called certain."""
FEWEST = 20
"""With fewer draws a share of 95 % cannot be told from one of 100 %: the result is indicative."""


def in_world(cluster: ClusterSpec, world: int) -> ClusterSpec:
    """The cluster in a drawn world, predictors nominal.

    Args:
        cluster: the nominal one.
        world: its number, from 1; 0 gives the cluster as it is.

    Raises:
        ProfileError: a profile carries no covariance.
    """
    if world == 0:
        return cluster
    from envs.hardware.uncertainty import draw

    nominal = tuple(worker.profile for worker in cluster.workers)
    kinds: list[Profile] = []  # workers of one profile live in one world
    for profile in nominal:
        if profile not in kinds:
            kinds.append(profile)
    drawn = [draw(profile, np.random.default_rng([world, i])) for i, profile in enumerate(kinds)]
    workers = tuple(replace(worker, profile=drawn[kinds.index(worker.profile)]) for worker in cluster.workers)
    return replace(
        cluster,
        workers=workers,
        predictors=cluster.predictors or nominal,
        predicted_handover=cluster.predicted_handover or cluster.handover,
    )


def contenders(study: Study) -> tuple[PolicyChoice, ...]:
    """Policies that are run in drawn worlds: those that are ranked, if there are two of them at least."""
    from research.evidence import ranking

    if not study.worlds:
        return ()
    unranked = ranking.unranked(study, study.trace.load())
    ranked = tuple(choice for choice in study.entrants if choice.label not in unranked)
    return ranked if len(ranked) > 1 else ()


def verdict(base: Sequence[Cell], cells: Sequence[Cell]) -> dict[str, Any]:
    """Whether the nominal leader by goodput leads in the drawn worlds too.

    Args:
        base: the contenders in the nominal world, at the load of ``cells``.
        cells: the contenders in each world.

    Returns:
        ``draws``, ``leader``, ``held`` (draws in which nobody beats it over the same windows), ``share`` with its 95 %
        Wilson interval ``low, high``, ``holds`` (share of at least ``needed``), ``indicative``, ``leaders`` (policy ->
        draws that it leads), ``margin_per_s`` (leader less the best of the others: ``nominal``, and the 5th, 50th and
        95th percentile of the draws), ``load``, ``rate_per_s``, ``windows``, ``rows`` (one a draw).
        Without draws: ``draws`` 0 and ``leader`` None.
    """
    if not cells:
        return {"draws": 0, "leader": None}
    nominal = _means(base)
    leader = max(nominal, key=lambda policy: nominal[policy])
    rows = []
    for world in sorted({cell.world for cell in cells}):
        means = _means([cell for cell in cells if cell.world == world])
        margin = _margin(means, leader)
        best = leader if margin >= 0.0 else max(means, key=lambda policy: means[policy])
        rows.append({"world": world, "leader": best, "margin_per_s": margin, "goodput_per_s": means})
    held = sum(row["leader"] == leader for row in rows)
    low, high = wilson(held, len(rows))
    order = sorted({row["leader"] for row in rows}, key=lambda p: -sum(row["leader"] == p for row in rows))
    margins = np.array([row["margin_per_s"] for row in rows], dtype=np.float64)
    quantiles = zip(("p05", "p50", "p95"), np.quantile(margins, (0.05, 0.5, 0.95)), strict=True)
    return {
        "draws": len(rows),
        "leader": leader,
        "held": held,
        "share": held / len(rows),
        "low": low,
        "high": high,
        "needed": HOLDS,
        "holds": held / len(rows) >= HOLDS,
        "indicative": len(rows) < FEWEST,
        "leaders": {policy: sum(row["leader"] == policy for row in rows) for policy in order},
        "margin_per_s": {"nominal": _margin(nominal, leader)} | {name: float(value) for name, value in quantiles},
        "load": cells[0].load,
        "rate_per_s": cells[0].rate_per_s,
        "windows": len(set(cells[0].windows)),
        "rows": rows,
    }


def _means(cells: Sequence[Cell]) -> dict[str, float]:
    """Mean goodput of each policy over the windows that all of them have."""
    values = {cell.policy: cell.values(HEADLINE) for cell in cells}
    shared = set.intersection(*(set(v) for v in values.values()))
    return {p: math.fsum(v[w] for w in shared) / len(shared) if shared else 0.0 for p, v in values.items()}


def _margin(means: dict[str, float], leader: str) -> float:
    return means[leader] - max(value for policy, value in means.items() if policy != leader)


def wilson(held: int, draws: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Interval of a share of ``held`` in ``draws``, by default at 95 %."""
    share, squared = held / draws, z * z / draws
    centre = (share + squared / 2.0) / (1.0 + squared)
    half = z * math.sqrt(share * (1.0 - share) / draws + squared / (4.0 * draws)) / (1.0 + squared)
    return max(0.0, centre - half), min(1.0, centre + half)


def cost(study: Study) -> str | None:
    """What drawn worlds cost, before they are run."""
    policies = len(contenders(study))
    if not study.worlds:
        return None
    if not policies:
        return f"worlds={study.worlds}: fewer than two policies are ranked, so no worlds are drawn"
    runs = study.worlds * policies * study.windows
    return (
        f"worlds={study.worlds}: {study.worlds} draws x {policies} policies x {study.windows} windows = {runs:,} more "
        "runs, at the load nearest 1, one seed"
    )
