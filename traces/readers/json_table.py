"""JSON lines as columns: read at the speed of a table, with errors as exact as those of a loop over the lines.

polars reads the whole file with a fixed schema, which refuses any value of another type. Where it refuses, or a value
is absent or out of range, the lines are read one by one by :mod:`traces.readers.jsonl`, which raises at the first bad
line, or accepts what polars is stricter about (``12.0`` for a whole number).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError, nearest
from traces.readers import jsonl
from traces.source import Source

_TYPES: dict[str, pl.DataType] = {
    "whole": pl.Int64(),
    "number": pl.Float64(),
    "text": pl.String(),
    "whole_list": pl.List(pl.Int64()),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record.

    Attributes:
        name: its name, and that of its column.
        kind: ``whole``, ``number``, ``text`` or ``whole_list``.
        low: least value (of a list: of its items); likewise ``high``. Not used for text.
        high: see low.
        meaning: for the error.
        optional: may be absent or null.
        aliases: other names under which it is accepted.
    """

    name: str
    kind: str
    low: float = 0
    high: float = 0
    meaning: str = ""
    optional: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class JsonTable:
    """Records as columns.

    Attributes:
        frame: (n,) rows, n >= 1, a column a field; null where an optional field is absent.
        source: the file.
    """

    frame: pl.DataFrame
    source: Source

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """(n,) line numbers of the records: blank lines count as lines."""
        data = self.source.data
        if data.count(b"\n") + (not data.endswith(b"\n")) == self.frame.height:  # no blank lines
            return np.arange(1, self.frame.height + 1)
        return np.array([row for row, line in enumerate(data.split(b"\n"), start=1) if line.strip()], np.int64)

    def column(self, name: str) -> NDArray[Any]:
        """A column without nulls, as an array."""
        return self.frame[name].to_numpy()

    def has(self, name: str) -> bool:
        """True if any record has this field."""
        return self.frame[name].null_count() < self.frame.height

    def lists(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """CSR offsets, (n+1,), and items of a list column; an absent list is empty."""
        lists = self.frame[name]
        offsets = np.zeros(self.frame.height + 1, np.int64)
        np.cumsum(lists.list.len().fill_null(0).to_numpy(), out=offsets[1:])
        items = lists.filter(lists.list.len() > 0).explode().to_numpy()
        return offsets, items.astype(np.int64, copy=False)

    def error(self, expected: str, at: int, column: str, value: object = None) -> TraceError:
        """An error about record ``at`` (from 0); ``value`` is what was found, None for what the column holds."""
        found = self.frame[column][at] if value is None and column in self.frame.columns else value
        return self.source.error(expected, row=int(self.rows[at]), column=column, value=found)


def read_json(source: Source, fields: Sequence[Field]) -> JsonTable:
    """Records of a JSON-lines file; fields that are not asked for are passed over.

    Raises:
        TraceError: not UTF-8, a line that is no JSON object, a field that is absent, of another type or out of range.
    """
    frame = _fast(source, fields)
    return JsonTable(_slow(source, fields) if frame is None else frame, source)


def _fast(source: Source, fields: Sequence[Field]) -> pl.DataFrame | None:
    """All fields at once, or None where anything is not as it should be."""
    names = {name: _TYPES[f.kind] for f in fields for name in (f.name, *f.aliases)}
    try:
        raw = pl.read_ndjson(io.BytesIO(source.data), schema=names)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OSError):
        return None
    if not raw.height:
        return None
    frame = raw.select(pl.coalesce(f.name, *f.aliases).alias(f.name) for f in fields)
    return frame if all(_sound(frame[f.name], f) for f in fields) else None


def _sound(values: pl.Series, field: Field) -> bool:
    if values.null_count() and not field.optional:
        return False
    if field.kind == "text":
        return not values.str.contains(r"^[\[{]").any()  # objects and lists, which come as their text
    if field.kind == "whole_list":
        values = values.filter(values.list.len() > 0).explode()
        if values.null_count():
            return False
    return bool(values.drop_nulls().is_between(field.low, field.high).all())


def _slow(source: Source, fields: Sequence[Field]) -> pl.DataFrame:
    """Line by line: raises at the first value that is not as it should be."""
    columns: dict[str, list[Any]] = {f.name: [] for f in fields}
    for row, record in jsonl.records(source):
        for field in fields:
            columns[field.name].append(_value(record, field, row, source))
    return pl.DataFrame(columns, schema={f.name: _TYPES[f.kind] for f in fields})


def _value(record: jsonl.Record, field: Field, row: int, source: Source) -> Any:
    name = next((n for n in (field.name, *field.aliases) if record.get(n) is not None), None)
    if name is None:
        if field.optional:
            return None
        if field.name in record:
            raise source.error(f"a value ({field.meaning})", row=row, column=field.name, value="null")
        raise source.error(f"this field to be present{nearest(field.name, record)}", row=row, column=field.name)
    if field.kind == "whole":
        return jsonl.whole(record, name, int(field.low), int(field.high), field.meaning, row, source)
    if field.kind == "number":
        return jsonl.number(record, name, field.low, field.high, field.meaning, row, source)
    if field.kind == "whole_list":
        return jsonl.whole_list(record, name, int(field.low), int(field.high), row, source)
    value = record[name]
    if isinstance(value, list | dict):
        raise source.error(f"text ({field.meaning})", row=row, column=name, value=value)
    return str(value)
