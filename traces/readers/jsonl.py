"""Shared by the JSON-lines readers: one object a line, fields checked by name and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from traces.errors import nearest
from traces.readers.columns import check_utf8
from traces.source import Source

Record = dict[str, Any]


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


_HALF = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def sound(value: Any, text: str) -> Any:
    r"""A parsed value whose texts are UTF-8: half of a surrogate pair stays in them as its escape, ``\ud83d``.

    JSON may hold such halves, as where a log cut an emoji in two, but no text can.

    Args:
        value: as parsed.
        text: what it was parsed from.
    """
    if not _ESCAPE.search(text):
        return value
    whole = json.dumps(value, ensure_ascii=False)
    if not _HALF.search(whole):
        return value
    return json.loads(_HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", whole))


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def records(source: Source) -> Iterator[tuple[int, Record]]:
    """(line number, object) of every line that is not blank.

    Raises:
        TraceError: not UTF-8, or a line that is no JSON object.
    """
    check_utf8(source)
    some = False
    for row, line in enumerate(source.data.split(b"\n"), start=1):
        text = line.strip().decode("utf-8")
        if not text:
            continue
        try:
            record, end = _DECODER.raw_decode(text)
            if end != len(text):
                raise ValueError("text after the object")
        except (ValueError, RecursionError) as error:
            raise source.error(f"one JSON object a line ({error})", row=row, value=text) from error
        if not isinstance(record, dict):
            raise source.error("one JSON object a line", row=row, value=text)
        some = True
        yield row, sound(record, text)
    if not some:
        raise source.error("at least one request", value="an empty file")


def get(record: Record, key: str, row: int | None, source: Source) -> Any:
    """A field that must be there."""
    if key not in record:
        raise source.error(f"this field to be present{nearest(key, record)}", row=row, column=key)
    return record[key]


def whole(record: Record, key: str, low: int, high: int, meaning: str, row: int | None, source: Source) -> int:
    """A field that must be a whole number within [low, high]."""
    value = get(record, key, row, source)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise source.error(f"a whole number from {low:,} to {high:,} ({meaning})", row=row, column=key, value=value)
    return value


def number(record: Record, key: str, low: float, high: float, meaning: str, row: int | None, source: Source) -> float:
    """A field that must be a number within [low, high]."""
    value = get(record, key, row, source)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        expected = f"a number from {low:,.15g} to {high:,.15g} ({meaning})"
        raise source.error(expected, row=row, column=key, value=value)
    return float(value)


def whole_list(record: Record, key: str, low: int, high: int, row: int | None, source: Source) -> list[int]:
    """A field that must be a list of whole numbers within [low, high]."""
    values = get(record, key, row, source)
    if not isinstance(values, list):
        raise source.error("a list of whole numbers", row=row, column=key, value=values)
    for value in values:
        if type(value) is not int or not low <= value <= high:
            raise source.error(f"whole numbers from {low} to {high}", row=row, column=key, value=value)
    return values
