"""Markov-modulated Poisson arrivals: the rate jumps between levels. Two levels are on/off bursts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.arrivals.chain import Chain, Expected, arrivals_of, stationary
from traces.arrivals.law import NAME, Floats, Stationary, gaps_of, numbers, only, rows, short
from traces.errors import TraceError

STEPS = 120
TOLERANCE = 2e-6  # nats an arrival and EM step
_STARTS, _TRIAL = 3, 15  # time scales to start from, EM steps before all but the best are given up


@dataclass(frozen=True, slots=True)
class Modulated(Stationary):
    """Poisson arrivals at the rate of a hidden state, which is a Markov chain in its stationary state at time 0.

    Attributes:
        rates_per_s: (s,) arrivals a second in each state, ascending.
        switch_per_s: (s, s) jumps a second from each state to each other; the diagonal is 0.
    """

    rates_per_s: tuple[float, ...]
    switch_per_s: tuple[tuple[float, ...], ...]

    @property
    def family(self) -> str:
        """``on_off`` with two states, else ``mmpp`` and their number."""
        return name(len(self.rates_per_s))

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        return float(stationary(self._switch) @ np.asarray(self.rates_per_s))

    @property
    def jumps_per_s(self) -> float:
        """Mean changes of state a second."""
        return float(stationary(self._switch) @ -np.diag(self._switch))

    @property
    def _switch(self) -> Floats:
        return generator(np.asarray(self.switch_per_s))

    @property
    def chain(self) -> Chain:
        """The process in its eigenbasis."""
        return Chain(self._switch, np.asarray(self.rates_per_s))

    def _draw(self, duration_s: float, rng: np.random.Generator) -> Floats:
        ends, states = path(self._switch, duration_s, rng)
        return arrivals_of(ends, np.asarray(self.rates_per_s)[states], rng)

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return self.chain.log_densities(*gaps_of(arrivals_s, duration_s))

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return self.chain.residuals(gaps_of(arrivals_s, duration_s)[0])

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        switch = [list(row) for row in self.switch_per_s]
        return {"family": self.family, "rates_per_s": list(self.rates_per_s), "switch_per_s": switch}


def name(states: int) -> str:
    """Family of so many states."""
    return "on_off" if states == 2 else f"mmpp{states}"


def read(raw: Mapping[str, object], states: int) -> Modulated:
    """From plain numbers."""
    only(raw, "rates_per_s", "switch_per_s")
    rates = numbers("rates_per_s", raw["rates_per_s"], states, zero=True)
    if not any(rates):
        raise TraceError(file=NAME, column="rates_per_s", value=list(rates), expected="a rate above 0 in some state")
    switch = rows("switch_per_s", raw["switch_per_s"], states, states)
    for i, row in enumerate(switch):
        if sum(row) - row[i] <= 0:
            raise TraceError(file=NAME, column=f"switch_per_s[{i}]", value=list(row), expected="a way out of the state")
    return Modulated(rates, tuple(tuple(0.0 if i == j else v for j, v in enumerate(r)) for i, r in enumerate(switch)))


def fit(states: int, arrivals_s: Floats, duration_s: float) -> Modulated:
    """Maximum likelihood by EM, from a few starts; see :mod:`traces.arrivals.chain`."""
    gaps, tail = gaps_of(arrivals_s, duration_s)

    def maximise(found: Expected, _: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        time = np.maximum(found.time_s, 1e-9)
        return generator(np.maximum(found.jumps / time[:, None], 1e-7)), np.maximum(found.arrivals / time, 1e-9)

    mean_s = duration_s / max(1, arrivals_s.size)
    best: tuple[float, Parameters] = (-np.inf, (np.zeros((1, 1)), np.zeros(1)))
    for dwell_s in np.geomspace(8 * mean_s, max(duration_s / 8, 16 * mean_s), _STARTS):
        switch = generator(np.full((states, states), 1.0 / (dwell_s * (states - 1))))
        for rates in (spread_rates(arrivals_s, duration_s, states, dwell_s / 4), gap_rates(gaps, states)):
            found = climb((switch, rates), gaps, tail, maximise, _TRIAL)
            best = max(best, found, key=lambda one: one[0])
    best = climb(best[1], gaps, tail, maximise, STEPS)
    switch, rates = best[1]
    order = np.argsort(rates)
    return Modulated(
        tuple(short(v) for v in rates[order]),
        tuple(
            tuple(0.0 if i == j else short(switch[order[i], order[j]]) for j in range(states)) for i in range(states)
        ),
    )


Parameters = tuple[Floats, Floats]


def climb(
    at: Parameters,
    gaps: Floats,
    tail: float,
    maximise: Callable[[Expected, Parameters], Parameters],
    steps: int = STEPS,
) -> tuple[float, Parameters]:
    """EM steps until they gain less than :data:`TOLERANCE` an arrival; the best log likelihood and its parameters."""
    best = (-np.inf, at)
    for _ in range(steps):
        found = Chain(*at).expect(gaps, tail)
        if not found.log_likelihood > best[0]:  # rounding in a badly conditioned eigenbasis
            break
        gain = found.log_likelihood - best[0]
        best = (found.log_likelihood, at)
        if gain < TOLERANCE * gaps.size:
            break
        at = maximise(found, at)
    return best


def spread_rates(arrivals_s: Floats, duration_s: float, states: int, width_s: float) -> Floats:
    """(s,) rates to start from: quantiles of the counts in intervals of ``width_s``, kept apart."""
    width_s = max(width_s, 4 * duration_s / max(1, arrivals_s.size))
    bins = max(states, int(duration_s / width_s))
    counts = np.histogram(arrivals_s, bins, (0.0, duration_s))[0] / (duration_s / bins)
    mean = arrivals_s.size / duration_s
    rates = np.quantile(counts, (np.arange(states) + 0.5) / states)
    return np.asarray(np.maximum(rates, 0.02 * mean) * np.linspace(0.9, 1.1, states))


def gap_rates(gaps: Floats, states: int) -> Floats:
    """(s,) rates to start from: of the gaps' quantiles."""
    return np.asarray(1.0 / np.maximum(np.quantile(gaps, 1 - (np.arange(states) + 0.5) / states), 1e-9))


def generator(switch: Floats) -> Floats:
    """The diagonal such that rows sum to 0."""
    found = np.array(switch, np.float64)
    np.fill_diagonal(found, 0.0)
    np.fill_diagonal(found, -found.sum(axis=1))
    return found


def path(switch: Floats, duration_s: float, rng: np.random.Generator) -> tuple[Floats, Any]:
    """When each visit ends, and its state, up to ``duration_s``; starts stationary."""
    n = switch.shape[0]
    leave = -np.diag(switch)
    jump = np.where(np.eye(n, dtype=bool), 0.0, switch) / leave[:, None]
    lines = [list(np.cumsum(row)[:-1]) for row in jump]
    start = stationary(switch)
    state = int(np.searchsorted(np.cumsum(start)[:-1], rng.random(), side="right"))
    states: list[int] = []
    ends: list[Floats] = []
    at, mean = 0.0, 1.0 / float(start @ leave)
    while at < duration_s:
        size = max(16, int(1.2 * (duration_s - at) / mean))
        part = []
        for u in rng.random(size).tolist():
            part.append(state)
            line = lines[state]
            state = sum(u >= edge for edge in line)
        visits = rng.exponential(size=size) / leave[part]
        stops = at + np.cumsum(visits)
        ends.append(stops)
        states += part
        at = float(stops[-1])
    times = np.concatenate(ends)
    last = int(np.searchsorted(times, duration_s))
    return np.minimum(times[: last + 1], duration_s), np.asarray(states[: last + 1])
