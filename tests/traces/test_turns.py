"""Which requests of a log are turns of one session: keys that are none, calls that overlap, turns that are dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.traces.samples import write
from tests.traces.samples_public import BURSTGPT_HEADER
from traces import Trace, TraceError, load_trace

WORDS = ["null", "NULL", "None", "nan", "NaN", "N/A", "-1.0", "-1", "<NA>", ""]
TOLD = "session keys that say none"


def table(tmp_path: Path, columns: dict[str, list[Any]], **options: Any) -> Trace:
    n = len(columns["arrival_s"])
    frame = pl.DataFrame({"prompt_tokens": [20] * n, "output_tokens": [10] * n, **columns})
    return load_trace(write(tmp_path, "log.csv", frame.write_csv().encode()), format="table", **options)


def keys(trace: Trace) -> list[int | None]:
    return trace.frame["session"].to_list() if "session" in trace.frame.columns else [None] * len(trace)


def test_words_for_no_session_are_no_session(tmp_path: Path) -> None:
    named = table(tmp_path, {"arrival_s": list(range(12)), "session": [*WORDS, "a", "a"]})
    assert [key == keys(named)[-1] for key in keys(named)] == [False] * 10 + [True] * 2
    assert named.frame["turn"].to_list() == [1] * 11 + [2]
    assert any(f"{TOLD} (null, NaN, -1, ...): 9 requests" in note for note in named.provenance)
    assert not any(TOLD in n for n in table(tmp_path, {"arrival_s": [0, 1], "session": ["a", "a"]}).provenance)


def test_minus_one_as_a_fraction_is_no_session(tmp_path: Path) -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1, 2, 3], "prompt_tokens": [9] * 4, "output_tokens": [9] * 4})
    frame = frame.with_columns(session=pl.Series([-1.0, -1.0, 7.0, 7.0]))
    frame.write_parquet(tmp_path / "log.parquet")
    assert load_trace(tmp_path / "log.parquet", format="table").frame["turn"].to_list() == [1, 1, 1, 2]


@pytest.mark.parametrize("form", ["gateway", "mooncake", "burstgpt"])
def test_other_logs_have_the_same_words(tmp_path: Path, form: str) -> None:
    ids = ["None", "nan", "a", "NULL", "a"]
    if form == "burstgpt":
        rows = [f"{10 * i}.0,{key},1,GPT-4,9,9,18,API log" for i, key in enumerate(ids)]
        data = "\n".join([BURSTGPT_HEADER, *rows]).encode()
    elif form == "mooncake":
        records = [
            {"timestamp": 1e4 * i, "session_id": key, "input_length": 9, "output_length": 9}
            for i, key in enumerate(ids)
        ]
        data = b"\n".join(json.dumps(record).encode() for record in records)
    else:
        records = [
            {
                "start_time": 10.0 * i,
                "end_time": 10.0 * i + 1,
                "session_id": key,
                "usage": {"prompt_tokens": 9, "completion_tokens": 9},
            }
            for i, key in enumerate(ids)
        ]
        data = b"\n".join(json.dumps(record).encode() for record in records)
    (tmp_path / "log").write_bytes(data)
    trace = load_trace(tmp_path / "log", format=form)
    assert trace.frame["turn"].to_list() == [1, 1, 1, 1, 2]
    assert any(f"{TOLD} (null, NaN, -1, ...): 3 requests" in note for note in trace.provenance)


PARALLEL = {"arrival_s": [0, 1, 2, 60], "session": ["a"] * 4, "end_s": [50, 40, 30, 61]}


def test_calls_that_overlap_are_streams(tmp_path: Path) -> None:
    trace = table(tmp_path, PARALLEL)
    assert trace.frame["turn"].to_list() == [1, 1, 1, 2]
    assert trace.frame["think_s"].to_list() == [None, None, None, 10.0]
    assert len(set(keys(trace))) == 3
    assert any("parallel calls: 2 of 3 later turns" in note for note in trace.provenance)


def test_turns_that_the_file_numbers_stay_together(tmp_path: Path) -> None:
    trace = table(tmp_path, {**PARALLEL, "turn": [1, 2, 3, 4]})
    assert trace.frame["think_s"].to_list() == [None, 0.0, 0.0, 30.0]
    assert any("66.7% of gaps were negative" in note for note in trace.provenance)


def test_a_turn_that_a_think_time_counts_from_is_not_dropped(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"arrival_s": [0, 5, 9], "session": ["a"] * 3, "output_tokens": [5, 0, 5]}
    for more in ({"think_s": [None, 3, 3]}, {"end_s": [2, 6, 12]}):
        with pytest.raises(TraceError, match=r"row 3, column 'output_tokens'.*would tear its session"):
            table(tmp_path, columns | more, zero_output="drop")
        assert len(table(tmp_path, columns | more, zero_output="one")) == 3
        last = columns | more | {"output_tokens": [5, 5, 0]}
        assert table(tmp_path, last, zero_output="drop").frame["think_s"].to_list() == [None, 3.0]
    assert len(table(tmp_path, columns, zero_output="drop")) == 2


def latencies(e2e: float, output: int = 10, column: str = "e2e_s") -> dict[str, list[Any]]:
    session = [f"s{k // 2}" for k in range(20)]
    columns = {"arrival_s": [5.0 * k for k in range(20)], "session": session, "output_tokens": [output] * 20}
    return columns | {column: [e2e + k / 100 for k in range(20)]}


def test_latencies_in_milliseconds_are_a_question(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"column 'e2e_s'.*at most 2 s a token.*51.5 s.* *latency_unit=ms"):
        table(tmp_path, latencies(515.0))
    assert table(tmp_path, latencies(515.0), latency_unit="ms").frame["think_s"][1] == pytest.approx(5 - 0.515)
    with pytest.raises(TraceError, match=r"column 'e2e_s'.*10 of 10 do not.*latency_unit=ms, or =s if calls are"):
        table(tmp_path, latencies(515.0, output=2000))
    assert table(tmp_path, latencies(515.0, output=2000), latency_unit="s").frame["turn"].max() == 1
    with pytest.raises(TraceError, match=r"at least 0.0001 s a token.*latency_unit=s"):
        table(tmp_path, latencies(8.0, output=2000, column="e2e_ms"))
    assert table(tmp_path, latencies(0.5, output=1)).frame["turn"].max() == 2
