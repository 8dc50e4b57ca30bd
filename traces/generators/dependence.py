"""How the quantities of a turn go together, and how they last: normal scores of three parts.

Ranks become normal scores. The scores of a turn are ``effect + rest``: an effect that a session keeps for good (some
sessions grow faster, some answer at length; long sessions differ from short ones), and a rest that follows the one of
the turn before, ``rest = carry @ rest before + noise``. That keeps rank correlations within a turn, from turn to turn,
and over a session; ties in the tails beyond correlation are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = tuple[tuple[float, ...], ...]

_DIGITS = 4
_LARGEST = 100.0  # they are of normal scores, so of the order of 1
_LEAST = 0.05  # smallest variance that is left to the rest of a turn, in any direction
_PAIRS = 60  # turn pairs below which nothing is carried over


@dataclass(frozen=True, slots=True)
class Dependence:
    """Moments of the scores of k quantities.

    Attributes:
        within: (k, k) correlations within a turn.
        session: (k, k) covariances of the sessions' effects, a part of ``within``.
        carry: (k, k) what the rest of each score takes from those of the turn before.
        by_turns: (k,) what the effects gain with the normal score of the session's number of turns.
    """

    within: Rows
    session: Rows
    carry: Rows
    by_turns: tuple[float, ...]

    @classmethod
    def fit(cls, scores: Floats, session: Ints, follows: NDArray[np.bool_], turns: Floats) -> Dependence:
        """Fit by moments: analysis of variance for the effects, lag-1 covariances for the rest.

        Args:
            scores: (n, k) normal scores of turns, in order of (session, turn).
            session: (n,) their sessions.
            follows: (n,) the row before is the turn before.
            turns: (n,) normal scores of the number of turns of their sessions, less their mean where ``scores`` have
                theirs taken off (by stage).
        """
        k = scores.shape[1]
        z = scores - scores.mean(axis=0)
        spread = z.std(axis=0)
        z = z / np.where(spread > 0, spread, 1.0)
        within = z.T @ z / len(z) if len(z) else np.eye(k)
        within = np.where(np.eye(k) > 0, 1.0, within)
        effect = _effects(z, session) if len(z) > _PAIRS else np.zeros((k, k))
        while np.linalg.eigvalsh(within - effect).min() < _LEAST and np.abs(effect).max() > 1e-3:
            effect = effect * 0.9
        gain = _gains(z, session, turns) if effect.any() else np.zeros(k)
        rest = within - effect
        carry = np.zeros((k, k))
        pair = np.flatnonzero(follows)
        if pair.size >= _PAIRS:
            lagged = z[pair].T @ z[pair - 1] / pair.size - effect
            carry = np.linalg.solve(rest.T, lagged.T).T
        while _noise(rest, carry) is None:
            carry = carry * 0.9
        return cls(_rows(within), _rows(effect), _rows(carry), _rows(gain[None])[0])

    def start(self, fixed: Floats, which: int, turns: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """(n, k) effects and rests of first turns, of which score ``which`` is (n,) ``fixed``.

        ``turns`` are the (n,) normal scores of the numbers of turns.
        """
        shift = turns[:, None] * np.asarray(self.by_turns)
        session = np.asarray(self.session)
        rest = np.asarray(self.within) - session
        spread = shift.T @ shift / len(shift) if len(shift) else np.zeros_like(session)
        session = _positive(session - spread)  # the effects' variance that numbers of turns leave open
        effects, rests = (
            rng.standard_normal((fixed.size, len(self.within))) @ _root(matrix).T for matrix in (session, rest)
        )
        effects += shift
        off = (fixed - effects[:, which] - rests[:, which])[:, None] / (session + rest)[which, which]
        return effects + off * session[:, which], rests + off * rest[:, which]

    def noise(self) -> Floats:
        """(k, k) matrix that turns independent normals into the noise of a turn."""
        found = _noise(np.asarray(self.within) - np.asarray(self.session), np.asarray(self.carry))
        if found is None:
            raise ValueError("correlations that fit together")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML."""
        matrices = {name: [list(row) for row in getattr(self, name)] for name in ("within", "session", "carry")}
        return {**matrices, "by_turns": list(self.by_turns)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Dependence:
        """The law of :meth:`to_dict`; KeyError, TypeError or ValueError if it is none."""
        matrices = [np.asarray(raw[name], np.float64) for name in ("within", "session", "carry")]
        if any(m.shape != (3, 3) or not (np.abs(m) <= _LARGEST).all() for m in matrices):
            raise ValueError(f"three matrices of 3 by 3 numbers, {_LARGEST:g} at most")
        gains = tuple(float(x) for x in raw["by_turns"])
        if len(gains) != 3 or not (np.abs(gains) <= _LARGEST).all():
            raise ValueError(f"three gains by turns, {_LARGEST:g} at most")
        within, session, carry = map(_rows, matrices)
        law = cls(within, session, carry, gains)
        law.noise()
        return law


def normal_scores(values: Floats) -> Floats:
    """(n,) standard normal scores of the ranks of values; equal values get their middle rank."""
    from scipy import special, stats

    return np.asarray(special.ndtri((stats.rankdata(values) - 0.5) / values.size))


def _effects(z: Floats, session: Ints) -> Floats:
    """(k, k) covariances between sessions, by one-way analysis of variance."""
    _, group = np.unique(session, return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    groups, n = size.size, len(z)
    if groups < 2 or n - groups < 2:
        return np.zeros((z.shape[1], z.shape[1]))
    mean = np.stack([np.bincount(group, weights=column) for column in z.T], axis=1) / size[:, None]
    inner = (z - mean[group]).T @ (z - mean[group]) / (n - groups)
    outer = (mean * size[:, None]).T @ mean / (groups - 1)
    each = (n - (size**2).sum() / n) / (groups - 1)
    return _positive((outer - inner) / each)


def _gains(z: Floats, session: Ints, turns: Floats) -> Floats:
    """(k,) slopes of the sessions' means over the score of their number of turns."""
    _, group = np.unique(session, return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    mean, x = (
        np.stack([np.bincount(group, weights=c) for c in m.T], axis=1) / size[:, None] for m in (z, turns[:, None])
    )
    weight = size / (size + 5)  # a mean of few turns is a poor one
    flat = weight * (x[:, 0] - np.average(x[:, 0], weights=weight))
    square = float(flat @ x[:, 0])
    return np.asarray(flat @ mean / square) if square > 0 else np.zeros(z.shape[1])


def _positive(matrix: Floats) -> Floats:
    """The nearest matrix without negative variances."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * values.clip(min=0)) @ vectors.T)


def _root(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray(vectors * np.sqrt(values.clip(min=0)))


def _noise(rest: Floats, carry: Floats) -> Floats | None:
    left = rest - carry @ rest @ carry.T
    try:
        return np.asarray(np.linalg.cholesky((left + left.T) / 2 + 1e-6 * np.eye(left.shape[0])))
    except np.linalg.LinAlgError:
        return None


def _rows(matrix: Floats) -> Rows:
    return tuple(tuple(round(float(x), _DIGITS) for x in row) for row in matrix)
