"""Values of reader options, checked once, before any reader sees them: type by annotation, range by name.

An option of the same name means the same everywhere, and so has one range. Words that only one reader knows
(``duplicates=families``) and what depends on the file are checked by that reader.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from traces.source import Source

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_MOST_BLOCK_TOKENS = 2**20
_MANY = 2**31 - 1
_LONG_S = 1e9
_TIMES = (0.0, _LONG_S)
_SERVICE = (0.0, 1e6)
_RATES = (1e-9, 1e9)

RANGES: dict[str, tuple[float, float]] = {
    "assumed_tpot_s": _SERVICE,
    "assumed_ttft_s": _SERVICE,
    "benchmark": (0, _MANY),
    "block_tokens": (1, _MOST_BLOCK_TOKENS),
    "bucket_s": _TIMES,
    "clients": (1, _MANY),
    "concurrency": (0, _MANY),
    "duration_s": (1e-3, _LONG_S),
    "max_context_tokens": (1, _MANY),
    "max_gap_s": _TIMES,
    "max_think_s": _TIMES,
    "max_turns": (1, _MANY),
    "min_blocks": (1, _MANY),
    "prefix_block_tokens": (1, _MOST_BLOCK_TOKENS),
    "rate_per_s": _RATES,
    "seed": (0, 2**63 - 1),
    "session_rate_per_s": _RATES,
    "start_s": _TIMES,
    "think_s": _TIMES,
    "tolerance_tokens": (0, _MANY),
}
"""Least and greatest value of every option that is a number."""


def checked(source: Source, read: Callable[..., Any], options: Mapping[str, object]) -> dict[str, Any]:
    """The options as the reader takes them: whole numbers become fractions, and words truths, where it wants those.

    Args:
        source: the input, for errors.
        read: the reader; its keyword arguments are the options.
        options: name -> value; each name is one of the reader's.

    Raises:
        TraceError: a value of a wrong type or out of range; names option, value and what was expected.
    """
    parameters = inspect.signature(read, eval_str=True).parameters
    return {name: _checked(source, name, value, parameters[name].annotation) for name, value in options.items()}


def _checked(source: Source, name: str, value: object, annotation: Any) -> Any:
    kinds = get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    column = f"trace.options.{name}"
    if value is None and types.NoneType in kinds:
        return None
    mapping = next((kind for kind in kinds if get_origin(kind) is Mapping), None)
    if mapping is not None and isinstance(value, Mapping):
        return _mapping(source, column, value, types.NoneType in get_args(get_args(mapping)[1]))
    if str in kinds and isinstance(value, str):
        return value
    if bool in kinds:
        truth = _WORDS.get(value.strip().lower()) if isinstance(value, str) else value
        if isinstance(truth, bool):
            return truth
    if (int in kinds or float in kinds) and _fits(name, value, whole=int in kinds):
        return float(value) if float in kinds else value  # type: ignore[arg-type]
    found = "null" if value is None else value
    raise source.error(_expected(name, kinds, mapping is not None), column=column, value=found)


def _fits(name: str, value: object, *, whole: bool) -> bool:
    low, high = RANGES[name]
    right = isinstance(value, int) if whole else isinstance(value, int | float)
    return right and not isinstance(value, bool) and low <= value <= high  # type: ignore[operator]


def _mapping(source: Source, column: str, value: Mapping[Any, Any], null: bool) -> dict[str, str | None]:
    for key, item in value.items():
        if not isinstance(key, str):
            raise source.error("text as keys", column=column, value=key)
        if not isinstance(item, str) and not (null and item is None):
            expected = f"the name of a column{', or null' if null else ''}"
            raise source.error(expected, column=f"{column}.{key}", value="null" if item is None else item)
    return dict(value)


def _expected(name: str, kinds: tuple[Any, ...], mapping: bool) -> str:
    parts = []
    if bool in kinds:
        parts.append("true or false")
    if int in kinds or float in kinds:
        low, high = RANGES[name]
        what = "a whole number" if int in kinds else "a number"
        parts.append(f"{what} from {low:,.15g} to {high:,.15g}")
    if str in kinds:
        parts.append("text")
    if mapping:
        parts.append("a mapping of names")
    if types.NoneType in kinds:
        parts.append("null")
    return ", or ".join(parts)
