from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_serving import (
    CONCURRENT,
    CONSTANT,
    GUIDELLM_CLOSED,
    GUIDELLM_OPEN,
    Json,
    guidellm_benchmark,
    guidellm_json,
    guidellm_request,
)
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, *benchmarks: Json, **options: Any) -> Trace:
    (tmp_path / "benchmarks.json").write_bytes(guidellm_json(*benchmarks))
    return load_trace(tmp_path / "benchmarks.json", **options)


def test_a_rate_is_an_open_loop_at_the_times_of_sending(tmp_path: Path) -> None:
    trace = read(tmp_path, GUIDELLM_OPEN)
    assert trace.replay == "open"
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0.0, 0.35, 0.6])
    assert trace.frame["ttft_s"].to_list() == pytest.approx([0.5] * 3)
    assert trace.frame["tpot_s"].to_list() == pytest.approx([0.05, 1.15 / 30, 1.9 / 25])
    notes = " ".join(trace.provenance)
    assert "sent 100.0 ms after targeted_start at the median" in notes
    assert "strategy constant@4.00, an open loop" in notes


def test_the_schedule_can_be_taken_instead(tmp_path: Path) -> None:
    trace = read(tmp_path, GUIDELLM_OPEN, clock="scheduled")
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0.0, 0.25, 0.5])
    assert trace.frame["ttft_s"].to_list() == pytest.approx([0.5, 0.6, 0.6])


def test_fixed_streams_are_users_whose_think_times_follow_the_end_of_the_response(tmp_path: Path) -> None:
    trace = read(tmp_path, GUIDELLM_CLOSED)
    assert (trace.replay, trace.n_sessions) == ("clients", 2)
    assert trace.frame["think_s"].to_list() == pytest.approx([None, None, 0.25, 0.0])
    assert read(tmp_path, GUIDELLM_CLOSED, replay="open").replay == "open"


def test_requests_cut_off_at_the_end_are_cancelled(tmp_path: Path) -> None:
    frame = read(tmp_path, GUIDELLM_CLOSED).frame
    assert frame["status"].to_list() == ["ok", "ok", "ok", "cancelled"]
    assert frame["cancel_after_s"].to_list() == pytest.approx([None, None, None, 1.5])


def test_a_request_that_was_never_sent_is_left_out(tmp_path: Path) -> None:
    queued = guidellm_request(3.0, 0.5, 4.0, 100, 5)
    queued["info"]["timings"] |= {"request_start": None, "first_token_iteration": None, "request_end": None}
    trace = read(tmp_path, GUIDELLM_CLOSED | {"requests": GUIDELLM_CLOSED["requests"] | {"incomplete": [queued]}})
    assert len(trace) == 3
    assert "1 requests were never sent" in " ".join(trace.provenance)


def test_a_sweep_is_never_mixed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds 2; choose with trace.options.benchmark= \(0: concurrent@2, 1: const"):
        read(tmp_path, GUIDELLM_CLOSED, GUIDELLM_OPEN)
    by_place = read(tmp_path, GUIDELLM_CLOSED, GUIDELLM_OPEN, benchmark=1)
    assert by_place.sha256 == read(tmp_path, GUIDELLM_CLOSED, GUIDELLM_OPEN, benchmark="constant@4.00").sha256
    with pytest.raises(TraceError, match="found 'constant@5', expected one of 0: concurrent@2"):
        read(tmp_path, GUIDELLM_CLOSED, GUIDELLM_OPEN, benchmark="constant@5")


def test_a_sample_of_the_requests_is_no_trace_until_it_is_said(tmp_path: Path) -> None:
    part = guidellm_benchmark(CONSTANT, GUIDELLM_OPEN["requests"]["successful"], made=300)
    with pytest.raises(TraceError, match=r"all 300 requests that were made, but the report kept 3 .*sampled=keep"):
        read(tmp_path, part)
    assert "3 of 300 requests" in " ".join(read(tmp_path, part, sampled="keep").provenance)


def test_words_counted_as_tokens_stop_with_a_question(tmp_path: Path) -> None:
    counted = [guidellm_request(i, 0.5, i + 2.0, 100, 20 + i, words=20 + i) for i in range(12)]
    with pytest.raises(TraceError, match=r"column 'output_metrics.text_tokens'.*were words counted as tokens"):
        read(tmp_path, guidellm_benchmark(CONSTANT, counted))
    assert len(read(tmp_path, guidellm_benchmark(CONSTANT, counted), implausible="keep")) == 12


def test_turns_of_a_conversation_are_a_session(tmp_path: Path) -> None:
    turns = [guidellm_request(3.0 * i, 0.5, 3.0 * i + 2.0, 100 + i, 20) for i in range(3)]
    for i, turn in enumerate(turns):
        turn["info"] |= {"conversation_id": "c", "turn_index": i}
    trace = read(tmp_path, guidellm_benchmark(CONCURRENT, turns))
    assert trace.replay == "closed"
    assert trace.frame["think_s"].to_list() == pytest.approx([None, 1.0, 1.0])


def test_reports_of_version_1_are_recognised(tmp_path: Path) -> None:
    report = {"args": {"target": "x", "profile": "constant"}, "benchmarks": [GUIDELLM_OPEN]}
    (tmp_path / "old.json").write_text(json.dumps(report))
    assert len(load_trace(tmp_path / "old.json")) == 3
