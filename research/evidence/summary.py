"""From the runs of a study to what may be said: rows with intervals, paired differences, winners.

Plain dicts and lists throughout: this is what ``summary.json`` holds and what table and report are drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research.evidence.statistics import Difference, Estimate, by_window, compare, interval

HEADLINE = "goodput_per_s"
"""The figure that policies are ranked by."""

COMPARED = ("goodput_per_s", "attainment", "ttft_p95_s", "ttft_p99_s", "tpot_p99_s", "tbt_p99_s", "e2e_p95_s")
"""Figures with paired differences."""

LOWER_IS_BETTER = ("ttft_p95_s", "ttft_p99_s", "tpot_p99_s", "tbt_p99_s", "e2e_p95_s")
_SHARES = ("attainment", "share", "hit_rate", "utilisation", "usage")


@dataclass(frozen=True, slots=True)
class Cell:
    """All runs of one policy at one load.

    Attributes:
        policy: its label.
        load: multiple of the knee, NaN where no knee is known.
        rate_per_s: mean rate over the test zone.
        off_by: share by which the policies' predictor was off.
        windows: (runs,) window of each run.
        metrics: (runs,) metrics of each run.
        world: 0: the nominal one; else the number of a drawn one.
    """

    policy: str
    load: float
    rate_per_s: float
    off_by: float
    windows: tuple[int, ...]
    metrics: tuple[Mapping[str, float | None], ...]
    world: int = 0

    def values(self, metric: str) -> dict[int, float]:
        """Value by window, seeds averaged."""
        return by_window(self.windows, [m.get(metric) for m in self.metrics])

    def names(self) -> list[str]:
        """Metrics of the runs, in order of first appearance."""
        return list(dict.fromkeys(name for m in self.metrics for name in m))


def rows(cells: Iterable[Cell], slo: str, seeds: int, metrics: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One row a policy, load and metric: estimate with its 95 % interval over windows."""
    out = []
    for cell in cells:
        for metric in metrics or cell.names():
            e = clipped(metric, interval(list(cell.values(metric).values())))
            row = {
                "policy": cell.policy,
                "load": cell.load,
                "slo": slo,
                "metric": metric,
                "estimate": e.value,
                "low": e.low,
                "high": e.high,
                "windows": e.windows,
                "seeds": seeds,
                "rate_per_s": cell.rate_per_s,
                "indicative": e.indicative,
                "method": e.method,
            }
            out.append(row | ({"off_by": cell.off_by} if cell.off_by else {}))
    return out


def clipped(metric: str, e: Estimate) -> Estimate:
    """An interval kept to values that the metric can take."""
    top = 1.0 if metric.endswith(_SHARES) or metric.startswith("utilisation") else math.inf
    return Estimate(e.value, max(e.low, 0.0) if e.low == e.low else e.low, min(e.high, top), *_rest(e))


def _rest(e: Estimate) -> tuple[int, bool, str]:
    return e.windows, e.indicative, e.method


def differences(cells: Sequence[Cell], reference: str, slo: str) -> list[dict[str, Any]]:
    """Every policy against the reference at each load: paired over windows, Holm-adjusted per load and metric."""
    out = []
    for load_cells in by_load(cells):
        base = next((c for c in load_cells if c.policy == reference), None)
        if base is None:
            continue
        for metric in COMPARED:
            values = base.values(metric)
            others = {c.policy: c.values(metric) for c in load_cells if c is not base}
            for policy, d in compare(values, others).items():
                out.append(_difference(policy, reference, base, slo, metric, d, _mean(values)))
    return out


def _difference(
    policy: str, versus: str, cell: Cell, slo: str, metric: str, d: Difference, base: float
) -> dict[str, Any]:
    return {
        "policy": policy,
        "versus": versus,
        "load": cell.load,
        "rate_per_s": cell.rate_per_s,
        "slo": slo,
        "metric": metric,
        "estimate": d.estimate.value,
        "low": d.estimate.low,
        "high": d.estimate.high,
        "relative": d.estimate.value / base if base else math.nan,
        "confidence": d.confidence,
        "p_value": d.p_value,
        "p_holm": d.p_holm,
        "detectable": d.detectable,
        "proven": d.proven,
        "windows": d.estimate.windows,
        "indicative": d.estimate.indicative,
    }


def winners(cells: Sequence[Cell], slo: str, unranked: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Who leads at each load, and whether that is proven.

    A winner is proven when its paired, Holm-adjusted interval against every other ranked policy excludes 0. Where
    nobody is ranked the leader is None.
    """
    out = []
    for load_cells in by_load(cells):
        ranked = [c for c in load_cells if c.policy not in unranked and c.values(HEADLINE)]
        ranked.sort(key=lambda c: -_mean(c.values(HEADLINE)))
        leader = ranked[0] if ranked else load_cells[0]
        verdict: dict[str, Any] = {
            "load": leader.load,
            "rate_per_s": leader.rate_per_s,
            "slo": slo,
            "metric": HEADLINE,
            "leader": leader.policy if ranked else None,
            "estimate": _mean(leader.values(HEADLINE)) if ranked else math.nan,
            "proven": False,
            "runner_up": None,
            "best_by": _best_by(ranked),
            "unranked_above": [
                {"policy": c.policy, "estimate": mean}
                for c in load_cells
                if ranked and c.policy in unranked
                if (mean := _mean(c.values(HEADLINE))) > _mean(leader.values(HEADLINE))
            ],
        }
        if len(ranked) > 1:
            own = leader.values(HEADLINE)
            # Leader minus other, as negated differences of the others from the leader.
            others = {c.policy: {w: -v for w, v in c.values(HEADLINE).items()} for c in ranked[1:]}
            versus = compare({w: -v for w, v in own.items()}, others)
            second = ranked[1]
            verdict["runner_up"] = _difference(
                leader.policy,
                second.policy,
                leader,
                slo,
                HEADLINE,
                versus[second.policy],
                _mean(second.values(HEADLINE)),
            )
            verdict["proven"] = all(d.proven and d.estimate.value > 0 for d in versus.values())
            verdict["not_told_apart"] = [name for name, d in versus.items() if not d.proven]
        out.append(verdict)
    return out


def _best_by(ranked: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """The policy with the best mean of each compared figure."""
    best = {}
    for metric in COMPARED:
        sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
        known = [(sign * _mean(v), c.policy) for c in ranked if (v := c.values(metric))]
        if known:
            value, policy = min(known)
            best[metric] = {"policy": policy, "estimate": sign * value}
    return best


def by_load(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells grouped by rate, ascending."""
    groups: dict[float, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.rate_per_s, []).append(cell)
    return [groups[rate] for rate in sorted(groups)]


def _mean(values: Mapping[int, float]) -> float:
    return math.fsum(values.values()) / len(values) if values else math.nan
