"""The one error that comes out of ``traces``: it names file, row, column, value and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

_SHOWN = 80  # characters of a bad value that fit in a message


class TraceError(ValueError):
    """Bad input to ``traces``.

    Attributes:
        file: file (or trace name) the input came from.
        row: line of a text file counted from 1 (a header is line 1), or row of a table counted from 1; None if
            the whole file is meant.
        column: column or option at fault, None if no single one is.
        value: what was found, None if nothing was.
        expected: what would have been right, and often what to do.
    """

    def __init__(
        self,
        *,
        file: str | Path,
        expected: str,
        row: int | None = None,
        column: str | None = None,
        value: object = None,
    ) -> None:
        """See the class for the fields."""
        self.file = str(file)
        self.row = row
        self.column = column
        self.value = value
        self.expected = expected
        where = self.file
        if row is not None:
            where += f", row {row}"
        if column is not None:
            where += f", column {column!r}"
        found = "" if value is None else f"found {_short(value)}, "
        super().__init__(f"{where}: {found}expected {expected}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def nearest(name: str, names: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the name closest to ``name``, or an empty string if none is close."""
    by_lower = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
