"""Gaps of hidden regimes: a Markov chain over arrivals, each regime its own mixture of a few shared Gamma laws.

The shared laws hold what one gap law cannot: batches, retries at a fixed delay, pauses. The regimes hold runs of
each. Fitted by EM (Baum and Welch with tied mixtures). Likelihood weighs single gaps, so it may move regimes faster
than the trace does; ``slow_down`` matches the trace's dispersion by one number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.arrivals.dispersion import log_miss, mean_dispersion
from traces.arrivals.gaps import Gaps
from traces.arrivals.law import Floats, Stationary, gaps_of, numbers, only, positive, rows, short
from traces.arrivals.renewal import left_over, log_density, log_survival
from traces.arrivals.scan import backward, forward

FIELDS = ("mean_gaps_s", "shapes", "mixtures", "moves", "slowed_by")
STEPS = 150
TOLERANCE = 1e-5  # nats a gap and EM step
_SHAPES = (0.05, 500.0)  # sharper spikes than 4 % would fit single gaps
_RUN = 60  # gaps over which the first guess of the regimes looks
_SLOWER = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)


@dataclass(frozen=True, slots=True)
class Regimes(Stationary):
    """Gaps drawn from a mixture that a Markov chain over arrivals chooses.

    Attributes:
        mean_gaps_s: (k,) mean gap of each shared Gamma law, ascending.
        shapes: (k,) their shapes.
        mixtures: (r, k) shares of the laws in each regime.
        moves: (r, r) probability of each regime after each, as fitted.
        slowed_by: what the probabilities to leave a regime are divided by.
    """

    mean_gaps_s: tuple[float, ...]
    shapes: tuple[float, ...]
    mixtures: tuple[tuple[float, ...], ...]
    moves: tuple[tuple[float, ...], ...]
    slowed_by: float = 1.0

    @property
    def family(self) -> str:
        """``regimes`` and their number, after ``slowed_`` if they are."""
        return f"{'slowed_' if self.slowed_by != 1 else ''}regimes{len(self.moves)}"

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        return 1.0 / float(self.share @ self.mixing @ np.asarray(self.mean_gaps_s))

    @property
    def chain(self) -> Floats:
        """(r, r) moves as they are drawn."""
        same = np.eye(len(self.moves))
        return np.asarray(same + (np.asarray(self.moves) - same) / self.slowed_by)

    @property
    def mixing(self) -> Floats:
        """(r, k) mixtures."""
        return np.asarray(self.mixtures)

    @property
    def share(self) -> Floats:
        """(r,) long-run share of gaps in each regime."""
        return steady(self.chain)

    @property
    def laws(self) -> list[Gaps]:
        """The shared gap laws."""
        return [Gaps("gamma", mean, shape) for mean, shape in zip(self.mean_gaps_s, self.shapes, strict=True)]

    def begin(self, rng: np.random.Generator, covering: Floats | None = None) -> tuple[int, float]:
        """Regime at time 0 and what is left of the gap under way.

        Args:
            rng: source of draws.
            covering: (r, k) probability of each regime and law then; None takes the law's own.
        """
        if covering is None:
            covering = self.share[:, None] * self.mixing * self.mean_gaps_s
        cell = int(rng.choice(covering.size, p=covering.ravel() / covering.sum()))
        regime, law = divmod(cell, covering.shape[1])
        return regime, float(left_over(self.laws[law], 1, rng)[0])

    def follow(self, regime: int, n: int, rng: np.random.Generator) -> tuple[Floats, int]:
        """(n,) gaps that follow one of ``regime``, and the last one's regime."""
        visited = self._visits(regime, n, rng)
        u, law = rng.random(n), np.empty(n, np.int64)
        for at, mixture in enumerate(self.mixing):
            here = np.flatnonzero(visited == at)
            law[here] = np.searchsorted(np.cumsum(mixture)[:-1], u[here], side="right")
        shape = np.asarray(self.shapes)[law]
        return rng.gamma(shape, np.asarray(self.mean_gaps_s)[law] / shape), int(visited[-1])

    def _visits(self, regime: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(n,) regimes that follow one; a loop over the jumps only."""
        chain = self.chain
        stay = np.diag(chain)
        jump = chain - np.diag(stay)
        lines = [list(np.cumsum(row / row.sum())[:-1]) if row.sum() > 0 else [] for row in jump]
        found, total = [], 0
        first = True
        while total < n:
            order = [regime]
            for u in rng.random(max(8, int(1.2 * (n - total) * float(self.share @ (1 - stay))))).tolist():
                regime = bisect_right(lines[regime], u) if lines[regime] else regime
                order.append(regime)
            lengths = rng.geometric(np.maximum(1 - stay[order], 1e-9))
            lengths[0] -= first  # the gap before was one of the first visit
            lengths[-1] = 0  # the next round begins with it
            found.append(np.repeat(order, np.minimum(lengths, n)))
            total += found[-1].size
            first = False
        return np.concatenate(found)[:n]

    def _draw(self, duration_s: float, rng: np.random.Generator) -> Floats:
        regime, at = self.begin(rng)
        found = [np.array([at])]
        while found[-1][-1] < duration_s:
            gaps, regime = self.follow(regime, max(64, int(1.2 * (duration_s - at) * self.rate_per_s)), rng)
            found.append(found[-1][-1] + np.cumsum(gaps))
            at = float(found[-1][-1])
        return np.concatenate(found)

    def _forward(self, gaps: Floats) -> tuple[Floats, Floats]:
        """(n+1, r) probabilities of the regime before each gap, the first and the one after the last; (n,) nats."""
        begin = self.share * (self.mixing @ np.exp(survivals(self.laws, gaps[:1])[0]))
        density, top = emissions(self.laws, gaps[1:])
        state = begin / max(begin.sum(), 1e-300)
        steps = self.chain * (density @ self.mixing.T)[:, None, :]
        after, logs = forward(steps, state) if gaps.size > 1 else (np.zeros((0, begin.size)), np.zeros(0))
        ahead = np.concatenate([self.share[None], np.concatenate([state[None], after]) @ self.chain])
        return ahead, np.concatenate([[np.log(max(begin.sum() * self.rate_per_s, 1e-300))], logs + top])

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        gaps, tail = gaps_of(arrivals_s, duration_s)
        if not gaps.size:
            return np.array([-tail * self.rate_per_s])  # of a Poisson process: near enough for no data
        ahead, logs = self._forward(gaps)
        last = float(ahead[-1] @ self.mixing @ np.exp(survivals(self.laws, np.array([tail]))[0]))
        return np.append(logs, np.log(max(last, 1e-300)))

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`; the first gap is left out."""
        gaps, _ = gaps_of(arrivals_s, duration_s)
        ahead = self._forward(gaps)[0][1:-1]
        return np.asarray((ahead @ self.mixing * -np.expm1(survivals(self.laws, gaps[1:]))).sum(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return {
            "family": self.family,
            "mean_gaps_s": list(self.mean_gaps_s),
            "shapes": list(self.shapes),
            "mixtures": [list(row) for row in self.mixtures],
            "moves": [list(row) for row in self.moves],
            "slowed_by": self.slowed_by,
        }


def read(raw: Mapping[str, object], regimes: int) -> Regimes:
    """From plain numbers."""
    only(raw, *FIELDS)
    means = numbers("mean_gaps_s", raw["mean_gaps_s"])
    return Regimes(
        means,
        numbers("shapes", raw["shapes"], len(means)),
        rows("mixtures", raw["mixtures"], regimes, len(means), share=True),
        rows("moves", raw["moves"], regimes, regimes, share=True),
        positive("slowed_by", raw["slowed_by"]),
    )


def fit(regimes: int, laws: int, arrivals_s: Floats) -> Regimes:
    """Maximum likelihood on the gaps by EM, started from quantiles of gaps and of their running mean."""
    gaps = np.diff(arrivals_s)
    logs = np.log(gaps)
    law_share = 0.9 * _by_quantile(logs, laws) + 0.1 / laws
    run = max(2, min(_RUN, gaps.size // (4 * regimes)))
    regime_share = 0.8 * _by_quantile(np.convolve(logs, np.full(run, 1 / run), "same"), regimes) + 0.2 / regimes
    moves = _shares(np.eye(regimes) * (run - 1.0) + 1.0 / regimes)
    mixtures = _shares(regime_share.T @ law_share)
    mean, shape = gamma_fits(gaps, logs, law_share)
    best: tuple[float, Any] = (-np.inf, (mean, shape, mixtures, moves))
    for _ in range(STEPS):
        density, top = emissions([Gaps("gamma", m, k) for m, k in zip(mean, shape, strict=True)], gaps)
        seen = np.maximum(density @ mixtures.T, 1e-300)
        steps = moves * seen[:, None, :]
        after, scales = forward(steps, steady(moves))
        total = float(scales.sum() + top.sum())
        if total - best[0] < TOLERANCE * gaps.size:
            break
        best = (total, (mean, shape, mixtures, moves))
        behind = backward(steps, np.ones(regimes))
        weight = 1.0 / np.maximum(np.exp(scales[1:]) * (after[1:] * behind[1:]).sum(axis=1), 1e-300)
        moves = _shares(moves * ((after[:-1] * weight[:, None]).T @ (seen[1:] * behind[1:])) + 1e-4)
        per_seen = _shares(after * behind) / seen
        law_weight = per_seen @ mixtures * density
        mixtures = _shares(mixtures * (per_seen.T @ density) + 1e-4)
        mean, shape = gamma_fits(gaps, logs, law_weight)
    mean, shape, mixtures, moves = best[1]
    order = np.argsort(mean)
    return Regimes(
        tuple(short(v) for v in mean[order]),
        tuple(short(v) for v in shape[order]),
        _rounded(mixtures[:, order]),
        _rounded(moves),
    )


def slow_down(
    law: Regimes, scales_s: Floats, target: Floats, rate: float, duration_s: float, rng: np.random.Generator
) -> Regimes | None:
    """The law with its regimes slowed so that drawn windows come nearest to the target dispersion; None if as it is.

    Args:
        law: fitted.
        scales_s: interval lengths.
        target: the trace's index of dispersion there.
        rate: arrivals a second of the trace.
        duration_s: its length, and that of the drawn windows.
        rng: of the draws.
    """
    found = [replace(law, slowed_by=by) for by in _SLOWER]
    misses = [log_miss(mean_dispersion(one, scales_s, duration_s, rate, rng), target) for one in found]
    nearest = found[int(np.argmin(misses))]
    return nearest if nearest.slowed_by != 1 else None


def gamma_fits(gaps: Floats, logs: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """(k,) means and shapes of Gamma laws by maximum likelihood, gaps weighted by (n, k)."""
    from scipy import special

    total = np.maximum(weights.sum(axis=0), 1e-9)
    mean = np.maximum(gaps @ weights / total, 1e-12)
    spread = np.maximum(np.log(mean) - logs @ weights / total, 1e-6)
    shape = (3 - spread + np.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    for _ in range(5):  # Newton on log k - digamma(k) = spread
        slope = 1 / shape - special.polygamma(1, shape)
        shape = np.clip(shape - (np.log(shape) - special.digamma(shape) - spread) / slope, *_SHAPES)
    return np.asarray(mean), np.asarray(shape)


def emissions(laws: list[Gaps], gaps: Floats) -> tuple[Floats, Floats]:
    """(n, k) densities over the largest of each gap, and (n,) the log of that."""
    found = np.stack([log_density(law, gaps) for law in laws], axis=1)
    top = found.max(axis=1) if gaps.size else np.zeros(0)
    return np.exp(found - top[:, None]), top


def survivals(laws: list[Gaps], gaps: Floats) -> Floats:
    """(n, k) log probability of a longer gap than each."""
    return np.stack([log_survival(law, gaps) for law in laws], axis=1)


def steady(moves: Floats) -> Floats:
    """(r,) long-run shares of a chain in steps."""
    n = moves.shape[0]
    system = np.vstack([moves.T - np.eye(n), np.ones(n)])
    found: Any = np.linalg.lstsq(system, np.r_[np.zeros(n), 1.0], rcond=None)[0]
    found = np.maximum(found, 0.0)
    return np.asarray(found / found.sum())


def _by_quantile(values: Floats, n: int) -> Floats:
    return np.eye(n)[np.searchsorted(np.quantile(values, np.linspace(0, 1, n + 1)[1:-1]), values)]


def _shares(values: Floats) -> Floats:
    return np.asarray(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-300))


def _rounded(values: Floats) -> tuple[tuple[float, ...], ...]:
    """Rows of shares, to six decimals; the largest takes up what rounding leaves."""
    found = np.round(values, 6)
    found[np.arange(found.shape[0]), found.argmax(axis=1)] += 1.0 - found.sum(axis=1)
    return tuple(tuple(round(float(v), 6) for v in row) for row in found)
