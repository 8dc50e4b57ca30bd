"""Shared by the text readers: CSV into columns of strings, strings into checked numbers and stamps.

Everything is read as text first, so that a bad value can be shown as it stands in the file. Rows in errors
are lines of the file (a header is line 1; exact as long as no quoted field holds a line break).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import row_of
from traces.errors import nearest
from traces.source import Source

FIRST_ROW = 2  # line of the first record, after the header


def check_utf8(source: Source) -> None:
    """Raise at the line of the first byte that is not UTF-8."""
    try:
        source.data.decode("utf-8")
    except UnicodeDecodeError as error:
        row = source.data.count(b"\n", 0, error.start) + 1
        bad = source.data[error.start : error.start + 4]
        raise source.error("UTF-8 text", row=row, value=bad) from error


def csv_strings(source: Source) -> pl.DataFrame:
    """Every column as text, header required.

    Raises:
        TraceError: not UTF-8, no header, no rows, a row with too many fields, an unclosed quote.
    """
    check_utf8(source)
    data = source.data.rstrip()  # blank lines at the end are no records
    if not data:
        raise source.error("a header and at least one request", value="an empty file")
    try:
        frame = pl.read_csv(data, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise _csv_error(source, data, error) from error
    if frame.height == 0:
        raise source.error("at least one request after the header", value="a header only")
    return frame


def _csv_error(source: Source, data: bytes, error: Exception) -> Exception:
    lines = data.decode("utf-8").splitlines()
    width = lines[0].count(",") if lines else 0
    for number, line in enumerate(lines, start=1):
        if line.count('"') % 2:
            return source.error("quotes that close on their line", row=number, value=line)
        if line.count(",") > width and '"' not in line:
            return source.error(f"{width + 1} fields, as in the header", row=number, value=line)
    return source.error("comma-separated values with a header", value=str(error).splitlines()[0])


def need(frame: pl.DataFrame, columns: Collection[str], source: Source) -> None:
    """Raise for the first of ``columns`` that is missing, naming the nearest one that is there."""
    for column in columns:
        if column not in frame.columns:
            hint = nearest(column, frame.columns) or f" (found: {', '.join(frame.columns[:12])})"
            raise source.error(f"this column to be present{hint}", row=1, column=column)


def whole(frame: pl.DataFrame, column: str, low: int, high: int, meaning: str, source: Source) -> pl.Series:
    """A text column as Int64 within [low, high]; raises at the first row that is not."""
    text = frame[column].str.strip_chars()
    values = text.str.to_integer(strict=False)
    bad = ~((values >= low) & (values <= high)).fill_null(False).to_numpy()
    _raise_first(bad, frame[column], f"a whole number from {low:,} to {high:,} ({meaning})", source)
    return values.cast(pl.Int64)


def number(frame: pl.DataFrame, column: str, low: float, high: float, meaning: str, source: Source) -> pl.Series:
    """A text column as Float64 within [low, high]; raises at the first row that is not (NaN is not)."""
    values = frame[column].str.strip_chars().cast(pl.Float64, strict=False)
    bad = ~((values >= low) & (values <= high)).fill_null(False).to_numpy()
    _raise_first(bad, frame[column], f"a number from {low:,.15g} to {high:,.15g} ({meaning})", source)
    return values


def stamps_ns(frame: pl.DataFrame, column: str, formats: tuple[str, ...], example: str, source: Source) -> pl.Series:
    """A text column of date-times as nanoseconds since 1970, Int64; the first format that fits a value counts."""
    text = frame[column].str.strip_chars()
    tries = [text.str.to_datetime(f, time_unit="ns", strict=False) for f in formats]
    values = pl.select(pl.coalesce([t.dt.replace_time_zone(None) for t in tries])).to_series()
    _raise_first(values.is_null().to_numpy(), frame[column], f"a time such as {example}", source)
    return values.dt.timestamp("ns")


def in_order(
    keys: NDArray[np.int64] | NDArray[np.float64],
    shown: Callable[[int], object],
    column: str,
    sort: bool,
    source: Source,
) -> tuple[NDArray[np.int64] | None, str | None]:
    """The order that sorts ``keys``, with a line for the provenance; (None, None) if they are sorted.

    Raises:
        TraceError: they are not and ``sort`` is false; the error says how to repair it.
    """
    back = keys[1:] < keys[:-1]
    count = int(back.sum())
    if not count:
        return None, None
    if not sort:
        at = row_of(back)
        raise source.error(
            f"stamps in ascending order ({count} steps back in time); the option sort=true sorts them",
            row=at + FIRST_ROW,
            column=column,
            value=shown(at),
        )
    return np.argsort(keys, kind="stable"), f"repair sort: {count} steps back in time, rows sorted by {column}"


def _raise_first(bad: NDArray[np.bool_], text: pl.Series, expected: str, source: Source) -> None:
    if bad.any():
        row = row_of(bad)
        found = text[row - 1]
        raise source.error(
            expected, row=row - 1 + FIRST_ROW, column=text.name, value="nothing" if found is None else found
        )
