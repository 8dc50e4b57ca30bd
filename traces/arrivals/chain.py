"""The exact likelihood of a Markov-modulated Poisson process, and what its EM steps need. No time bins.

Between arrivals, state i is left for j at rate Q[i, j] and arrivals come at ``rates[i]``: with G = Q - diag(rates)
the density of the next arrival after t in state j, from state i, is (exp(G t) diag(rates))[i, j]. The matrix
exponentials of all gaps come from one eigendecomposition of G. The expected times, jumps and arrivals in each state
given the data are integrals of them, closed in the eigenbasis (Roberts, Ephraim and Dieguez, On Ryden's EM algorithm
for estimating MMPPs, IEEE Signal Processing Letters 13(6), 2006).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.arrivals.scan import backward, forward

Floats = NDArray[np.float64]
_CHUNK = 16_384  # gaps at a time: bounds memory


@dataclass(frozen=True, slots=True)
class Expected:
    """Given the data: log likelihood (nats), and by state the time (s), jumps to each other state, arrivals."""

    log_likelihood: float
    time_s: Floats
    jumps: Floats
    arrivals: Floats


class Chain:
    """Eigenbasis of one modulated process: ``switch`` (s, s) with zero row sums, ``rates`` (s,)."""

    def __init__(self, switch: Floats, rates: Floats) -> None:
        """Decompose."""
        self.switch, self.rates = switch, rates
        values, right = np.linalg.eig(switch - np.diag(rates))
        left = np.linalg.inv(right)
        if np.iscomplexobj(values) and np.abs(values.imag).max() < 1e-12 * np.abs(values).max():
            values, right, left = values.real, right.real, left.real
        self.slowest = float(values.real.max())  # taken out of every exponential, against underflow
        self.values, self.right, self.left = values - self.slowest, right, left
        self.start = stationary(switch)

    def kernels(self, gaps: Floats) -> Floats:
        """(n, s, s) exp(G t) over the factor exp(slowest t)."""
        found = (self.right[None] * np.exp(gaps[:, None] * self.values)[:, None, :]) @ self.left
        return np.asarray(np.maximum(found.real, 0.0))

    def steps(self, gaps: Floats, start: Floats) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
        """Chunks of gaps: (gaps, kernels, state probabilities before each gap, log densities of each gap)."""
        for low in range(0, gaps.size, _CHUNK):
            part = gaps[low : low + _CHUNK]
            kernels = self.kernels(part)
            after, logs = forward(kernels * self.rates, start)
            before = np.concatenate([start[None], after[:-1]])
            yield part, kernels, before, logs + self.slowest * part
            start = after[-1]

    def log_densities(self, gaps: Floats, tail: float) -> Floats:
        """(n+1,) nats of each gap given those before, the first from time 0, and of no arrival in the tail."""
        found, state = [], self.start
        for _, kernels, before, logs in self.steps(gaps, self.start):
            found.append(logs)
            state = before[-1] @ kernels[-1] * self.rates
            state = state / max(state.sum(), 1e-300)
        last = float((state @ self.kernels(np.array([tail]))[0]).sum())
        return np.concatenate([*found, [np.log(max(last, 1e-300)) + self.slowest * tail]])

    def residuals(self, gaps: Floats) -> Floats:
        """(n,) probability of a shorter gap than each, given all before."""
        found = [np.zeros(0)]
        for part, kernels, before, _ in self.steps(gaps, self.start):
            survival = (before[:, None, :] @ kernels)[:, 0].sum(axis=1) * np.exp(self.slowest * part)
            found.append(np.clip(1.0 - survival, 0.0, 1.0))
        return np.concatenate(found)

    def expect(self, gaps: Floats, tail: float) -> Expected:
        """See :class:`Expected`; (n, s, s) numbers are held at once."""
        times = np.append(gaps, tail)
        kernels = self.kernels(times)
        steps = kernels * self.rates
        steps[-1] = kernels[-1]
        after, logs = forward(steps, self.start)
        behind = backward(steps, np.ones(self.rates.size))
        before = np.concatenate([self.start[None], after[:-1]])
        into = behind * self.rates  # what follows an arrival
        into[-1] = behind[-1]
        weight = 1.0 / np.maximum(np.exp(logs) * (after * behind).sum(axis=1), 1e-300)
        a, b = before @ self.right, into @ self.left.T
        sums = np.zeros((self.rates.size,) * 2, self.values.dtype)
        power = np.exp(times[:, None] * self.values)
        gap = self.values[:, None] - self.values[None, :]
        near = np.abs(gap) < 1e-9 * max(1.0, float(np.abs(self.values).max()))
        safe = np.where(near, 1.0, gap)
        aw = a * weight[:, None]
        # sum over k of a_k[p] b_k[q] (power_k[p] - power_k[q]) / (value_p - value_q), and t power where equal
        sums = np.where(near, (aw * times[:, None] * power).T @ b, ((aw * power).T @ b - aw.T @ (b * power)) / safe)
        inside = np.maximum((self.left.T @ sums @ self.right.T).real, 0.0)
        posterior = after[:-1] * behind[:-1]
        posterior = posterior / np.maximum(posterior.sum(axis=1, keepdims=True), 1e-300)
        jumps = self.switch * inside
        np.fill_diagonal(jumps, 0.0)
        total = float(logs.sum() + self.slowest * times.sum())
        return Expected(total, np.diag(inside).copy(), jumps, posterior.sum(axis=0))


def stationary(switch: Floats) -> Floats:
    """(s,) long-run shares of time."""
    n = switch.shape[0]
    system = np.vstack([switch.T, np.ones(n)])
    found: Any = np.linalg.lstsq(system, np.r_[np.zeros(n), 1.0], rcond=None)[0]
    found = np.maximum(found, 0.0)
    return np.asarray(found / found.sum())


def arrivals_of(ends_s: Floats, rates: Floats, rng: np.random.Generator) -> Floats:
    """Poisson arrivals of a rate that is constant up to each of ``ends_s`` (ascending, from 0)."""
    edges = np.r_[0.0, ends_s]
    whole = np.r_[0.0, np.cumsum(rates * np.diff(edges))]
    n = rng.poisson(whole[-1])
    return np.asarray(np.interp(np.sort(rng.random(n)) * whole[-1], whole, edges))
