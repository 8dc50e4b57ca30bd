from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.samples import MOONCAKE, mooncake_jsonl, mooncake_record, write
from tests.traces.samples_public import MOONCAKE_DELTAS, MOONCAKE_SESSIONS, lines, turn
from traces import Trace, TraceError, load_trace

SERVICE = {"assumed_ttft_s": 1.0, "assumed_tpot_s": 0.01}


def read(tmp_path: Path, records: list[dict[str, Any]], **options: Any) -> Trace:
    return load_trace(write(tmp_path, "m.jsonl", lines(records)), **SERVICE, **options)


def by_prompt(trace: Trace) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in trace.frame[["prompt_tokens", "session", "turn", "think_s", "arrival_s"]].rows()}


def test_recorded_sessions_are_closed_loop_and_a_delay_is_a_think_time(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE_SESSIONS)
    rows = by_prompt(trace)
    assert (trace.replay, trace.n_sessions) == ("closed", 2)
    assert rows[1100] == (0, 1, None, 0.0)
    assert rows[700] == (1, 1, None, pytest.approx(1.0005))
    assert rows[2100] == (0, 2, 2.5, pytest.approx(0 + 1 + 2 + 2.5))  # nominal: service, then the delay
    assert rows[2700] == (0, 3, 1.0, pytest.approx(5.5 + 1 + 5 + 1))
    assert rows[600] == (-1, 1, None, 8.0)
    assert "2 recorded (delay), 0 from the gap" in " ".join(trace.provenance)


def test_chains_of_recorded_sessions_take_answers_from_the_next_turn(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE_SESSIONS)
    chains = {p: trace.chain(i).tolist() for i, p in enumerate(trace.frame["prompt_tokens"].to_list())}
    assert {p: len(c) for p, c in chains.items()} == {1100: 2, 700: 1, 2100: 5, 2700: 5, 600: 1}
    assert chains[2100] == chains[2700][:5]
    assert chains[700] == chains[600] == chains[1100][:1]


def test_a_gap_between_stamps_is_no_think_time_before_service_is_taken_off(tmp_path: Path) -> None:
    stamps = [0, 1000, 60_000, 61_000, 90_000]
    records = [{k: v for k, v in r.items() if k != "delay"} for r in MOONCAKE_SESSIONS]
    records = [r | {"timestamp": stamp} for r, stamp in zip(records, stamps, strict=True)]
    trace = read(tmp_path, records)
    rows = by_prompt(trace)
    assert trace.replay == "open"
    assert [rows[p][3] for p in (1100, 700, 2100, 2700, 600)] == [0.0, 1.0, 60.0, 61.0, 90.0]
    assert rows[2100][2] == pytest.approx(60 - 1 - 2)
    assert rows[2700][2] == 0.0  # came before the assumed end
    assert "2 from the gap between stamps less an assumed service" in " ".join(trace.provenance)
    assert "(1 gaps were shorter" in " ".join(trace.provenance)
    assert read(tmp_path, records, replay="closed").replay == "closed"


def test_sessions_without_stamps_need_a_rate(tmp_path: Path) -> None:
    bare = [{k: v for k, v in r.items() if k != "timestamp"} for r in MOONCAKE_SESSIONS]
    with pytest.raises(TraceError, match=r"row 1, column 'timestamp'.*session_rate_per_s=N draws"):
        read(tmp_path, bare)
    trace = read(tmp_path, bare, session_rate_per_s=0.5, seed=3)
    starts = {prompt: row[3] for prompt, row in by_prompt(trace).items() if row[1] == 1}
    gaps = np.random.default_rng(3).exponential(2.0, 3)
    assert starts[600] == pytest.approx(gaps[1] + gaps[2])
    assert any("session starts drawn: Poisson, 0.5 sessions a second, seed 3" in note for note in trace.provenance)
    with pytest.raises(TraceError, match="sessions have stamps"):
        read(tmp_path, MOONCAKE_SESSIONS, session_rate_per_s=0.5)
    with pytest.raises(TraceError, match="as first turns of other sessions have one"):
        read(tmp_path, [bare[0], *MOONCAKE_SESSIONS[1:]])


def test_lengths_that_count_what_a_turn_adds_are_asked_about_and_summed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 2, column 'input_length': found 150, .*50% of 2 do.*later_turns=delta"):
        read(tmp_path, MOONCAKE_DELTAS, session_rate_per_s=1.0)
    trace = read(tmp_path, MOONCAKE_DELTAS, session_rate_per_s=1.0, later_turns="delta")
    frame = trace.frame.filter(trace.frame["session"] == trace.frame["session"][0]).sort("turn")
    assert frame["prompt_tokens"].to_list() == [1100, 1450, 2280]  # + 200 + 150, + 30 + 800
    chains = {p: trace.chain(i).tolist() for i, p in enumerate(trace.frame["prompt_tokens"].to_list())}
    assert {p: len(c) for p, c in chains.items()} == {1100: 2, 1450: 2, 2280: 4, 1030: 2}
    assert chains[1030] == chains[1100]  # first turns share what their hashes say
    assert chains[2280][:2] == chains[1450]
    assert (
        read(tmp_path, MOONCAKE_DELTAS, session_rate_per_s=1.0, later_turns="whole").frame["prompt_tokens"].max()
        == 1100
    )


def test_other_names_of_the_fields(tmp_path: Path) -> None:
    names = {"timestamp": "created_time", "input_length": "input_tokens", "output_length": "output_tokens"}
    renamed = [{names.get(k, k): v for k, v in r.items()} for r in MOONCAKE]
    path = write(tmp_path, "n.jsonl", lines(renamed))
    assert load_trace(path, format="mooncake").sha256 == load_trace(write(tmp_path, "o.jsonl", mooncake_jsonl())).sha256


def test_without_hashes_nothing_is_known_of_prefixes(tmp_path: Path) -> None:
    bare = [{k: v for k, v in r.items() if k != "hash_ids"} for r in MOONCAKE]
    trace = load_trace(write(tmp_path, "b.jsonl", lines(bare)), format="mooncake")
    assert (trace.prefix_block_tokens, trace.n_sessions) == (0, 0)
    assert any("no hash_ids" in note for note in trace.provenance)
    some = load_trace(write(tmp_path, "s.jsonl", lines([MOONCAKE[0], bare[1]])))
    assert [len(some.chain(i)) for i in range(2)] == [2, 0]
    assert any("1 requests have no hash_ids" in note for note in some.provenance)


def test_other_block_sizes(tmp_path: Path) -> None:
    records = [mooncake_record(0, 100, 1, [1, 2, 3, 4, 5, 6, 7])]
    with pytest.raises(TraceError, match=r"0 or 1 ids.*block_tokens"):
        load_trace(write(tmp_path, "a.jsonl", lines(records)))
    assert len(load_trace(write(tmp_path, "a.jsonl", lines(records)), block_tokens=16).chain(0)) == 6


BAD = [
    ("a first delay", [turn("a", 9, 1, [], timestamp=0, delay=5)], {}, 1, "delay", "no delay on the first turn"),
    ("no session", [turn(None, 9, 1, [], timestamp=0, delay=5)], {}, 1, "delay", "without a session_id"),
    ("no stamp", [turn(None, 9, 1, [])], {}, 1, "timestamp", "a stamp"),
    (
        "back in time",
        [turn("a", 9, 1, [], timestamp=5), turn("a", 9, 1, [], timestamp=0), turn("a", 9, 1, [])],
        {},
        2,
        "timestamp",
        "in order of time",
    ),
    ("unsorted", [turn("a", 9, 1, [], timestamp=5), turn("b", 9, 1, [], timestamp=0)], {}, 2, "timestamp", "sort=true"),
    ("drop", MOONCAKE_SESSIONS, {"zero_output": "drop"}, None, "trace.options.zero_output", "tear"),
    ("buckets", MOONCAKE_SESSIONS, {"bucket_s": 3.0}, None, "trace.options.bucket_s", "without session ids"),
    ("a kind", MOONCAKE_SESSIONS, {"later_turns": "deltas"}, None, "trace.options.later_turns", "did you mean 'delta'"),
    ("a kind in vain", MOONCAKE, {"later_turns": "delta"}, None, "trace.options.later_turns", "with session ids"),
    ("text", [{"text_input": "hi", "output_length": 4, "timestamp": 0}], {}, 1, "input_length", "to be present"),
    ("workflow", [turn("a", 9, 1, [], wait_for=["x"])], {}, None, "wait_for", "trace.format=mooncake_agentic"),
]


@pytest.mark.parametrize(
    ("records", "options", "row", "column", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_rows_and_options(
    tmp_path: Path, records: list[dict[str, Any]], options: dict[str, Any], row: int | None, column: str, expected: str
) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace(write(tmp_path, "m.jsonl", lines(records)), format="mooncake", **options)
    assert (raised.value.row, raised.value.column) == (row, column)
    assert expected in str(raised.value)
