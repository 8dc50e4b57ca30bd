"""Latencies and gaps of a log in seconds, whatever unit they are written in.

The unit is what the column's name says (``ttft_ms``), else seconds. A median of measured latencies that is
implausible in it stops with a question.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traces.readers.columns import Table
from traces.readers.log import Log
from traces.readers.naming import Field
from traces.readers.plausible import FEW
from traces.readers.stamps import PER_SECOND

UNITS = ("auto", "s", "ms", "us", "ns")
MEASURED = {"ttft_s": (1e-3, 100.0), "tpot_s": (1e-4, 10.0), "e2e_s": (1e-3, 3600.0)}
"""Latencies that an engine or a client measured, with the medians that are believed, in seconds."""

_MEANING = {"e2e_s": "logged latency of the whole request"}
_MAX_S = 1e10
_FINER = {"s": "ms", "ms": "us", "us": "ns", "ns": "ns"}
_PER_TOKEN_S = (1e-4, 2.0)  # of a whole request, its first token included
_LONG_TOKENS = 8  # of shorter ones the first token is most


@dataclass(frozen=True, slots=True)
class DurationColumn:
    """Reads a column of durations piece by piece, for :meth:`traces.readers.log.Log.gather`.

    Attributes:
        column: what it is: ``ttft_s``, ...
        field: where it stands in the file.
        asked: ``trace.options.latency_unit``, which counts for measured latencies only.
        meaning: for errors.
    """

    column: str
    field: Field
    asked: str
    meaning: str = ""

    @property
    def by_option(self) -> bool:
        """Whether the user said the unit."""
        return self.column in MEASURED and self.asked != "auto"

    @property
    def unit(self) -> str:
        """The unit of the file."""
        return self.asked if self.by_option else self.field.unit or "s"

    def __call__(self, piece: Table) -> pl.Series:
        """The durations of a piece, in seconds."""
        per_second = PER_SECOND[self.unit]
        meaning = f"{self.meaning or _MEANING[self.column]}, {self.unit}"
        values = piece.number(self.field.name, 0.0, _MAX_S * per_second, meaning, null=True)
        return values if per_second == 1 else values / per_second

    def check_per_token(self, log: Log, values: pl.Series, output_tokens: pl.Series) -> None:
        """Raise where whole requests take a time a token that none takes, in a unit that was taken from the name.

        Args:
            log: the table, for the error.
            values: (n,) as read, seconds.
            output_tokens: (n,) output lengths.
        """
        long = (values > 0) & (output_tokens >= _LONG_TOKENS)
        if self.column != "e2e_s" or self.by_option or long.sum() < FEW:
            return
        median = float((values / output_tokens).filter(long).median())  # type: ignore[arg-type]
        low, high = _PER_TOKEN_S
        option = "trace.options.latency_unit"
        if median > high:
            smaller = _FINER[self.unit]
            expected = f"at most {high:g} s a token at the median, but it is {median:,.3g} s: {option}={smaller}"
        elif median < low and self.unit != "s":
            expected = f"at least {low:g} s a token at the median, but it is {median:.3g} s: {option}=s"
        else:
            return
        at = int(long.arg_max())  # type: ignore[arg-type]
        raise log.error(f"{expected} if that is the unit, ={self.unit} if this is right", at, self.field.name)

    def note(self) -> str | None:
        """A line for the provenance where the unit is not seconds."""
        if self.unit == "s":
            return None
        return f"{self.column}: {self.field.name} in {self.unit}{'' if self.by_option else ' by its name'}"

    def check(self, log: Log, values: pl.Series) -> None:
        """Raise where the unit was taken from the name and the median is implausible in it.

        Args:
            log: the table, for the error.
            values: (n,) as read, seconds.
        """
        if self.column not in MEASURED or self.by_option:
            return
        some = values.filter(values > 0)
        if some.len() < FEW:
            return
        low, high = MEASURED[self.column]
        median = float(some.median())  # type: ignore[arg-type]
        shown = f"{median * PER_SECOND[self.unit]:g} {self.unit}"
        option = "trace.options.latency_unit"
        if median > high:
            smaller = _FINER[self.unit]
            expected = f"a median below {high:g} s, but it is {shown}: {option}={smaller} if that is the unit"
        elif median < low and self.unit != "s":
            expected = f"a median above {low:g} s, but it is {shown}: {option}=s if these are seconds"
        else:
            return
        at = int((values > 0).arg_max())  # type: ignore[arg-type]
        raise log.error(f"{expected}, ={self.unit} if this is right", at, self.field.name)
