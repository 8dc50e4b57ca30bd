"""Read measurement files and check what every adapter relies on: columns, numbers, duplicates, hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from envs.hardware.errors import MeasurementError, nearest

CONTRADICTION = 1.5
"""Two measurements of one point that differ by more than this factor contradict each other."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where measurements were published."""

    name: str
    repository: str
    commit: str
    licence: str
    attribution: str


@dataclass(frozen=True, slots=True)
class Table:
    """A measurement file as read: ``relative`` is its path below the data folder."""

    relative: str
    sha256: str
    frame: pl.DataFrame

    def error(self, message: str) -> MeasurementError:
        """A MeasurementError about this file."""
        return MeasurementError(f"{self.relative}: {message}")


Columns = Mapping[str, type[pl.DataType]]


def read_bytes(data_dir: Path, relative: str) -> bytes:
    """A measurement file below ``data_dir``.

    Raises:
        MeasurementError: no such file; names one beside it that is called nearly so.
    """
    path = data_dir / relative
    if not path.is_file():
        beside = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
        raise MeasurementError(
            f"measurement file {relative}: not found in the data folder {data_dir}{nearest(path.name, beside)} "
            f"(set data_dir=DIR or $PDGYM_DATA to a folder that holds measurements/)"
        )
    return path.read_bytes()


def read_table(data_dir: Path, relative: str, columns: Columns, optional: Columns | None = None) -> Table:
    """Read a Parquet or (gzipped) CSV file below ``data_dir`` and keep ``columns``, cast to the given types.

    Args:
        data_dir: the data folder.
        relative: path of the file below it.
        columns: columns that must be there.
        optional: columns that are kept where they are.

    Raises:
        MeasurementError: no such file, a missing column, a value of the wrong type.
    """
    data = read_bytes(data_dir, relative)
    try:
        frame = pl.read_parquet(data) if relative.endswith(".parquet") else pl.read_csv(data, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise MeasurementError(f"{relative}: cannot be read: {' '.join(str(error).split())}") from error
    for column in columns:
        if column not in frame.columns:
            raise MeasurementError(
                f"{relative}: column {column!r} is missing{nearest(column, frame.columns)}: "
                f"the file has {', '.join(frame.columns)}"
            )
    columns = {**columns, **{name: kind for name, kind in (optional or {}).items() if name in frame.columns}}
    frame = pl.DataFrame([_cast(relative, frame[name], kind) for name, kind in columns.items()])
    return Table(relative, hashlib.sha256(data).hexdigest(), frame)


def _cast(relative: str, values: pl.Series, kind: type[pl.DataType]) -> pl.Series:
    """A column in its type; what is missing stays missing.

    Raises:
        MeasurementError: names file, row, column and the first value that is none of this type.
    """
    if kind.is_integer() and values.dtype.is_float() and (odd := values.filter(values != values.floor())).len():
        raise MeasurementError(f"{relative}: {values.name} = {odd[0]}: expected whole numbers ({odd.len()} are not)")
    expected = "whole numbers" if kind.is_integer() else "numbers" if kind.is_numeric() else f"{kind()}".lower()
    if kind.is_numeric() and values.dtype == pl.Boolean:
        raise MeasurementError(f"{relative}: column {values.name!r} holds true and false: expected {expected}")
    try:
        cast = values.cast(kind, strict=False)
    except pl.exceptions.PolarsError:
        raise MeasurementError(
            f"{relative}: column {values.name!r} holds {values.dtype}: expected {expected}"
        ) from None
    lost = (values.is_not_null() & cast.is_null()).arg_true()
    if lost.len():
        raise MeasurementError(
            f"{relative}: row {lost[0] + 1}: {values.name} = {values[int(lost[0])]!r}: expected {expected} "
            f"({lost.len()} are not)"
        )
    return cast


def check_times(table: Table, column: str) -> None:
    """Every value of ``column`` must be a finite time above zero.

    Raises:
        MeasurementError: names row and value.
    """
    if table.frame.is_empty():
        raise table.error("no rows")
    values = table.frame[column]
    bad = table.frame.with_row_index("row").filter(
        values.is_null() | ~values.is_finite().fill_null(False) | (values <= 0.0)
    )
    if bad.height:
        raise table.error(
            f"row {bad['row'][0] + 1}: {column} = {bad[column][0]}: expected a finite time above 0"
            f" ({bad.height} such rows)"
        )


def check_counts(table: Table, columns: Sequence[str]) -> None:
    """Every value of ``columns`` must be a whole number of at least 0; a missing one must not become 0.

    Raises:
        MeasurementError: names row, column and value.
    """
    for column in columns:
        values = table.frame.with_row_index("row").select("row", column)
        bad = values.filter(pl.col(column).is_null() | (pl.col(column) < 0))
        if bad.height:
            raise table.error(
                f"row {bad['row'][0] + 1}: {column} = {bad[column][0]}: expected a whole number of at least 0 "
                f"({bad.height} such rows)"
            )


def merge_repeats(table: Table, keys: Sequence[str], value: str) -> Table:
    """One row for each ``keys``: the median of its repeats.

    Raises:
        MeasurementError: a key without a value; repeats of one point that differ by more than the factor CONTRADICTION.
    """
    unnamed = table.frame.with_row_index("row").filter(pl.any_horizontal(pl.col(*keys).is_null()))
    if unnamed.height:
        row = unnamed.row(0, named=True)
        missing = next(key for key in keys if row[key] is None)
        raise table.error(f"row {row['row'] + 1}: {missing} is empty: expected a value ({unnamed.height} such rows)")
    grouped = table.frame.group_by(keys, maintain_order=True).agg(
        pl.col(value).median(), low=pl.col(value).min(), high=pl.col(value).max()
    )
    bad = grouped.filter(pl.col("high") > CONTRADICTION * pl.col("low"))
    if bad.height:
        row = bad.row(0, named=True)
        point = ", ".join(f"{key}={row[key]}" for key in keys)
        raise table.error(
            f"contradictory duplicates: {value} from {row['low']:g} to {row['high']:g} at {point}: "
            f"expected repeats within a factor {CONTRADICTION:g} ({bad.height} such points)"
        )
    return Table(table.relative, table.sha256, grouped.select(*keys, value))
