"""The inputs of a table as checked columns, in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from traces.check import BY_NAME, MAX_TOKENS, Column
from traces.readers import hash_lists, stamps
from traces.readers.columns import Table
from traces.readers.durations import DurationColumn
from traces.readers.log import Labels, Log
from traces.readers.naming import Field
from traces.readers.stamps import StampColumn, Stamps
from traces.readers.turns import SessionColumn, none_note
from traces.readers.workers import ROLES, number_workers

_DURATIONS = ("e2e_s", "ttft_s", "tpot_s", "think_s", "cancel_after_s", "routed_after_s")
_MAX_WORKER = 2**62


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a table holds.

    Attributes:
        rows: input -> (n,) values in the order of the file: the columns of a trace, ``end_s`` (seconds from the
            start, NaN where there is none), ``e2e_s`` and ``hash_ids``. ``output_tokens`` may be 0.
        stamps: the arrivals.
        notes: what was done, for the provenance.
    """

    rows: dict[str, pl.Series]
    stamps: Stamps
    notes: tuple[str, ...]


def read_inputs(log: Log, where: Mapping[str, Field], arrival_unit: str, latency_unit: str) -> Inputs:
    """Read every input once.

    Args:
        log: the table.
        where: input -> column of the file.
        arrival_unit: unit of stamps.
        latency_unit: unit of measured latencies.

    Raises:
        TraceError: a bad value, or a time that is implausible in its unit.
    """
    arrival = StampColumn(where["arrival_s"].name, arrival_unit)
    durations = {c: DurationColumn(c, where[c], latency_unit, _meaning(c)) for c in _DURATIONS if c in where}
    end = StampColumn(where["end_s"].name, arrival_unit, null=True) if "end_s" in where else None
    labels = {c: Labels(_text(c, where[c].name)) for c in where if c in ROLES or _is_text(c)}
    plan: dict[str, Callable[[Table], pl.Series]] = {"arrival_s": arrival, **durations, **labels}
    if end is not None:
        plan["end_s"] = end
    sessions = None
    for column, field in where.items():
        if column == "session":
            sessions = SessionColumn(field.name)
            plan[column] = sessions
        elif column == "hash_ids":
            plan[column] = partial(hash_lists.read_hashes, name=field.name)
        elif column not in plan:
            plan[column] = partial(_number, name=field.name, column=BY_NAME[column])
    rows = log.gather([field.name for field in where.values()], plan)

    found = stamps.arrivals(log, rows["arrival_s"], arrival, where["arrival_s"])
    rows["arrival_s"] = pl.Series("arrival_s", found.arrival_s)
    notes = [found.note]
    if end is not None:
        rows["end_s"] = pl.Series("end_s", stamps.ends(log, rows["end_s"], end, where["end_s"], found))
    for column, duration in durations.items():
        duration.check(log, rows[column])
        duration.check_per_token(log, rows[column], rows["output_tokens"])
        notes.append(duration.note() or "")
    roles = {c: labels[c] for c in ROLES if c in where}
    numbered, note = number_workers(log, roles, rows, {c: where[c].name for c in roles})
    rows |= numbered
    notes += [note or "", (sessions and none_note(sessions.none)) or ""]
    for column, label in labels.items():
        if column not in ROLES:
            rows[column] = label.texts(rows[column])
    return Inputs(rows, found, tuple(filter(None, notes)))


def _is_text(column: str) -> bool:
    return column in BY_NAME and column != "session" and BY_NAME[column].dtype == pl.String


def _meaning(column: str) -> str:
    return BY_NAME[column].meaning if column in BY_NAME else ""


def _number(piece: Table, name: str, column: Column) -> pl.Series:
    low, high = column.low or 0, column.high or 0
    if column.dtype == pl.Float64:
        return piece.number(name, low, high, column.meaning, null=column.nullable)
    if column.name == "output_tokens":
        low, meaning = 0, "tokens"
    else:
        meaning = column.meaning
    values = piece.whole(name, int(low), int(high), meaning, null=column.nullable)
    return values.cast(pl.Int32) if column.high == MAX_TOKENS else values  # half the memory, until the trace is built


def _text(column: str, name: str) -> Callable[[Table], pl.Series]:
    """Texts of a piece; workers' numbers become text too, as others in the file may have names."""

    def read(piece: Table) -> pl.Series:
        if column not in ROLES:
            texts = piece.text(name)
            if not BY_NAME[column].nullable and texts.null_count():
                raise piece.error(BY_NAME[column].meaning, int(np.argmax(texts.is_null().to_numpy())), name)
            return texts
        if piece.frame.schema[name].is_numeric():
            return piece.whole(name, -1, _MAX_WORKER, BY_NAME[column].meaning, null=True).cast(pl.String)
        return piece.text(name).str.strip_chars().replace("", None)

    return read
