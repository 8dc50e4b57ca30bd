"""Nested JSON records as a table of text columns, one a dotted path, for logs whose fields vary from tool to tool.

A path is the keys down to a value, joined by dots: ``usage.prompt_tokens``. A key that holds dots itself
(``gen_ai.usage.input_tokens``) is the same path. ``attributes.`` in front is left out (OpenTelemetry spans). Of
``choices`` the first is meant: ``choices.0.finish_reason``. Texts of prompts and answers are never kept: only the
paths that a reader asks for are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import polars as pl

from traces.readers.columns import Table
from traces.readers.jsonl import sound
from traces.source import Source

_LONGEST_LIST = 16
_LONGEST_TEXT = 200
_DEEPEST = 8
_BLANK = re.compile(r"\s*")


def flatten(record: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(path, value) of every leaf. A short list of plain values is one text; other lists are passed over."""
    for key, value in record.items():
        if isinstance(value, list) and key == "choices" and value and isinstance(value[0], dict):
            value, key = value[0], f"{key}.0"
        if isinstance(value, dict):
            if depth < _DEEPEST:
                front = "" if key == "attributes" else f"{key}."
                for path, leaf in flatten(value, depth + 1):
                    yield front + path, leaf
        elif isinstance(value, list):
            if 0 < len(value) <= _LONGEST_LIST and not any(isinstance(v, dict | list) for v in value):
                yield key, ",".join(str(v) for v in value)
        else:
            yield key, value


def text_of(value: Any) -> str | None:
    """A plain JSON value as the text that a table reader parses; None for null and for an empty text."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**63:
        return str(int(value))
    return str(value)[:_LONGEST_TEXT]


def table_of(records: Iterable[tuple[int, dict[str, Any]]], paths: Collection[str], source: Source) -> Table:
    """Columns named by the ``paths`` that any record has a value for, and their rows in the file.

    Args:
        records: (row, record).
        paths: what to keep.
        source: for errors.

    Raises:
        TraceError: no record at all.
    """
    wanted = frozenset(paths)
    columns: dict[str, list[str | None]] = {}
    rows: list[int] = []
    for row, record in records:
        n = len(rows)
        rows.append(row)
        for path, value in flatten(record):
            text = text_of(value) if path in wanted else None
            if text is not None:
                column = columns.setdefault(path, [])
                if len(column) <= n:  # the same path twice in a record: the first counts
                    column.extend([None] * (n - len(column)))
                    column.append(text)
    if not rows:
        raise source.error("at least one request", value="none")
    for column in columns.values():
        column.extend([None] * (len(rows) - len(column)))
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String()))
    if not columns:
        frame = pl.DataFrame({"": [None] * len(rows)}, schema={"": pl.String()})
    return Table(frame, source, 1, rows.__getitem__)


def first_of(table: Table, names: Sequence[str]) -> str | None:
    """The first of ``names`` that the table has a column for."""
    return next((name for name in names if name in table.frame.columns), None)


def array(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, object) of a JSON array.

    Raises:
        TraceError: not UTF-8, no JSON (the error names the line), no array, or something in it that is no object.
    """
    text = _text(source)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = min(getattr(error, "pos", 0), max(len(text) - 1, 0))
        row = text.count("\n", 0, at) + 1
        raise source.error(f"a JSON array ({error})", row=row, value=text[at : at + 40]) from error
    if not isinstance(found, list):
        raise source.error("a JSON array", value=type(found).__name__)
    found = sound(found, text)
    for row, item in enumerate(found, start=1):
        if not isinstance(item, dict):
            raise source.error("a JSON object", row=row, value=item)
        yield row, item


def documents(source: Source) -> list[dict[str, Any]]:
    """JSON objects that follow one another in a file, over any number of lines.

    Raises:
        TraceError: not UTF-8, no JSON, or something that is no object; the error names the line.
    """
    text = _text(source)
    decoder, found, at = json.JSONDecoder(), [], 0
    while True:
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            break
        row = text.count("\n", 0, at) + 1
        try:
            begun = at
            document, at = decoder.raw_decode(text, begun)
            document = sound(document, text[begun:at])
        except (ValueError, RecursionError) as error:
            at = min(getattr(error, "pos", at), len(text) - 1)
            row = text.count("\n", 0, at) + 1
            raise source.error(f"a JSON object ({error})", row=row, value=text[at : at + 40]) from error
        if not isinstance(document, dict):
            raise source.error("a JSON object", row=row, value=document)
        found.append(document)
    if not found:
        raise source.error("a JSON object", value="an empty file")
    return found


def _text(source: Source) -> str:
    try:
        return source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = source.data.count(b"\n", 0, error.start) + 1
        raise source.error("UTF-8 text", row=row, value=source.data[error.start : error.start + 4]) from error
