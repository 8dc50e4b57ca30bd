"""Start, schedule, first token and end of a gateway's requests on one clock, and durations in their unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.readers.columns import Table
from traces.readers.gateway_names import SECONDS
from traces.readers.log import Log
from traces.readers.naming import Field, unit_of
from traces.readers.stamps import PER_SECOND, StampColumn, arrivals

LATENCY_UNITS = ("auto", "s", "ms", "us", "ns")
_EPOCH_S = (631_152_000, 4_102_444_800)  # 1990 to 2100
_PER_TOKEN_S = (2e-3, 2.0)  # a request's duration over its output tokens: a thousand apart, so that one unit fits
_UNSURE = 2.0  # and this close to a bound, none does for sure
_Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Clock:
    """Where the arrivals count from."""

    unit: str
    epoch: bool
    origin_s: int


def one_clock(table: Table, at: Mapping[str, str], unit: str) -> tuple[_Times, dict[str, _Times], str]:
    """Starts, the other stamps that the log has by quantity, NaN where there is none, and a note. Seconds.

    Args:
        table: the log.
        at: quantity -> column.
        unit: ``trace.options.arrival_unit``.

    Raises:
        TraceError: no times, an implausible unit or rate, or a stamp on another clock than the starts.
    """
    name = at["start"]
    column = StampColumn(name, unit)
    values = column(table)
    # Only the error of a log is used of it, which a table has too.
    stamps = arrivals(cast(Log, table), values, column, Field(name, _unit_of(name)))
    low_s = float(values.min()) / PER_SECOND[stamps.unit]  # type: ignore[arg-type]
    clock = _Clock(stamps.unit, low_s >= _EPOCH_S[0], int(low_s))
    starts = _since(values, stamps.unit, clock)
    others = {q: _on(table, at[q], unit, clock, name) for q in ("scheduled", "first", "end") if q in at}
    coarse = np.unique(starts).size < starts.size and bool((starts == np.floor(starts)).all())
    return starts, others, stamps.note + (" (whole seconds, several requests in one)" if coarse else "")


def _unit_of(name: str) -> str | None:
    return "ns" if name.lower().endswith(("unix_nano", "unixnano")) else unit_of(name.rsplit(".", 1)[-1])


def _on(table: Table, name: str, unit: str, clock: _Clock, start: str) -> _Times:
    """Stamps of another column on the clock of the starts."""
    column = StampColumn(name, unit, null=True)
    values = column(table)
    known = values.drop_nulls()
    if not known.len():
        return np.full(values.len(), np.nan)
    found = "ns" if column.dates else _epoch_unit(known)
    if (found is not None) != clock.epoch:
        raise table.error(
            f"stamps on the clock of {start}, but one counts since 1970 and the other does not: map another column, or "
            "none (trace.options.columns: QUANTITY: null)",
            int(np.argmax(values.is_not_null().to_numpy())),
            name,
        )
    given = unit if unit in PER_SECOND and not column.dates else None
    return _since(values, given or found or _unit_of(name) or clock.unit, clock)


def _epoch_unit(values: pl.Series) -> str | None:
    median = float(values.median())  # type: ignore[arg-type]
    return next((u for u, n in PER_SECOND.items() if _EPOCH_S[0] * n <= median <= _EPOCH_S[1] * n), None)


def _since(values: pl.Series, unit: str, clock: _Clock) -> _Times:
    """Seconds since the clock's origin; whole numbers are subtracted before they become floats."""
    since = values - clock.origin_s * PER_SECOND[unit]
    return since.cast(pl.Float64).fill_null(np.nan).to_numpy() / PER_SECOND[unit]


def durations(
    table: Table,
    at: Mapping[str, str],
    sent_s: _Times,
    others: Mapping[str, _Times],
    output_tokens: NDArray[np.int64],
    unit: str,
) -> tuple[_Times, _Times, str | None]:
    """First tokens and ends, from their stamps, else from durations since sending; and how units were found.

    Args:
        table: the log.
        at: quantity -> column.
        sent_s: (n,) starts.
        others: quantity -> (n,) stamps.
        output_tokens: (n,) output lengths, which tell the unit of a duration.
        unit: ``trace.options.latency_unit``.

    Raises:
        TraceError: a duration whose unit cannot be told.
    """
    nothing = np.full(sent_s.size, np.nan)
    first, end = others.get("first", nothing), others.get("end", nothing)
    notes = []
    if "e2e" in at:
        name = at["e2e"]
        values = _numbers(table, name)
        found = _named(name, unit) or _by_token(table, name, values, output_tokens)
        notes.append(f"{name} in {found}")
        end = np.where(np.isnan(end), sent_s + values / PER_SECOND[found], end)
    if "ttft" in at:
        name = at["ttft"]
        values = _numbers(table, name)
        found = _named(name, unit) or _by_end(table, name, values, end - sent_s)
        notes.append(f"{name} in {found}")
        first = np.where(np.isnan(first), sent_s + values / PER_SECOND[found], first)
    return first, end, f"durations: {', '.join(notes)}" if notes else None


def _numbers(table: Table, name: str) -> _Times:
    return table.number(name, 0, 1e18, "a duration", null=True).fill_null(np.nan).to_numpy()


def _named(name: str, unit: str) -> str | None:
    """The unit by the name, else by the option; None to find out."""
    return "s" if name in SECONDS else _unit_of(name) or (unit if unit != "auto" else None)


def _by_token(table: Table, name: str, values: _Times, output_tokens: NDArray[np.int64]) -> str:
    """The one unit in which a request takes 2 ms to 2 s an output token."""
    some = (output_tokens > 0) & (values > 0)
    if some.any():
        ratio = float(np.median(values[some] / output_tokens[some]))
        for found, per_second in PER_SECOND.items():
            if _PER_TOKEN_S[0] * _UNSURE <= ratio / per_second <= _PER_TOKEN_S[1] / _UNSURE:
                return found
    raise _ask(table, name, some)


def _by_end(table: Table, name: str, values: _Times, e2e_s: _Times) -> str:
    """The largest unit in which most first tokens come before the end."""
    some = (values > 0) & (e2e_s > 0)
    if some.any():
        ratio = float(np.median(values[some] / e2e_s[some]))
        for found, per_second in PER_SECOND.items():
            if 1e-3 < ratio / per_second <= 1:
                return found
    raise _ask(table, name, some)


def _ask(table: Table, name: str, some: NDArray[np.bool_]) -> Exception:
    return table.error(
        "a duration whose name says the unit, or whose size does: set trace.options.latency_unit to s, ms, us or ns",
        int(np.argmax(some)),
        name,
    )
