from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_serving import BIG, DYNAMO, Json, dynamo_record, enveloped, lines
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: list[Json] | None = None, **options: Any) -> Trace:
    path = tmp_path / "request_trace.jsonl"
    path.write_bytes(lines(DYNAMO if records is None else records))
    return load_trace(path, format="dynamo", **options)


def column(trace: Trace, name: str) -> list[Any]:
    return trace.frame[name].to_list()


def test_a_request_has_its_arrival_lengths_latencies_and_outcome(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert column(trace, "arrival_s") == [0.0, 1.0, 2.5, 5.0]
    assert column(trace, "prompt_tokens") == [1100, 700, 600, 1800]
    assert column(trace, "output_tokens") == [101, 20, 51, 101]
    assert column(trace, "ttft_s") == [1.0, 1.0, 0.5, 2.0]
    assert column(trace, "tpot_s") == pytest.approx([0.01, None, 0.01, 0.01])
    assert column(trace, "status") == ["ok", "cancelled", "ok", "ok"]
    assert column(trace, "cancel_after_s") == [None, 9.0, None, None]
    assert trace.duration_s == 5.0


def test_workers_are_numbered_and_the_mapping_is_told(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert column(trace, "prefill_worker") == [0, 1, 1, 0]
    assert column(trace, "decode_worker") == [3, 3, 2, 2]
    assert "5001=0, 5002=1, 6009=2, 6010=3" in " ".join(trace.provenance)


def test_data_parallel_ranks_are_workers_of_their_own(tmp_path: Path) -> None:
    records = [
        dynamo_record("x", 1_000 * i, 500.0, 600, 5, [1, 2], session="s", workers=(5, 5), finish="stop") for i in (0, 1)
    ]
    records[1]["request"]["worker"] |= {"prefill_dp_rank": 1, "decode_dp_rank": 1}
    assert column(read(tmp_path, records), "prefill_worker") == [0, 1]


def test_think_time_is_from_the_recorded_end(tmp_path: Path) -> None:
    trace = read(tmp_path, replay="closed")
    turns = trace.frame.filter(trace.frame["turn"] == 2)
    assert turns["think_s"].to_list() == [3.0]  # 5.0 - (0.0 + 2.0), the tool's time included
    assert turns["prompt_tokens"].to_list() == [1800]
    assert trace.replay == "closed"
    assert "1 tool_end" in " ".join(trace.provenance)


def test_parallel_calls_of_a_session_are_streams_of_their_own(tmp_path: Path) -> None:
    records = [
        dynamo_record(name, at, 2_000.0, 600, 5, [1, 2], session="s")
        for name, at in (("a", 0), ("b", 1_000), ("c", 2_500))
    ]
    trace = read(tmp_path, records, replay="closed")
    assert sorted(trace.frame.select("session", "turn", "think_s").rows()) == [(0, 1, None), (0, 2, 0.5), (1, 1, None)]
    assert "parallel calls" in " ".join(trace.provenance)


def test_chains_are_full_blocks_and_the_answer_takes_the_next_turns_ids(tmp_path: Path) -> None:
    # 1100 + 500 = 1600 tokens: three blocks, the third completed by the answer; the next prompt repeats it.
    records = [
        dynamo_record("1", 0, 1_000.0, 1100, 500, [BIG, 7, 90], session="s"),
        dynamo_record("2", 4_000, 1_000.0, 2100, 5, [BIG, 7, 8, 9, 92], session="s"),
        dynamo_record("other", 5_000, 1_000.0, 1100, 5, [BIG, 6, 93], session="t"),
    ]
    trace = read(tmp_path, records)
    first, second, other = (trace.chain(i).tolist() for i in range(3))
    assert first == second[:3]
    assert len(second) == 4
    assert other[0] == first[0]
    assert other[1] != first[1]
    assert trace.prefix_block_tokens == 512


def test_without_session_headers_sessions_come_from_prefixes_and_ends_are_still_recorded(tmp_path: Path) -> None:
    records = [
        dynamo_record("1", 0, 2_000.0, 1100, 100, [1, 2, 90]),
        dynamo_record("2", 10_000, 2_000.0, 1700, 100, [1, 2, 3, 91]),
        dynamo_record("early", 1_000, 500.0, 1700, 100, [1, 2, 4, 92]),  # before the first had ended: no reply to it
    ]
    trace = read(tmp_path, records, replay="closed")
    assert column(trace, "turn") == [1, 1, 2]
    assert column(trace, "think_s") == [None, None, 8.0]
    assert "linked to an earlier turn" in " ".join(trace.provenance)
    assert read(tmp_path, records, infer_sessions=False).n_sessions == 0


def test_the_file_sinks_envelope_and_segments_read_the_same(tmp_path: Path) -> None:
    whole = read(tmp_path)
    folder = tmp_path / "segments"
    folder.mkdir()
    (folder / "trace.000000.jsonl.gz").write_bytes(gzip.compress(lines(enveloped(DYNAMO[:2]))))
    (folder / "trace.000001.jsonl.gz").write_bytes(gzip.compress(lines(enveloped(DYNAMO[2:]))))
    (folder / "notes.txt").write_text("not read")
    assert load_trace(folder, format="dynamo").sha256 == whole.sha256
    with tarfile.open(tmp_path / "segments.tar", "w") as archive:
        archive.add(folder, "segments")
    assert load_trace(tmp_path / "segments.tar", format="dynamo").sha256 == whole.sha256
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match=r"at least one file called \*.jsonl or"):
        load_trace(tmp_path / "empty", format="dynamo")


def test_an_error_in_one_of_several_segments_names_it(tmp_path: Path) -> None:
    late = dynamo_record("x", 0, 1_000.0, 600, 5, [1, 2], session="x", ttft_ms=2_000.0, finish="stop")
    (tmp_path / "a.jsonl").write_bytes(lines(DYNAMO))
    (tmp_path / "b.jsonl").write_bytes(lines([DYNAMO[1], late]))
    with pytest.raises(TraceError, match=r"b.jsonl, row 2, column 'total_time_ms'.*an end after its first token"):
        load_trace(tmp_path, format="dynamo")


def test_two_block_sizes_are_refused(tmp_path: Path) -> None:
    records = [dynamo_record("1", 0, 9.0, 600, 5, [1, 2]), dynamo_record("2", 1, 9.0, 600, 5, [1] * 3, block=256)]
    with pytest.raises(TraceError, match=r"row 2, column 'trace_block_size'.*one block size, 512"):
        read(tmp_path, records)


def test_hashes_must_cover_the_prompt(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 1, column 'input_sequence_hashes'.*expected 2 hashes"):
        read(tmp_path, [dynamo_record("1", 0, 9.0, 600, 5, [1])])


def test_failures_are_dropped_or_kept_and_counted(tmp_path: Path) -> None:
    records = [*DYNAMO, dynamo_record("e", 6_000, 100.0, 600, 0, [1, 2], session="e", finish="error: out of memory")]
    trace = read(tmp_path, records)
    assert len(trace) == 4
    assert "failures=drop: 1 of 5 requests" in " ".join(trace.provenance)
    kept = read(tmp_path, records, failures="keep")
    assert (len(kept), column(kept, "status")[-1], column(kept, "output_tokens")[-1]) == (5, "error", 1)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 1, column 'schema'.*v2"):
        read(tmp_path, [DYNAMO[0] | {"schema": "dynamo.request.trace.v2"}])


def test_it_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(lines(enveloped(DYNAMO)))
    assert load_trace(tmp_path / "x").sha256 == read(tmp_path).sha256
