"""Shared by the table readers: a file as named columns, and columns as checked numbers, stamps and texts.

CSV is read as text first, so that a bad value can be shown as it stands in the file. ``row`` in an error is the
line of a CSV file (the header is line 1; exact as long as no quoted field holds a line break), or the row of a
Parquet file counted from 1.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import row_of
from traces.errors import nearest
from traces.source import Source

PARQUET_MAGIC = b"PAR1"
PARQUET_ENDINGS = (".parquet", ".parquet.gz", ".parquet.zst", ".pq")
CSV_FIRST_ROW = 2


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a file.

    Attributes:
        frame: (n,) rows, n >= 1.
        source: the file.
        first_row: number of row 0 in error messages.
    """

    frame: pl.DataFrame
    source: Source
    first_row: int

    def need(self, columns: Collection[str]) -> None:
        """Raise for the first of ``columns`` that is missing, naming the nearest one that is there."""
        for column in columns:
            if column not in self.frame.columns:
                hint = nearest(column, self.frame.columns) or f" (found: {', '.join(self.frame.columns[:12])})"
                raise self.source.error(f"this column to be present{hint}", column=column)

    def whole(self, column: str, low: int, high: int, meaning: str, *, null: bool = False) -> pl.Series:
        """Column as Int64 within [low, high]; raises at the first row that is not. ``null``: may be empty."""
        raw = self.frame[column]
        if raw.dtype == pl.String:
            values = raw.str.strip_chars().str.to_integer(strict=False)
        elif raw.dtype.is_float():
            finite = raw.is_finite() & (raw.floor() == raw) & (raw.abs() < 2.0**62)
            values = pl.select(pl.when(finite).then(raw.fill_nan(None)).otherwise(None)).to_series()
            values = values.cast(pl.Int64, strict=False)
        else:
            values = self._plain(raw).cast(pl.Int64, strict=False)
        bad = ~((values >= low) & (values <= high)).fill_null(False).to_numpy()
        self._raise_first(bad, column, f"a whole number from {low:,} to {high:,} ({meaning})", null)
        return values.cast(pl.Int64).alias(column)

    def number(self, column: str, low: float, high: float, meaning: str, *, null: bool = False) -> pl.Series:
        """Column as Float64 within [low, high]; raises at the first row that is not (NaN is not)."""
        raw = self.frame[column]
        if raw.dtype == pl.String:
            raw = raw.str.strip_chars()
        elif not raw.dtype.is_float():
            raw = self._plain(raw)
        values = raw.cast(pl.Float64, strict=False)
        bad = ~((values >= low) & (values <= high)).fill_null(False).to_numpy()
        self._raise_first(bad, column, f"a number from {low:,.15g} to {high:,.15g} ({meaning})", null)
        return values.alias(column)

    def text(self, column: str) -> pl.Series:
        """Column as text; empty becomes null."""
        raw = self.frame[column]
        if raw.dtype != pl.String:
            raw = self._plain(raw).cast(pl.String, strict=False)
        return pl.select(pl.when(raw != "").then(raw).otherwise(None).alias(column)).to_series()

    def stamps_ns(self, column: str, formats: tuple[str, ...], example: str) -> pl.Series:
        """Date-times as nanoseconds since 1970, Int64; the first format that fits a value counts."""
        raw = self.frame[column]
        if raw.dtype.is_temporal() and raw.dtype.base_type() == pl.Datetime:
            values = raw.cast(pl.Datetime("ns"), strict=False)
        else:
            raw = self.text(column).str.strip_chars()
            tries = [raw.str.to_datetime(f, time_unit="ns", strict=False, ambiguous="earliest") for f in formats]
            values = pl.select(pl.coalesce([t.dt.replace_time_zone(None) for t in tries])).to_series()
        self._raise_first(values.is_null().to_numpy(), column, f"a time such as {example}", False)
        return values.dt.timestamp("ns").alias(column)

    def order(self, keys: NDArray[np.int64] | NDArray[np.float64], column: str, sort: bool) -> Order:
        """The order that sorts ``keys``, which were read from ``column``; see :func:`order_of`."""
        rows = range(self.first_row, self.first_row + self.frame.height)
        return order_of(keys, rows, column, sort, self.source, self.frame[column])

    def error(self, expected: str, at: int, column: str) -> Exception:
        """An error about row ``at`` (from 0) of a column, with the value found there."""
        found = self.frame[column][at] if column in self.frame.columns else None
        value = "nothing" if found is None else found
        return self.source.error(expected, row=at + self.first_row, column=column, value=value)

    def _plain(self, raw: pl.Series) -> pl.Series:
        if raw.dtype.is_numeric() or raw.dtype in (pl.String, pl.Null, pl.Categorical):
            return raw
        raise self.source.error("a column of numbers or text", column=raw.name, value=str(raw.dtype))

    def _raise_first(self, bad: NDArray[np.bool_], column: str, expected: str, null: bool) -> None:
        if null:
            bad = bad & self.frame[column].is_not_null().to_numpy()
            if self.frame.schema[column] == pl.String:
                bad = bad & (self.frame[column].fill_null("").str.strip_chars() != "").to_numpy()
        if bad.any():
            raise self.error(expected, int(np.argmax(bad)), column)


@dataclass(frozen=True, slots=True)
class Order:
    """How rows were reordered: positions in the file (None: as they stand), and a line for the provenance."""

    index: NDArray[np.int64] | None
    note: str | None


def order_of(
    keys: NDArray[np.int64] | NDArray[np.float64],
    rows: Sequence[int],
    column: str,
    sort: bool,
    source: Source,
    found: Sequence[object] | pl.Series,
) -> Order:
    """The order that sorts ``keys``, (n,), which stand in ``rows`` of the file as ``found``.

    Raises:
        TraceError: they are out of order and ``sort`` is false; the error says how to repair it.
    """
    back = keys[1:] < keys[:-1]
    count = int(back.sum())
    if not count:
        return Order(None, None)
    if not sort:
        at = row_of(back)
        expected = f"stamps in ascending order ({count} steps back in time); trace.options.sort=true sorts them"
        raise source.error(expected, row=rows[at], column=column, value=found[at])
    note = f"repair sort: {count} steps back in time, rows sorted by {column}"
    return Order(np.argsort(keys, kind="stable"), note)


def check_utf8(source: Source) -> None:
    """Raise at the line of the first byte that is not UTF-8."""
    try:
        source.data.decode("utf-8")
    except UnicodeDecodeError as error:
        row = source.data.count(b"\n", 0, error.start) + 1
        bad = source.data[error.start : error.start + 4]
        raise source.error("UTF-8 text", row=row, value=bad) from error


def csv_table(source: Source) -> Table:
    """Every column as text; a header is required.

    Raises:
        TraceError: not UTF-8, no header, no rows, a row with too many fields, an unclosed quote.
    """
    check_utf8(source)
    data = source.data.rstrip()  # blank lines at the end are no records
    if not data:
        raise source.error("a header and at least one request", value="an empty file")
    try:
        frame = pl.read_csv(data, infer_schema=False).rename(str.strip)
    except pl.exceptions.PolarsError as error:
        raise _csv_error(source, data, error) from error
    if frame.height == 0:
        raise source.error("at least one request after the header", value="a header only")
    return Table(frame, source, CSV_FIRST_ROW)


def _csv_error(source: Source, data: bytes, error: Exception) -> Exception:
    lines = data.decode("utf-8").splitlines()
    width = lines[0].count(",") if lines else 0
    for number, line in enumerate(lines, start=1):
        if line.count('"') % 2:
            return source.error("quotes that close on their line", row=number, value=line)
        if line.count(",") > width and '"' not in line:
            return source.error(f"{width + 1} fields, as in the header", row=number, value=line)
    return source.error("comma-separated values with a header", value=str(error).splitlines()[0])


def parquet_table(source: Source) -> Table:
    """A Parquet file as it is typed.

    Raises:
        TraceError: no Parquet file, a damaged one, or one without rows.
    """
    if not source.data.startswith(PARQUET_MAGIC):
        raise source.error("a sound Parquet file, which begins with PAR1", value=source.data[:8])
    try:
        frame = pl.read_parquet(io.BytesIO(source.data))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as error:
        what = str(error).splitlines() or [type(error).__name__]
        raise source.error("a sound Parquet file", value=what[0]) from error
    if frame.height == 0:
        raise source.error("at least one request", value="no rows")
    return Table(frame, source, 1)


def table(source: Source) -> Table:
    """Parquet by its first or last bytes or by its name, else CSV."""
    marked = source.data.startswith(PARQUET_MAGIC) or source.data.endswith(PARQUET_MAGIC)
    named = source.path.name.lower().endswith(PARQUET_ENDINGS)
    return parquet_table(source) if marked or named else csv_table(source)
