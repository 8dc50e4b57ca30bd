from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.samples import MOONCAKE, mooncake_jsonl, mooncake_record, write
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: list[dict[str, object]] | None = None, **options: Any) -> Trace:
    return load_trace(write(tmp_path, "conversation.jsonl", mooncake_jsonl(records)), **options)


def test_sessions_follow_prefix_chains(tmp_path: Path) -> None:
    frame = read(tmp_path).frame.sort("prompt_tokens", "output_tokens")
    by_prompt = {
        (p, o): (s, t) for p, o, s, t in frame.select("prompt_tokens", "output_tokens", "session", "turn").rows()
    }
    a, b = by_prompt[1100, 200][0], by_prompt[1600, 30][0]
    assert [by_prompt[key] for key in ((1100, 200), (2100, 500), (2700, 20))] == [(a, 1), (a, 2), (a, 3)]
    # The retry repeats B's prompt without growing it: no turn. B's second turn continues the later of the two.
    assert by_prompt[1030, 70] == (b, 1)
    assert by_prompt[1600, 30] == (b, 2)
    assert by_prompt[1030, 50][0] not in (a, b)
    assert by_prompt[600, 10][1] == 1


def test_linked_share_and_method_are_in_the_provenance(tmp_path: Path) -> None:
    notes = " ".join(read(tmp_path).provenance)
    assert "42.9% of requests linked" in notes  # 3 of 7
    assert "71.4% in sessions" in notes  # 5 of 7
    assert "min_blocks=2" in notes


def test_chains_are_full_blocks_and_the_answer_takes_the_next_turns_ids(tmp_path: Path) -> None:
    trace = read(tmp_path)
    row = {p: i for i, p in enumerate(trace.frame["prompt_tokens"].to_list())}
    first, second, third = (trace.chain(row[p]).tolist() for p in (1100, 2100, 2700))
    assert [len(first), len(second), len(third)] == [2, 5, 5]  # 1300, 2600 tokens known; 2700 // 512 of the last prompt
    assert second == third[:5]
    assert first == second[:2]
    assert len(trace.chain(row[600])) == 1
    assert trace.chain(row[600])[0] == first[0]  # everyone shares block 0


def test_think_time_is_what_the_assumed_service_leaves(tmp_path: Path) -> None:
    trace = read(tmp_path, assumed_ttft_s=2.0, assumed_tpot_s=0.1, bucket_s=0.0)
    think = dict(trace.frame.filter(trace.frame["turn"] > 1).select("prompt_tokens", "think_s").rows())
    assert think[2100] == pytest.approx(60 - 2 - 0.1 * 200)
    assert think[2700] == pytest.approx(120 - 2 - 0.1 * 500)


def test_stamps_are_spread_inside_their_bucket_in_order_by_seed(tmp_path: Path) -> None:
    records = [mooncake_record(3000 * (i // 5), 600, 10, [i, 1000 + i]) for i in range(50)]
    one, again, other = (read(tmp_path, records, seed=seed) for seed in (1, 1, 2))
    arrival = one.frame["arrival_s"].to_numpy()
    assert (np.diff(arrival) > 0).all()
    assert (arrival // 3 == np.arange(50) // 5).all()
    assert one.sha256 == again.sha256 != other.sha256
    assert one.duration_s == 30.0
    exact = read(tmp_path, records, bucket_s=0.0)
    assert exact.frame["arrival_s"].to_list() == [3.0 * (i // 5) for i in range(50)]


def test_stamps_that_are_not_shared_are_exact(tmp_path: Path) -> None:
    records = [mooncake_record(7 * i, 600, 10, [i, 1000 + i]) for i in range(5)]
    assert read(tmp_path, records).frame["arrival_s"].to_numpy() == pytest.approx(np.arange(5) * 0.007)


def test_ids_that_name_a_block_only_become_prefix_ids(tmp_path: Path) -> None:
    records = [mooncake_record(0, 1024, 1, [1, 5]), mooncake_record(1, 1024, 1, [2, 5])]
    assert len(set(read(tmp_path, records).chain_ids.tolist())) == 4


def test_sessions_can_be_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, infer_sessions=False)
    assert trace.n_sessions == 0
    assert set(trace.frame["turn"].to_list()) == {1}


def test_bounds_of_the_inference_are_options(tmp_path: Path) -> None:
    assert (read(tmp_path, max_gap_s=59.0).frame["turn"] > 1).sum() == 0
    assert (read(tmp_path, min_blocks=3).frame["turn"] > 1).sum() == 1  # A's third turn shares four blocks


BAD = [
    ("negative stamp", {"timestamp": -1}, "timestamp", "from 0"),
    ("epoch stamp", {"timestamp": 1_700_000_000_000}, "timestamp", "ms from the start"),
    ("negative length", {"input_length": -5}, "input_length", "from 1 to 10,000,000"),
    ("implausible length", {"input_length": 10**12}, "input_length", "10,000,000"),
    ("text", {"output_length": "12"}, "output_length", "whole number"),
    ("true", {"output_length": True}, "output_length", "whole number"),
    ("no output", {"output_length": 0}, "output_length", "zero_output=one"),
    ("too few ids", {"hash_ids": [0]}, "hash_ids", "2 or 3 ids"),
    ("no list", {"hash_ids": "0,1"}, "hash_ids", "a list"),
    ("a bad id", {"hash_ids": [0, 1.5, 90]}, "hash_ids", "whole numbers"),
]


@pytest.mark.parametrize(("change", "column", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_field_names_line_and_field(
    tmp_path: Path, change: dict[str, object], column: str, expected: str
) -> None:
    path = write(tmp_path, "bad.jsonl", b"\n" + mooncake_jsonl([MOONCAKE[0] | change, *MOONCAKE[1:]]))
    with pytest.raises(TraceError) as raised:
        load_trace(path, format="mooncake")
    assert (raised.value.file, raised.value.row, raised.value.column) == (str(path), 2, column)
    assert expected in str(raised.value)


def test_a_missing_field_names_the_nearest(tmp_path: Path) -> None:
    record = {("input_len" if k == "input_length" else k): v for k, v in MOONCAKE[0].items()}
    with pytest.raises(TraceError, match=r"'input_length'.*did you mean 'input_len'"):
        load_trace(write(tmp_path, "a.jsonl", mooncake_jsonl([record])), format="mooncake")


@pytest.mark.parametrize("line", ["{", "[1]", '{"timestamp": NaN}', "[" * 5000, "1" * 5000, '{"a": 1} x'])
def test_a_line_that_is_no_object(tmp_path: Path, line: str) -> None:
    data = json.dumps(MOONCAKE[0]).encode() + b"\n" + line.encode()
    with pytest.raises(TraceError, match=r"row 2.*one JSON object a line"):
        load_trace(write(tmp_path, "a.jsonl", data), format="mooncake")


def test_unsorted_stamps(tmp_path: Path) -> None:
    shuffled = [MOONCAKE[i] for i in (3, 0, 1, 2, 4, 5, 6)]
    with pytest.raises(TraceError, match=r"row 2, column 'timestamp': found 0, .*sort=true"):
        read(tmp_path, shuffled)
    assert len(read(tmp_path, shuffled, sort=True)) == 7
