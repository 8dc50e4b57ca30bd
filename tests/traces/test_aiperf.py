from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_serving import AIPERF, Json, aiperf_record, lines
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: list[Json] | None = None, config: Json | None = None, **options: Any) -> Trace:
    (tmp_path / "profile_export.jsonl").write_bytes(lines(AIPERF if records is None else records))
    if config is not None:
        (tmp_path / "profile_export_aiperf.json").write_text(json.dumps({"input_config": config}))
    return load_trace(tmp_path / "profile_export.jsonl", **options)


def test_a_record_is_read_with_the_servers_counts_and_the_units_beside_its_values(tmp_path: Path) -> None:
    records = [*AIPERF, aiperf_record(2.0, 4.0, 100, 21, ttft=(1.0, "s"), usage=(118, 21))]
    trace = read(tmp_path, records)
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0.0, 0.5, 0.75, 2.0])
    assert trace.frame["prompt_tokens"].to_list() == [118, 218, 300, 118]
    assert trace.frame["output_tokens"].to_list() == [11, 32, 1, 21]
    assert trace.frame["ttft_s"].to_list() == pytest.approx([0.5, 0.5, None, 1.0])
    assert trace.frame["tpot_s"].to_list() == pytest.approx([0.05, 0.05, None, 0.05])
    notes = " ".join(trace.provenance)
    assert "1 records of the warm-up left out" in notes
    assert "failures=drop: 1 of 5" in notes
    assert "prompt tokens: counted by the server" in notes


def test_a_cancelled_request_is_kept_with_the_time_of_the_cancel(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert trace.frame["cancel_after_s"].to_list() == pytest.approx([None, None, 0.75])
    assert trace.frame["status"].to_list() == ["ok", "ok", "cancelled"]


def test_the_clients_counts_can_be_taken(tmp_path: Path) -> None:
    assert read(tmp_path, counts="client").frame["prompt_tokens"].to_list() == [100, 200, 300]


def test_the_protocol_is_read_from_the_summary_beside_the_records(tmp_path: Path) -> None:
    records = [aiperf_record(float(i), i + 0.9, 100, 11) for i in range(4)]
    trace = read(tmp_path, records, {"loadgen": {"concurrency": 1, "request_rate": None}})
    assert (trace.replay, trace.n_sessions) == ("clients", 1)
    assert trace.frame["think_s"].to_list() == pytest.approx([None, 0.1, 0.1, 0.1])
    assert read(tmp_path, records, {"loadgen": {"concurrency": 9, "request_rate": 4.0}}).replay == "open"
    phases = [{"name": "warmup", "type": "concurrency", "concurrency": 7}]
    closed = {"phases": [*phases, {"name": "profiling", "type": "concurrency", "concurrency": 1}]}
    assert read(tmp_path, records, closed).replay == "clients"
    paced = {"phases": [{"name": "profiling", "type": "poisson", "rate": 3.0, "concurrency": 4}]}
    assert read(tmp_path, records, paced).replay == "open"
    assert load_trace(tmp_path, format="aiperf").sha256 == read(tmp_path, records, paced).sha256


def closed_loop(users: int) -> list[Json]:
    return [
        aiperf_record(round_ + 0.01 * user, round_ + 0.01 * user + 1.0 - 0.001, 100, 11)
        for round_ in range(20)
        for user in range(users)
    ]


def test_a_run_that_looks_like_a_closed_loop_stops_with_a_question(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"4 requests are in flight nearly all the time; set .*concurrency=4"):
        read(tmp_path, closed_loop(4))
    assert read(tmp_path, closed_loop(4), concurrency=4).replay == "clients"
    assert read(tmp_path, closed_loop(4), concurrency=0).replay == "open"
    with pytest.raises(TraceError, match=r"at most 2 requests in flight"):
        read(tmp_path, closed_loop(4), concurrency=2)


def test_turns_of_a_conversation_are_a_session_with_recorded_think_times(tmp_path: Path) -> None:
    records = [aiperf_record(5.0 * i, 5.0 * i + 2.0, 100, 11, session="s", turn=i) for i in range(3)]
    trace = read(tmp_path, records)
    assert trace.replay == "closed"
    assert trace.frame["think_s"].to_list() == pytest.approx([None, 3.0, 3.0])
    with pytest.raises(TraceError, match="sessions, not users"):
        read(tmp_path, records, concurrency=2)


def test_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    record = aiperf_record(0.0, 1.0, 100, 11)
    record["metrics"]["time_to_first_token"]["unit"] = "fortnights"
    with pytest.raises(TraceError, match=r"row 1, column 'metrics.time_to_first_token.unit': found 'fortnights'"):
        read(tmp_path, [record])


def test_a_missing_start_names_the_line(tmp_path: Path) -> None:
    records = [aiperf_record(0.0, 1.0, 100, 11), aiperf_record(1.0, 2.0, 100, 11)]
    del records[1]["metadata"]["request_start_ns"]
    with pytest.raises(TraceError, match=r"row 2, column 'metadata.request_start_ns'"):
        read(tmp_path, records)
