from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.samples import write
from traces import TraceError
from traces.readers import json_table
from traces.readers.json_table import Field, read_json
from traces.source import read_source

FIELDS = (
    Field("n", "whole", 0, 100, "a number", aliases=("count",)),
    Field("x", "number", 0, 10, "seconds", optional=True),
    Field("t", "text", meaning="a label", optional=True),
    Field("ids", "whole_list", 0, 2**62, "ids", optional=True),
)
values = st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats(0, 20) | st.text(max_size=3)
good = st.fixed_dictionaries(
    {"n": st.integers(0, 100)},
    optional={
        "x": st.floats(0, 10) | st.integers(0, 10) | st.none(),
        "t": st.text(max_size=4) | st.none(),
        "ids": st.lists(st.integers(0, 2**62), max_size=4) | st.none(),
        "other": st.lists(st.dictionaries(st.text(max_size=2), values, max_size=2), max_size=2),
    },
)
bad = st.dictionaries(
    st.sampled_from(["n", "count", "x", "t", "ids"]), values | st.lists(values, max_size=3), min_size=1, max_size=4
)


@settings(max_examples=40)
@given(st.lists(good | bad, min_size=1, max_size=6))
def test_all_at_once_and_line_by_line_agree(records: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        path.write_bytes(b"\n".join(json.dumps(record).encode() for record in records))
        source = read_source(path)
        at_once = json_table._fast(source, FIELDS)
        try:
            by_line = json_table._slow(source, FIELDS)
        except TraceError:
            assert at_once is None
        else:
            assert at_once is None or at_once.equals(by_line)


@settings(max_examples=40)
@given(st.lists(good, min_size=1, max_size=6))
def test_sound_files_take_the_fast_way(records: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        path.write_bytes(b"\n".join(json.dumps(record).encode() for record in records))
        texts = [record.get("t") or "" for record in records]
        if not any(text.startswith(("{", "[")) for text in texts):
            assert json_table._fast(read_source(path), FIELDS) is not None


def test_blank_lines_count_as_lines(tmp_path: Path) -> None:
    table = read_json(read_source(write(tmp_path, "x.jsonl", b'\n{"n": 1}\n\n  \n{"count": 2}\n')), FIELDS)
    assert table.rows.tolist() == [2, 5]
    assert table.column("n").tolist() == [1, 2]
    assert not table.has("x")
    with pytest.raises(TraceError, match="row 5, column 'n': found 2, expected more"):
        raise table.error("more", 1, "n")


def test_lists_are_csr(tmp_path: Path) -> None:
    data = b'{"n": 1, "ids": [5, 6]}\n{"n": 2}\n{"n": 3, "ids": []}\n{"n": 4, "ids": [7]}\n'
    offsets, items = read_json(read_source(write(tmp_path, "x.jsonl", data)), FIELDS).lists("ids")
    assert (offsets.tolist(), items.tolist()) == ([0, 2, 2, 2, 3], [5, 6, 7])
