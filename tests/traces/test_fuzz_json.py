"""Whatever a JSON field holds, a reader gives a trace or a TraceError: half emoji, nulls, wrong types, no field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.test_fuzz import VALID, attempt
from traces import load_trace

ODD: list[Any] = [None, True, 0, -1, 5, 1.5, 1e308, -1e308, 2**70, float("nan"), float("inf")]
ODD += ["", "x", "5", "null", "\ud83d", "a\udc00b", "2026-01-31T23:59:59.5Z", "9" * 400, "é\u2028\u0000"]
ODD += [[], [None], [1, "a"], [[1]], [-1, 2**70], {}, {"a": None}, {"\ud83d": 1}, ["\ud83d"]]


def parsed(data: bytes) -> list[Any] | None:
    """The JSON documents that a sample is: one, or one a line; None if it is no JSON."""
    try:
        return [json.loads(data)]
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return None


SAMPLES = {name: [d for d in map(parsed, samples) if d is not None] for name, samples in VALID.items()}
SAMPLES = {name: documents for name, documents in SAMPLES.items() if documents}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def change(documents: list[Any], place: float, how: str, odd: Any) -> bytes:
    """The documents with one value replaced, left out, wrapped in a list, or under another key."""
    documents = json.loads(json.dumps(documents))
    found = list(places(documents))
    container, key = found[int(place * len(found))]
    if how == "replace":
        container[key] = odd
    elif how == "wrap":
        container[key] = [container[key]]
    elif how == "break" and isinstance(container[key], str):
        container[key] += "\ud83d"
    elif how == "remove" or isinstance(container, list):
        del container[key]
    else:
        container[f"{key}\ud83d"] = container.pop(key)
    return "\n".join(json.dumps(document) for document in documents).encode()


@pytest.mark.parametrize("name", SAMPLES)
@given(
    data=st.data(),
    place=st.floats(0, 1, exclude_max=True),
    how=st.sampled_from(["replace", "replace", "replace", "wrap", "break", "remove", "rename"]),
    odd=st.sampled_from(ODD),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_values(name: str, data: st.DataObject, place: float, how: str, odd: Any) -> None:
    attempt(name, change(data.draw(st.sampled_from(SAMPLES[name])), place, how, odd))


def test_most_formats_have_json_samples() -> None:
    assert len(SAMPLES) >= 10


def test_half_an_emoji_keeps_two_names_apart(tmp_path: Path) -> None:
    """As a log cuts one in two: the text stays as it is escaped, in ids, names and keys."""
    names = ["\ud83d", "\ud83e", "\ud83d", "\U0001f600"]
    records = [
        {
            "start_time": 10.0 * i,
            "end_time": 10.0 * i + 1,
            "session_id": name,
            "model": f"m{name}",
            f"key{name}": 1,
            "usage": {"prompt_tokens": 9, "completion_tokens": 9},
        }
        for i, name in enumerate(names)
    ]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, records)))
    trace = load_trace(tmp_path / "log", format="gateway")
    assert trace.frame["turn"].to_list() == [1, 1, 2, 1]
    assert trace.frame["model"].to_list() == ["m\\ud83d", "m\\ud83e", "m\\ud83d", "m\U0001f600"]
