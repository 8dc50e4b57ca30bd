"""Which column of a table is meant, and the unit that its name says.

A column is taken under its own name (``arrival_s``), under that name in another unit (``arrival_ms``), or as mapped
by ``trace.options.columns``. Nothing else is taken for it: names that may be meant are offered in the error, and
where several may be (a scheduled and a sent time, a client's and a server's token counts) it asks which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial

from traces.check import COLUMNS
from traces.errors import nearest
from traces.readers.log import Log

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
EXTRA = ("end_s", "e2e_s", "hash_ids")
"""Inputs that are no columns of a trace: end stamps, latency end to end, prefix block hashes."""

INPUTS = (*(column.name for column in COLUMNS), *EXTRA)
_ALSO = {"end_s": ("finish_s",)}
_TIMES = ("arrival_s", "end_s", "e2e_s", "ttft_s", "tpot_s", "think_s", "cancel_after_s", "routed_after_s")
_UNITS = {
    "s": ("s", "sec", "secs", "seconds"),
    "ms": ("ms", "msec", "millis", "milliseconds"),
    "us": ("us", "usec", "micros", "microseconds"),
    "ns": ("ns", "nanos", "nanoseconds"),
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words}

_START = {"arrival", "arrived", "created", "date", "datetime", "enqueued", "received", "request", "requested"}
_START |= {"scheduled", "sent", "start", "started", "submitted", "time", "timestamp", "timestamps", "ts", "when"}
_NO_START = {"complete", "completed", "decode", "done", "duration", "e2e", "elapsed", "end", "ended", "finish"}
_NO_START |= {"finished", "first", "inter", "itl", "last", "latency", "prefill", "queue", "response", "think", "token"}
_NO_START |= {"tokens", "tpot", "ttft", "zone", "id"}
_COUNTED = {"len", "length", "lengths", "tok", "tokens", "toks"}
_SIDES = {
    "prompt_tokens": (
        {"context", "in", "input", "prompt"},
        {"cached", "completion", "generated", "max", "out", "output"},
    ),
    "output_tokens": ({"completion", "decode", "generated", "out", "output", "response"}, {"max", "limit", "hint"}),
}
_HINTS = {
    "arrival_s": (
        "a scheduled time is when a load generator meant to send, a sent time when it did, which a client that fell "
        "behind makes later"
    ),
    "prompt_tokens": (
        "a server's count is what the engine computed, a client's leaves out the chat template or comes from another "
        "tokenizer"
    ),
    "output_tokens": (
        "a server's count is what the engine produced, a client's may count streamed chunks or come from another "
        "tokenizer"
    ),
}


@dataclass(frozen=True, slots=True)
class Field:
    """Where an input stands in the file.

    Attributes:
        name: the column of the file.
        unit: the unit that its name says (``ms``), None if it says none.
    """

    name: str
    unit: str | None = None


def fields(log: Log, given: Mapping[str, str]) -> dict[str, Field]:
    """Input -> column of the file.

    Args:
        log: the table.
        given: ``trace.options.columns``.

    Raises:
        TraceError: an unknown input or column, a required one that is missing, or one of several that may be meant.
    """
    for column, name in given.items():
        if column not in INPUTS:
            expected = f"a trace column{nearest(column, INPUTS) or ' (' + ', '.join(INPUTS) + ')'}"
            raise log.source.error(expected, column=f"trace.options.columns.{column}", value=name)
        if not isinstance(name, str):
            raise log.source.error("a column name", column=f"trace.options.columns.{column}", value=name)
        if name not in log.columns:
            hint = nearest(name, log.columns) or f" (found: {', '.join(log.columns[:12])})"
            raise log.source.error(f"this column to be present{hint}", column=name)
    found = {}
    for column in INPUTS:
        free = (name for name in _own_names(column) if name in log.columns and name not in given.values())
        chosen = given[column] if column in given else next(free, None)
        if chosen is not None:
            found[column] = Field(chosen, unit_of(chosen) if column in _TIMES and chosen != column else None)
    for column in REQUIRED:
        if column not in found:
            others = [name for name in REQUIRED if name not in found and name != column]
            raise _missing(log, column, {field.name for field in found.values()}, others)
    return found


def unit_of(name: str) -> str | None:
    """The unit of time that a name ends in: ``ts_ms``, ``startNs``, ``TTFT (ms)``; None for none."""
    words = _words(name)
    return _UNIT_OF.get(words[-1]) if len(words) > 1 else None


def recognised(names: Iterable[str]) -> bool:
    """True if every required column is there under its own name."""
    there = set(names)
    return all(any(own in there for own in _own_names(column)) for column in REQUIRED)


def _own_names(column: str) -> list[str]:
    """The names an input goes by itself, the plainest first."""
    names = [column, *_ALSO.get(column, ())]
    if column in _TIMES:
        names += [f"{name.removesuffix('_s')}_{unit}" for name in names for unit in ("ms", "us", "ns")]
    return names


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _missing(log: Log, column: str, taken: set[str], others: list[str]) -> Exception:
    """A question where several columns may be meant, else a hint; ``others`` are missing as well."""
    also = f"; also missing: {', '.join(others)}" if others else ""
    option = f"trace.options.columns.{column}"
    free = [name for name in log.columns if name not in taken]
    may_be = [name for name in free if _may_be(column, name)]
    if len(may_be) > 1:
        expected = f"a word on which of {', '.join(may_be)} is meant: {option}=NAME ({_HINTS[column]}){also}"
        return log.source.error(expected, column=column)
    hint = nearest(column, [name for name in free if max(REQUIRED, key=partial(_alike, name)) == column])
    if not hint and column == "arrival_s" and may_be:
        hint = f"; did you mean {may_be[0]!r}?"
    hint = hint or f" (found: {', '.join(log.columns[:12])})"
    return log.source.error(f"this column to be present, or mapped with {option}=NAME{hint}{also}", column=column)


def _may_be(column: str, name: str) -> bool:
    words = set(_words(name))
    if column == "arrival_s":
        return bool(words & _START) and not words & _NO_START
    side, other = _SIDES[column]
    return bool(words & _COUNTED) and bool(words & side) and not words & other


def _alike(name: str, wanted: str) -> float:
    return SequenceMatcher(None, name.lower(), wanted).ratio()
