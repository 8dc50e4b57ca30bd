"""Arrival stamps of unknown unit: told apart by name and by plausibility, never guessed in silence.

``auto`` takes text that is no number as date-times (ISO 8601), numbers in the range of the years 1990 to 2100 as
epoch stamps (s, ms, us or ns by their size), and smaller numbers as seconds from the start. Relative milliseconds
look like seconds a thousand times too slow: a mean gap above a minute, or a mean rate above 100,000 requests a
second, stops with a question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.readers.columns import Table

UNITS = ("auto", "s", "ms", "us", "ns", "iso")
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_EPOCH_S = (631_152_000.0, 4_102_444_800.0)  # 1990 to 2100
_MAX_RELATIVE_S = 10 * 365 * 86_400.0
_MAX_GAP_S = 60.0
_MAX_RATE_PER_S = 1e5
_FEW = 10  # below this many requests a rate says nothing

_ISO = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
)


@dataclass(frozen=True, slots=True)
class Stamps:
    """Arrivals of a table.

    Attributes:
        keys: (n,) what the file's order is judged by.
        arrival_s: (n,) seconds from the start, in the order of the file.
        note: what was done, for the provenance.
    """

    keys: NDArray[np.int64] | NDArray[np.float64]
    arrival_s: NDArray[np.float64]
    note: str


def read_stamps(data: Table, column: str, unit: str) -> Stamps:
    """Arrivals from a column.

    Args:
        data: the table.
        column: its column.
        unit: one of :data:`UNITS`.

    Raises:
        TraceError: no times, or times that are implausible in their unit.
    """
    raw = data.frame[column]
    dates = raw.dtype == pl.Datetime
    if raw.dtype == pl.String and unit in ("auto", "iso"):
        dates = unit == "iso" or raw.str.strip_chars().cast(pl.Float64, strict=False).null_count() == raw.len()
    if dates or unit == "iso":
        ns = data.stamps_ns(column, _ISO, "2026-01-31T23:59:59.5Z").to_numpy()
        return Stamps(ns, (ns - ns.min()) / 1e9, "arrivals: date-times, from the first")
    values = data.number(column, 0, 1e19, "arrival").to_numpy()
    if unit == "auto":
        unit = _epoch_unit(values) or "s"
        arrival = values / _PER_SECOND[unit]
        _plausible(data, column, arrival, "auto")
    else:
        arrival = values / _PER_SECOND[unit]
    if arrival.min() >= _EPOCH_S[0]:
        if arrival.max() > _EPOCH_S[1]:
            raise data.error(f"epoch stamps before 2100 in {unit}", int(arrival.argmax()), column)
        exact = _whole_ns(data, column, unit)
        arrival = arrival - arrival.min() if exact is None else (exact - exact.min()) / 1e9
        return Stamps(values, arrival, f"arrivals: epoch stamps in {unit}, from the first")
    if arrival.max() - arrival.min() > _MAX_RELATIVE_S:
        expected = f"a span below ten years in {unit}; set trace.options.arrival_unit to s, ms, us or ns"
        raise data.error(expected, int(arrival.argmax()), column)
    if arrival.min() > arrival.max() - arrival.min():
        return Stamps(values, arrival - arrival.min(), f"arrivals: {unit}, counted from the first")
    return Stamps(values, arrival, f"arrivals: {unit} from the start")


def _epoch_unit(values: NDArray[np.float64]) -> str | None:
    low, high = float(values.min()), float(values.max())
    for unit, per_second in _PER_SECOND.items():
        if _EPOCH_S[0] * per_second <= low and high <= _EPOCH_S[1] * per_second:
            return unit
    return None


def _whole_ns(data: Table, column: str, unit: str) -> NDArray[np.int64] | None:
    """Epoch stamps exactly, where they are whole numbers: a float64 of nanoseconds is 256 ns coarse."""
    raw = data.frame[column]
    if raw.dtype.is_integer():
        whole = raw.cast(pl.Int64, strict=False)
    elif raw.dtype == pl.String:
        whole = raw.str.strip_chars().str.to_integer(strict=False)
    else:
        return None
    if whole.null_count():
        return None
    return np.asarray(whole.to_numpy().astype(np.int64) * int(1e9 / _PER_SECOND[unit]))


def _plausible(data: Table, column: str, arrival: NDArray[np.float64], unit: str) -> None:
    n, span = arrival.size, float(arrival.max() - arrival.min())
    if n < _FEW:
        return
    if span / n > _MAX_GAP_S:
        raise data.error(
            f"requests less than {_MAX_GAP_S:g} s apart on average if these are seconds, but they are "
            f"{span / n:,.0f} s apart: set trace.options.arrival_unit=ms if they are milliseconds, =s if this is right",
            int(arrival.argmax()),
            column,
        )
    if span * _MAX_RATE_PER_S < n:
        raise data.error(
            f"a rate below {_MAX_RATE_PER_S:,.0f} requests/s, but {n:,} arrive within {span:g} s: "
            "set trace.options.arrival_unit=s (or its unit) if that is right",
            int(arrival.argmax()),
            column,
        )
