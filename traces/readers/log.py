"""A table of any size as columns: read once, piece by piece, and kept as compact numbers only.

A plan names what to make of each piece (``{"prompt_tokens": lambda piece: piece.whole(...)}``); what it makes is
checked there and then, so that an error names the line and the value as it stands in the file. Text is not kept: a
later complaint about some row reads the file again up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import row_of
from traces.readers.columns import Order, Table, csv_pieces, is_parquet, parquet_table, sound_parquet
from traces.source import Source

Plan = Mapping[str, Callable[[Table], pl.Series]]
"""What to make of each piece, by name."""


@dataclass(frozen=True)
class Log:
    """A CSV with a header, or a Parquet file; nothing of it is held but the names of its columns."""

    source: Source

    @cached_property
    def parquet(self) -> bool:
        """Whether it is a Parquet file."""
        return is_parquet(self.source)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order.

        Raises:
            TraceError: the file is no table, or has no rows.
        """
        if not self.parquet:
            return tuple(next(csv_pieces(self.source)).frame.columns)
        with sound_parquet(self.source) as file:
            return tuple(pl.read_parquet_schema(file))

    def pieces(self, columns: Sequence[str]) -> Iterator[Table]:
        """The rows in order, at least one; of a Parquet file the given columns only, all at once (they are typed)."""
        return iter([parquet_table(self.source, columns)]) if self.parquet else csv_pieces(self.source)

    def gather(self, columns: Sequence[str], plan: Plan) -> dict[str, pl.Series]:
        """Columns, each made piece by piece from the ``columns`` of the file that the plan reads.

        Pieces of one column may differ in type where one is whole numbers and another has fractions.
        """
        parts: dict[str, list[pl.Series]] = {name: [] for name in plan}
        for piece in self.pieces(columns):
            for name, make in plan.items():
                parts[name].append(make(piece))
        found = {}
        for name in plan:
            some = parts.pop(name)
            if len({part.dtype for part in some}) > 1:
                some = [part.cast(pl.Float64) for part in some]
            found[name] = pl.concat(some, rechunk=True).alias(name)
        return found

    def order(self, keys: NDArray[np.int64] | NDArray[np.float64], column: str, sort: bool) -> Order:
        """The order that sorts ``keys``, (n,), which were read from ``column``.

        Raises:
            TraceError: they are out of order and ``sort`` is false; the error says how to repair it.
        """
        back = keys[1:] < keys[:-1]
        count = int(np.count_nonzero(back))
        if not count:
            return Order(None, None)
        if not sort:
            expected = f"stamps in ascending order ({count} steps back in time); trace.options.sort=true sorts them"
            raise self.error(expected, row_of(back), column)
        note = f"repair sort: {count} steps back in time, rows sorted by {column}"
        return Order(np.argsort(keys, kind="stable"), note)

    def error(self, expected: str, at: int, column: str) -> Exception:
        """An error about row ``at`` (from 0), with its line and the value as it stands in the file."""
        for piece in self.pieces([column]):
            if at < piece.frame.height:
                return piece.error(expected, at, column)
            at -= piece.frame.height
        raise AssertionError("a row beyond the end of the file")


class Labels:
    """Texts as numbers, by first appearance over all pieces: for columns of few different values."""

    def __init__(self, read: Callable[[Table], pl.Series]) -> None:
        """``read`` makes the texts of a piece; null stays null."""
        self._read = read
        self.number: dict[str, int] = {}

    def __call__(self, piece: Table) -> pl.Series:
        """The numbers of a piece."""
        texts = self._read(piece)
        for text in texts.unique(maintain_order=True).drop_nulls():
            self.number.setdefault(text, len(self.number))
        if not self.number:
            return pl.Series(texts.name, [None] * texts.len(), pl.UInt32)
        return texts.replace_strict(self.number, default=None, return_dtype=pl.UInt32)

    def texts(self, numbers: pl.Series) -> pl.Series:
        """The texts of numbers: one copy of each text is kept."""
        if not self.number:
            return pl.Series(numbers.name, [None] * numbers.len(), pl.String)
        return pl.Series(numbers.name, list(self.number))[numbers].alias(numbers.name)


def first_line(text: bytes) -> list[str]:
    """Column names in the first bytes of a CSV, near enough to recognise it by."""
    first = text.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return [field.strip().strip('"') for field in first.decode("utf-8", "replace").split(",")]
