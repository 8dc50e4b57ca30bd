"""Regimes of gaps on a rate that swings: bursts, batches and retries, and busy and quiet stretches of them.

The swings' level when a gap begins divides the whole gap, and the swings move on in real time under it. So the
likelihood is that of a hidden Markov chain over gaps, exactly, with a state for each pair of regime and level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.arrivals import regimes as plain_regimes
from traces.arrivals.dispersion import mean_dispersion
from traces.arrivals.law import Floats, Stationary, gaps_of, only
from traces.arrivals.regimes import Regimes, emissions, steady, survivals
from traces.arrivals.swings import Swing, joint, match, plain, read_swings

_SWINGS = 2
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Swung(Stationary):
    """Gaps of hidden regimes, divided by a factor that swings.

    Attributes:
        gaps: the gaps at factor 1.
        swings: the factor's parts.
    """

    gaps: Regimes
    swings: tuple[Swing, ...]

    @property
    def family(self) -> str:
        """``swung_`` and the family of the gaps."""
        return f"swung_{self.gaps.family}"

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        share, factors = self._shares(), joint(self.swings)[0]
        return 1.0 / float((share / factors).sum(axis=1) @ self.gaps.mixing @ np.asarray(self.gaps.mean_gaps_s))

    def _shares(self) -> Floats:
        """(r, f) long-run share of gaps in each regime and level."""
        factors, switch = joint(self.swings)
        values, right = np.linalg.eig(switch)
        left = np.linalg.inv(right)
        mean = np.asarray(self.gaps.mean_gaps_s)[:, None] / factors
        shape = np.asarray(self.gaps.shapes)[:, None, None]
        # The mean of exp(Q g) over a Gamma gap g is its Laplace transform in the eigenbasis.
        fall = np.tensordot(self.gaps.mixing, (1 - values * (mean[:, :, None] / shape)) ** -shape, 1)
        drift = np.einsum("sv,rsv,vt->rst", right, fall, left).real
        moves = np.einsum("rst,rq->rsqt", np.maximum(drift, 0.0), self.gaps.chain)
        size = factors.size * len(self.gaps.moves)
        return steady(moves.reshape(size, size)).reshape(-1, factors.size)

    def _draw(self, duration_s: float, rng: np.random.Generator) -> Floats:
        factors, share, rate = joint(self.swings)[0], self._shares(), self.rate_per_s
        covering = (share / factors)[:, :, None] * (self.gaps.mixing * self.gaps.mean_gaps_s)[:, None, :]
        over = covering.sum(axis=(0, 2))
        level = int(rng.choice(over.size, p=over / over.sum()))
        regime, left = self.gaps.begin(rng, covering[:, level])
        at = left / float(factors[level])
        highs = [bool(level >> place & 1) for place in reversed(range(len(self.swings)))]
        paths = [swing.path(duration_s, rng, high) for swing, high in zip(self.swings, highs, strict=True)]
        ends = np.unique(np.minimum(np.concatenate([*(path[0] for path in paths), [duration_s]]), duration_s))
        factor = np.ones(ends.size)
        for stops, levels in paths:
            factor *= levels[np.searchsorted(stops, ends)]
        found = [np.array([at])]
        whole = np.zeros(1)  # sums of gaps at factor 1
        i = 0
        while at < duration_s:
            place = int(np.searchsorted(ends, at, side="right"))
            reach = whole[i] + (ends[place] - at) * factor[place]
            while whole[-1] <= reach:
                gaps, regime = self.gaps.follow(regime, max(64, int(1.2 * (duration_s - at) * rate)), rng)
                whole = np.concatenate([whole, whole[-1] + np.cumsum(gaps)])
            last = int(np.searchsorted(whole, reach, side="right"))  # this gap begins before the level ends
            found.append(at + (whole[i + 1 : last + 1] - whole[i]) / factor[place])
            at, i = float(found[-1][-1]), last
        return np.concatenate(found)

    def _forward(self, gaps: Floats) -> tuple[Floats, Floats, Floats]:
        """Probabilities of regime and level (n+1, r, f) before each gap and after the last; (f,) factors; (n,) nats."""
        factors, switch = joint(self.swings)
        share, laws, mixing = self._shares(), self.gaps.laws, self.gaps.mixing
        values, right = np.linalg.eig(switch)
        left = np.linalg.inv(right)
        found = [emissions(laws, gaps[1:] * factor) for factor in factors]
        top = np.max([part[1] for part in found], axis=0)
        density = np.stack(
            [part[0] @ mixing.T * (f * np.exp(part[1] - top))[:, None] for part, f in zip(found, factors, strict=True)],
            axis=2,
        )
        moves = self.gaps.chain.T
        ahead, logs = np.empty((gaps.size + 1, *share.shape)), np.empty(gaps.size)
        ahead[0] = share
        at = share * (mixing @ np.exp(survivals(laws, gaps[0] * factors)).T)
        for k, gap in enumerate(gaps):
            if k:
                at = ahead[k] * density[k - 1]
            total = max(float(at.sum()), 1e-300)
            logs[k] = np.log(total)
            ahead[k + 1] = np.maximum((moves @ (at / total) @ (right * np.exp(values * gap)) @ left).real, 0.0)
        return ahead, factors, logs + np.concatenate([[np.log(self.rate_per_s)], top])

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        gaps, tail = gaps_of(arrivals_s, duration_s)
        if not gaps.size:
            return np.array([-tail * self.rate_per_s])  # of a Poisson process: near enough for no data
        ahead, factors, logs = self._forward(gaps)
        last = float((ahead[-1] * (self.gaps.mixing @ np.exp(survivals(self.gaps.laws, tail * factors)).T)).sum())
        return np.append(logs, np.log(max(last, 1e-300)))

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`; the first gap is left out."""
        gaps, _ = gaps_of(arrivals_s, duration_s)
        ahead, factors, _ = self._forward(gaps)
        below = np.stack([-np.expm1(survivals(self.gaps.laws, gaps[1:] * f)) @ self.gaps.mixing.T for f in factors], 2)
        return np.asarray((ahead[1:-1] * below).sum(axis=(1, 2)))

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return {**self.gaps.to_dict(), "family": self.family, **plain(self.swings)}


def read(raw: Mapping[str, object], regimes: int) -> Swung:
    """From plain numbers."""
    swings = ("swing_variances", "swing_memories_s")
    only(raw, *plain_regimes.FIELDS, *swings)
    gaps = plain_regimes.read({key: value for key, value in raw.items() if key not in swings}, regimes)
    return Swung(gaps, read_swings(raw))


def fit(
    gaps: Regimes, scales_s: Floats, target: Floats, rate: float, duration_s: float, rng: np.random.Generator
) -> Swung | None:
    """Swings on top of fitted gaps that bring drawn windows near the target dispersion; None if the gaps have it.

    Args:
        gaps: fitted on the same arrivals.
        scales_s: interval lengths.
        target: the trace's index of dispersion there.
        rate: arrivals a second of the trace.
        duration_s: its length, and that of the drawn windows.
        rng: of the draws.
    """
    base = mean_dispersion(gaps, scales_s, duration_s, rate, rng)
    aim, law = target, None
    for _ in range(_ROUNDS):
        swings = match(np.maximum(aim, base), base, scales_s, rate, duration_s, _SWINGS)
        if not swings:
            return law
        law = Swung(gaps, swings)
        aim = aim * target / mean_dispersion(law, scales_s, duration_s, rate, rng)
    return law
