"""Fit every family on one stretch of a trace, choose by the likelihood of the next one, and say whether it fits.

Choice. Every candidate is fitted on the first stretch alone and scored by the log likelihood of the second, as it
is: rates are not adjusted. Candidates are tied with the best if they lie within one standard error of it (of paired
differences, by 20 blocks of the second stretch) or within one percent of the best's gain over Poisson. Among tied
ones, drawn windows nearest in dispersion to the first stretch decide.

Fit. The chosen law is adequate for the second stretch if its residuals there (time rescaling) pass a
Kolmogorov-Smirnov test at 1 % and the index of dispersion at 1, 10 and 60 s lies inside the middle 98 % of windows
drawn from the law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traces.arrivals import counts, stamps
from traces.arrivals.batched import Batched, sizes_of
from traces.arrivals.dispersion import (
    REPORTED_S,
    curve,
    dispersion_curve,
    drawn_curves,
    log_miss,
    mean_dispersion,
    scales_of,
)
from traces.arrivals.diurnal import DAY_S, Diurnal
from traces.arrivals.families import COUNTED, FITS, UNDER_A_PERIOD, Sample, fit_family
from traces.arrivals.law import ArrivalLaw, Floats, gaps_of, positive
from traces.errors import TraceError, nearest

LEAST = 30  # arrivals of either stretch
MOST = 20_000  # arrivals of either stretch that are used: the last of the first, the first of the second
_BLOCKS = 20
_WINDOWS = 200
_LEVEL = 0.01  # of each test, on each side
_NAME = "fit_arrivals"


@dataclass(frozen=True, slots=True)
class ArrivalFit:
    """What :func:`fit_arrivals` found.

    Attributes:
        law: the chosen law.
        scores: held-out log likelihood by family, nats an arrival.
        laws: every fitted law by family.
        adequate: whether the chosen law passes the tests on the held-out stretch.
        verdict: one sentence: what was chosen, against what, and whether it fits.
        tests: ``ks`` and ``ks_p`` of the held-out residuals (also of Poisson: ``poisson_ks``, ``poisson_ks_p``), and
            by time scale ``dispersion_10s``, held out, with ``_low``, ``_mean``, ``_high`` of drawn windows.
    """

    law: ArrivalLaw
    scores: Mapping[str, float]
    laws: Mapping[str, ArrivalLaw]
    adequate: bool
    verdict: str
    tests: Mapping[str, float]


def fit_arrivals(
    train_s: Floats,
    train_duration_s: float,
    held_out_s: Floats,
    held_out_duration_s: float,
    *,
    families: Sequence[str] | None = None,
    resolution_s: float | None = None,
    period_s: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> ArrivalFit:
    """Fit on one stretch, choose by the next; see the module for how.

    Args:
        train_s: (n,) sorted arrivals of the first stretch, seconds from its start.
        train_duration_s: its length.
        held_out_s: (m,) sorted arrivals of the stretch that follows it, seconds from *its* start.
        held_out_duration_s: its length.
        families: what to try; None tries all that the stamps allow.
        resolution_s: step of the stamps, where they were coarse and have been spread since (Mooncake: 3 s). None
            takes what the stamps show. Coarse ones are scored by counts per step, and laws of gaps are not offered.
        period_s: period of a diurnal rate. None tries a day where the first stretch spans two.
        seed: of every draw.
        progress: called with the name of each family before it is fitted.

    Raises:
        TraceError: too few arrivals, bad ones, or a family that does not exist or cannot be had here.
    """
    data = _Data.of(train_s, train_duration_s, held_out_s, held_out_duration_s, resolution_s, seed)
    names = _offered(families, data, period_s)
    period = period_s or DAY_S
    laws: dict[str, ArrivalLaw] = {}
    sample = Sample(data.train_s, data.train_duration_s, seed)
    for name in names:
        if progress:
            progress(name)
        law = fit_family(name, sample, period)
        if law is not None:
            laws[name] = law
    parts = {name: data.parts(law) for name, law in laws.items()}
    per = held_out_s_count = max(1, data.held_out_s.size)
    scores = {name: float(part.sum() / held_out_s_count) for name, part in parts.items()}
    best = max(scores, key=lambda name: scores[name])
    slack = 0.01 * max(0.0, scores[best] - scores.get("poisson", scores[best]))
    tied = [n for n in scores if scores[best] - scores[n] <= max(slack, _error(parts[best] - parts[n]) / per)]
    chosen = best
    if len(tied) > 1:
        scales = scales_of(data.train_s.size, data.train_duration_s)
        target = curve(data.train_s, data.train_duration_s, scales)
        span, rng = data.train_duration_s, np.random.default_rng(seed)
        rate = data.train_s.size / span
        misses = {n: log_miss(mean_dispersion(laws[n], scales, span, rate, rng), target) for n in tied}
        chosen = min(misses, key=lambda name: misses[name])
    tests, adequate, faults = _tests(laws, chosen, data, seed)
    verdict = _verdict(chosen, best, scores, data, tests, faults)
    if data.sizes is not None:
        laws = {name: Batched(law, *data.sizes) for name, law in laws.items()}
    return ArrivalFit(laws[chosen], scores, laws, adequate, verdict, tests)


@dataclass(frozen=True)
class _Data:
    """Both stretches, cleaned: no equal stamps; ``step_s`` if coarse; ``sizes`` if requests come in batches."""

    train_s: Floats
    train_duration_s: float
    held_out_s: Floats
    held_out_duration_s: float
    step_s: float | None
    sizes: tuple[float, float] | None

    @classmethod
    def of(
        cls,
        train_s: Floats,
        train_duration_s: float,
        held_s: Floats,
        held_duration_s: float,
        step: float | None,
        seed: int,
    ) -> _Data:
        found = []
        for field, arrivals, duration in (
            ("train_s", train_s, train_duration_s),
            ("held_out_s", held_s, held_duration_s),
        ):
            arrivals = np.asarray(arrivals, np.float64)
            gaps_of(arrivals, duration)
            if arrivals.size < LEAST:
                expected = f"{LEAST} arrivals or more: a law of fewer would be a guess"
                raise TraceError(file=_NAME, column=field, value=arrivals.size, expected=expected)
            found.append((arrivals, float(duration)))
        (train, span), (held, held_span) = found
        if train.size > MOST:  # what comes next resembles the latest
            train, span = train[-MOST:] - train[-MOST - 1], span - float(train[-MOST - 1])
        if held.size > MOST:
            held, held_span = held[:MOST], float(held[MOST])
        told = None if step is None else positive("resolution_s", step)
        coarse = told is not None or stamps.is_coarse(train, span)
        step_s = told or stamps.stamp_step_s(train)
        on_grid = stamps.stamp_step_s(train) >= step_s * (1 - 1e-9)
        sizes = None
        if not coarse and stamps.has_batches(train, span):
            sizes = sizes_of(train)
            train, held = np.unique(train), np.unique(held)
        elif (on_grid and (np.diff(train) == 0).any()) or (np.diff(held) == 0).any():
            train, held = stamps.apart(train, span, step_s, seed), stamps.apart(held, held_span, step_s, seed + 1)
        return cls(train, span, held, held_span, step_s if coarse else None, sizes)

    def at_held_out(self, law: ArrivalLaw) -> ArrivalLaw:
        """The law from the start of the held-out stretch on."""
        return law.later(self.train_duration_s) if isinstance(law, Diurnal) else law

    def parts(self, law: ArrivalLaw) -> Floats:
        """Held-out nats, by arrival or by bucket."""
        law = self.at_held_out(law)
        if self.step_s is not None:
            return counts.bucket_scores(law, self.held_out_s, self.held_out_duration_s, self.step_s)[0]
        return law.log_densities(self.held_out_s, self.held_out_duration_s)

    def residuals(self, law: ArrivalLaw) -> Floats:
        """Held-out residuals, by arrival or by bucket."""
        law = self.at_held_out(law)
        if self.step_s is not None:
            return counts.bucket_scores(law, self.held_out_s, self.held_out_duration_s, self.step_s)[1]
        return law.residuals(self.held_out_s, self.held_out_duration_s)


def _offered(families: Sequence[str] | None, data: _Data, period_s: float | None) -> list[str]:
    if period_s is not None and positive("period_s", period_s) > data.train_duration_s:
        expected = f"a period that the {data.train_duration_s:g} s to fit on hold once at least"
        raise TraceError(file=_NAME, column="period_s", value=period_s, expected=expected)
    periodic = period_s is not None or data.train_duration_s >= 2 * DAY_S
    offered = [name for name in FITS if data.step_s is None or name in COUNTED]
    if periodic:
        offered += [f"diurnal_{name}" for name in UNDER_A_PERIOD if name in offered]
    if families is None:
        return offered
    for name in families:
        if name in offered:
            continue
        if name in FITS:
            expected = f"one of {', '.join(offered)}: stamps in steps of {data.step_s:g} s say nothing about gaps"
        elif name.removeprefix("diurnal_") in UNDER_A_PERIOD and not periodic:
            expected = "period_s, or two days to fit on, for a diurnal family"
        else:
            expected = f"one of {', '.join(offered)}{nearest(name, offered)}"
        raise TraceError(file=_NAME, column="families", value=name, expected=expected)
    if not families:
        raise TraceError(file=_NAME, column="families", value=list(families), expected="one family at least")
    return list(dict.fromkeys(families))


def _error(differences: Floats) -> float:
    """Standard error of a sum of dependent parts, by blocks."""
    sums = np.array([block.sum() for block in np.array_split(differences, _BLOCKS)])
    return float(sums.std(ddof=1) * math.sqrt(_BLOCKS))


def _tests(
    laws: Mapping[str, ArrivalLaw], chosen: str, data: _Data, seed: int
) -> tuple[dict[str, float], bool, list[str]]:
    from scipy import stats

    tests: dict[str, float] = {}
    faults = []
    for name, prefix in ((chosen, ""), ("poisson", "poisson_")):
        if name in laws:
            found = stats.kstest(data.residuals(laws[name]), "uniform")
            tests |= {f"{prefix}ks": float(found.statistic), f"{prefix}ks_p": float(found.pvalue)}
    if tests["ks_p"] < _LEVEL:
        faults.append(f"its residuals are not even (KS {tests['ks']:.3f}, p {tests['ks_p']:.1e})")
    span = data.held_out_duration_s
    held = dispersion_curve(data.held_out_s, span, [s for s in REPORTED_S if s >= (data.step_s or 0.0)])
    rng = np.random.default_rng(seed)
    drawn = drawn_curves(data.at_held_out(laws[chosen]), np.array(list(held)), span, rng, _WINDOWS)
    for place, (scale, index) in enumerate(held.items()):
        some = drawn[:, place][np.isfinite(drawn[:, place])]
        low, high = np.quantile(some, [_LEVEL, 1 - _LEVEL]) if some.size else (np.nan, np.nan)
        name = f"dispersion_{scale:g}s"
        mean = float(some.mean()) if some.size else math.nan
        tests |= {name: index, f"{name}_low": float(low), f"{name}_mean": mean, f"{name}_high": float(high)}
        if not low <= index <= high:
            faults.append(
                f"the index of dispersion at {scale:g} s is {index:.3g}, of drawn windows {low:.3g} to {high:.3g}"
            )
    return tests, not faults, faults


def _verdict(
    chosen: str, best: str, scores: Mapping[str, float], data: _Data, tests: Mapping[str, float], faults: list[str]
) -> str:
    unit = "nats an arrival" + (f", by counts in {data.step_s:g} s" if data.step_s is not None else "")
    text = f"{chosen} explains held-out arrivals {'best' if chosen == best else 'as well as ' + best} "
    text += f"({scores[chosen]:.4f} {unit}"
    if chosen != best:
        text += f"; {best} {scores[best]:.4f}, and {chosen} is nearer in dispersion"
    if "poisson" in scores and chosen != "poisson":
        nats = (scores[chosen] - scores["poisson"]) * data.held_out_s.size
        text += f"; Poisson {scores['poisson']:.4f}, 10^{nats / math.log(10):.0f} times less likely"
    text += ")"
    if data.sizes is not None:
        text += ", batches at equal stamps taken as one"
    if not faults:
        return (
            f"{text}, and it fits them: residuals even (KS {tests['ks']:.3f}), dispersion inside that of drawn windows"
        )
    return f"none fits: {text}, but {'; '.join(faults)}"
