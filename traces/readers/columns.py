"""Shared by the table readers: a file as named columns, and columns as checked numbers, stamps and texts.

CSV is read as text first, so that a bad value can be shown as it stands in the file. ``row`` in an error is the
line of a CSV file on which the record begins (the header is line 1), or the row of a Parquet file counted from 1.
Large files come in pieces, each a :class:`Table`: see :mod:`traces.readers.log`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import row_of
from traces.errors import TraceError, nearest
from traces.readers import records
from traces.source import Source

PARQUET_MAGIC = b"PAR1"
PARQUET_ENDINGS = (".parquet", ".parquet.gz", ".parquet.zst", ".pq")


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a file.

    Attributes:
        frame: (n,) rows, n >= 1.
        source: the file.
        first_row: number of row 0 in error messages.
        line_of: number of a row in error messages, where rows are not one below the other (a quoted line break).
    """

    frame: pl.DataFrame
    source: Source
    first_row: int
    line_of: Callable[[int], int] | None = None

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

    def stamps_ns(self, column: str, formats: tuple[str, ...], example: str, *, null: bool = False) -> pl.Series:
        """Date-times as nanoseconds since 1970, Int64; the first format that fits a value counts.

        ``null``: may be empty.
        """
        raw = self.frame[column]
        if raw.dtype.is_temporal() and raw.dtype.base_type() == pl.Datetime:
            values = raw.cast(pl.Datetime("ns"), strict=False)
        else:
            raw = self.text(column).str.strip_chars()
            values = pl.Series(column, [None], pl.Datetime("ns")).new_from_index(0, raw.len())
            for text in formats:
                tried = raw.str.to_datetime(text, time_unit="ns", strict=False, ambiguous="earliest")
                values = pl.select(pl.coalesce(values, tried.dt.replace_time_zone(None))).to_series()
                if values.null_count() == raw.null_count():
                    break
        self._raise_first(values.is_null().to_numpy(), column, f"a time such as {example}", null)
        return values.dt.timestamp("ns").alias(column)

    def order(self, keys: NDArray[np.int64] | NDArray[np.float64], column: str, sort: bool) -> Order:
        """The order that sorts ``keys``, which were read from ``column``; see :func:`order_of`."""
        rows = range(self.first_row, self.first_row + self.frame.height)
        return order_of(keys, rows, column, sort, self.source, self.frame[column])

    def error(self, expected: str, at: int, column: str) -> Exception:
        """An error about row ``at`` (from 0) of a column, with the value found there."""
        found = self.frame[column][at] if column in self.frame.columns else None
        value = "nothing" if found is None else found
        return self.source.error(expected, row=self.row_number(at), column=column, value=value)

    def row_number(self, at: int) -> int:
        """Line or row of the file in which row ``at`` (from 0) begins."""
        return at + self.first_row if self.line_of is None else self.line_of(at)

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


def csv_pieces(source: Source) -> Iterator[Table]:
    """A CSV piece by piece, every column as text; a header is required. Each piece names its own lines in errors.

    Raises:
        TraceError: not UTF-8, no header, no rows, a row with too many fields, an unclosed quote.
    """
    some = False
    for piece in records.pieces(source):
        if not some:
            _check_header(source, piece.header)
        some = True
        broken = b'"' in piece.data  # only then can a record be more than a line
        yield Table(_parse(piece, source), source, piece.line, piece.line_of if broken else None)
    if not some:
        raise source.error("at least one request after the header", value="a header only")


def _check_header(source: Source, header: bytes) -> None:
    """Raise for fields that are not parted by commas, and for a name that two columns have."""
    if separator := records.other_separator(header):
        raise source.error("comma-separated values", value=f"a header whose fields are separated by {separator}")
    try:
        names = [name.strip() for name in next(csv.reader([header.decode("utf-8")]), [])]
    except csv.Error:  # a bare carriage return in a name, or a name of more than 128 kB: none of ours
        return
    twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
    if twice is not None:
        raise source.error(
            "each name of a column once in the header", column=twice, value=f"{names.count(twice)} times"
        )


def csv_table(source: Source) -> Table:
    """A whole CSV, every column as text, for files of moderate size; see :func:`csv_pieces` for what it raises."""
    pieces = list(csv_pieces(source))
    starts = np.cumsum([0, *(piece.frame.height for piece in pieces)])

    def line_of(at: int) -> int:
        k = int(np.searchsorted(starts, at, side="right")) - 1
        return pieces[k].row_number(at - int(starts[k]))

    return Table(pl.concat([piece.frame for piece in pieces]), source, pieces[0].first_row, line_of)


def _parse(piece: records.Piece, source: Source) -> pl.DataFrame:
    try:
        frame = pl.read_csv(piece.header + b"\n" + piece.data, infer_schema=False)
        return frame.rename(str.strip)
    except pl.exceptions.PolarsError as error:
        raise _csv_error(source, piece, error) from error


def _csv_error(source: Source, piece: records.Piece, error: Exception) -> Exception:
    width = records.fields(piece.header)
    for line, record in piece.records():
        if records.fields(record) > width:
            shown = record.decode("utf-8").strip()
            return source.error(f"{width} fields, as in the header", row=piece.line + line, value=shown)
    return source.error("comma-separated values with a header", row=piece.line, value=str(error).splitlines()[0])


def is_parquet(source: Source) -> bool:
    """True by its first or last bytes or by its name."""
    if source.head.startswith(PARQUET_MAGIC) or source.path.name.lower().endswith(PARQUET_ENDINGS):
        return True
    return b"\0" in source.head and source.data.endswith(PARQUET_MAGIC)


def parquet_table(source: Source, columns: Sequence[str] | None = None) -> Table:
    """A Parquet file as it is typed; all columns, or those named.

    Raises:
        TraceError: no Parquet file, a damaged one, or one without rows.
    """
    with sound_parquet(source) as file:
        frame = pl.read_parquet(file, columns=None if columns is None else list(columns))
    if frame.height == 0:
        raise source.error("at least one request", value="no rows")
    return Table(frame, source, 1)


@contextmanager
def sound_parquet(source: Source) -> Iterator[Path | io.BytesIO]:
    """A Parquet file for Polars: the file itself, or its bytes where it is packed. Damage becomes a TraceError."""
    if not source.head.startswith(PARQUET_MAGIC):
        raise source.error("a sound Parquet file, which begins with PAR1", value=source.head[:8])
    try:
        yield source.file if _is_plain(source) else io.BytesIO(source.data)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, TraceError):
            raise
        what = str(error).splitlines() or [type(error).__name__]
        raise source.error("a sound Parquet file", value=what[0]) from error


def _is_plain(source: Source) -> bool:
    """True if the file on disk is the Parquet file, neither packed nor in an archive."""
    if not source.file.is_file():
        return False
    with source.file.open("rb") as raw:
        return raw.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
