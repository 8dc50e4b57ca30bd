"""Traffic of ServeGen clients, drawn client by client: renewal arrivals by rate window, lengths by their own tables.

Source of the method: alibaba/ServeGen : servegen/construct.py @ f891d1189eb32b3868dfc443800c4150548c282a. As there, a
window's gaps follow its Gamma or Weibull shape, stretched to its rate, and lengths its tables. What differs:

* There a window gets ``ceil(rate * width)`` gaps, stretched to fill it exactly, of which the last falls out: counts do
  not vary, and clients below a request a window get one. Here the gap at the end of a window runs on into the next one
  (in units of mean gaps), and the first begins before the trace: counts vary as the shape has it, and rates are right
  at any level.
* There one random number gives a request's prompt and output, so that their ranks are equal. The data hold no word on
  how they go together. ``independent`` draws each by itself, ``equal`` does as upstream.
* A Weibull window's recorded ``cv`` is often not that of its shape (a fit by likelihood); arrivals follow the shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GAMMA, WEIBULL = "Gamma", "Weibull"
MEDIA = ("image", "audio", "video")
RANKS = ("independent", "equal")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of constant rate: ``[start_s, end_s)``, requests a second, gap family and its shape, recorded CV."""

    start_s: float
    end_s: float
    rate_per_s: float
    cv: float
    family: str
    shape: float

    @property
    def law_cv(self) -> float:
        """Coefficient of variation of the gaps that the shape gives."""
        if self.family == GAMMA:
            return 1 / math.sqrt(self.shape)
        first, second = (math.lgamma(1 + k / self.shape) for k in (1, 2))
        return math.sqrt(max(math.expm1(second - 2 * first), 0.0))

    def gaps(self, n: int, rng: np.random.Generator) -> Floats:
        """``n`` gaps in units of their mean."""
        if self.family == GAMMA:
            return rng.gamma(self.shape, 1 / self.shape, n)
        return rng.weibull(self.shape, n) / math.gamma(1 + 1 / self.shape)

    def first(self, rng: np.random.Generator) -> float:
        """What is left of a gap at a time of no choosing: an even share of a gap drawn by its length."""
        if self.family == GAMMA:
            gap = rng.gamma(self.shape + 1, 1 / self.shape)
        else:
            gap = rng.gamma(1 + 1 / self.shape) ** (1 / self.shape) / math.gamma(1 + 1 / self.shape)
        return float(rng.random() * gap)


@dataclass(frozen=True, slots=True)
class Pdf:
    """A table of token counts: (k,) ascending values and their cumulated probabilities."""

    values: Ints
    cumulated: Floats

    def at(self, u: Floats) -> Ints:
        """Values at probabilities."""
        return self.values[np.minimum(np.searchsorted(self.cumulated, u, side="right"), self.values.size - 1)]

    @property
    def mean(self) -> float:
        """Mean of the table."""
        return float(self.values @ np.diff(self.cumulated, prepend=0.0))


@dataclass(frozen=True, slots=True)
class Tables:
    """Length tables from ``start_s`` on, by field."""

    start_s: float
    fields: dict[str, Pdf]


@dataclass(frozen=True, slots=True)
class Client:
    """One client: rate windows in order, and length tables in order (none: upstream has lost them)."""

    number: int
    windows: tuple[Window, ...]
    tables: tuple[Tables, ...]

    @property
    def expected(self) -> float:
        """Requests of its windows, on average."""
        return sum(w.rate_per_s * (w.end_s - w.start_s) for w in self.windows)


@dataclass(frozen=True, slots=True)
class Drawn:
    """(n,) arrivals in absolute seconds, prompts and outputs; requests with tables of a later time, lengths of 0."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    early: int
    zeros: int


def draw_arrivals(client: Client, factor: float, rng: np.random.Generator) -> Floats:
    """Arrivals of a client at ``factor`` times its rates."""
    parts, left = [], None  # left: to the next arrival, in mean gaps
    for window in client.windows:
        rate = window.rate_per_s * factor
        mass = rate * (window.end_s - window.start_s)
        if mass <= 0:
            continue
        at = np.array([window.first(rng) if left is None else left])
        while at[-1] < mass:
            more = int((mass - at[-1]) * 1.05) + 16
            at = np.r_[at, at[-1] + np.cumsum(window.gaps(more, rng))]
        inside = int(np.searchsorted(at, mass))
        left = float(at[inside] - mass)
        times = window.start_s + at[:inside] / rate
        parts.append(times[times < window.end_s])
    return np.concatenate(parts) if parts else np.empty(0)


def draw_client(client: Client, tables: tuple[Tables, ...], factor: float, seed: int, ranks: str) -> Drawn:
    """Requests of one client. Its draws depend on the seed and its number, not on which other clients there are.

    Args:
        client: the client.
        tables: one or more length tables, its own or those that stand in for them.
        factor: of its rates.
        seed: of every draw.
        ranks: one of :data:`RANKS`.
    """
    rng = np.random.default_rng([seed, client.number])
    arrival = draw_arrivals(client, factor, rng)
    starts = np.array([table.start_s for table in tables])
    which = np.searchsorted(starts, arrival, side="right") - 1
    early = int((which < 0).sum())
    which = which.clip(min=0)
    prompt, output = np.zeros(arrival.size, np.int64), np.zeros(arrival.size, np.int64)
    for number in np.unique(which):
        at = np.flatnonzero(which == number)
        prompt[at], output[at] = _lengths(tables[number].fields, at.size, ranks, rng)
    zeros = int(((prompt < 1) | (output < 1)).sum())
    return Drawn(arrival, prompt.clip(min=1), output.clip(min=1), early, zeros)


def _lengths(fields: dict[str, Pdf], n: int, ranks: str, rng: np.random.Generator) -> tuple[Ints, Ints]:
    common = rng.random(n)

    def draw(field: str) -> Ints:
        return fields[field].at(common if ranks == "equal" else rng.random(n))

    prompt = draw("input_tokens" if "input_tokens" in fields else "text_tokens").copy()
    for medium in MEDIA:
        if f"{medium}_count" not in fields:
            continue
        count = draw(f"{medium}_count")
        row = np.repeat(np.arange(n), count)
        each = fields[f"{medium}_tokens"].at(rng.random(row.size))
        prompt += np.bincount(row, weights=each, minlength=n).astype(np.int64)
    return prompt, draw("output_tokens")
