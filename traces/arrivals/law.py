"""What an arrival law is, and what its kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError

Floats = NDArray[np.float64]
NAME = "arrival law"


class ArrivalLaw(Protocol):
    """A stationary point process, or one of a known period."""

    @property
    def family(self) -> str:
        """Name of the kind."""

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""

    def draw(self, duration_s: float, rng: np.random.Generator, *, rate_per_s: float | None = None) -> Floats:
        """Sorted arrivals in [0, ``duration_s``).

        Args:
            duration_s: length of the stretch, seconds.
            rng: source of every draw.
            rate_per_s: another mean rate: time is stretched, so that a burst keeps its number of requests.
        """

    def log_likelihood(self, arrivals_s: Floats, duration_s: float) -> float:
        """Log density of arrivals on [0, ``duration_s``), all of them together, nats (per second each)."""

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """(n+1,) the parts of it: each arrival given all before, then no further one up to ``duration_s``."""

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """(n,) probability of an earlier arrival than the one seen, given all before it.

        Independent and even in [0, 1] if the law is right (time rescaling).
        """

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for YAML; :func:`traces.arrivals.law_from_dict` reads them."""


class Stationary:
    """What laws that know no clock share: ``draw`` at another rate, the sum of log densities."""

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        raise NotImplementedError

    def _draw(self, duration_s: float, rng: np.random.Generator) -> Floats:
        raise NotImplementedError

    def draw(self, duration_s: float, rng: np.random.Generator, *, rate_per_s: float | None = None) -> Floats:
        """See :class:`ArrivalLaw`."""
        positive("duration_s", duration_s)
        own = self.rate_per_s
        stretch = 1.0 if rate_per_s is None else own / positive("rate_per_s", rate_per_s)
        arrivals = self._draw(duration_s / stretch, rng) * stretch
        return arrivals[arrivals < duration_s]

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`ArrivalLaw`."""
        raise NotImplementedError

    def log_likelihood(self, arrivals_s: Floats, duration_s: float) -> float:
        """See :class:`ArrivalLaw`."""
        return float(self.log_densities(arrivals_s, duration_s).sum())


def positive(field: str, value: object, *, zero: bool = False) -> float:
    """A finite number above 0 (or of 0 and more); an error names the field."""
    good = isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
    if not good or not (0.0 <= float(value) < np.inf) or (float(value) == 0.0 and not zero):  # type: ignore[arg-type]
        expected = "a number of 0 or more" if zero else "a positive number"
        raise TraceError(file=NAME, column=field, value=value, expected=expected)
    return float(value)  # type: ignore[arg-type]


def numbers(
    field: str, value: object, n: int | None = None, *, zero: bool = False, share: bool = False
) -> tuple[float, ...]:
    """Finite numbers above 0 (or of 0 and more), ``n`` if given, of sum 1 if shares; an error names the field."""
    if not isinstance(value, list | tuple) or not value or (n is not None and len(value) != n):
        raise TraceError(file=NAME, column=field, value=value, expected=f"a list of {n or 'one or more'} numbers")
    found = tuple(positive(f"{field}[{i}]", item, zero=zero or share) for i, item in enumerate(value))
    if share and abs(sum(found) - 1.0) > 1e-3:
        raise TraceError(file=NAME, column=field, value=list(found), expected="shares that sum to 1")
    return found


def rows(field: str, value: object, n: int, width: int, *, share: bool = False) -> tuple[tuple[float, ...], ...]:
    """``n`` rows of ``width`` numbers of 0 and more, each of sum 1 if shares; an error names the field."""
    if not isinstance(value, list | tuple) or len(value) != n:
        raise TraceError(file=NAME, column=field, value=value, expected=f"{n} rows of {width} numbers")
    return tuple(numbers(f"{field}[{i}]", row, width, zero=True, share=share) for i, row in enumerate(value))


def only(raw: Mapping[str, object], *fields: str) -> None:
    """Refuse fields that are missing or that nobody reads."""
    for field in fields:
        if field not in raw:
            raise TraceError(file=NAME, column=field, expected=f"this field for family {raw.get('family')!r}")
    for field in raw:
        if field not in (*fields, "family"):
            raise TraceError(
                file=NAME, column=str(field), expected=f"only {', '.join(fields)} for family {raw.get('family')!r}"
            )


def short(value: float, digits: int = 6) -> float:
    """Rounded to significant digits: files stay readable, and laws equal what is read back."""
    return float(f"{float(value):.{digits}g}")


def gaps_of(arrivals_s: Floats, duration_s: float) -> tuple[Floats, float]:
    """(n,) time since the arrival before, or since 0 for the first, and the time left after the last.

    Raises:
        TraceError: arrivals that are not sorted or not in [0, duration_s].
    """
    arrivals = np.asarray(arrivals_s, np.float64)
    gaps = np.diff(arrivals, prepend=0.0)
    positive("duration_s", duration_s)
    if arrivals.ndim != 1 or not np.isfinite(arrivals).all() or (gaps < 0).any():
        raise TraceError(file=NAME, column="arrivals_s", expected="sorted finite seconds of 0 or more")
    if arrivals.size and arrivals[-1] > duration_s:
        found = float(arrivals[-1])
        raise TraceError(file=NAME, column="arrivals_s", value=found, expected=f"arrivals before {duration_s:g} s")
    return gaps, float(duration_s - arrivals[-1]) if arrivals.size else float(duration_s)
