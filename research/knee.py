"""The knee: the largest rate that the cluster serves well, under the reference policy.

Attainment of at least 90 % of the *feasible* requests (those an idle cluster could serve within their objectives), at
the rate and at all lower rates of a grid, on validation windows; the test windows are never looked at. First the grid
is walked upwards in half octaves until it fails, then the last interval is bisected. There may be no knee: that is
an outcome, and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError
from research.evidence.runs import key_of
from research.trace_choice import pace_unit

if TYPE_CHECKING:
    from research.execute import Runner
    from research.study import Study

FOUND, TOO_SLOW, NEVER_FULL = "found", "too slow", "never full"
GRID_STEP = math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One rate that was tried."""

    scale: float
    rate_per_s: float
    attainment: float  # of feasible requests, mean over windows; NaN where none was feasible
    infeasible_share: float


@dataclass(frozen=True, slots=True)
class Knee:
    """Outcome of the search.

    Attributes:
        outcome: ``found``; ``too slow``: the lowest rate of the grid fails already; ``never full``: the highest passes.
        scale: the knee as a multiple of the validation zone's own rate; None without one.
        rate_per_s: the same per second: requests in open replay, else session starts.
        curve: rates tried, ascending.
    """

    outcome: str
    scale: float | None
    rate_per_s: float | None
    curve: tuple[Point, ...]

    def sentence(self, study: Study) -> str:
        """The outcome in words."""
        unit = f"{pace_unit(study.trace.load())}/s"
        share = f"{study.knee.attainment:.0%} of feasible requests"
        if self.outcome == FOUND:
            return (
                f"knee: {self.rate_per_s:.4g} {unit} ({self.scale:.3g} x the trace's own rate), the largest rate "
                f"at which {study.reference.label} meets the objectives of {share}"
            )
        if self.outcome == TOO_SLOW:
            low = self.curve[0]
            if math.isnan(low.attainment):
                return f"no knee: no request is feasible: {idle_words(study)}"
            return (
                f"no knee: at {low.rate_per_s:.3g} {unit} already {study.reference.label} meets the objectives of "
                f"only {low.attainment:.1%} of feasible requests ({low.infeasible_share:.1%} of all are infeasible)"
            )
        return f"no knee: {share} are served well up to {self.curve[-1].rate_per_s:.4g} {unit}, the highest rate tried"


def idle_words(study: Study) -> str:
    """What requests take on an idle cluster at best, against their objectives: medians of a validation window."""
    import numpy as np

    from envs.cluster.result import idle_latency
    from envs.cluster.simulator import build_problem

    trace = study.trace.window("validation", study.knee.windows, 0, study.lead_in).trace
    problem = build_problem(trace, study.cluster, study.slo)
    parts = []
    for name, idle_s in zip(("ttft", "tpot"), idle_latency(problem), strict=True):
        slo_s = problem.requests[f"slo_{name}_s"]
        idle, objective = float(np.median(idle_s)), float(np.median(slo_s))
        over = float((idle_s > slo_s).mean())
        took = f"{1e3 * idle:.3g} ms" if math.isfinite(idle) else "beyond reach (requests fit no worker)"
        parts.append(f"{name.upper()} is {took} against an objective of {1e3 * objective:.3g} ms ({over:.1%} miss it)")
    return f"on an idle cluster the median {', '.join(parts)}"


def find_knee(study: Study, runner: Runner) -> Knee:
    """Search the knee, or read it from the store."""
    settings = study.knee
    identity = study.shared_identity() | {
        "kind": "knee",
        "policy": study.reference.identity(),
        "seeds": study.seed_list(),
        "attainment": settings.attainment,
        "lowest": settings.lowest,
        "highest": settings.highest,
        "tolerance": settings.tolerance,
        "windows": settings.windows,
    }
    key = key_of(identity)
    stored = runner.store.read(key)
    if stored is not None:
        runner.reused += 1
        return _from_plain(stored["metrics"])
    knee = _search(study, runner)
    runner.store.write(key, identity, _to_plain(knee))
    return knee


def _search(study: Study, runner: Runner) -> Knee:
    settings = study.knee
    rate = study.trace.pace_per_s("validation")
    points: dict[float, Point] = {}

    def passes(scale: float) -> bool:
        runs = [
            study.run(study.reference, window, scale, seed, zone="validation", windows=settings.windows, requests=False)
            for window in range(settings.windows)
            for seed in study.seed_list()
        ]
        results = runner.run(study, runs, f"searching the knee, {scale * rate:.3g}/s")
        known = [m["feasible_attainment"] for m in results if m["feasible_attainment"] is not None]
        attainment = math.fsum(known) / len(known) if known else math.nan
        shares = [m["infeasible_share"] or 0.0 for m in results]
        points[scale] = Point(scale, scale * rate, attainment, math.fsum(shares) / len(shares))
        return attainment >= settings.attainment

    def outcome(name: str, scale: float | None) -> Knee:
        curve = tuple(points[s] for s in sorted(points))
        return Knee(name, scale, None if scale is None else scale * rate, curve)

    low, high = None, settings.lowest
    while passes(high):
        low, high = high, high * GRID_STEP
        if high > settings.highest * (1 + 1e-9):
            return outcome(NEVER_FULL, None)
    if low is None:
        return outcome(TOO_SLOW, None)
    while high / low > 1.0 + settings.tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if passes(middle) else (low, middle)
    return outcome(FOUND, low)


def scales(study: Study, knee: Knee | None) -> list[tuple[float, float, float]]:
    """(load, rate_per_s, scale of the test zone) of each load of the study.

    Raises:
        ResearchError: loads are multiples of a knee that does not exist.
    """
    own = study.trace.pace_per_s("test")
    if study.rates_per_s:
        at = knee.rate_per_s if knee is not None and knee.rate_per_s else math.nan
        return [(rate / at, rate, rate / own) for rate in study.rates_per_s]
    assert knee is not None
    if knee.rate_per_s is None:
        # At given rates nothing would be any better where even an idle cluster is too slow.
        lost = math.isnan(knee.curve[0].attainment)
        way = "give another slo or other hardware" if lost else "give rate_per_s=[...] instead, or another slo"
        raise ResearchError(f"{knee.sentence(study)}. load needs a knee: {way}")
    return [(load, load * knee.rate_per_s, load * knee.rate_per_s / own) for load in study.loads]


def _to_plain(knee: Knee) -> dict[str, Any]:
    points = [[p.scale, p.rate_per_s, p.attainment, p.infeasible_share] for p in knee.curve]
    return {"outcome": knee.outcome, "scale": knee.scale, "rate_per_s": knee.rate_per_s, "curve": points}


def _from_plain(plain: dict[str, Any]) -> Knee:
    curve = tuple(Point(*(math.nan if v is None else v for v in point)) for point in plain["curve"])
    return Knee(plain["outcome"], plain["scale"], plain["rate_per_s"], curve)
