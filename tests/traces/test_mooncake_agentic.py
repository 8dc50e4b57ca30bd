from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.samples import write
from tests.traces.samples_public import MOONCAKE_PLAYS, MOONCAKE_WORKFLOW, after, lines, step
from traces import Trace, TraceError, load_trace

SERVICE = {"assumed_ttft_s": 1.0, "assumed_tpot_s": 0.01}


def read(tmp_path: Path, records: list[dict[str, Any]], **options: Any) -> Trace:
    return load_trace(write(tmp_path, "w.jsonl", lines(records)), **SERVICE, **options)


def by_prompt(trace: Trace) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in trace.frame[["prompt_tokens", "session", "turn", "think_s", "arrival_s"]].rows()}


def test_a_turn_waits_for_the_one_before_and_a_sub_agent_is_a_session(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE_WORKFLOW)
    rows = by_prompt(trace)
    assert (trace.replay, trace.n_sessions) == ("closed", 2)
    main = rows[200][0]
    assert rows[200] == (main, 1, None, 0.0)
    assert rows[400] == (main, 2, pytest.approx(2.0), pytest.approx(2 + 2.0))  # ended at 2 s; delay and tools
    sub = rows[130]
    assert sub[1:] == (1, None, pytest.approx(2.1))
    # The third turn waits for the sub-agent, which ends at 2.1 + 5 s; its own last turn ended at 4 + 1.5 s.
    assert rows[500] == (main, 3, pytest.approx(7.1 - 5.5), pytest.approx(7.1))
    assert rows[70] == (-1, 1, None, 1.5)
    notes = " ".join(trace.provenance)
    assert "2 of 5 requests continue one of their session; think time is the recorded delay for 1" in notes
    assert "1 requests that wait for others start sessions of their own" in notes
    assert "blocks of 64 tokens, the power of two that fits every row" in notes


def test_chains(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE_WORKFLOW)
    chains = {p: trace.chain(i).tolist() for i, p in enumerate(trace.frame["prompt_tokens"].to_list())}
    assert {p: len(c) for p, c in chains.items()} == {200: 4, 400: 7, 130: 2, 500: 7, 70: 1}
    assert chains[200] == chains[400][:4]
    assert chains[400] == chains[500][:7]
    assert chains[130][0] == chains[70][0] == chains[200][0]


def test_plays_have_ids_of_their_own_and_recorded_service(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"all 2 start at one time: trace\.options\.session_rate_per_s"):
        read(tmp_path, MOONCAKE_PLAYS)
    trace = read(tmp_path, MOONCAKE_PLAYS, session_rate_per_s=0.01, seed=5)
    gaps = np.random.default_rng(5).exponential(100.0, 2)
    second = trace.frame.filter(trace.frame["prompt_tokens"] == 200)["arrival_s"]
    assert second.to_list() == pytest.approx([0.0, gaps[1]])
    rows = by_prompt(read(tmp_path, MOONCAKE_PLAYS[:4]))
    assert rows[400][2:] == (pytest.approx(2.0), pytest.approx(4.0 + 2.0))
    assert rows[90][1:] == (1, None, pytest.approx(0.25))  # waits for the dispatch only
    assert len({int(trace.chain(i)[0]) for i in range(len(trace))}) == 2
    assert "service as recorded for 2 requests" in " ".join(trace.provenance)
    assert trace.frame["model"].to_list() == ["m"] * 6


def test_parallel_requests_of_one_session_are_streams(tmp_path: Path) -> None:
    records = [
        step("a", 64, 100, [1], session_id="s", timestamp=0),
        step("b", 65, 100, [1, 2], session_id="s", timestamp=500),  # overlaps: a takes 2 s
        step("c", 66, 1, [1, 3], session_id="s", wait_for=["a", "b"]),
    ]
    rows = by_prompt(read(tmp_path, records))
    assert rows[64][0] != rows[65][0]
    assert rows[66][:2] == (rows[65][0], 2)
    assert rows[66][2] == pytest.approx(0.0)


def test_a_block_that_the_file_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    one = [step("a", 10, 1, [1], session_id="s", timestamp=0), step("b", 12, 1, [1], session_id="s", wait_for=["a"])]
    with pytest.raises(TraceError, match=r"block_tokens=N.*16, 32, 64, 128, 256, 512, 1024 fit"):
        read(tmp_path, one)
    assert read(tmp_path, one, block_tokens=10).prefix_block_tokens == 10
    bare = [{k: v for k, v in r.items() if k != "hash_ids"} for r in one]
    assert read(tmp_path, bare).prefix_block_tokens == 0


W, P = MOONCAKE_WORKFLOW, MOONCAKE_PLAYS[:4]
BAD = [
    ("unknown", [W[0], W[1] | {"wait_for": ["m9"]}], {}, 2, "wait_for", "the request_id of a row"),
    ("ring", [W[0], W[1] | {"wait_for": ["m2"]}], {}, 2, "wait_for", "wait for each other"),
    ("twice", [W[0], W[1] | {"request_id": "m1"}], {}, 2, "request_id", "once"),
    ("no stamp", [W[1] | {"wait_for": []}], {}, 1, "timestamp", "to be present"),
    ("negative delay", [W[0], W[1] | {"delay": -1}], {}, 2, "delay", "from 0"),
    ("trigger", [*P[:2], P[2] | {"dependencies": [after("p1", 0, "start")]}], {}, 3, "dependencies", "a trigger"),
    ("no list", [*P[:2], P[2] | {"dependencies": 5}], {}, 3, "dependencies", "a list of objects"),
    ("version", [P[0] | {"version": 3}, *P[1:]], {}, 1, "version", "2"),
    ("header only", P[:1], {}, None, None, "at least one request"),
    ("block", P, {"block_tokens": 16}, None, "trace.options.block_tokens", "as the header says"),
    ("hashes", [W[0], W[1] | {"hash_ids": [1]}], {"block_tokens": 64}, 2, "hash_ids", "6 or 7 ids"),
    ("rate", W, {"session_rate_per_s": 1.0}, None, "trace.options.session_rate_per_s", "have stamps"),
    ("drop", W, {"zero_output": "drop"}, None, "trace.options.zero_output", "tear"),
]


@pytest.mark.parametrize(
    ("records", "options", "row", "column", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_rows_and_options(
    tmp_path: Path,
    records: list[dict[str, Any]],
    options: dict[str, Any],
    row: int | None,
    column: str | None,
    expected: str,
) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace(write(tmp_path, "w.jsonl", lines(records)), format="mooncake_agentic", **options)
    assert (raised.value.row, raised.value.column) == (row, column)
    assert expected in str(raised.value)
