from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_serving import INFERENCE_PERF, Json, inference_perf_record
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: Any, **options: Any) -> Trace:
    path = tmp_path / "per_request_lifecycle_metrics.json"
    path.write_text(json.dumps(records))
    return load_trace(path, **options)


def test_requests_have_the_servers_counts_and_latencies_of_one_clock(tmp_path: Path) -> None:
    trace = read(tmp_path, INFERENCE_PERF)
    assert trace.frame["arrival_s"].to_list() == [0.0, 0.5]
    assert trace.frame["prompt_tokens"].to_list() == [118, 218]
    assert trace.frame["output_tokens"].to_list() == [51, 51]
    assert trace.frame["ttft_s"].to_list() == [0.5, 0.5]
    assert trace.frame["tpot_s"].to_list() == pytest.approx([0.02, 0.02])
    assert "failures=drop: 1 of 3" in " ".join(trace.provenance)
    assert read(tmp_path, INFERENCE_PERF, counts="client").frame["prompt_tokens"].to_list() == [100, 200]


def test_files_before_the_split_of_request_and_response_are_read(tmp_path: Path) -> None:
    info = {"input_tokens": 100, "output_tokens": 51, "output_token_times": [0.5, 1.0, 1.5]}
    old = [{"start_time": 0.0, "end_time": 1.5, "request": "", "response": "", "info": info, "error": None}]
    frame = read(tmp_path, old).frame
    assert frame.select("prompt_tokens", "output_tokens", "ttft_s", "tpot_s").rows() == [(100, 51, 0.5, 0.02)]


def test_a_closed_loop_is_asked_for_and_read_as_users(tmp_path: Path) -> None:
    rounds: list[Json] = [
        inference_perf_record(2.0 * i + 0.1 * user, 0.5, 2.0 * i + 0.1 * user + 1.99, (100, 50))
        for i in range(20)
        for user in range(3)
    ]
    with pytest.raises(TraceError, match=r"its config.yaml says: 3 requests are in flight.*concurrency=3"):
        read(tmp_path, rounds)
    trace = read(tmp_path, rounds, concurrency=3)
    assert (trace.replay, trace.n_sessions) == ("clients", 3)
    assert trace.frame["think_s"].drop_nulls().to_list() == pytest.approx([0.009] * 57)


def test_what_is_no_array_of_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="expected a JSON array"):
        read(tmp_path, {"a": 1}, format="inference_perf")
    with pytest.raises(TraceError, match=r"row 2.*expected a JSON object"):
        read(tmp_path, [INFERENCE_PERF[0], 7])
    with pytest.raises(TraceError, match=r"row 1, column 'end_time'"):
        read(tmp_path, [INFERENCE_PERF[0] | {"end_time": "late"}])
