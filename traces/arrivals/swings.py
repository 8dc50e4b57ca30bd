"""A rate that swings on several time scales: a product of two-level factors, each a Markov chain of its own.

``multiscale`` is a Poisson process of such a rate. Its factors are set so that the index of dispersion at every
time scale is that of the trace, which maximum likelihood does not see to: it weighs single gaps, and slow swings
are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from traces.arrivals.chain import Chain, arrivals_of
from traces.arrivals.dispersion import curve, scales_of
from traces.arrivals.law import Floats, Stationary, gaps_of, numbers, only, positive, short
from traces.errors import TraceError

MAX_SWINGS = 4


@dataclass(frozen=True, slots=True)
class Swing:
    """One factor of a rate: two levels of mean 1.

    Attributes:
        variance: of the factor.
        memory_s: time in which its autocorrelation falls to 1/e.
    """

    variance: float
    memory_s: float

    @property
    def high_share(self) -> float:
        """Share of time at the high level: half, less where the low level would come near 0."""
        return min(0.5, 1.0 / (1.0 + 2.0 * self.variance))

    @property
    def levels(self) -> tuple[float, float]:
        """Low and high."""
        p = self.high_share
        return 1.0 - (self.variance * p / (1 - p)) ** 0.5, 1.0 + (self.variance * (1 - p) / p) ** 0.5

    @property
    def leave_per_s(self) -> tuple[float, float]:
        """Jumps a second from low to high and back."""
        return self.high_share / self.memory_s, (1.0 - self.high_share) / self.memory_s

    def path(self, duration_s: float, rng: np.random.Generator, high: bool | None = None) -> tuple[Floats, Floats]:
        """When each visit ends, up to beyond ``duration_s``, and its level; None draws the first one."""
        up, down = self.leave_per_s
        if high is None:
            high = bool(rng.random() < self.high_share)
        cycle_s = 1 / up + 1 / down
        ends: list[Floats] = [np.zeros(1)]
        while ends[-1][-1] < duration_s:
            n = max(8, int(1.2 * (duration_s - float(ends[-1][-1])) / cycle_s))
            stays = rng.exponential(1 / np.array([down, up] if high else [up, down]), (n, 2))
            ends.append(ends[-1][-1] + np.cumsum(stays))
        found = np.concatenate(ends)[1:]
        low, top = self.levels
        return found, np.where((np.arange(found.size) % 2 == 0) == high, top, low)


def joint(swings: Sequence[Swing]) -> tuple[Floats, Floats]:
    """Rate factor of every joint state (2^k,) and the jumps between them (2^k, 2^k), zero row sums."""
    factors: Floats = np.ones(1)
    switch: Floats = np.zeros((1, 1))
    for swing in swings:
        up, down = swing.leave_per_s
        factors = np.asarray(np.kron(factors, swing.levels), np.float64)
        own = np.array([[-up, up], [down, -down]])
        switch = np.asarray(np.kron(switch, np.eye(2)) + np.kron(np.eye(switch.shape[0]), own), np.float64)
    return factors, switch


@dataclass(frozen=True, slots=True)
class Multiscale(Stationary):
    """Poisson arrivals of a rate that swings on several time scales.

    Attributes:
        mean_per_s: mean rate.
        swings: its factors, fastest first.
    """

    mean_per_s: float
    swings: tuple[Swing, ...]

    @property
    def family(self) -> str:
        """``multiscale``."""
        return "multiscale"

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        return self.mean_per_s

    @property
    def chain(self) -> Chain:
        """The process in its eigenbasis."""
        factors, switch = joint(self.swings)
        return Chain(switch, self.mean_per_s * factors)

    def _draw(self, duration_s: float, rng: np.random.Generator) -> Floats:
        paths = [swing.path(duration_s, rng) for swing in self.swings]
        ends = np.unique(np.minimum(np.concatenate([*(p[0] for p in paths), [duration_s]]), duration_s))
        rate = np.full(ends.size, self.mean_per_s)
        for stops, levels in paths:
            rate *= levels[np.searchsorted(stops, ends)]
        return arrivals_of(ends, rate, rng)

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return self.chain.log_densities(*gaps_of(arrivals_s, duration_s))

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return self.chain.residuals(gaps_of(arrivals_s, duration_s)[0])

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return {"family": self.family, "rate_per_s": self.mean_per_s, **plain(self.swings)}


def plain(swings: Sequence[Swing]) -> dict[str, list[float]]:
    """Numbers of swings, for YAML."""
    return {
        "swing_variances": [swing.variance for swing in swings],
        "swing_memories_s": [swing.memory_s for swing in swings],
    }


def read_swings(raw: Mapping[str, object]) -> tuple[Swing, ...]:
    """From plain numbers."""
    variances = numbers("swing_variances", raw["swing_variances"])
    if len(variances) > MAX_SWINGS:
        expected = f"at most {MAX_SWINGS} swings: the likelihood has two states for each"
        raise TraceError(file="arrival law", column="swing_variances", value=list(variances), expected=expected)
    return tuple(map(Swing, variances, numbers("swing_memories_s", raw["swing_memories_s"], len(variances))))


def read(raw: Mapping[str, object]) -> Multiscale:
    """From plain numbers."""
    only(raw, "rate_per_s", "swing_variances", "swing_memories_s")
    return Multiscale(positive("rate_per_s", raw["rate_per_s"]), read_swings(raw))


def fit(arrivals_s: Floats, duration_s: float) -> Multiscale | None:
    """Swings matched to the trace's dispersion; None where it has no more than a Poisson process."""
    scales = scales_of(arrivals_s.size, duration_s)
    target = curve(arrivals_s, duration_s, scales)
    rate = arrivals_s.size / duration_s
    swings = match(target, np.ones(scales.size), scales, rate, duration_s)
    return Multiscale(short(rate), swings) if swings else None


def match(
    target: Floats, base: Floats, scales_s: Floats, rate: float, duration_s: float, most: int = MAX_SWINGS
) -> tuple[Swing, ...]:
    """At most so many swings that lift the index of dispersion from ``base`` to ``target`` at ``scales_s``, nearly."""
    from scipy import optimize

    if scales_s.size == 0:
        return ()
    first, last = float(np.log(scales_s[0] / 2)), float(np.log(duration_s / 2))
    memories = np.linspace(first, last, most + 2)[1:-1]

    def miss(x: Floats) -> Floats:
        swings = [Swing(v, m) for v, m in zip(np.exp(x[:most]), np.exp(x[most:]), strict=True)]
        return np.asarray(np.log((base + added(swings, scales_s, rate, duration_s)) / target))

    low = np.r_[np.full(most, np.log(1e-6)), np.full(most, first)]
    high = np.r_[np.full(most, np.log(4.0)), np.full(most, last)]
    start = np.r_[np.full(most, np.log(0.02)), memories]
    found = optimize.least_squares(miss, start, bounds=(low, high), xtol=1e-4, ftol=1e-5, max_nfev=60).x
    order = np.argsort(found[most:])
    found = np.r_[found[:most][order], found[most:][order]]
    return tuple(
        Swing(short(v), short(m))
        for v, m in zip(np.exp(found[:most]), np.exp(found[most:]), strict=True)
        if v > max(1e-4, 0.01 * np.exp(found[:most]).sum())
    )


@cache
def _nodes() -> tuple[Floats, Floats]:
    """Points in [0, 1] and their weights for an integral, denser near 0, where fast swings are correlated."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    half = (nodes + 1) / 2
    return half**3, weights / 2 * 3 * half**2


def added(swings: Sequence[Swing], scales_s: Floats, rate: float, duration_s: float) -> Floats:
    """What swings add to the index of dispersion of a window of ``duration_s``, by interval length.

    A window's own mean is taken from its counts, so what swings slower than the window does not count.
    """

    def variance(length: Floats) -> Floats:  # of the integral of the rate over such a length, over its mean
        share, weights = _nodes()
        lag = length[:, None] * share
        together = np.ones_like(lag)
        for swing in swings:
            together = together * (1 + swing.variance * np.exp(-lag / swing.memory_s))
        return np.asarray(2 * rate * length * ((1 - share) * (together - 1) @ weights))

    intervals = np.floor(duration_s / scales_s)
    return np.asarray(variance(scales_s) - variance(scales_s * intervals) / intervals)
