"""A profile corrected by the request log of a live server: its requests grouped into cells, and a law found by search.

A cell is a number of requests of like prompt length that met a like load; their (geometric) mean TTFT and TPOT are to
a log what a benchmark run is to :mod:`envs.hardware.from_runs`, which corrects the profile. Where the log holds enough,
the coefficients of a plane can be found as well (:func:`nearest_law`). The simulator comes as a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.from_runs import FEWEST_RUNS
from envs.hardware.profile import StepLaw
from envs.hardware.uncertainty import COEFFICIENTS

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST = 50
"""Requests with both times that the fitted part, and the part that is judged, must hold."""
CELL = 12
"""Requests of a cell on the mean, at least; one with less than a third of them is none."""
GROUPS = 3, 4
"""Groups of prompt lengths, and of loads: least and most."""
ONE_LEVEL = 1.5
"""A log whose upper and lower decile of load (requests in flight, plus 1) are within this factor has one load level."""
ONE_LENGTH = 1.25
"""The same of prompt lengths."""
SIGMA = np.array([0.1, 0.04])
"""Relative noise of a cell's mean TTFT and TPOT that the fit assumes. Arrivals and lengths of every request are known,
so TTFT hangs on the law much more than in a benchmark whose load generator is not (0.25 there)."""
MOST_CALLS = 500
"""Simulations of a search."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Requests of the fitted part by what decides their times.

    Attributes:
        index: (n,) cell of each request, -1 for one that is in none.
        prompt: (cells, 2) least and largest prompt tokens.
        load: (cells, 2) least and largest number of requests in flight at arrival.
        one_level: all requests met about the same load.
        one_length: all prompts are about as long.
    """

    index: Ints
    prompt: Ints
    load: Ints
    one_level: bool
    one_length: bool

    def __len__(self) -> int:
        """Number of cells."""
        return len(self.prompt)

    def means(self, times: Array) -> Array:
        """(cells, 2) geometric means of (n, 2) TTFT and TPOT in seconds; NaN where a request has none."""
        out = np.empty((len(self), 2))
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(times)
        for cell in range(len(self)):
            own = logs[self.index == cell]
            for column in range(2):
                known = own[np.isfinite(own[:, column]), column]
                out[cell, column] = math.exp(float(known.mean())) if known.size else math.nan
        return out

    def rows(self) -> list[dict[str, Any]]:
        """What each cell holds, for tables and records."""
        sizes = np.bincount(self.index[self.index >= 0], minlength=len(self))
        return [
            {"prompt_tokens": [int(v) for v in prompt], "in_flight": [int(v) for v in load], "requests": int(size)}
            for prompt, load, size in zip(self.prompt, self.load, sizes, strict=True)
        ]


def make_cells(prompt: Ints, load: Ints, times: Array) -> Cells:
    """Group requests by load, and within a load by prompt length.

    Args:
        prompt: (n,) prompt tokens.
        load: (n,) requests in flight at arrival.
        times: (n, 2) measured TTFT and TPOT in seconds, NaN where there is none: such a request is in no cell.

    Raises:
        MeasurementError: too few requests with both times.
    """
    usable = np.asarray(np.isfinite(times).all(axis=1) & (times > 0).all(axis=1))
    if usable.sum() < FEWEST:
        raise MeasurementError(
            f"{int(usable.sum())} requests with TTFT and TPOT in the part that is fitted: expected at least {FEWEST}"
        )
    groups = max(GROUPS[0], min(GROUPS[1], int(math.sqrt(usable.sum() / CELL))))
    index = np.full(len(prompt), -1, np.int64)
    one_level, one_length = _spread(load[usable] + 1) < ONE_LEVEL, _spread(prompt[usable]) < ONE_LENGTH
    by_load, by_prompt = (1 if one_level else groups), (1 if one_length else groups)
    if one_level != one_length:  # what differs is cut the finer
        by_load, by_prompt = (groups**2, 1) if one_length else (1, groups**2)
    prompts: list[list[int]] = []
    loads: list[list[int]] = []
    for level in _groups(load, usable, by_load):
        for own in _groups(prompt, level, by_prompt):
            if own.sum() >= CELL // 3:
                index[own] = len(prompts)
                prompts.append([int(prompt[own].min()), int(prompt[own].max())])
                loads.append([int(load[own].min()), int(load[own].max())])
    if len(prompts) < FEWEST_RUNS:
        raise MeasurementError(
            f"requests of {len(prompts)} kinds (prompt length, load) in the part that is fitted: expected at least "
            f"{FEWEST_RUNS}; requests that are all alike determine one constant"
        )
    return Cells(index, np.array(prompts, np.int64), np.array(loads, np.int64), one_level, one_length)


def _groups(values: Ints, among: NDArray[np.bool_], groups: int) -> list[NDArray[np.bool_]]:
    """Masks of about equal size by value; equal values stay together."""
    edges = np.unique(np.quantile(values[among], np.arange(1, groups) / groups, method="lower"))
    code = np.searchsorted(edges, values, side="left")
    return [among & (code == i) for i in range(len(edges) + 1) if (among & (code == i)).any()]


def _spread(values: Ints) -> float:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high / max(low, 1e-9))


def nearest_law(start: StepLaw, distance: Callable[[StepLaw], float]) -> StepLaw:
    """The plane of least distance (Nelder-Mead over the logs of its coefficients).

    Args:
        start: where the search begins; a coefficient that is 0 there stays 0.
        distance: of a law's simulation from what was measured, at least 0.
    """
    from scipy.optimize import minimize

    names = [name for name in COEFFICIENTS if getattr(start, name) > 0.0]
    at = np.log([getattr(start, name) for name in names])

    def law(x: Array) -> StepLaw:
        return StepLaw(**{**dict.fromkeys(COEFFICIENTS, 0.0), **dict(zip(names, np.exp(x).tolist(), strict=True))})

    simplex = np.vstack([at, *(at + step for step in np.eye(len(at)) * np.log(1.5))])
    options = {"initial_simplex": simplex, "maxfev": MOST_CALLS, "xatol": 1e-3, "fatol": 1e-4}
    return law(minimize(lambda x: distance(law(x)), at, method="Nelder-Mead", options=options).x)


def ranges(first_s: Array, end_s: Array, prompt: Ints, output: Ints, workers: int) -> dict[str, Any]:
    """What the log's steps held, as the range of a law that was fitted to it (``fit.range``).

    Args:
        first_s: (n,) first tokens.
        end_s: (n,) last tokens.
        prompt: (n,) prompt tokens.
        output: (n,) output tokens.
        workers: that decode; requests are taken to be spread evenly over them.
    """
    at = np.concatenate([first_s, end_s])
    order = np.argsort(at, kind="stable")
    tokens = prompt + output / 2.0
    seqs = np.cumsum(np.concatenate([np.ones(len(first_s)), -np.ones(len(end_s))])[order])
    kv = np.cumsum(np.concatenate([tokens, -tokens])[order])
    longest = int(prompt.max())
    return {
        "new_tokens": [int(prompt.min()), longest],
        "context_tokens": [int(prompt.min()), longest],
        "sequences": [1, max(1, round(float(seqs.max()) / workers))],
        "kv_tokens": [int(prompt.min()), max(longest, round(float(kv.max()) / workers))],
    }
