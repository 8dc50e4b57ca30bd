"""Stamps of unknown unit: told apart by name and by plausibility, never guessed in silence.

A stamp is text that is no number (ISO 8601), a number in the range of the years 1990 to 2100 (an epoch stamp in s,
ms, us or ns by its size), or a smaller number, from the start: in the unit that the column's name says (``ts_ms``),
else in seconds. What is implausible in its unit stops with a question: a name that contradicts an epoch stamp's size;
a mean gap above a minute (milliseconds look like seconds a thousand times too slow); a rate above 100,000 requests a
second, or above 1,000 (100, if most stamps are no whole numbers) where only the name says that they are no seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import nearest
from traces.readers.columns import Table
from traces.readers.log import Log
from traces.readers.naming import Field, unit_of
from traces.readers.plausible import FEW, MAX_SPAN_S, too_fast, too_slow
from traces.source import Source

UNITS = ("auto", "s", "ms", "us", "ns", "iso")
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NS = 10**9
_EPOCH_S = (631_152_000, 4_102_444_800)  # 1990 to 2100
_MAX_SERVICE_S = 3600.0
_MAX_RATE_BY_NAME_PER_S = 1e3
_MAX_RATE_OF_FRACTIONS_PER_S = 1e2
_OPTION = "trace.options.arrival_unit"

_ISO = (
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f",
)


@dataclass
class StampColumn:
    """Reads a column of stamps piece by piece, for :meth:`traces.readers.log.Log.gather`.

    The values are Int64 where they are whole numbers (a float64 of epoch nanoseconds is 256 ns coarse) and
    nanoseconds since 1970 where they are date-times; else Float64.

    Attributes:
        name: column of the file.
        unit: one of :data:`UNITS`.
        null: whether it may be empty.
        dates: whether it holds date-times; found out from the first piece.
    """

    name: str
    unit: str
    null: bool = False
    dates: bool | None = field(default=None, init=False)

    def __call__(self, piece: Table) -> pl.Series:
        """The stamps of a piece."""
        raw = piece.frame[self.name]
        if self.dates is None:
            self.dates = self.unit == "iso" or raw.dtype.base_type() == pl.Datetime
            if raw.dtype == pl.String and self.unit == "auto":
                given = raw.str.strip_chars().replace("", None).drop_nulls()
                self.dates = given.len() > 0 and given.cast(pl.Float64, strict=False).null_count() == given.len()
        if self.dates:
            return piece.stamps_ns(self.name, _ISO, "2026-01-31T23:59:59.5Z", null=self.null)
        whole = raw.str.strip_chars().str.to_integer(strict=False) if raw.dtype == pl.String else raw
        if whole.dtype.is_integer() and whole.null_count() == (raw.null_count() if self.null else 0):
            signed = whole.cast(pl.Int64, strict=False)
            if signed.null_count() == whole.null_count() and not (signed < 0).any():
                return signed
        return piece.number(self.name, 0, 1e19, "a time", null=self.null)


@dataclass(frozen=True, slots=True)
class Stamps:
    """Arrivals of a table.

    Attributes:
        keys: (n,) what the file's order is judged by.
        arrival_s: (n,) seconds from the start, in the order of the file.
        note: what was done, for the provenance.
        unit: the unit they were in: ``s``, ``ms``, ``us`` or ``ns``.
        origin: what became 0, in that unit.
    """

    keys: NDArray[np.int64] | NDArray[np.float64]
    arrival_s: NDArray[np.float64]
    note: str
    unit: str
    origin: int | float


def check_unit(source: Source, option: str, unit: object, units: tuple[str, ...] = UNITS) -> None:
    """Raise unless ``unit`` is one that the option takes."""
    if unit not in units:
        expected = f"one of {', '.join(units)}{nearest(str(unit), units)}"
        raise source.error(expected, column=f"trace.options.{option}", value=unit)


def arrivals(log: Log, values: pl.Series, column: StampColumn, named: Field) -> Stamps:
    """Arrivals from the values of their column.

    Args:
        log: the table, for errors.
        values: (n,) as :class:`StampColumn` read them.
        column: how they were read.
        named: the column's name, and the unit that it says.

    Raises:
        TraceError: times that are implausible in their unit.
    """
    keys = values.to_numpy()
    if column.dates:
        origin = int(keys.min())
        span_s = (int(keys.max()) - origin) / _NS
        wrong = (too_slow(keys.size, span_s) or too_fast(keys.size, span_s)) if column.unit == "auto" else None
        if wrong:
            raise log.error(f"{wrong}: set {_OPTION}=iso if that is right", int(keys.argmax()), named.name)
        return Stamps(keys, _since(keys, origin, "ns"), "arrivals: date-times, from the first", "ns", origin)
    low, high = float(keys.min()), float(keys.max())
    epoch = _epoch_unit(low, high)
    asked = column.unit == "auto"
    unit = (epoch or named.unit or "s") if asked else column.unit
    if asked and epoch and named.unit not in (None, epoch):
        raise log.error(_contradiction(named, epoch), int(keys.argmax()), named.name)
    per_second = PER_SECOND[unit]
    if asked:
        _plausible(log, keys, (high - low) / per_second, named, unit, epoch is not None)
    by_name = " (by its name)" if asked and named.unit == unit and unit != "s" else ""
    if low / per_second >= _EPOCH_S[0]:
        if high / per_second > _EPOCH_S[1]:
            raise log.error(f"epoch stamps before 2100 in {unit}", int(keys.argmax()), named.name)
        note = f"arrivals: epoch stamps in {unit}, from the first"
        return Stamps(keys, _since(keys, keys.min().item(), unit), note, unit, keys.min().item())
    if (high - low) / per_second > MAX_SPAN_S:
        expected = f"a span below ten years in {unit}; set {_OPTION} to s, ms, us or ns"
        raise log.error(expected, int(keys.argmax()), named.name)
    arrival = keys / per_second
    if low > high - low:
        note = f"arrivals: {unit}{by_name}, counted from the first"
        return Stamps(keys, arrival - arrival.min(), note, unit, keys.min().item())
    return Stamps(keys, arrival, f"arrivals: {unit}{by_name} from the start", unit, 0.0)


def ends(log: Log, values: pl.Series, column: StampColumn, named: Field, stamps: Stamps) -> NDArray[np.float64]:
    """(n,) end stamps on the clock of the arrivals, seconds from their start; NaN where there is none.

    Args:
        log: the table, for errors.
        values: (n,) as :class:`StampColumn` read them.
        column: how they were read.
        named: the column's name, and the unit that it says.
        stamps: the arrivals.

    Raises:
        TraceError: an end before its arrival, or ends that are implausibly late: another clock or unit.
    """
    empty = values.is_null().to_numpy()
    keys = values.fill_null(0).to_numpy()
    own = "ns" if column.dates else column.unit
    if own == "auto":
        some = keys[~empty]
        since_1970 = bool(some.size) and stamps.origin >= _EPOCH_S[0] * PER_SECOND[stamps.unit]
        epoch = _epoch_unit(float(some.min()), float(some.max())) if since_1970 else None
        if epoch and named.unit not in (None, epoch):
            raise log.error(_contradiction(named, epoch), int(np.argmax(~empty)), named.name)
        own = epoch or unit_of(named.name) or stamps.unit
    finer = PER_SECOND[own] / PER_SECOND[stamps.unit]
    end_s = _since(keys, stamps.origin * int(finer) if finer >= 1 else stamps.origin * finer, own)
    end_s[empty] = np.nan
    service = end_s - stamps.arrival_s
    known = service[~empty]
    if known.size and not -MAX_SPAN_S < np.median(known) < MAX_SPAN_S:
        expected = f"ends on the clock of the arrivals ({stamps.unit}, {stamps.note}): epoch, or relative, both"
        raise log.error(expected, int(np.argmax(~empty)), named.name)
    if column.unit == "auto" and known.size >= FEW and np.median(known) > _MAX_SERVICE_S:
        unit = stamps.unit
        expected = (
            f"ends within {_MAX_SERVICE_S:g} s of arrivals, but those are a median of {np.median(known):,.0f} s: are "
            f"the ends in another unit? A name such as end_ms says it; {_OPTION}={unit} if both are in {unit}"
        )
        raise log.error(expected, int(np.argmax(~empty)), named.name)
    # A float64 of epoch seconds is a quarter of a microsecond coarse.
    early = service < -1e-6
    if early.any():
        at = int(np.argmax(early))
        expected = f"an end after its arrival, which is {-service[at]:g} s later (ends in {own})"
        raise log.error(expected, at, named.name)
    return np.maximum(end_s, stamps.arrival_s)


def _since(keys: NDArray[np.int64] | NDArray[np.float64], origin: int | float, unit: str) -> NDArray[np.float64]:
    """Seconds since ``origin``; whole numbers are subtracted exactly, and become nanoseconds first."""
    if keys.dtype == np.int64 and float(origin).is_integer():
        since = keys - np.int64(origin)
        scale = _NS // PER_SECOND[unit]
        if max(abs(int(since.min())), abs(int(since.max()))) * scale < 2**63:
            since *= scale
            return np.asarray(since / 1e9)
    return np.asarray(keys / PER_SECOND[unit] - origin / PER_SECOND[unit])


def _contradiction(named: Field, epoch: str) -> str:
    return (
        f"epoch stamps in {named.unit}, as the name {named.name!r} says, but they are such in {epoch}: which is "
        f"it? {_OPTION}={epoch} or ={named.unit}"
    )


def _epoch_unit(low: float, high: float) -> str | None:
    for unit, per_second in PER_SECOND.items():
        if _EPOCH_S[0] * per_second <= low and high <= _EPOCH_S[1] * per_second:
            return unit
    return None


def _plausible(
    log: Log, keys: NDArray[np.int64] | NDArray[np.float64], span_s: float, named: Field, unit: str, epoch: bool
) -> None:
    n = keys.size
    if n < FEW:
        return
    if slow := too_slow(n, span_s):
        smaller = {"s": "ms", "ms": "us", "us": "ns", "ns": "ns"}[unit]
        expected = (
            f"{slow} if these are {_word(unit)}: set {_OPTION}={smaller} if they are {_word(smaller)}, ={unit} if this "
            "is right"
        )
        raise log.error(expected, int(keys.argmax()), named.name)
    if fast := too_fast(n, span_s):
        expected = f"{fast}: set {_OPTION}={unit} (or its unit) if that is right"
        raise log.error(expected, int(keys.argmax()), named.name)
    if unit == "s" or named.unit != unit or epoch:
        return
    fractions = keys.dtype == np.float64 and np.count_nonzero(keys != np.floor(keys)) > n / 2
    limit = _MAX_RATE_OF_FRACTIONS_PER_S if fractions else _MAX_RATE_BY_NAME_PER_S
    if span_s * limit < n:
        what = "of which most are no whole numbers, " if fractions else ""
        expected = (
            f"{_word(unit)}, as the name {named.name!r} says, but these {n:,} stamps, {what}are then "
            f"{n / span_s:,.0f} requests/s: are they seconds ({n / span_s / PER_SECOND[unit]:,.3g} requests/s)? "
            f"{_OPTION}=s, or ={unit} if the name is right"
        )
        raise log.error(expected, int(keys.argmax()), named.name)


def _word(unit: str) -> str:
    return {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[unit]
