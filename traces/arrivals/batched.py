"""Requests that arrive together, at one stamp: batch times of any law, and batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.arrivals.law import ArrivalLaw, Floats, positive, short
from traces.errors import TraceError

FIELDS = ("single_share", "more_share")


@dataclass(frozen=True, slots=True)
class Batched:
    """Batches at the arrivals of another law.

    Attributes:
        starts: law of the batch times.
        single_share: share of batches of one.
        more_share: chance of one more request in a batch of two and more (its size is 2 + a geometric number).
    """

    starts: ArrivalLaw
    single_share: float
    more_share: float

    @property
    def family(self) -> str:
        """``batched_`` and the family of the batch times."""
        return f"batched_{self.starts.family}"

    @property
    def mean_size(self) -> float:
        """Requests a batch."""
        return self.single_share + (1 - self.single_share) * (2 + self.more_share / (1 - self.more_share))

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        return self.starts.rate_per_s * self.mean_size

    def draw(self, duration_s: float, rng: np.random.Generator, *, rate_per_s: float | None = None) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        starts_per_s = None if rate_per_s is None else positive("rate_per_s", rate_per_s) / self.mean_size
        starts = self.starts.draw(duration_s, rng, rate_per_s=starts_per_s)
        several = 1 + rng.geometric(1 - self.more_share, starts.size)
        return np.repeat(starts, np.where(rng.random(starts.size) < self.single_share, 1, several))

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`; one part a batch, with the probability of its size."""
        starts, sizes = np.unique(arrivals_s, return_counts=True)
        found = self.starts.log_densities(starts, duration_s).copy()
        several = np.log1p(-self.single_share) + np.log1p(-self.more_share) + (sizes - 2) * np.log(self.more_share)
        found[: sizes.size] += np.where(sizes == 1, np.log(self.single_share), several)
        return found

    def log_likelihood(self, arrivals_s: Floats, duration_s: float) -> float:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return float(self.log_densities(arrivals_s, duration_s).sum())

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """Those of the batch times."""
        return self.starts.residuals(np.unique(arrivals_s), duration_s)

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        own = {"single_share": self.single_share, "more_share": self.more_share}
        return {**self.starts.to_dict(), "family": self.family, **own}


def sizes_of(arrivals_s: Floats) -> tuple[float, float]:
    """Shares of single batches and of one more request, by maximum likelihood, kept off 0 and 1."""
    sizes = np.unique(arrivals_s, return_counts=True)[1]
    several = sizes[sizes > 1]
    single = (sizes.size - several.size + 0.5) / (sizes.size + 1)
    more = float((several - 2).sum()) + 0.5
    return short(single), short(more / (more + several.size + 0.5))


def read(raw: Mapping[str, object], starts: ArrivalLaw) -> Batched:
    """From plain numbers."""
    found = [positive(field, raw[field]) for field in FIELDS]
    for field, value in zip(FIELDS, found, strict=True):
        if value >= 1:
            raise TraceError(file="arrival law", column=field, value=value, expected="a share between 0 and 1")
    return Batched(starts, *found)
