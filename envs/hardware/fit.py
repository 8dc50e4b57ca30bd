"""Fit the step law to step times: non-negative, in relative error, with what it misses told by region.

The law is ``t = max(floor, c0 + c_tok*new) + c_attn*attention + c_seq*seqs + c_kv*kv``. Each kind of step weighs
the same in total, however many points it has. Points are divided by which side of the maximum they lie on; for one
division the law is linear and fitted exactly (non-negative least squares), then divided again, until it is stable.

Held-out errors: the points, in one fixed order, are dealt to FOLDS folds in turn; each fold is predicted by the law
fitted to the others. Folds interleave, so this measures how the law interpolates, not how it extrapolates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from envs.hardware.errors import MeasurementError
from envs.hardware.profile import StepLaw
from envs.hardware.steps import KINDS, REGIONS, StepPoint, ordered, times_s

FOLDS = 4
DIGITS = 5
"""Significant digits of a written coefficient."""
MIN_POINTS = 12
MATRICES = 2
"""Leading terms of the plane that the floor lies under: the constant and the new tokens."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of a law on some points, in percent; ``bias`` is the mean signed error."""

    points: int
    mape: float
    median: float
    worst: float
    bias: float


@dataclass(frozen=True, slots=True)
class StepFit:
    """A fitted step law.

    Attributes:
        law: the law, coefficients rounded to DIGITS significant digits.
        covariance: of the law's six terms in order, shape (6, 6), robust to unequal residuals (sandwich estimate); 0
            where a bound holds.
        points: what it was fitted to, in order.
        errors: by region and "all", of the law on its points.
        held_out: by region and "all", each point predicted by a law that has not seen it.
        by_kind: MAPE in percent and constant in seconds if prefill and decode each had a law of their own.
    """

    law: StepLaw
    covariance: FloatArray
    points: tuple[StepPoint, ...]
    errors: dict[str, Errors]
    held_out: dict[str, Errors]
    by_kind: dict[str, tuple[float, float]]


def fit_step_law(points: Sequence[StepPoint]) -> StepFit:
    """Fit the law to step times.

    Args:
        points: at least MIN_POINTS steps, prefills and decodes among them.

    Raises:
        MeasurementError: too few points, a time that is no positive number, or points that do not vary.
    """
    points = ordered(points)
    _check(points)
    theta = _round(_solve(points))
    law = StepLaw(*theta.tolist())
    times = times_s(points)
    predicted = predict_s(law, points)
    held_out = np.empty(len(points))
    for fold in range(FOLDS):
        mask = np.arange(len(points)) % FOLDS == fold
        trained = _solve([p for p, out in zip(points, mask, strict=True) if not out])
        held_out[mask] = predict_s(StepLaw(*trained.tolist()), [p for p, out in zip(points, mask, strict=True) if out])
    return StepFit(
        law=law,
        covariance=_covariance(theta, points),
        points=tuple(points),
        errors=errors_by_region(points, predicted, times),
        held_out=errors_by_region(points, held_out, times),
        by_kind=_by_kind(points),
    )


def predict_s(law: StepLaw, points: Sequence[StepPoint]) -> FloatArray:
    """Step times by the law, shape (n,)."""
    return np.array([law.seconds(p.new, p.attention, p.seqs, p.kv) for p in points])


def errors_by_region(points: Sequence[StepPoint], predicted: FloatArray, times: FloatArray) -> dict[str, Errors]:
    """Relative errors for each region that has points, and for ``all``."""
    relative = predicted / times - 1.0
    regions = np.array([point.region for point in points])
    groups = {"all": np.ones(len(points), dtype=bool)} | {region: regions == region for region in REGIONS}
    return {name: _errors(relative[mask]) for name, mask in groups.items() if mask.any()}


def _errors(relative: FloatArray) -> Errors:
    size = np.abs(relative) * 100.0
    return Errors(
        len(size), float(size.mean()), float(np.median(size)), float(size.max()), float(relative.mean()) * 100
    )


def _check(points: Sequence[StepPoint]) -> None:
    if len(points) < MIN_POINTS:
        raise MeasurementError(f"{len(points)} measured steps: expected at least {MIN_POINTS} for a law of 6 terms")
    for point in points:
        if not (np.isfinite(point.time_s) and point.time_s > 0.0):
            raise MeasurementError(f"a {point.kind} step takes {point.time_s} s: expected a finite time above 0")
        if min(point.new, point.attention, point.seqs, point.kv) < 0:
            raise MeasurementError(f"{point}: expected no negative tokens or sequences")
    plane = _plane(points)
    for column, name in ((1, "new tokens"), (3, "decoding sequences"), (4, "KV tokens")):
        if len(np.unique(plane[:, column])) < 3:
            raise MeasurementError(f"the steps hold fewer than 3 values of {name}: expected prefills and decodes")


def _plane(points: Sequence[StepPoint]) -> FloatArray:
    """Columns of the plane, shape (n, 5): 1, new, attention, seqs, kv."""
    return np.array([[1.0, p.new, p.attention, p.seqs, p.kv] for p in points], dtype=np.float64)


def _weights(points: Sequence[StepPoint]) -> FloatArray:
    counts = {kind: sum(point.kind == kind for point in points) for kind in KINDS}
    return np.array([1.0 / np.sqrt(counts[point.kind]) for point in points])


def _solve(points: Sequence[StepPoint]) -> FloatArray:
    """Coefficients (floor, c0, c_tok, c_attn, c_seq, c_kv) of the best fit from several first floors."""
    times, weights, plane = times_s(points), _weights(points), _plane(points)
    best, best_cost = np.zeros(6), np.inf
    for start in (0.0, *np.quantile(times, [0.02, 0.05, 0.1, 0.2, 0.3])):
        theta = _alternate(plane, times, weights, float(start))
        predicted = _predict(theta, plane)
        cost = float(np.sum((weights * (predicted / times - 1.0)) ** 2))
        if cost < best_cost * (1.0 - 1e-9):
            best, best_cost = theta, cost
    return best


def _predict(theta: FloatArray, plane: FloatArray) -> FloatArray:
    """Times of the law, shape (n,)."""
    terms = plane * theta[1:]
    predicted: FloatArray = np.maximum(theta[0], terms[:, :MATRICES].sum(axis=1)) + terms[:, MATRICES:].sum(axis=1)
    return predicted


def _on_floor(theta: FloatArray, plane: FloatArray) -> NDArray[np.bool_]:
    """Steps whose matrix products take the floor, shape (n,)."""
    below: NDArray[np.bool_] = (plane[:, :MATRICES] * theta[1 : 1 + MATRICES]).sum(axis=1) < theta[0]
    return below


def _columns(plane: FloatArray, on_floor: NDArray[np.bool_]) -> FloatArray:
    """What the six terms weigh in each step once divided, shape (n, 6)."""
    columns = np.column_stack([on_floor, plane])
    columns[on_floor, 1 : 1 + MATRICES] = 0.0
    return columns


def _alternate(plane: FloatArray, times: FloatArray, weights: FloatArray, floor: float) -> FloatArray:
    """Divide the points by the floor, fit floor and plane together, until the division is stable."""
    theta = np.concatenate([[floor], _nnls(plane, times, weights)])
    on_floor = np.zeros(len(times), dtype=bool)
    for _ in range(50):
        now = _on_floor(theta, plane)
        theta = _nnls(_columns(plane, now), times, weights)
        if np.array_equal(now, on_floor) or now.all():
            break
        on_floor = now
    return theta


def _nnls(columns: FloatArray, times: FloatArray, weights: FloatArray) -> FloatArray:
    """Non-negative coefficients of least weighted relative error; a column of zeros gets 0."""
    scaled = columns * (weights / times)[:, None]
    norm = np.linalg.norm(scaled, axis=0)
    norm[norm == 0.0] = 1.0
    solution: FloatArray = nnls(scaled / norm, weights)[0] / norm
    return solution


def _covariance(theta: FloatArray, points: Sequence[StepPoint]) -> FloatArray:
    """Sandwich estimate over the coefficients that are above 0."""
    times, weights, plane = times_s(points), _weights(points), _plane(points)
    jacobian = _columns(plane, _on_floor(theta, plane))
    residual = _predict(theta, plane) / times - 1.0
    jacobian *= (weights / times)[:, None]
    free = (theta > 0.0) & (np.abs(jacobian).sum(axis=0) > 0.0)
    # In units of the coefficients, so that the matrix to invert is well conditioned.
    scaled = jacobian[:, free] * theta[free]
    bread = np.linalg.pinv(scaled.T @ scaled)
    scores = scaled * (weights * residual)[:, None]
    freedom = len(times) / max(1, len(times) - int(free.sum()))
    relative = freedom * bread @ (scores.T @ scores) @ bread
    covariance = np.zeros((6, 6))
    covariance[np.ix_(free, free)] = relative * np.outer(theta[free], theta[free])
    return covariance


def _by_kind(points: Sequence[StepPoint]) -> dict[str, tuple[float, float]]:
    """What the shared constant costs: each phase fitted alone, with a floor and a constant of its own."""
    result = {}
    for name, kinds in (("prefill", ("prefill", "append")), ("decode", ("decode",))):
        some = [point for point in points if point.kind in kinds]
        if len(some) >= 4:
            theta = _solve(some)
            relative = predict_s(StepLaw(*theta.tolist()), some) / times_s(some) - 1.0
            result[name] = (float(np.abs(relative).mean()) * 100.0, float(max(theta[0], theta[1])))
    return result


def _round(values: FloatArray) -> FloatArray:
    return np.array([float(f"{value:.{DIGITS - 1}e}") for value in values])
