from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples import write
from tests.traces.samples_public import BAILIAN, chat, lines
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: list[dict[str, Any]] | None = None, **options: Any) -> Trace:
    return load_trace(write(tmp_path, "b.jsonl", lines(BAILIAN if records is None else records)), **options)


def rows(trace: Trace) -> dict[int, tuple[int, int]]:
    """Session and turn by prompt length."""
    frame = trace.frame.select("prompt_tokens", "session", "turn")
    return {prompt: (session, turn) for prompt, session, turn in frame.rows()}


def test_sessions_follow_parents_and_a_branch_starts_one_of_its_own(tmp_path: Path) -> None:
    trace = read(tmp_path)
    found = rows(trace)
    a = found[40][0]
    assert [found[p] for p in (40, 80, 100)] == [(a, 1), (a, 2), (a, 3)]
    assert [found[p][1] for p in (20, 33, 97)] == [1, 1, 1]
    assert len({found[p][0] for p in (40, 20, 33, 97)}) == trace.n_sessions == 4
    notes = " ".join(trace.provenance)
    assert "33.3% of requests continue an earlier one" in notes  # 2 of 6
    assert "1 name a parent that is not in the file" in notes
    assert "1 are branches" in notes


def test_think_time_is_from_the_end_of_the_turn_before(tmp_path: Path) -> None:
    trace = read(tmp_path, assumed_ttft_s=2.0, assumed_tpot_s=0.1)
    think = dict(trace.frame.select("prompt_tokens", "think_s").rows())
    assert think[80] == pytest.approx(10 - 2 - 2.4)
    assert think[100] == pytest.approx(10.25 - 2 - 1.6)
    assert think[97] is None
    assert len(read(tmp_path, replay="closed")) == 6


def test_chains_are_full_blocks_and_answers_take_the_next_turns_ids(tmp_path: Path) -> None:
    trace = read(tmp_path)
    chains = {p: trace.chain(i).tolist() for i, p in enumerate(trace.frame["prompt_tokens"].to_list())}
    assert {p: len(c) for p, c in chains.items()} == {40: 4, 20: 1, 80: 6, 33: 2, 100: 6, 97: 6}
    assert chains[40] == chains[80][:4]
    assert chains[80] == chains[100][:6]
    assert chains[97][:5] == chains[80][:5]
    assert chains[97][5] != chains[80][5]
    assert chains[20] == chains[40][:1]
    assert "known for 2 of 2 continued" in " ".join(trace.provenance)


def test_where_thinking_is_dropped_from_the_history_the_answers_blocks_stay_unknown(tmp_path: Path) -> None:
    turns = [chat(0, -1, 0, 32, 1000, [1, 2]), chat(1, 0, 60, 160, 10, [1, 2, *range(50, 58)])]
    trace = read(tmp_path, turns)
    assert len(trace.chain(0)) == 2
    assert trace.chain(0).tolist() == trace.chain(1).tolist()[:2]
    assert "known for 0 of 1 continued" in " ".join(trace.provenance)


def test_a_hash_that_names_a_block_alone_becomes_one_that_names_the_prefix(tmp_path: Path) -> None:
    records = [chat(0, -1, 0, 48, 1, [5, 6, 5]), chat(1, -1, 1, 32, 1, [6, 5]), chat(2, -1, 2, 48, 1, [5, 6, 6])]
    trace = read(tmp_path, records)
    first, second, third = (trace.chain(i).tolist() for i in range(3))
    assert len({*first, *second}) == 5
    assert third[:2] == first[:2]
    assert third[2] != first[2]


def test_types_are_classes(tmp_path: Path) -> None:
    assert read(tmp_path).classes == ("file", "text")
    bare = [{k: v for k, v in r.items() if k not in ("type", "turn")} for r in BAILIAN]
    assert read(tmp_path, bare).classes == ("default",)


def test_a_turn_without_output_can_be_dropped_without_tearing_its_session(tmp_path: Path) -> None:
    records = [BAILIAN[0], BAILIAN[2] | {"output_length": 0}, BAILIAN[4]]
    with pytest.raises(TraceError, match=r"row 2, column 'output_length'.*zero_output=drop"):
        read(tmp_path, records)
    trace = read(tmp_path, records, zero_output="drop")
    assert rows(trace) == {40: (0, 1), 100: (0, 2)}
    assert trace.frame["think_s"][1] == pytest.approx(20.25 - 1 - 0.03 * 24)
    assert trace.chain(0).tolist() == trace.chain(1).tolist()[:4]


def test_stamps_out_of_order(tmp_path: Path) -> None:
    shuffled = [BAILIAN[i] for i in (2, 0, 4, 1, 5, 3)]
    with pytest.raises(TraceError, match=r"row 2, column 'timestamp': found 0\.0, .*sort=true"):
        read(tmp_path, shuffled)
    assert read(tmp_path, shuffled, sort=True).sha256 == read(tmp_path).sha256


def test_a_parent_that_comes_later_is_no_parent(tmp_path: Path) -> None:
    trace = read(tmp_path, [chat(0, 1, 0, 32, 1, [1, 2]), chat(1, -1, 1, 32, 1, [1, 2]), chat(2, 2, 3, 32, 1, [1, 2])])
    assert trace.n_sessions == 3
    assert "2 one that does not come before them" in " ".join(trace.provenance)


BAD = [
    ("a chat twice", {"chat_id": 8}, "chat_id", "each chat_id once"),
    ("negative length", {"input_length": -4}, "input_length", "from 1 to 10,000,000"),
    ("text", {"output_length": "7"}, "output_length", "whole number"),
    ("epoch stamp", {"timestamp": 1.7e9}, "timestamp", "seconds from the start"),
    ("too few hashes", {"hash_ids": [1, 2, 3, 4]}, "hash_ids", "5 or 6 hashes"),
    ("hashes of a larger block", {"hash_ids": [1] * 7}, "hash_ids", "7 hashes"),
    ("a list in it", {"hash_ids": [1, 2, 3, 4, None]}, "hash_ids", "whole numbers"),
    ("null", {"parent_chat_id": None}, "parent_chat_id", "a value"),
    ("an object", {"type": {}}, "type", "text"),
]


@pytest.mark.parametrize(("change", "column", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_field_names_line_and_field(tmp_path: Path, change: dict[str, Any], column: str, expected: str) -> None:
    records = [BAILIAN[0], BAILIAN[1], BAILIAN[2] | change, *BAILIAN[3:]]
    path = write(tmp_path, "bad.jsonl", b"\n" + lines(records))
    with pytest.raises(TraceError) as raised:
        load_trace(path, format="bailian")
    assert (raised.value.file, raised.value.row, raised.value.column) == (str(path), 4, column)
    assert expected in str(raised.value)


def test_a_missing_field_names_the_nearest(tmp_path: Path) -> None:
    record = {("input_len" if k == "input_length" else k): v for k, v in BAILIAN[0].items()}
    with pytest.raises(TraceError, match=r"row 1, column 'input_length'.*did you mean 'input_len'"):
        read(tmp_path, [record])


def test_numbers_that_only_look_like_fractions_are_read(tmp_path: Path) -> None:
    exact = read(tmp_path)
    path = write(tmp_path, "f.jsonl", lines(BAILIAN).replace(b'"input_length": 40', b'"input_length": 40.0'))
    assert load_trace(path).sha256 == exact.sha256


def test_large_hashes(tmp_path: Path) -> None:
    big = [json.loads(json.dumps(r)) for r in BAILIAN]
    for record in big:
        record["hash_ids"] = [i * 2**50 + 1 for i in record["hash_ids"]]
    assert read(tmp_path, big).sha256 == read(tmp_path).sha256
