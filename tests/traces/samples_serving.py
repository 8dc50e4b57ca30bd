"""Logs of serving systems and benchmark tools, made by hand, field by field from the sources that the readers cite."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def lines(records: list[Json]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


T0_MS = 1_790_000_000_000  # September 2026
BLOCK = 512


def dynamo_record(
    request_id: str,
    received_ms: int,
    total_ms: float,
    prompt: int,
    output: int,
    hashes: list[int],
    *,
    session: str | None = None,
    parent: str | None = None,
    workers: tuple[int, int] | None = None,
    ttft_ms: float | None = None,
    itl_ms: float | None = None,
    finish: str | None = None,
    block: int = BLOCK,
) -> Json:
    """A ``request_end`` record; without a session Dynamo writes arrival, end, lengths and hashes only."""
    request: Json = {"request_id": request_id, "output_tokens": output, "request_received_ms": T0_MS + received_ms}
    record: Json = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": T0_MS + received_ms + round(total_ms),
    }
    if session is not None:
        record["event_source"] = "dynamo"
        record["agent_context"] = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
        request |= {"model": "m", "input_tokens": prompt, "cached_tokens": 0, "total_time_ms": total_ms}
        timings = {"ttft_ms": ttft_ms, "avg_itl_ms": itl_ms, "kv_transfer_estimated_latency_ms": 4.0}
        request |= {name: value for name, value in timings.items() if value is not None}
        if workers:
            request["worker"] = {"prefill_worker_id": workers[0], "decode_worker_id": workers[1], "prefill_dp_rank": 0}
        if finish:
            request["finish_reason_metadata"] = {"finish_reason": finish, "backend_finish_reason": finish}
    request["replay"] = {"trace_block_size": block, "input_length": prompt, "input_sequence_hashes": hashes}
    return record | {"request": request}


BIG = 2**63 + 5  # hashes are 64 bits without a sign
DYNAMO = [  # as written: when requests end
    dynamo_record(
        "a1",
        0,
        2_000.0,
        1100,
        101,
        [BIG, 7, 90],
        session="a",
        workers=(5001, 6010),
        ttft_ms=1_000.0,
        itl_ms=10.0,
        finish="tool_calls",
    ),
    {
        "schema": "dynamo.request.trace.v1",
        "event_type": "tool_end",
        "event_time_unix_ms": T0_MS + 4_000,
        "event_source": "harness",
        "agent_context": {"session_id": "a"},
        "tool": {"tool_call_id": "t", "tool_class": "search", "status": "succeeded"},
    },
    dynamo_record(
        "s1",
        2_500,
        1_000.0,
        600,
        51,
        [BIG, 91],
        session="b",
        parent="a",
        workers=(5002, 6009),
        ttft_ms=500.0,
        itl_ms=10.0,
        finish="stop",
    ),
    dynamo_record(
        "a2",
        5_000,
        3_000.0,
        1800,
        101,
        [BIG, 7, 8, 92],
        session="a",
        workers=(5001, 6009),
        ttft_ms=2_000.0,
        itl_ms=10.0,
        finish="stop",
    ),
    dynamo_record(
        "c1",
        1_000,
        9_000.0,
        700,
        20,
        [BIG, 93],
        session="c",
        workers=(5002, 6010),
        ttft_ms=1_000.0,
        itl_ms=421.0,
        finish="cancelled",
    ),
]


def enveloped(records: list[Json]) -> list[Json]:
    """As Dynamo's file sinks write them."""
    return [{"timestamp": i, "event": record} for i, record in enumerate(records)]


def vllm_run(**changes: Any) -> Json:
    """Four requests of two users, the last one a failure."""
    run: Json = {
        "date": "20260901-120000",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": None,
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": 4,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 2,
        "duration": 4.5,
        "completed": 3,
        "failed": 1,
        "input_lens": [100, 200, 300, 50],
        "output_lens": [11, 21, 31, 0],
        "ttfts": [0.5, 1.0, 0.5, 0.0],
        "itls": [[0.05] * 10, [0.05] * 20, [0.05] * 30, []],
        "latencies": [1.0, 2.0, 2.0, 0.0],
        "start_times": [1000.0, 1000.0, 1001.25, 1002.5],
        "queue_times": [0.0, 0.0, 1.25, 2.5],
        "generated_texts": ["", "", "", ""],
        "errors": ["", "", "", "Bad Gateway"],
    }
    return run | changes


def vllm_json(*runs: Json) -> bytes:
    return b"\n".join(json.dumps(run).encode() for run in runs)


def guidellm_request(
    start: float, ttft: float, end: float, prompt: int, output: int, *, targeted: float | None = None, words: int = 0
) -> Json:
    """A request of a report; times in seconds from 1,790,000,000."""
    t0 = 1_790_000_000.0
    timings = {
        "targeted_start": t0 + (start if targeted is None else targeted),
        "queued": t0 + start,
        "resolve_start": t0 + start,
        "request_start": t0 + start,
        "first_token_iteration": t0 + start + ttft,
        "last_token_iteration": t0 + end,
        "request_iterations": output,
        "token_iterations": output,
        "request_end": t0 + end,
        "resolve_end": t0 + end,
    }
    return {
        "type_": "generative_request_stats",
        "request_id": f"{start}",
        "request_args": None,
        "output": None,
        "info": {"request_id": f"{start}", "status": "completed", "timings": timings, "error": None},
        "input_metrics": {"text_tokens": prompt, "cached_tokens": None},
        "output_metrics": {"text_tokens": output, "text_words": words or None},
    }


def guidellm_benchmark(
    strategy: Json,
    successful: list[Json],
    incomplete: tuple[Json, ...] = (),
    errored: tuple[Json, ...] = (),
    made: int | None = None,
) -> Json:
    total = len(successful) + len(incomplete) + len(errored) if made is None else made
    return {
        "type_": "generative_benchmark",
        "config": {"run_index": 0, "strategy": strategy, "sample_size": None, "prefer_response_metrics": True},
        "scheduler_metrics": {"requests_made": {"successful": len(successful), "total": total}},
        "requests": {"successful": successful, "incomplete": list(incomplete), "errored": list(errored), "total": None},
    }


CONCURRENT: Json = {"type_": "concurrent", "streams": 2}
CONSTANT: Json = {"type_": "constant", "rate": 4.0}
GUIDELLM_CLOSED = guidellm_benchmark(
    CONCURRENT,
    [
        guidellm_request(0.0, 0.5, 1.0, 100, 11),
        guidellm_request(0.0, 0.5, 2.0, 200, 31),
        guidellm_request(1.25, 0.5, 3.0, 300, 26),
    ],
    incomplete=(guidellm_request(2.0, 0.5, 3.5, 400, 10),),
)
GUIDELLM_OPEN = guidellm_benchmark(
    CONSTANT,
    [
        guidellm_request(0.0, 0.5, 1.0, 100, 11),
        guidellm_request(0.35, 0.5, 2.0, 200, 31, targeted=0.25),
        guidellm_request(0.6, 0.5, 3.0, 300, 26, targeted=0.5),
    ],
)


def guidellm_json(*benchmarks: Json) -> bytes:
    metadata = {"version": 2, "guidellm_version": "0.7.3", "python_version": "3.12", "platform": "Linux"}
    return json.dumps({"metadata": metadata, "config": {"profile": {}}, "benchmarks": list(benchmarks)}).encode()


T0_NS = 1_790_000_000_123_456_789


def aiperf_record(
    start_s: float,
    end_s: float,
    prompt: int,
    output: int,
    *,
    ttft: tuple[float, str] = (500.0, "ms"),
    usage: tuple[int, int] | None = None,
    issued_s: float | None = None,
    session: str = "",
    turn: int = 0,
    phase: str = "profiling",
    cancelled: bool = False,
    error: Json | None = None,
) -> Json:
    """A record; a failed one has no metrics but ``error_isl``."""
    start, end = T0_NS + round(start_s * 1e9), T0_NS + round(end_s * 1e9)
    metadata: Json = {
        "session_num": 0,
        "x_request_id": f"{start}",
        "x_correlation_id": session or f"{start}",
        "conversation_id": "c",
        "turn_index": turn,
        "request_start_ns": start,
        "request_ack_ns": start + 1,
        "request_end_ns": end,
        "worker_id": "worker_1",
        "record_processor_id": "record_processor_1",
        "benchmark_phase": phase,
        "was_cancelled": cancelled,
        "cancellation_time_ns": end if cancelled else None,
    }
    if issued_s is not None:
        metadata["credit_issued_ns"] = T0_NS + round(issued_s * 1e9)
    metrics: Json = {"error_isl": {"value": prompt, "unit": "tokens"}}
    if not cancelled and error is None:
        scale = {"ms": 1e3, "s": 1.0}[ttft[1]]
        rest = (end_s - start_s) * scale - ttft[0]
        metrics = {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
            "time_to_first_token": {"value": ttft[0], "unit": ttft[1]},
            "inter_token_latency": {"value": rest / max(output - 1, 1), "unit": ttft[1]},
            "request_latency": {"value": (end_s - start_s) * 1e3, "unit": "ms"},
        }
        if usage:
            metrics["usage_prompt_tokens"] = {"value": usage[0], "unit": "tokens"}
            metrics["usage_completion_tokens"] = {"value": usage[1], "unit": "tokens"}
    return {"metadata": metadata, "metrics": metrics, "error": error}


AIPERF = [
    aiperf_record(-5.0, -4.0, 10, 5, phase="warmup"),
    aiperf_record(0.0, 1.0, 100, 11, usage=(118, 11), issued_s=-0.002),
    aiperf_record(0.5, 2.5, 200, 31, usage=(218, 32), issued_s=0.5),
    aiperf_record(0.75, 1.5, 300, 0, cancelled=True, error={"code": 499, "type": "RequestCancellationError"}),
    aiperf_record(1.0, 1.1, 50, 0, error={"code": 503, "type": "ClientResponseError", "message": "x"}),
]


def gateway_record(start_s: float, ttft_s: float, end_s: float, prompt: int, output: int, **more: Any) -> Json:
    """A log line with an OpenAI-style response and date-times."""

    def stamp(at: float) -> str:
        return f"2026-09-01T12:{int(at) // 60:02d}:{at % 60:09.6f}Z"

    return {
        "start_time": stamp(start_s),
        "completionStartTime": stamp(start_s + ttft_s),
        "end_time": stamp(end_s),
        "model": "m",
        "status_code": 200,
        "usage": {"prompt_tokens": prompt, "completion_tokens": output},
        "choices": [{"finish_reason": "stop", "message": {"content": "never read"}}],
    } | more


GATEWAY = [
    gateway_record(0.0, 0.5, 1.5, 100, 51, session_id="a", user="u1", worker_id="pod-10"),
    gateway_record(4.0, 0.5, 1.5 + 4.0, 180, 51, session_id="a", user="u1", worker_id="pod-2"),
    gateway_record(1.0, 0.5, 2.0, 300, 26, session_id="b", user="u2", worker_id="pod-2"),
    gateway_record(2.0, 0.5, 3.0, 300, 9, status_code=499, worker_id="pod-2"),
    {"start_time": "2026-09-01T12:00:03Z", "end_time": "2026-09-01T12:00:03.1Z", "status_code": 429, "model": "m"},
]
LITELLM = [
    {
        "request_id": f"{i}",
        "call_type": "acompletion",
        "startTime": f"2026-09-01T12:00:{i:02d}.250000+00:00",
        "endTime": f"2026-09-01T12:00:{i + 2:02d}.250000+00:00",
        "completionStartTime": f"2026-09-01T12:00:{i:02d}.750000+00:00",
        "prompt_tokens": 100 + i,
        "completion_tokens": 61,
        "status": "success",
        "session_id": "s",
        "end_user": "u",
        "model": "m",
    }
    for i in (0, 5)
]
ENVOY = [
    {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 100,
        "start_time": f"2026-09-01T12:00:{i:02d}.500Z",
        "duration": 2000 + i,
        "response_code": 200,
        "response_flags": "-",
        "upstream_host": f"10.0.0.{1 + i % 2}:8000",
    }
    for i in range(4)
]
OTEL = [
    {
        "name": "chat m",
        "start_time_unix_nano": 1_790_000_000_000_000_001 + i * 10**9,
        "end_time_unix_nano": 1_790_000_000_000_000_001 + i * 10**9 + 2 * 10**9,
        "attributes": {
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 61,
            "gen_ai.server.time_to_first_token": 0.5,
            "gen_ai.conversation.id": "k",
            "gen_ai.response.finish_reasons": ["stop"],
        },
    }
    for i in (0, 3)
]


def inference_perf_record(start: float, ttft: float, end: float, client: tuple[int, int], **more: Any) -> Json:
    """A request as inference-perf exports it; ``client`` are its own counts of prompt and output."""
    times = [start + ttft, end]
    return {
        "start_time": start,
        "end_time": end + 0.001,
        "request": "{}",
        "response": "never read",
        "info": {
            "request_metrics": {"text": {"input_tokens": client[0]}},
            "response_metrics": {
                "output_tokens": client[1],
                "server_usage": {"prompt_tokens": client[0] + 18, "completion_tokens": client[1] + 1},
                "chunk_times": times,
                "output_token_times": times,
            },
            "input_tokens": client[0],
        },
        "error": None,
    } | more


INFERENCE_PERF = [
    inference_perf_record(900.0, 0.5, 901.5, (100, 50)),
    inference_perf_record(900.5, 0.5, 902.0, (200, 50)),
    inference_perf_record(901.0, 0.1, 901.2, (50, 9), error={"error_type": "TimeoutError", "error_msg": "x"}),
]

ENGINE = [
    {
        "request_id": f"bench-{i}",
        "input_toks": 100,
        "output_toks": 101,
        "arrival_time": 1_790_000_000.0 + i,
        "queued_ts": 500.0 + i + 0.1 * (i == 1),
        "scheduled_ts": 500.2 + i,
        "first_token_ts": 501.0 + i,
        "last_token_ts": 503.0 + i,
    }
    for i in range(3)
]

VALID = {
    "dynamo": [lines(DYNAMO), lines(enveloped(DYNAMO))],
    "vllm_bench": [vllm_json(vllm_run()), vllm_json(vllm_run(request_rate=2.0, max_concurrency=None))],
    "vllm_engine": [lines(ENGINE)],
    "guidellm": [guidellm_json(GUIDELLM_CLOSED), guidellm_json(GUIDELLM_OPEN)],
    "inference_perf": [json.dumps(INFERENCE_PERF).encode()],
    "aiperf": [lines(AIPERF)],
    "gateway": [lines(GATEWAY), lines(LITELLM), lines(ENVOY), lines(OTEL)],
}
