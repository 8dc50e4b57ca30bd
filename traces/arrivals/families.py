"""The families of arrival laws: how each is fitted, and how each is read back from plain numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from traces.arrivals import batched, diurnal, modulated, regimes, renewal, swings, swung
from traces.arrivals.dispersion import curve, scales_of
from traces.arrivals.law import NAME, ArrivalLaw, Floats
from traces.errors import TraceError, nearest

_LAWS = {1: 3, 2: 4, 4: 8, 6: 8}  # shared gap laws by number of regimes
_PER_REGIME = 100  # fewest gaps for each regime


@dataclass
class Sample:
    """Arrivals to fit, and what several families make of them.

    Attributes:
        arrivals_s: (n,) sorted, no two equal.
        duration_s: observed time.
        seed: of draws that tell a law's dispersion.
    """

    arrivals_s: Floats
    duration_s: float
    seed: int = 0
    _fitted: dict[int, regimes.Regimes] = field(default_factory=dict)

    @property
    def rate_per_s(self) -> float:
        """Arrivals a second."""
        return self.arrivals_s.size / self.duration_s

    def plain(self, count: int) -> regimes.Regimes:
        """Fitted regimes, once."""
        if count not in self._fitted:
            self._fitted[count] = regimes.fit(count, _LAWS[count], self.arrivals_s)
        return self._fitted[count]

    def matching(self) -> tuple[Floats, Floats, float, float, np.random.Generator]:
        """What laws are matched to: scales, index of dispersion there, rate, duration; and a source of draws."""
        scales = scales_of(self.arrivals_s.size, self.duration_s)
        target = curve(self.arrivals_s, self.duration_s, scales)
        return scales, target, self.rate_per_s, self.duration_s, np.random.default_rng(self.seed)


def _renewal(family: str) -> Callable[[Sample], ArrivalLaw | None]:
    return lambda sample: renewal.fit(family, sample.arrivals_s, sample.duration_s)


def _modulated(states: int) -> Callable[[Sample], ArrivalLaw | None]:
    return lambda sample: modulated.fit(states, sample.arrivals_s, sample.duration_s)


def _regimes(count: int, how: str = "") -> Callable[[Sample], ArrivalLaw | None]:
    def fit(sample: Sample) -> ArrivalLaw | None:
        if sample.arrivals_s.size <= _PER_REGIME * count:
            return None
        law = sample.plain(count)
        if how == "slowed":
            return regimes.slow_down(law, *sample.matching())
        return swung.fit(law, *sample.matching()) if how == "swung" else law

    return fit


FITS: dict[str, Callable[[Sample], ArrivalLaw | None]] = {
    **{family: _renewal(family) for family in renewal.FAMILIES},
    **{modulated.name(states): _modulated(states) for states in (2, 3, 4)},
    "multiscale": lambda sample: swings.fit(sample.arrivals_s, sample.duration_s),
    **{f"regimes{count}": _regimes(count) for count in _LAWS},
    **{f"slowed_regimes{count}": _regimes(count, "slowed") for count in (4, 6)},
    **{f"swung_regimes{count}": _regimes(count, "swung") for count in (1, 2)},
}
"""How each family is fitted; None where the sample gives it nothing to fit."""

COUNTED = ("poisson", "on_off", "mmpp3", "mmpp4", "multiscale")
"""Families that have a likelihood of counts, for coarse stamps."""

UNDER_A_PERIOD = ("poisson", "gamma", "on_off", "multiscale", "regimes2")
"""Families that are tried under a diurnal rate."""


def clock_of(arrivals_s: Floats, duration_s: float, period_s: float) -> diurnal.Diurnal:
    """The period's factors, from all arrivals; a Poisson law of rate 1 stands for what goes under them."""
    factors = diurnal.factors_of(arrivals_s, duration_s, period_s)
    return diurnal.Diurnal(renewal.Renewal("poisson", 1.0, 1.0), period_s, 0.0, factors)


def fit_family(family: str, sample: Sample, clock: diurnal.Diurnal | None, begins_s: float) -> ArrivalLaw | None:
    """One family; None where the sample gives it nothing to fit.

    Args:
        family: a key of :data:`FITS`, or one after ``diurnal_``, which is fitted in operational time.
        sample: what to fit.
        clock: factors of the period, counted from the time 0 of the whole trace; for diurnal families.
        begins_s: when the sample begins on that clock.
    """
    if not family.startswith("diurnal_"):
        return FITS[family](sample)
    assert clock is not None
    here = clock.later(begins_s)
    end = float(here.operational_s(np.array(sample.duration_s)))
    arrivals = np.minimum(here.operational_s(sample.arrivals_s), end)
    steady = FITS[family.removeprefix("diurnal_")](Sample(arrivals, end, sample.seed))
    return None if steady is None else replace(clock, steady=steady)


def law_from_dict(raw: Mapping[str, object]) -> ArrivalLaw:
    """A law from what ``to_dict`` gave.

    Raises:
        TraceError: names the field that is missing, unknown or out of range.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get("family"), str):
        raise TraceError(file=NAME, column="family", value=raw, expected="a mapping with the name of a family")
    family = str(raw["family"])
    for prefix, fields in (("diurnal_", diurnal.FIELDS), ("batched_", batched.FIELDS)):
        if family.startswith(prefix):
            for name in fields:
                if name not in raw:
                    raise TraceError(file=NAME, column=name, expected=f"this field for family {family!r}")
            rest = {key: value for key, value in raw.items() if key not in fields}
            inner = law_from_dict(rest | {"family": family.removeprefix(prefix)})
            return diurnal.read(raw, inner) if prefix == "diurnal_" else batched.read(raw, inner)
    if family in renewal.FAMILIES:
        return renewal.read(raw)
    if family == "multiscale":
        return swings.read(raw)
    parts = re.fullmatch(r"(on_off|mmpp(?P<states>[1-9]\d?)|(swung_)?(slowed_)?regimes(?P<regimes>[1-9]\d?))", family)
    if not parts:
        expected = f"one of {', '.join(FITS)}, or one of these after diurnal_ or batched_{nearest(family, FITS)}"
        raise TraceError(file=NAME, column="family", value=family, expected=expected)
    if not parts["regimes"]:
        return modulated.read(raw, int(parts["states"] or 2))
    read = swung.read if family.startswith("swung_") else regimes.read
    law: ArrivalLaw = read(raw, int(parts["regimes"]))
    if law.family != family:
        expected = f"a number other than 1 if the family is slowed_, and 1 if not (family {family!r})"
        raise TraceError(file=NAME, column="slowed_by", value=raw["slowed_by"], expected=expected)
    return law
