from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.traces.samples import agentic_frame, parquet, write
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, frame: pl.DataFrame | None = None, **options: Any) -> Trace:
    data = parquet(agentic_frame() if frame is None else frame)
    settings = {"zero_output": "one", "prefix_block_tokens": 64} | options
    return load_trace(write(tmp_path, "requests.derived.parquet", data), **settings)


def session_of(trace: Trace, first_prompt: int, n: int) -> pl.DataFrame:
    """The session whose first prompt is that long and that has n turns."""
    frame = trace.frame.with_row_index("row")
    for _, part in frame.group_by("session", maintain_order=True):
        if part["prompt_tokens"][0] == first_prompt and part.height == n:
            return part
    raise AssertionError("no such session")


def test_streams_are_closed_loop_sessions(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert (trace.replay, trace.n_sessions, len(trace)) == ("closed", 3, 5)  # t1, its sub-agent, t2
    part = session_of(trace, 1024, 3)
    assert part["turn"].to_list() == [1, 2, 3]
    # Recorded where it is; else from t: 40 - (15 + 5).
    assert part["think_s"].to_list() == [None, 10.0, 20.0]
    assert np.diff(part["arrival_s"].to_numpy()) == pytest.approx([15.0, 25.0])
    assert any("repair zero_output=one: 1 " in note for note in trace.provenance)


def test_chains_are_rebuilt_from_shared_block_counts(tmp_path: Path) -> None:
    trace = read(tmp_path)
    part = session_of(trace, 1024, 3)
    one, two, three = (trace.chain(row) for row in part["row"].to_list())
    assert len(one) == 17  # 16 of the prompt, and the block that 1024 + 100 tokens complete
    assert one.tolist() == two[:17].tolist()
    assert len(two) == 32
    assert len(three) == 10
    # Turn 3 shares 4 blocks with turn 2, but 10 with turn 1: impossible here, since 1 and 2 share 16.
    # The reader falls back to the previous turn and keeps the count of blocks seen.
    assert three.tolist() == two[:10].tolist()


def test_a_return_to_an_earlier_branch_takes_that_branchs_ids(tmp_path: Path) -> None:
    frame = agentic_frame().filter((pl.col("trace_id") == "t1") & (pl.col("subagent") == ""))
    changed = frame.with_columns(
        lcp_prev_blocks=pl.Series([0, 2, 2]), prefix_seen_blocks=pl.Series([0, 2, 9])
    )  # 2 left the branch of 1 after two blocks, 3 is back on it
    trace = read(tmp_path, changed)
    one, two, three = (trace.chain(i) for i in range(3))
    assert three[:9].tolist() == one[:9].tolist()
    assert three[9] not in one
    assert two[2] not in one


def test_coarse_blocks_name_the_whole_prefix(tmp_path: Path) -> None:
    trace = read(tmp_path, prefix_block_tokens=512)
    part = session_of(trace, 1024, 3)
    one, two, three = (trace.chain(row).tolist() for row in part["row"].to_list())
    assert (one, two[:2], len(two), three) == (two[:2], one, 4, two[:1])


def test_duplicates_by_option(tmp_path: Path) -> None:
    assert read(tmp_path, duplicates="keep").n_sessions == 4
    assert read(tmp_path, duplicates="exact").n_sessions == 4  # the two differ in an output
    same = agentic_frame().with_columns(
        output_length=pl.when(pl.col("trace_id") == "t3")
        .then(pl.Series([100, 0, 64, 10, 10, 100, 0]))
        .otherwise("output_length")
    )
    copy = pl.concat(
        [
            same.filter(pl.col("trace_id") != "t3"),
            same.filter(pl.col("trace_id") == "t2").with_columns(trace_id=pl.lit("t9"), family=pl.lit("t9")),
        ]
    )
    trace = read(tmp_path, copy, duplicates="exact")
    assert trace.n_sessions == 3
    assert any("duplicates=exact: 1 sessions left out" in note for note in trace.provenance)


def test_caps_end_sessions_cut_thinking_and_are_counted(tmp_path: Path) -> None:
    capped = read(tmp_path, max_context_tokens=1500)
    assert capped.n_sessions == 2
    assert session_of(capped, 1024, 1).height == 1
    assert any("sessions end there" in note for note in capped.provenance)
    assert read(tmp_path, max_turns=2).frame["turn"].max() == 2
    assert read(tmp_path, max_think_s=5.0).frame["think_s"].max() == 5.0
    with pytest.raises(TraceError, match="max_context_tokens"):
        read(tmp_path, max_context_tokens=10)


def test_session_starts_are_drawn_by_seed(tmp_path: Path) -> None:
    assert read(tmp_path, seed=1).sha256 == read(tmp_path, seed=1).sha256 != read(tmp_path, seed=2).sha256
    assert any("Poisson, 2 sessions a second" in note for note in read(tmp_path, session_rate_per_s=2.0).provenance)


def test_zero_output_is_an_error_unless_repaired(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="row 2, column 'output_length': found 0"):
        read(tmp_path, zero_output="error")
    with pytest.raises(TraceError, match="tear"):
        read(tmp_path, zero_output="drop")


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("turn", 1, 0),
        ("turn", 2, 7),
        ("input_length", 3, -1),
        ("t", 1, float("nan")),
        ("think_time", 1, -1.0),
        ("lcp_prev_blocks", 1, 17),
        ("prefix_seen_blocks", 1, 40),
    ],
)
def test_a_bad_value_names_row_and_column(tmp_path: Path, column: str, row: int, value: float) -> None:
    frame = agentic_frame()
    values = frame[column].to_list()
    values[row] = value
    with pytest.raises(TraceError) as raised:
        read(tmp_path, frame.with_columns(pl.Series(column, values)))
    assert raised.value.column == column
    assert raised.value.row in (row + 1, row + 2)  # a turn that is missing shows on it or on the next


def test_options_out_of_range(tmp_path: Path) -> None:
    for option in (
        {"duplicates": "none"},
        {"session_rate_per_s": 0.0},
        {"prefix_block_tokens": 100},
        {"max_turns": 0},
    ):
        with pytest.raises(TraceError, match=next(iter(option))):
            read(tmp_path, **option)
