"""Worlds that could be, and predictors that are wrong: a draw changes the world, ``off_by`` the predictor.

A policy keeps its nominal predictor while worlds are drawn; to ask how much a ranking owes to good predictions, the
world stays and the predictor is set off by a share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.hardware.errors import ProfileError, nearest
from envs.hardware.profile import HandoverLaw, Profile, StepLaw

COEFFICIENTS = ("floor_s", "c0_s", "c_tok_s", "c_attn_s", "c_seq_s", "c_kv_s")

PARTS = ("matrices", "decode", "prefill", "host")
"""Parts of a law as tables that a draw scales, each as a whole (``StepTables.scaled``)."""

COMMON_RELATIVE_SD = 0.1
COMMON_SOURCE = (
    "assumption: one factor on the whole law, since residuals of a fit do not show what engine version and set-up "
    "change; the same configuration was measured 1.14 times apart between versions at the median"
)


def covariance_record(law: StepLaw, covariance: NDArray[np.float64]) -> dict[str, Any]:
    """A covariance as written into a profile: relative standard deviations and correlations.

    Args:
        law: the fitted law.
        covariance: of COEFFICIENTS, shape (6, 6).
    """
    values = np.array([getattr(law, name) for name in COEFFICIENTS])
    sd = np.sqrt(np.diag(covariance))
    relative = np.divide(sd, values, out=np.zeros(6), where=values > 0.0)
    outer = np.outer(sd, sd)
    correlation = np.divide(covariance, outer, out=np.eye(6), where=outer > 0.0)
    return {
        "order": list(COEFFICIENTS),
        "relative_sd": [round(float(value), 4) for value in relative],
        "correlation": [[round(float(value), 2) + 0.0 for value in row] for row in correlation],
    }


def covariance(profile: Profile) -> NDArray[np.float64]:
    """Relative covariance of COEFFICIENTS that the profile carries, shape (6, 6).

    Raises:
        ProfileError: the profile carries none, or one that cannot be.
    """
    record = profile.fit.get("covariance")
    if not isinstance(record, dict):
        raise ProfileError(f"profile {profile.name}: fit.covariance is missing: expected one to draw worlds from")
    try:
        sd = np.array(record["relative_sd"], dtype=np.float64)
        correlation = np.array(record["correlation"], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"profile {profile.name}: fit.covariance cannot be read: {error!r}") from None
    if sd.shape != (6,) or correlation.shape != (6, 6) or not (np.isfinite(sd).all() and (sd >= 0.0).all()):
        raise ProfileError(
            f"profile {profile.name}: fit.covariance: expected 6 relative_sd of at least 0 and 6 x 6 correlation"
        )
    result: NDArray[np.float64] = np.outer(sd, sd) * (correlation + correlation.T) / 2.0
    return result


def parts_sd(profile: Profile) -> NDArray[np.float64]:
    """Relative standard deviation of each of PARTS that a profile with tables carries, shape (4,).

    Raises:
        ProfileError: the profile carries none, or some that cannot be.
    """
    name = f"profile {profile.name}: fit.tables_relative_sd"
    record = profile.fit.get("tables_relative_sd")
    if not isinstance(record, Mapping):
        raise ProfileError(f"{name} is missing: expected {', '.join(PARTS)}, to draw worlds from its tables")
    for key in record:
        if key not in PARTS:
            raise ProfileError(f"{name}.{key}: unknown{nearest(str(key), PARTS)}: expected {', '.join(PARTS)}")
    for part in PARTS:
        value = record.get(part)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise ProfileError(f"{name}.{part} = {value!r}: expected a share from 0 to 1")
    return np.array([record[part] for part in PARTS], dtype=np.float64)


def draw(profile: Profile, rng: np.random.Generator) -> Profile:
    """A world that the measurements leave open.

    Coefficients are drawn from the profile's covariance (a coefficient below 0 becomes 0), then the whole law is
    multiplied by one log-normal factor of relative standard deviation ``fit.common_relative_sd``.

    A world with tables gets others: each of PARTS times a log-normal factor of its own (``fit.tables_relative_sd``),
    all times the common one. Its plane stays, as it is not part of the world then.

    Args:
        profile: the nominal world.
        rng: the only source of randomness.

    Raises:
        ProfileError: the profile carries no covariance, or with tables no ``tables_relative_sd``.
    """
    if profile.tables is not None:
        parts = np.exp(parts_sd(profile) * rng.standard_normal(4))
        parts = parts * _common(profile, rng)
        return profile.with_tables(profile.tables.scaled(*(float(factor) for factor in parts)))
    values, vectors = np.linalg.eigh(covariance(profile))
    root = vectors * np.sqrt(np.clip(values, 0.0, None))  # rounding may leave an eigenvalue a little below 0
    factors = np.clip(1.0 + root @ rng.standard_normal(6), 0.0, None)
    return profile.with_step(_times(profile.step, factors * _common(profile, rng)))


def _common(profile: Profile, rng: np.random.Generator) -> float:
    return float(np.exp(float(profile.fit.get("common_relative_sd", 0.0)) * rng.standard_normal()))


def off_by(profile: Profile, relative: float, seed: int = 0) -> StepLaw:
    """A predictor's law whose every term is wrong by ``relative``, up or down by a seeded coin.

    Terms that are wrong in different directions mislead a policy more than one factor on all, which leaves every
    comparison of predicted times as it was. Not all six coins fall alike: if they would, the last one is turned.

    Args:
        profile: whose law is predicted.
        relative: 0.2 for 20 % off; from 0 to below 1.
        seed: of the coins.

    Raises:
        ProfileError: ``relative`` out of range.
    """
    if not 0.0 <= relative < 1.0:
        raise ProfileError(f"off_by {relative!r}: expected a share from 0 to below 1, such as 0.2")
    signs = np.where(np.random.default_rng(seed).random(6) < 0.5, -1.0, 1.0)
    if abs(signs.sum()) == 6.0:
        signs[-1] = -signs[-1]
    return _times(profile.step, 1.0 + relative * signs)


def perturb(profile: Profile, relative: float, seed: int = 0) -> Profile:
    """The profile with the plane of :func:`off_by`: a predictor for ``ClusterSpec.predictors``.

    Policies predict with the plane, so tables stay as they are.
    """
    return profile.with_step(off_by(profile, relative, seed))


def perturb_handover(law: HandoverLaw, relative: float, seed: int = 0) -> HandoverLaw:
    """A predicted handover whose fixed part and time a byte are off by ``relative``, each up or down by a seeded coin.

    Raises:
        ProfileError: ``relative`` out of range.
    """
    if not 0.0 <= relative < 1.0:
        raise ProfileError(f"perturb_handover {relative!r}: expected a share from 0 to below 1, such as 0.2")
    fixed, a_byte = 1.0 + relative * np.where(np.random.default_rng(seed).random(2) < 0.5, -1.0, 1.0)
    return replace(
        law,
        dispatch_s=float(law.dispatch_s * fixed),
        base_s=float(law.base_s * fixed),
        per_block_s=float(law.per_block_s * a_byte),
        bandwidth_bytes_per_s=float(law.bandwidth_bytes_per_s / a_byte),
    )


def _times(law: StepLaw, factors: NDArray[np.float64]) -> StepLaw:
    return StepLaw(*(float(getattr(law, name) * factor) for name, factor in zip(COEFFICIENTS, factors, strict=True)))
