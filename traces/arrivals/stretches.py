"""The two stretches that laws are fitted on and chosen by, cleaned; and how a law is scored on the second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.arrivals import counts, stamps
from traces.arrivals.batched import sizes_of
from traces.arrivals.diurnal import Diurnal
from traces.arrivals.law import ArrivalLaw, Floats, gaps_of, positive
from traces.errors import TraceError

LEAST = 30  # arrivals of either stretch
MOST = 20_000  # arrivals of either stretch that are used: the last of the first, the first of the second
MOST_COARSE = 100_000  # of coarse stamps, whose laws are quicker to fit
NAME = "fit_arrivals"


@dataclass(frozen=True)
class Stretches:
    """Both stretches, no two stamps equal, and no more of them than a fit takes.

    Attributes:
        train_s: (n,) arrivals, from the start of what is used of the first stretch.
        train_duration_s: length of that.
        whole_s: (n,) arrivals of all of the first stretch.
        whole_duration_s: its length.
        held_out_s: (m,) arrivals of the second stretch, from its start.
        held_out_duration_s: length of what is used of it.
        step_s: step of the stamps if they are coarse.
        sizes: of batches (:func:`traces.arrivals.batched.sizes_of`) if requests come in such; then one stamp a batch.
    """

    train_s: Floats
    train_duration_s: float
    whole_s: Floats
    whole_duration_s: float
    held_out_s: Floats
    held_out_duration_s: float
    step_s: float | None
    sizes: tuple[float, float] | None

    @property
    def skipped_s(self) -> float:
        """How much of the first stretch comes before what is used."""
        return self.whole_duration_s - self.train_duration_s

    def at_held_out(self, law: ArrivalLaw) -> ArrivalLaw:
        """The law from the start of the second stretch on."""
        return law.later(self.whole_duration_s) if isinstance(law, Diurnal) else law

    def parts(self, law: ArrivalLaw) -> Floats:
        """Nats of the second stretch, by arrival or by bucket."""
        law = self.at_held_out(law)
        if self.step_s is not None:
            return counts.bucket_scores(law, self.held_out_s, self.held_out_duration_s, self.step_s)[0]
        return law.log_densities(self.held_out_s, self.held_out_duration_s)

    def residuals(self, law: ArrivalLaw) -> Floats:
        """Residuals on the second stretch, by arrival or by bucket."""
        law = self.at_held_out(law)
        if self.step_s is not None:
            return counts.bucket_scores(law, self.held_out_s, self.held_out_duration_s, self.step_s)[1]
        return law.residuals(self.held_out_s, self.held_out_duration_s)


def clean(
    train_s: Floats,
    train_duration_s: float,
    held_out_s: Floats,
    held_out_duration_s: float,
    resolution_s: float | None,
    seed: int,
) -> Stretches:
    """Check, spread equal stamps or take them for batches, and cut; see :func:`traces.arrivals.fit.fit_arrivals`."""
    train, held = (
        _checked("train_s", train_s, train_duration_s),
        _checked("held_out_s", held_out_s, held_out_duration_s),
    )
    told = None if resolution_s is None else positive("resolution_s", resolution_s)
    step_s = told or stamps.stamp_step_s(train)
    coarse = told is not None or stamps.is_coarse(train, train_duration_s)
    equal = bool((np.diff(train) == 0).any() or (np.diff(held) == 0).any())
    sizes = None
    if not coarse and stamps.has_batches(train):
        sizes = sizes_of(train)
        train, held = np.unique(train), np.unique(held)
    elif equal and stamps.stamp_step_s(train) >= step_s * (1 - 1e-9):
        train = stamps.apart(train, train_duration_s, step_s, seed)
        held = stamps.apart(held, held_out_duration_s, step_s, seed + 1)
    most = MOST_COARSE if coarse else MOST
    whole, used, span = train, train, float(train_duration_s)
    if train.size > most:  # what comes next resembles the latest
        begin = float(train[-most - 1])
        used, span = train[-most:] - begin, span - begin
    held_span = float(held_out_duration_s)
    if held.size > most:
        held, held_span = held[:most], float(held[most])
    return Stretches(used, span, whole, float(train_duration_s), held, held_span, step_s if coarse else None, sizes)


def _checked(field: str, arrivals_s: Floats, duration_s: float) -> Floats:
    arrivals = np.asarray(arrivals_s, np.float64)
    gaps_of(arrivals, duration_s)
    if arrivals.size < LEAST:
        expected = f"{LEAST} arrivals or more: a law of fewer would be a guess"
        raise TraceError(file=NAME, column=field, value=arrivals.size, expected=expected)
    return arrivals
