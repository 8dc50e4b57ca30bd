from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_serving import ENVOY, GATEWAY, LITELLM, OTEL, Json, gateway_record, lines
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: list[Json], **options: Any) -> Trace:
    (tmp_path / "gateway.jsonl").write_bytes(lines(records))
    return load_trace(tmp_path / "gateway.jsonl", format="gateway", **options)


def without(record: Json, *keys: str) -> Json:
    return {key: value for key, value in record.items() if key not in keys}


def test_a_log_of_responses_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, GATEWAY, replay="closed")
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0.0, 1.0, 2.0, 4.0])
    assert trace.frame["think_s"].to_list() == pytest.approx([None, None, None, 2.5])  # 4.0 - 1.5
    assert trace.frame["ttft_s"].to_list() == pytest.approx([0.5] * 4)
    assert trace.frame["tpot_s"].to_list() == pytest.approx([0.02, 0.02, None, 0.02])
    assert trace.frame["tenant"].to_list() == ["u1", "u2", None, "u1"]
    assert trace.frame["decode_worker"].to_list() == [1, 0, 0, 0]  # pod-2, pod-10
    notes = " ".join(trace.provenance)
    assert "prompt_server=usage.prompt_tokens" in notes
    assert "never read" not in notes


def test_a_client_abort_is_a_cancel_and_a_refusal_a_failure(tmp_path: Path) -> None:
    trace = read(tmp_path, GATEWAY)
    assert trace.frame["status"].to_list() == ["ok", "ok", "cancelled", "ok"]
    assert trace.frame["cancel_after_s"].to_list() == pytest.approx([None, None, 1.0, None])
    assert "failures=drop: 1 of 5 requests" in " ".join(trace.provenance)
    kept = read(tmp_path, [*GATEWAY[:4], GATEWAY[4] | {"usage": {"prompt_tokens": 9}}], failures="keep")
    assert kept.frame["status"].to_list() == ["ok", "ok", "cancelled", "error", "ok"]


@pytest.mark.parametrize(
    "sign",
    [{"response_flags": "DC"}, {"finish_reason": "abort"}, {"status_code": None, "status": "cancelled"}],
    ids=["envoy", "finish", "status"],
)
def test_every_sign_of_a_cancel_counts(tmp_path: Path, sign: Json) -> None:
    trace = read(tmp_path, [GATEWAY[0], without(GATEWAY[2], "choices") | sign])
    assert trace.frame["status"].to_list() == ["ok", "cancelled"]


def test_litellm_spend_logs(tmp_path: Path) -> None:
    frame = read(tmp_path, LITELLM).frame
    assert frame.select("prompt_tokens", "output_tokens", "think_s", "ttft_s").rows() == [
        (100, 61, None, pytest.approx(0.5)),
        (105, 61, pytest.approx(3.0), pytest.approx(0.5)),
    ]


def test_envoys_duration_is_told_from_the_time_a_token_takes(tmp_path: Path) -> None:
    trace = read(tmp_path, ENVOY)
    assert "durations: duration in ms" in trace.provenance
    seconds = [record | {"duration": 2.0} for record in ENVOY]
    assert "durations: duration in s" in read(tmp_path, seconds).provenance
    unsure = [record | {"duration": 200.0} for record in ENVOY]  # 2 s or 2 ms a token
    with pytest.raises(TraceError, match=r"column 'duration'.*set trace.options.latency_unit"):
        read(tmp_path, unsure)
    assert "durations: duration in ms" in read(tmp_path, unsure, latency_unit="ms").provenance


def test_opentelemetry_spans_keep_their_nanoseconds(tmp_path: Path) -> None:
    trace = read(tmp_path, OTEL)
    assert trace.frame["arrival_s"].to_list() == [0.0, 3.0]
    assert trace.frame["think_s"].to_list() == [None, 1.0]
    assert trace.frame["ttft_s"].to_list() == pytest.approx([0.5, 0.5])


def test_other_names_are_mapped_or_left_out(tmp_path: Path) -> None:
    record = without(GATEWAY[0], "start_time", "session_id") | {"times": {"begun": GATEWAY[0]["start_time"]}, "k": "a"}
    with pytest.raises(TraceError, match=r"column 'start'.*trace.options.columns.start=PATH"):
        read(tmp_path, [record])
    trace = read(tmp_path, [record], columns={"start": "times.begun", "session": "k", "tenant": None})
    assert trace.n_sessions == 1
    assert "tenant" not in trace.frame.columns
    with pytest.raises(TraceError, match=r"columns.sesion.*did you mean 'session'"):
        read(tmp_path, [record], columns={"sesion": "k"})
    with pytest.raises(TraceError, match=r"columns.session': found 'kk', expected a path"):
        read(tmp_path, [record], columns={"start": "times.begun", "session": "kk"})


def test_requests_without_usage_are_named_until_dropped(tmp_path: Path) -> None:
    records = [GATEWAY[0], without(GATEWAY[2], "usage")]
    with pytest.raises(TraceError, match=r"row 2, column 'usage.prompt_tokens'.*missing=drop"):
        read(tmp_path, records)
    assert len(read(tmp_path, records, missing="drop")) == 1


def test_cached_tokens_that_a_usage_leaves_out_are_added(tmp_path: Path) -> None:
    usage = {"input_tokens": 10, "output_tokens": 51, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5}
    trace = read(tmp_path, [GATEWAY[0] | {"usage": usage}])
    assert trace.frame["prompt_tokens"].to_list() == [95]
    assert "84.2% of prompt tokens" in " ".join(trace.provenance)


def test_answers_that_came_whole_have_no_ttft(tmp_path: Path) -> None:
    trace = read(tmp_path, [gateway_record(0.0, 2.0, 2.0, 100, 51), gateway_record(1.0, 0.5, 2.0, 100, 51)])
    assert trace.frame["ttft_s"].to_list() == pytest.approx([None, 0.5])
    assert "1 answers came whole" in " ".join(trace.provenance)


def test_without_ends_think_times_say_what_was_assumed(tmp_path: Path) -> None:
    records = [without(record, "end_time", "completionStartTime") for record in GATEWAY[:2]]
    trace = read(tmp_path, records, assumed_ttft_s=1.0, assumed_tpot_s=0.01)
    assert trace.frame["think_s"].to_list() == pytest.approx([None, 4.0 - 1.0 - 0.51])
    assert "1 from assumed ones (1 s + 0.01 s a token)" in " ".join(trace.provenance)
    with pytest.raises(TraceError, match=r"assumed_ttft_s'.*found 'x', expected a number from 0"):
        read(tmp_path, records, assumed_ttft_s="x")


def test_a_text_log_is_no_gateway_log(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("GET /v1/chat/completions 200\n")
    with pytest.raises(TraceError, match=r"row 1.*one JSON object a line"):
        load_trace(tmp_path / "x.log", format="gateway")
