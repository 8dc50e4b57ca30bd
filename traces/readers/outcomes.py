"""How each request of a serving log ended, and what that means for its counts: which to keep, with what output."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.readers.columns import Table
from traces.readers.repair import zero_outputs

OK, CANCELLED, ERROR = "ok", "cancelled", "error"
FAILURES = ("drop", "keep")
MISSING = ("error", "drop")
_Mask = NDArray[np.bool_]


@dataclass(eq=False)
class Outcomes:
    """Requests of a log; the methods are steps, to be taken in their order. Each leaves its counts in ``notes``.

    Attributes:
        table: for errors.
        prompt: (n,) prompt tokens, null where unknown.
        output: (n,) output tokens, likewise; from :meth:`outputs` on known for all that are kept.
        status: (n,) ``ok``, ``cancelled``, ``error`` or null.
        keep: (n,) requests that are kept.
        notes: for the provenance.
    """

    table: Table
    prompt: pl.Series
    output: pl.Series
    status: pl.Series
    keep: _Mask = field(init=False)
    notes: list[str | None] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Everything is kept at first."""
        self.keep = np.ones(self.status.len(), np.bool_)

    def _ended_as(self, word: str) -> _Mask:
        return np.asarray((self.status == word).fill_null(False).to_numpy())

    @property
    def _well(self) -> _Mask:
        return np.asarray(~self._ended_as(ERROR) & ~self._ended_as(CANCELLED))

    def failures(self, mode: str) -> None:
        """Requests that ended in an error: ``drop`` or ``keep``."""
        failed = self._ended_as(ERROR)
        if failed.any():
            what = "kept, with their status" if mode == "keep" else "left out"
            notes = f"failures={mode}: {failed.sum():,} of {failed.size:,} requests ended in an error, {what}"
            self.notes.append(notes)
            self.keep &= ~failed | (mode == "keep")

    def missing(self, mode: str | None) -> None:
        """Requests that ended well without a count: ``drop`` them, else an error; None: there is no option for it.

        Cancelled and failed ones without a prompt count are left out in any case.

        Raises:
            TraceError: one without a count, and not ``drop``.
        """
        no_prompt = self.prompt.is_null().to_numpy() | (self.prompt == 0).fill_null(False).to_numpy()
        for tokens, lacking in ((self.prompt, no_prompt), (self.output, self.output.is_null().to_numpy())):
            bare = lacking & self.keep & self._well
            if bare.any() and mode != "drop":
                hint = "; trace.options.missing=drop leaves them out" if mode else ""
                expected = f"a count of tokens ({bare.sum():,} requests have none){hint}"
                raise self.table.error(expected, int(np.argmax(bare)), tokens.name)
            if bare.any():
                self.notes.append(f"missing=drop: {bare.sum():,} requests without {tokens.name} left out")
                self.keep &= ~bare
        unknown = no_prompt & self.keep
        if unknown.any():
            self.notes.append(f"{unknown.sum():,} cancelled or failed requests have no prompt count: left out")
            self.keep &= ~unknown

    def outputs(self, zero_output: str) -> None:
        """An output for every request that is kept: see :func:`traces.readers.repair.zero_outputs`.

        Raises:
            TraceError: none is left, or one that ended well has no output and ``zero_output`` is ``error``.
        """
        short = self.keep & ~self._well & (self.output.is_null() | (self.output == 0)).to_numpy()
        if short.any():
            self.notes.append(f"{short.sum():,} cancelled or failed requests have no output: counted as one token")
        if not self.keep.any():
            raise self.table.source.error("a request that ended well", value=f"{self.keep.size:,} that did not")
        at = np.flatnonzero(self.keep)
        rows = np.array([self.table.row_number(int(i)) for i in at], np.int64)
        filled = pl.select(pl.when(pl.Series(short)).then(1).otherwise(self.output).alias(self.output.name)).to_series()
        some, counted, note = zero_outputs(filled[at], zero_output, (self.table.source, rows))
        self.notes.append(note)
        self.output = filled.scatter(at, counted)
        self.keep[at[~some]] = False

    def cancels(self, end_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) time from arrival to the client's cancel, NaN for none; ``end_s`` is (n,) time to the end."""
        cancel = np.where(self._ended_as(CANCELLED), end_s, np.nan)
        known = ~np.isnan(cancel) & self.keep
        if known.any():
            self.notes.append(
                f"{known.sum():,} requests were cancelled by the client: cancel_after_s, as recorded; their output is "
                "what was generated until then, so a faster cluster ends them before the cancel"
            )
        return cancel
