"""Worlds that the measurements leave open: does the winner of a comparison hold in them?

World 0 is the nominal one. In world k >= 1 every profile's law is a draw from its uncertainty
(:func:`envs.hardware.uncertainty.draw`), and every handover takes longer by one draw; the same for all policies,
windows and loads. The policies go on predicting with the nominal laws. KV capacities are not drawn.

How wide: where a profile's common factor is an assumption, the errors of predictions of its class of measured runs
(:mod:`envs.hardware.prediction_errors`) stand in its place; a factor that was measured (a profile corrected by the
user's own runs) stays. A handover's excess is half-normal, its median that of measured runs with few users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.hardware.prediction_errors import ANY, NO_LINK, error_class, handover_excess_s, record, wire_of
from research.evidence.summary import HEADLINE, Cell

if TYPE_CHECKING:
    from envs.cluster.spec import ClusterSpec
    from envs.hardware.profile import Profile
    from research.choices import PolicyChoice
    from research.study import Study

ASSUMED = "assumption"
"""How ``fit.common_source`` of a profile begins whose common factor was not measured."""
HALF_NORMAL = 1.4826
"""Standard deviation of a normal over the median of its absolute value."""
HOLDS = 0.95
"""Share of the draws in which a winner has to win to be called certain."""
FEWEST = 20
"""With fewer draws a share of 95 % cannot be told from one of 100 %: the result is indicative."""
COLLAPSED = 0.5
"""Share of its nominal goodput below which a policy has to fall, as all others, for a winner to mean little."""


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
    kinds = _kinds(cluster)  # workers of one profile live in one world
    drawn = {}
    for i, profile in enumerate(kinds):
        common = width_of(cluster, profile).relative_sd
        wide = replace(profile, fit={**profile.fit, "common_relative_sd": common})
        drawn[i] = replace(draw(wide, np.random.default_rng([world, i])), fit=profile.fit)
    workers = tuple(replace(worker, profile=drawn[kinds.index(worker.profile)]) for worker in cluster.workers)
    excess_s = HALF_NORMAL * handover_excess_s(cluster.handover.name, cluster.handover.base_s)
    excess_s *= abs(float(np.random.default_rng([world, len(kinds)]).standard_normal()))
    return replace(
        cluster,
        workers=workers,
        handover=replace(cluster.handover, base_s=cluster.handover.base_s + excess_s),
        predictors=cluster.predictors or nominal,
        predicted_handover=cluster.predicted_handover or cluster.handover,
    )


@dataclass(frozen=True, slots=True)
class Width:
    """How wide the common factor of a law is drawn.

    Attributes:
        relative_sd: of its logarithm.
        source: where that is from.
    """

    relative_sd: float
    source: str


def width_of(cluster: ClusterSpec, profile: Profile) -> Width:
    """The common factor of one of a cluster's profiles: measured for it, else that of its class of predictions."""
    own, said = float(profile.fit.get("common_relative_sd", 0.0)), str(profile.fit.get("common_source", ""))
    if "common_relative_sd" in profile.fit and not said.startswith(ASSUMED):
        return Width(own, f"the profile: {said or 'not stated'}")
    kind, link = _kind(profile), _link(cluster)
    found = error_class(profile.engine, profile.precision, kind, link)
    stands = f", for want of runs with a handover by {wire_of(link)}" if found.link == NO_LINK != link else ""
    return Width(found.tpot_relative_sd, f"predictions of measured serving runs: {found.words}{stands}")


def widths(cluster: ClusterSpec) -> dict[str, Any]:
    """What the worlds of a cluster are drawn with, for the record: ``laws`` by profile name, and ``handover``."""
    laws = {profile.name: asdict(width_of(cluster, profile)) for profile in _kinds(cluster)}
    return {
        "laws": laws,
        "handover_median_excess_s": handover_excess_s(cluster.handover.name, cluster.handover.base_s),
        "method": record()["method"],
        "handover_method": record()["handover_method"],
    }


def _kinds(cluster: ClusterSpec) -> list[Profile]:
    kinds: list[Profile] = []
    for worker in cluster.workers:
        if worker.profile not in kinds:
            kinds.append(worker.profile)
    return kinds


def _kind(profile: Profile) -> str:
    """Dense or with experts, by the model's shape; not known for a model of the user's own without a file."""
    from envs.hardware.errors import ProfileError
    from envs.hardware.model_shape import load_model

    try:
        return "dense" if load_model(profile.model).experts is None else "experts"
    except ProfileError:
        return ANY


def _link(cluster: ClusterSpec) -> str:
    """The handover, in clusters that have workers for one phase."""
    hands_over = any(worker.role in ("prefill", "decode") for worker in cluster.workers)
    return cluster.handover.name if hands_over else NO_LINK


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
        draws that it leads), ``margin_per_s`` (leader less the best of the others: ``nominal``, and of the draws
        ``min``, ``p50``, ``max``; from :data:`FEWEST` draws on ``p05`` and ``p95`` too), ``collapsed`` (draws in which
        every policy serves less than :data:`COLLAPSED` of its nominal goodput), ``handed_over`` (policies that moved KV
        from worker to worker in any draw), ``load``, ``rate_per_s``, ``windows``, ``rows`` (one a draw).
        Without draws: ``draws`` 0 and ``leader`` None.
    """
    if not cells:
        return {"draws": 0, "leader": None}
    nominal = _means(base)
    leader = max(nominal, key=lambda policy: nominal[policy])
    rows: list[dict[str, Any]] = []
    for world in sorted({cell.world for cell in cells}):
        means = _means([cell for cell in cells if cell.world == world])
        margin = _margin(means, leader)
        best = leader if margin >= 0.0 else max(means, key=lambda policy: means[policy])
        row = {"world": world, "leader": best, "margin_per_s": margin, "goodput_per_s": means}
        rows.append(row | {"collapsed": _collapsed(nominal, means)})
    held = sum(row["leader"] == leader for row in rows)
    low, high = wilson(held, len(rows))
    order = sorted({row["leader"] for row in rows}, key=lambda p: -sum(row["leader"] == p for row in rows))
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
        "margin_per_s": {"nominal": _margin(nominal, leader)} | _spread([row["margin_per_s"] for row in rows]),
        "collapsed": sum(row["collapsed"] for row in rows),
        "handed_over": sorted({c.policy for c in cells if any(m.get("kv_moved_bytes") for m in c.metrics)}),
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


def _spread(margins: Sequence[float]) -> dict[str, float]:
    """Range and median of the draws' margins; percentiles of their tails only where there are draws enough."""
    at = {"min": 0.0, "p50": 0.5, "max": 1.0} | ({"p05": 0.05, "p95": 0.95} if len(margins) >= FEWEST else {})
    return {name: float(np.quantile(margins, share)) for name, share in at.items()}


def _collapsed(nominal: dict[str, float], means: dict[str, float]) -> bool:
    """Whether every policy that serves anything nominally falls below :data:`COLLAPSED` of it."""
    falls = [means[policy] < COLLAPSED * value for policy, value in nominal.items() if value > 0.0]
    return bool(falls) and all(falls)


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
