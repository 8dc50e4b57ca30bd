"""A profile corrected by a few serving runs of the cluster it is to stand for.

Six constants, each with a prior around "the profile is right", are fitted to measured mean TTFT and TPOT through a
simulator (maximum a posteriori, Gauss-Newton, Huber's loss). The priors hold what few runs do not determine near the
nominal law, so that five noisy runs cannot break it. The simulator comes as a function: this room knows none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.profile import Profile, StepLaw
from envs.hardware.tables import StepTables

FEWEST_RUNS = 5
FEWEST_POINTS = 3
"""Different (prompt, output, concurrency) that runs must hold: repeats of one point determine one constant."""

Array = NDArray[np.float64]
Predict = Callable[[Profile, float], Array]
"""(profile, request_s) -> mean TTFT and TPOT of every run in seconds, (n, 2)."""


REQUEST_S = 0.01
"""``dispatch_s`` of the shipped links, an assumption (HTTP, tokenising): what a hop before an engine is taken to cost.
At 0 a closed client's next prompt would come at the very end of a step and join the one that an engine has begun."""


@dataclass(frozen=True, slots=True)
class Term:
    """One constant of a correction: its prior is normal around ``centre`` (both in ``unit``), cut off at ``low``."""

    name: str
    meaning: str
    unit: str
    scale: float  # from the unit of the fit to SI
    prior_sd: float
    low: float
    step: float  # of finite differences: the simulated mean is not smooth below it
    centre: float = 0.0


TERMS = (
    Term("matrices", "least matrix products: reading the weights, launching", "ln of a factor", 1.0, 0.2, -2.0, 0.05),
    Term("prefill", "matrix products beyond that, and prompt attention", "ln of a factor", 1.0, 0.25, -2.0, 0.05),
    Term("decode", "decode attention", "ln of a factor", 1.0, 0.3, -2.0, 0.05),
    Term("host_step", "host time added to each step", "ms", 1e-3, 2.0, -10.0, 0.3),
    Term("host_seq", "host time added to each decoding sequence of a step", "us", 1e-6, 30.0, -100.0, 4.0),
    Term("request", "time before the engine sees a request", "ms", 1e-3, 30.0, 0.5, 2.0, REQUEST_S * 1e3),
)
"""The constants. Widths of the priors: engine versions differ by 1.14 at the median and 1.8 at the 90th percentile for
one configuration (public runs); host time of engines was measured at 0 to 3 ms a step and 0 to 60 us a sequence."""

SIGMA = np.array([0.25, 0.04])
"""Relative noise of a measured mean TTFT and TPOT that the fit assumes, what no simulator of the engine knows included:
repeats of public runs differ by 1.01 at the median and 1.4 at the 90th percentile in TPOT; the load generator alone
moves a mean TTFT by tens of per cent."""
HUBER = 2.0
"""Residuals beyond so many sigmas count linearly: one odd run must not turn the others."""
WORST = math.log(3.0), math.log(1.4)
"""Residuals of TTFT and TPOT beyond which a run is outside what the profile can be corrected to."""
FARTHEST = 3.0
"""Prior widths beyond which a constant says that the runs are of other hardware than the profile."""
MEASURED_SHARE = 0.5
"""A constant whose standard deviation is a larger share of its prior's was not measured by the runs."""
UNITS_OFF = 50.0
"""A median measured over predicted beyond this factor is another unit, no other engine."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The constants, factors as factors and times in seconds.

    Attributes:
        matrices: factor on the memory-bound part of the matrix products (the floor of a plane, W(1) of tables).
        prefill: factor on what tokens add to it (c0, c_tok, W - W(1)) and on prompt attention.
        decode: factor on what decodes cost (c_seq and c_kv, D0 and D1).
        host_step_s: added to every step; below 0 where the profile's steps are too long.
        host_seq_s: added for each decoding sequence of a step.
        request_s: before a request reaches the engine: TTFT only. No part of a profile, but of a link (``dispatch_s``).
    """

    matrices: float = 1.0
    prefill: float = 1.0
    decode: float = 1.0
    host_step_s: float = 0.0
    host_seq_s: float = 0.0
    request_s: float = REQUEST_S

    @classmethod
    def of(cls, theta: Array) -> Correction:
        """From the units of the fit, shape (6,)."""
        factors = [math.exp(value) for value in theta[:3]]
        return cls(*factors, *(float(v) * term.scale for v, term in zip(theta[3:], TERMS[3:], strict=True)))

    def apply(self, profile: Profile) -> Profile:
        """The corrected profile: its plane, and its tables where it has them. No time falls below 0."""
        corrected = profile.with_step(self._plane(profile.step))
        return corrected if profile.tables is None else corrected.with_tables(self._tables(profile.tables))

    def _plane(self, law: StepLaw) -> StepLaw:
        return StepLaw(
            floor_s=max(_LEAST_STEP_S, law.floor_s * self.matrices + self.host_step_s),
            c0_s=max(0.0, law.c0_s * self.prefill + self.host_step_s),
            c_tok_s=law.c_tok_s * self.prefill,
            c_attn_s=law.c_attn_s * self.prefill,
            c_seq_s=max(0.0, law.c_seq_s * self.decode + self.host_seq_s),
            c_kv_s=law.c_kv_s * self.decode,
        )

    def _tables(self, tables: StepTables) -> StepTables:
        least = tables.w_s[0]
        w = [least * self.matrices + (value - least) * self.prefill for value in tables.w_s]
        # Host time taken off comes out of the tables' own host time first, then out of the products.
        host = tables.h0_s + self.host_step_s
        taken = min(0.0, host)
        return replace(
            tables,
            w_s=tuple(max(_LEAST_STEP_S, value + taken) for value in w),
            d0_s=tuple(value * self.decode for value in tables.d0_s),
            d1_s=tuple(value * self.decode for value in tables.d1_s),
            c_attn_s=tables.c_attn_s * self.prefill,
            a0_s=tables.a0_s * self.prefill,
            h0_s=max(0.0, host),
            h1_s=max(0.0, tables.h1_s + self.host_seq_s),
        )


_LEAST_STEP_S = 1e-5


@dataclass(frozen=True, slots=True)
class CorrectionFit:
    """A fitted correction.

    Attributes:
        correction: the constants.
        theta: (6,) the same in the units of TERMS.
        covariance: (6, 6) of ``theta``: Gauss-Newton posterior, times the mean squared residual where that exceeds 1.
        candidate: the name of the candidate that fits best.
        costs: candidate -> posterior cost (half of it is minus the log density), of those that were fitted.
        measured: (n, 2) mean TTFT and TPOT in seconds.
        before: (n, 2) predicted by the profile as it was, the same candidate taken.
        after: (n, 2) predicted by the corrected one.
        left_out: (n, 2) predicted for each run by a correction made without it (one Gauss-Newton step from the fit).
        sigma: (2,) relative noise of TTFT and TPOT that was assumed.
    """

    correction: Correction
    theta: Array
    covariance: Array
    candidate: str
    costs: dict[str, float]
    measured: Array
    before: Array
    after: Array
    left_out: Array
    sigma: Array = field(default_factory=SIGMA.copy)

    def errors_percent(self, predicted: Array) -> Array:
        """(n, 2) error of predictions against the measurements."""
        return 100.0 * (predicted / self.measured - 1.0)

    def request_sd_ms(self) -> float:
        """Standard deviation of ``request``: the posterior's, or that of runs whose TTFT it moves by itself if larger.

        Where a delay lets other prompts share a step, TTFT jumps by much more than the delay. Such a jump says nothing
        of how long the delay is, but a finite difference across it looks as if it did.
        """
        noise_ms = self.sigma[0] * self.after[:, 0] * 1e3
        alone = 1.0 / math.sqrt(TERMS[-1].prior_sd ** -2 + float(np.sum(noise_ms**-2)))
        return max(math.sqrt(self.covariance[-1, -1]), alone)

    def request_measured(self) -> bool:
        """The runs determine the time before the engine: its sd is at most MEASURED_SHARE of the prior's."""
        return self.request_sd_ms() <= MEASURED_SHARE * TERMS[-1].prior_sd

    def common_relative_sd(self) -> float:
        """What is left of a law's error where no run was: root mean square of TPOT's left-out errors, 2 % at least."""
        logs = np.log(self.left_out[:, 1] / self.measured[:, 1])
        return max(0.02, float(np.sqrt(np.mean(logs**2))))


@dataclass(slots=True)
class _Fit:
    """State of a fit of one candidate."""

    profile: Profile
    predict: Predict
    logs: Array  # (n, 2) measured
    sigma: Array  # (2,)

    def __call__(self, theta: Array) -> Array:
        """(n, 2) logs of the prediction."""
        correction = Correction.of(theta)
        return np.log(self.predict(correction.apply(self.profile), correction.request_s))

    def cost(self, at: Array, theta: Array) -> float:
        size = np.abs((at - self.logs) / self.sigma)
        loss = np.where(size <= HUBER, size**2, HUBER * (2.0 * size - HUBER))
        return float(loss.sum() + np.sum(((theta - CENTRE) / PRIOR_SD) ** 2))

    def slopes(self, at: Array, theta: Array) -> Array:
        """(n, 2, 6) derivatives by finite differences."""
        out = np.empty((*at.shape, len(TERMS)))
        for j, term in enumerate(TERMS):
            moved = theta.copy()
            moved[j] += term.step
            out[..., j] = (self(moved) - at) / term.step
        return out

    def chords(self, theta: Array) -> Array:
        """(n, 2, 6) mean slopes over WIDE prior widths on either side, in which one jump of TTFT is a small part."""
        out = np.empty((*self.logs.shape, len(TERMS)))
        for j, term in enumerate(TERMS):
            ahead, behind = theta.copy(), theta.copy()
            ahead[j] += WIDE * term.prior_sd
            behind[j] = max(term.low, behind[j] - WIDE * term.prior_sd)
            out[..., j] = (self(ahead) - self(behind)) / (ahead[j] - behind[j])
        return out

    def normal(self, at: Array, theta: Array, slopes: Array, rows: Array) -> tuple[Array, Array]:
        """Normal matrix (6, 6) and gradient (6,) of the cost, over the given runs."""
        z = ((at - self.logs) / self.sigma)[rows]
        weight = np.minimum(1.0, HUBER / np.maximum(np.abs(z), 1e-12))
        scaled = slopes[rows] / self.sigma[None, :, None]
        matrix = np.einsum("nci,ncj,nc->ij", scaled, scaled, weight) + np.diag(PRIOR_SD**-2)
        return matrix, np.einsum("nci,nc,nc->i", scaled, z, weight) + (theta - CENTRE) / PRIOR_SD**2


PRIOR_SD = np.array([term.prior_sd for term in TERMS])
LOW = np.array([term.low for term in TERMS])
CENTRE = np.array([term.centre for term in TERMS])
MOST_STEPS = 6
WIDE = 0.4
POLISH = 0.5, 0.25, 0.125
"""Moves of one constant at a time, in prior widths, that are tried where derivatives lead no further."""
SCREENED = 4
"""Candidates that are fitted: those of which the profile as it is predicts the shape best."""
SHIFT_SD = 0.25


def fit_correction(
    profile: Profile, measured: Array, candidates: Mapping[str, Predict], sigma: Array = SIGMA
) -> CorrectionFit:
    """Fit the constants of a correction.

    Args:
        profile: as it is.
        measured: (n, 2) mean TTFT and TPOT in seconds, n of at least FEWEST_RUNS.
        candidates: what is not known of how the runs were made, each with the simulator that it means; the one of the
            highest posterior is taken, all alike beforehand.
        sigma: (2,) relative noise of TTFT and TPOT.

    Raises:
        MeasurementError: too few runs.
    """
    if len(measured) < FEWEST_RUNS:
        raise MeasurementError(f"{len(measured)} runs: expected at least {FEWEST_RUNS} to correct a profile by")
    logs = np.log(measured)
    fits = {name: _Fit(profile, predict, logs, sigma) for name, predict in candidates.items()}
    start = {name: fit(CENTRE) for name, fit in fits.items()}
    order = sorted(fits, key=lambda name: _shape_cost(start[name] - logs, sigma))[:SCREENED]
    found = {name: _descend(fits[name], start[name]) for name in order}
    costs = {name: fits[name].cost(found[name][1], found[name][0]) for name in order}
    best = min(order, key=lambda name: costs[name])
    fit = fits[best]
    theta, at = _polish(fit, *found[best])
    costs[best] = fit.cost(at, theta)
    slopes = fit.chords(theta)
    everyone = np.ones(len(measured), dtype=bool)
    matrix, _ = fit.normal(at, theta, slopes, everyone)
    inflation = max(1.0, float(np.mean(((at - logs) / sigma) ** 2)))
    covariance = np.asarray(np.linalg.inv(matrix) * inflation, dtype=np.float64)
    left_out = np.empty_like(at)
    for i in range(len(measured)):
        rows = everyone.copy()
        rows[i] = False
        part, gradient = fit.normal(at, theta, slopes, rows)
        without = np.maximum(theta - np.linalg.solve(part, gradient), LOW)
        left_out[i] = at[i] + slopes[i] @ (without - theta)
    return CorrectionFit(
        Correction.of(theta), theta, covariance, best, costs, measured,
        np.exp(start[best]), np.exp(at), np.exp(left_out), sigma,
    )  # fmt: skip


def _shape_cost(residuals: Array, sigma: Array) -> float:
    """Cost of (n, 2) log residuals when each column may be moved as a whole, within SHIFT_SD: of the shape alone."""
    weight = len(residuals) / sigma**2
    shift = residuals.mean(axis=0) * weight / (weight + SHIFT_SD**-2)
    size = np.abs((residuals - shift) / sigma)
    loss = np.where(size <= HUBER, size**2, HUBER * (2.0 * size - HUBER))
    return float(loss.sum() + np.sum((shift / SHIFT_SD) ** 2))


def _descend(fit: _Fit, at: Array) -> tuple[Array, Array]:
    """Gauss-Newton with halved steps, from the priors' centres; the constants and the logs predicted with them."""
    theta = CENTRE.copy()
    cost = fit.cost(at, theta)
    for _ in range(MOST_STEPS):
        matrix, gradient = fit.normal(at, theta, fit.slopes(at, theta), np.ones(len(at), dtype=bool))
        direction = -np.linalg.solve(matrix, gradient)
        for share in (1.0, 0.5, 0.25):
            tried = np.maximum(theta + share * direction, LOW)
            there = fit(tried)
            lower = fit.cost(there, tried)
            if lower < cost:
                break
        else:
            return theta, at
        gained, theta, at, cost = cost - lower, tried, there, lower
        if gained < 0.01 + 0.02 * cost:
            return theta, at
    return theta, at


def _polish(fit: _Fit, theta: Array, at: Array) -> tuple[Array, Array]:
    """Moves of one constant at a time that lower the cost.

    When prompts begin to share a step, the simulated TTFT jumps, and a derivative there leads astray.
    """
    cost = fit.cost(at, theta)
    for share in POLISH:
        for j, term in enumerate(TERMS):
            for way in (1.0, -1.0):
                tried = theta.copy()
                tried[j] = max(term.low, tried[j] + way * share * term.prior_sd)
                there = fit(tried)
                if (lower := fit.cost(there, tried)) < cost:
                    theta, at, cost = tried, there, lower
                    break
    return theta, at


def check_units(measured: Array, before: Array) -> None:
    """Refuse measurements that are another unit away from what the profile predicts.

    Args:
        measured: (n, 2) mean TTFT and TPOT in seconds.
        before: (n, 2) as the profile predicts them.

    Raises:
        MeasurementError: names the column and the factor.
    """
    for name, ratio in zip(("TTFT", "TPOT"), np.median(measured / before, axis=0), strict=True):
        if not 1.0 / UNITS_OFF <= ratio <= UNITS_OFF:
            raise MeasurementError(
                f"{name} of the runs is {ratio:.3g} times what the profile predicts (median): expected within a factor "
                f"{UNITS_OFF:g}; are milliseconds and seconds swapped, or is the profile of another model or GPU?"
            )


def outside(fit: CorrectionFit) -> list[str]:
    """Why the runs lie outside what the profile can be corrected to; empty if they do not."""
    found = []
    for i, (ttft, tpot) in enumerate(np.log(fit.after / fit.measured)):
        for name, error, worst in (("TTFT", ttft, WORST[0]), ("TPOT", tpot, WORST[1])):
            if abs(error) > worst:
                found.append(
                    f"run {i + 1}: {name} is still {math.exp(error):.3g} times the measured one after the correction "
                    f"(at most {math.exp(worst):g} either way)"
                )
    for term, value in zip(TERMS, fit.theta, strict=True):
        if abs(value - term.centre) > FARTHEST * term.prior_sd:
            found.append(
                f"{term.name} ({term.meaning}) would have to move by {value - term.centre:+.3g} {term.unit}, "
                f"prior width {term.prior_sd:g}: the runs look like another model, GPU, precision or "
                "engine than the profile's"
            )
    return found


def law_covariance(profile: Profile, fit: CorrectionFit) -> Array:
    """(6, 6) covariance of the corrected plane's COEFFICIENTS, carried over from that of the constants."""
    from envs.hardware.uncertainty import COEFFICIENTS

    def law(theta: Array) -> Array:
        step = Correction.of(theta).apply(profile).step
        return np.array([getattr(step, name) for name in COEFFICIENTS])

    slopes = np.empty((len(COEFFICIENTS), len(TERMS)))
    for j, term in enumerate(TERMS):
        ahead, behind = fit.theta.copy(), fit.theta.copy()
        ahead[j] += 0.1 * term.step
        behind[j] -= 0.1 * term.step
        slopes[:, j] = (law(ahead) - law(behind)) / (0.2 * term.step)
    result: Array = slopes @ fit.covariance @ slopes.T
    return result
