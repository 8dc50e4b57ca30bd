"""Fit every family on one stretch of a trace, choose by the likelihood of the next one, and say whether it fits.

Choice. Every candidate is fitted on the first stretch alone and scored by the log likelihood of the second, as it
is: rates are not adjusted. Candidates are tied with the best if they lie within one standard error of it (of paired
differences, by 20 blocks of the second stretch) or within one percent of the best's gain over Poisson. Of tied ones
those with even residuals (below) come first, and then the one whose drawn windows are nearest in dispersion to the
first stretch: what likelihood cannot tell apart, burstiness can.

Fit. The chosen law is adequate for the second stretch if its residuals there (time rescaling) pass a
Kolmogorov-Smirnov test at 1 % and the index of dispersion at 1, 10 and 60 s lies inside the middle 98 % of windows
drawn from the law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traces.arrivals.batched import Batched
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
from traces.arrivals.families import COUNTED, FITS, UNDER_A_PERIOD, Sample, clock_of, fit_family
from traces.arrivals.law import ArrivalLaw, Floats, positive
from traces.arrivals.modulated import Modulated
from traces.arrivals.stretches import NAME, Stretches, clean
from traces.errors import TraceError, nearest

_BLOCKS = 20
_SLACK = 0.01  # of the gain over Poisson
_WINDOWS = 200
_LEVEL = 0.01  # of each test, on each side


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
            by time scale ``dispersion_10s``, held out, with ``_low``, ``_mean``, ``_high`` of drawn windows; and
            ``gaps_ks``, ``gaps_ks_same_rate``: two-sample distance of drawn gaps from held-out ones, at the law's own
            rate and at the held-out rate (of coarse stamps it is mostly that of the spread).
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
    data = clean(train_s, train_duration_s, held_out_s, held_out_duration_s, resolution_s, seed)
    names = _offered(families, data, period_s)
    period = period_s or DAY_S
    laws: dict[str, ArrivalLaw] = {}
    sample = Sample(data.train_s, data.train_duration_s, seed)
    clock = None
    if any(name.startswith("diurnal_") for name in names):
        clock = clock_of(data.whole_s, data.whole_duration_s, period)
    for name in names:
        if progress:
            progress(name)
        law = fit_family(name, sample, clock, data.skipped_s)
        if law is not None and (name == "poisson" or _usable(law, data.train_s.size / data.train_duration_s)):
            laws[name] = law
    if not laws:
        raise TraceError(file=NAME, column="families", value=names, expected="a family that these arrivals can fit")
    parts = {name: data.parts(law) for name, law in laws.items()}
    n = data.held_out_s.size
    scores = {name: float(part.sum() / n) for name, part in parts.items()}
    best = max(scores, key=lambda name: scores[name])
    slack = _SLACK * max(0.0, scores[best] - scores.get("poisson", scores[best]))
    tied = [name for name in laws if scores[best] - scores[name] <= max(slack, _error(parts[best] - parts[name]) / n)]
    chosen = _nearest({name: laws[name] for name in tied}, data, seed) if len(tied) > 1 else best
    tests, adequate, faults = _tests(laws, chosen, data, seed)
    verdict = _verdict(chosen, best, scores, data, tests, faults)
    if data.sizes is not None:
        laws = {name: Batched(law, *data.sizes) for name, law in laws.items()}
    return ArrivalFit(laws[chosen], scores, laws, adequate, verdict, tests)


def _offered(families: Sequence[str] | None, data: Stretches, period_s: float | None) -> list[str]:
    if period_s is not None and positive("period_s", period_s) > data.whole_duration_s:
        expected = f"a period that the {data.whole_duration_s:g} s to fit on hold once at least"
        raise TraceError(file=NAME, column="period_s", value=period_s, expected=expected)
    periodic = period_s is not None or data.whole_duration_s >= 2 * DAY_S
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
        raise TraceError(file=NAME, column="families", value=name, expected=expected)
    if not families:
        raise TraceError(file=NAME, column="families", value=list(families), expected="one family at least")
    return list(dict.fromkeys(families))


def _usable(law: ArrivalLaw, rate_per_s: float) -> bool:
    """Whether a law is one of the whole stretch: not of gaps that leave out most of it, nor of states nobody sees."""
    inner = law.steady if isinstance(law, Diurnal) else law
    seen = not isinstance(inner, Modulated) or inner.jumps_per_s < 100 * rate_per_s
    return 0.1 * rate_per_s < law.rate_per_s < 10 * rate_per_s and seen


def _nearest(laws: Mapping[str, ArrivalLaw], data: Stretches, seed: int) -> str:
    """Of tied laws: those with even residuals first, then the one whose windows come nearest in dispersion."""
    from scipy import stats

    span = data.train_duration_s
    scales = scales_of(data.train_s.size, span)
    target = curve(data.train_s, span, scales)
    order = {}
    for name, law in laws.items():
        uneven = stats.kstest(data.residuals(law), "uniform").pvalue < _LEVEL
        rng = np.random.default_rng([seed, 1])  # not the draws that a law was matched with
        drawn = mean_dispersion(law, scales, span, data.train_s.size / span, rng)
        order[name] = (bool(uneven), log_miss(drawn, target))
    return min(order, key=lambda name: order[name])


def _error(differences: Floats) -> float:
    """Standard error of a sum of dependent parts, by blocks."""
    sums = np.array([block.sum() for block in np.array_split(differences, _BLOCKS)])
    return float(sums.std(ddof=1) * math.sqrt(_BLOCKS))


def _tests(
    laws: Mapping[str, ArrivalLaw], chosen: str, data: Stretches, seed: int
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
    least = max(data.step_s or 0.0, 0.1 * span / data.held_out_s.size)  # shorter intervals are all but empty
    held = dispersion_curve(data.held_out_s, span, [scale for scale in REPORTED_S if scale >= least])
    rng = np.random.default_rng(seed)
    law = data.at_held_out(laws[chosen])
    drawn = drawn_curves(law, np.array(list(held)), span, rng, _WINDOWS)
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
    for name, rate in (("gaps_ks", None), ("gaps_ks_same_rate", data.held_out_s.size / span)):
        gaps = np.concatenate([np.diff(law.draw(span, rng, rate_per_s=rate)) for _ in range(_WINDOWS // 4)])
        if gaps.size:
            tests[name] = float(stats.ks_2samp(gaps, np.diff(data.held_out_s)).statistic)
    return tests, not faults, faults


def _verdict(
    chosen: str, best: str, scores: Mapping[str, float], data: Stretches, tests: Mapping[str, float], faults: list[str]
) -> str:
    unit = "nats an arrival" + (f", by counts in {data.step_s:g} s" if data.step_s is not None else "")
    text = f"{chosen} explains held-out arrivals {'best' if chosen == best else 'as well as ' + best} "
    text += f"({scores[chosen]:.4f} {unit}"
    if chosen != best:
        text += f"; {best} {scores[best]:.4f}, and {chosen} is nearer in dispersion"
    if "poisson" in scores and chosen != "poisson":
        powers = (scores[chosen] - scores["poisson"]) * data.held_out_s.size / math.log(10)
        text += f"; Poisson {scores['poisson']:.4f}"
        text += f", 10^{powers:.0f} times less likely" if powers >= 1 else ", hardly less likely"
    text += ")"
    if data.sizes is not None:
        text += ", batches at equal stamps taken as one"
    if not faults:
        return (
            f"{text}, and it fits them: residuals even (KS {tests['ks']:.3f}), dispersion inside that of drawn windows"
        )
    return f"none fits: {text}, but {'; '.join(faults)}"
