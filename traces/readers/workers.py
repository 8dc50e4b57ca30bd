"""Logged routes: workers by number, or by name (pods), which become numbers.

Names are numbered from 0 in natural order (``pod-2`` before ``pod-10``): those that prefill first, then those that
only decode, as ``NpMd`` clusters number theirs. A worker that does both has one number; -1 is none.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from traces.check import BY_NAME
from traces.readers.log import Labels, Log

ROLES = ("prefill_worker", "decode_worker")
_NONE = "-1"
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


def number_workers(
    log: Log, labels: dict[str, Labels], found: dict[str, pl.Series], names: dict[str, str]
) -> tuple[dict[str, pl.Series], str | None]:
    """Workers as numbers, null where the log has none, and a line for the provenance where they have names.

    Args:
        log: the table, for errors.
        labels: worker column -> its labels.
        found: worker column -> (n,) numbers of labels.
        names: worker column -> column of the file.

    Raises:
        TraceError: names and numbers in one column, or a number out of range.
    """
    named = False
    for role, label in labels.items():
        whole = [bool(_WHOLE.fullmatch(text)) for text in label.number if text != _NONE]
        if any(whole) and not all(whole):
            fine = [bool(_WHOLE.fullmatch(text)) for text in label.number]
            _refuse(log, found[role], fine, names[role], "worker numbers or worker names throughout")
        named |= not all(whole)
    if named:
        numbers = {_NONE: -1}
        for label in labels.values():
            for text in sorted(label.number, key=natural):
                numbers.setdefault(text, len(numbers) - 1)
        mapping = ", ".join(f"{text}={number}" for text, number in numbers.items() if number >= 0)
        note = f"workers numbered in natural order, prefill first: {mapping}"
        return {
            role: _translate(found[role], [numbers[t] for t in label.number]) for role, label in labels.items()
        }, note
    result = {}
    for role, label in labels.items():
        column = BY_NAME[role]
        values = [int(text) for text in label.number]
        fits = [-1 <= value <= 2**62 for value in values]
        if not all(fits):
            _refuse(log, found[role], fits, names[role], f"a worker number of -1 or more ({column.meaning})")
        result[role] = _translate(found[role], values)
    return result, None


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key by which numbers in a name count as numbers."""
    parts = re.split(r"([0-9]{1,30})", text)
    return [(0, int(part), "") if part.isdecimal() and len(part) <= 30 else (1, 0, part) for part in parts if part]


def _translate(labels: pl.Series, values: list[int]) -> pl.Series:
    if not values:
        return pl.Series(labels.name, [None], pl.Int64).new_from_index(0, labels.len())
    return pl.Series(labels.name, values, pl.Int64)[labels].alias(labels.name)


def _refuse(log: Log, labels: pl.Series, fine: list[bool], name: str, expected: str) -> None:
    bad = np.append(~np.array(fine), False)[labels.fill_null(len(fine)).to_numpy()]
    raise log.error(expected, int(np.argmax(bad)), name)
