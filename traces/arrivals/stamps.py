"""How finely arrivals are stamped, and what is to be done about it before a law is fitted."""

from __future__ import annotations

import numpy as np

from traces.arrivals.law import Floats

_COARSE = 0.2  # arrivals in one step of the stamps: from here on, gaps are mostly rounding
_BATCHES = 0.002, 3.0  # share of equal stamps, and how often as many as one step apart: from here on, sent together


def stamp_step_s(arrivals_s: Floats) -> float:
    """Largest step in whole microseconds of which every stamp is a multiple."""
    whole = np.rint(np.asarray(arrivals_s, np.float64) * 1e6).astype(np.int64)
    step = int(np.gcd.reduce(np.diff(whole))) if whole.size > 1 else 0
    return max(step, 1) / 1e6


def is_coarse(arrivals_s: Floats, duration_s: float) -> bool:
    """Whether gaps are meaningless: a step of the stamps holds 0.2 arrivals in the mean, or more."""
    return bool(stamp_step_s(arrivals_s) * arrivals_s.size / duration_s > _COARSE)


def has_batches(arrivals_s: Floats) -> bool:
    """Whether more arrivals share a stamp than rounding explains, which makes about as many one step apart."""
    if arrivals_s.size < 2:
        return False
    steps = np.rint(np.diff(arrivals_s) / stamp_step_s(arrivals_s))
    share, times = _BATCHES
    return bool((steps == 0).mean() > times * (steps == 1).mean() + share)


def apart(arrivals_s: Floats, duration_s: float, step_s: float, seed: int) -> Floats:
    """The arrivals spread evenly, by a seed, over the step in which each lies; sorted, and no two equal."""
    spread = arrivals_s + step_s * np.random.default_rng(seed).random(arrivals_s.size)
    return np.sort(np.minimum(spread, np.nextafter(duration_s, 0.0)))
