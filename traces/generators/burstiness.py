"""Burstiness of drawn starts against a held-out window, beside how well that window itself tells its own.

A window of some minutes holds eight intervals of a minute: its index of dispersion is one draw of a wide law. So the
bound on what a generator draws, a share of the held-out index, comes with a band: the middle 95 % of the index of
windows resampled from the held-out one, by blocks of neighbouring intervals (circular block bootstrap). Beyond the
bound and inside the band, the window cannot tell the two apart; beyond both, traffic has changed or the law is wrong,
and the fitted window's own index beside it says which.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.arrivals import ArrivalLaw
from traces.describe import dispersion

Floats = NDArray[np.float64]

SCALES_S = (1, 10, 60)
BOUND = 0.15
"""Share by which the drawn index may differ from the held-out one."""

_WINDOWS = 200  # drawn, each as long as the held-out one
_RESAMPLED = 2000
_BAND = (0.025, 0.975)


def compare_dispersion(
    law: ArrivalLaw,
    fitted: tuple[Floats, float],
    held_out: tuple[Floats, float],
    *,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Index of dispersion (variance over mean of counts) at 1, 10 and 60 s.

    Args:
        law: of the starts; drawn at the held-out window's rate.
        fitted: sorted starts and duration of the window that it is fitted on, seconds.
        held_out: likewise of another window.
        seed: of what is drawn and resampled.

    Returns:
        ``1s``, ``10s``, ``60s``, as far as the held-out window has eight intervals: ``fitted`` and ``generated``, means
        over stretches as long as the held-out window (a longer one has slower swings in it), ``held_out``, ``off``
        (generated over held out, minus 1), ``bound`` of that, ``within``, ``band`` of the held-out index, ``in_band``.
    """
    starts_s, length_s = held_out
    rng = np.random.default_rng([seed, 15])
    drawn = law.draw(_WINDOWS * length_s, rng, rate_per_s=starts_s.size / length_s)
    table: dict[str, dict[str, Any]] = {}
    for scale in SCALES_S:
        held = dispersion(starts_s, length_s, scale)
        own = _mean(fitted[0], fitted[1], length_s, scale)
        made = _mean(drawn, _WINDOWS * length_s, length_s, scale)
        if not held or own is None or made is None:
            continue
        low, high = sampling_band(starts_s, length_s, scale, rng)
        off = made / held - 1
        table[f"{scale}s"] = {
            "fitted": round(own, 4),
            "held_out": round(held, 4),
            "generated": round(made, 4),
            "off": round(off, 4),
            "bound": BOUND,
            "within": bool(abs(off) <= BOUND),
            "band": [round(low, 4), round(high, 4)],
            "in_band": bool(low <= made <= high),
        }
    return table


def sampling_band(starts_s: Floats, duration_s: float, scale_s: float, rng: np.random.Generator) -> tuple[float, float]:
    """The middle 95 % of the index of dispersion of windows resampled from one, by blocks of its intervals."""
    n = int(duration_s // scale_s)
    counts = np.histogram(starts_s, n, (0.0, n * scale_s))[0]
    block = max(1, round(n ** (1 / 3)))
    begin = rng.integers(0, n, (_RESAMPLED, -(-n // block)))
    at = (begin[:, :, None] + np.arange(block)).reshape(_RESAMPLED, -1)[:, :n] % n
    again = counts[at]
    again = again[again.any(axis=1)]
    low, high = np.quantile(again.var(axis=1) / again.mean(axis=1), _BAND)
    return float(low), float(high)


def _mean(starts_s: Floats, duration_s: float, length_s: float, scale_s: float) -> float | None:
    """Mean index over stretches of a length."""
    whole = max(1, int(duration_s / length_s + 1e-9))
    edges = np.searchsorted(starts_s, length_s * np.arange(whole + 1))
    length_s = min(length_s, duration_s)
    found = [dispersion(starts_s[a:b] - k * length_s, length_s, scale_s) for k, (a, b) in enumerate(pairwise(edges))]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None
