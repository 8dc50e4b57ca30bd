"""One test a trap: what two programs on both sides of a wire log of the same request, and how it is told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.samples_serving import (
    CONSTANT,
    Json,
    aiperf_record,
    dynamo_record,
    gateway_record,
    guidellm_benchmark,
    guidellm_json,
    guidellm_request,
    lines,
    vllm_json,
    vllm_run,
)
from traces import Trace, TraceError, load_trace
from traces.readers.users import in_flight, streams_of

EPOCH_S = 1_790_000_000


def read(tmp_path: Path, data: list[Json] | bytes, form: str, **options: Any) -> Trace:
    path = tmp_path / "log"
    path.write_bytes(data if isinstance(data, bytes) else lines(data))
    return load_trace(path, format=form, **options)


def numbered(n: int = 12, step: float = 1.0, scale: float = 1.0, zero: float = 0.0, **more: Any) -> list[Json]:
    """Gateway lines whose stamps are numbers."""
    return [
        {
            "start_time": zero + scale * step * i,
            "end_time": zero + scale * (step * i + 2.0),
            "first_token_time": zero + scale * (step * i + 0.5),
            "usage": {"prompt_tokens": 100, "completion_tokens": 51},
        }
        | {key: value(i) if callable(value) else value for key, value in more.items()}
        for i in range(n)
    ]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_epoch_stamps_are_told_from_relative_ones_in_every_unit(tmp_path: Path, unit: str, scale: int) -> None:
    epoch = read(tmp_path, numbered(scale=scale, zero=EPOCH_S * scale), "gateway")
    assert f"epoch stamps in {unit}" in " ".join(epoch.provenance)
    relative = read(tmp_path, numbered(scale=scale), "gateway", arrival_unit=unit)
    for trace in (epoch, relative):
        assert trace.frame["arrival_s"].to_list() == pytest.approx(list(range(12)), abs=1e-5)
        assert trace.frame["tpot_s"].to_list() == pytest.approx([0.03] * 12, abs=1e-5)


def test_milliseconds_read_as_seconds_stop_with_a_question(tmp_path: Path) -> None:
    slow = numbered(scale=1000.0, step=0.2)  # a gap of 200 "seconds"
    with pytest.raises(TraceError, match=r"column 'start_time'.*set trace.options.arrival_unit=ms"):
        read(tmp_path, slow, "gateway")
    assert read(tmp_path, slow, "gateway", arrival_unit="ms").duration_s == pytest.approx(2.2)


def test_dense_milliseconds_pass_for_seconds_by_rate_but_not_by_latency(tmp_path: Path) -> None:
    """Five requests a second in ms are one in 200 s; fifty are one in 20 s, which is no question. A token is one."""
    dense = numbered(scale=1000.0, step=0.02)
    with pytest.raises(TraceError, match=r"time an output token.*milliseconds read as seconds"):
        read(tmp_path, dense, "gateway")
    assert read(tmp_path, dense, "gateway", arrival_unit="ms").frame["tpot_s"][0] == pytest.approx(0.03)


def test_starts_since_1970_and_ends_from_the_start_are_two_clocks(tmp_path: Path) -> None:
    mixed = numbered(zero=EPOCH_S, end_time=lambda i: i + 2.0, first_token_time=None)
    with pytest.raises(TraceError, match=r"column 'end_time'.*one counts since 1970 and the other does not"):
        read(tmp_path, mixed, "gateway")
    assert len(read(tmp_path, mixed, "gateway", columns={"end": None})) == 12


def test_what_the_server_saw_is_the_time_of_sending_and_a_slow_client_is_named(tmp_path: Path) -> None:
    late = numbered(scheduled_time=lambda i: 0.5 * i)  # meant twice as fast
    trace = read(tmp_path, late, "gateway")
    assert trace.frame["arrival_s"].to_list() == pytest.approx(list(range(12)))
    assert trace.frame["ttft_s"][11] == pytest.approx(0.5)
    assert "sent 2,750.0 ms after scheduled_time at the median" in " ".join(trace.provenance)
    assert "the client was the bottleneck" in " ".join(trace.provenance)
    meant = read(tmp_path, late, "gateway", clock="scheduled")
    assert meant.frame["arrival_s"][11] == pytest.approx(5.5)
    assert meant.frame["ttft_s"][11] == pytest.approx(6.0)  # the wait in the client is part of it
    with pytest.raises(TraceError, match="no scheduled times"):
        read(tmp_path, numbered(), "gateway", clock="scheduled")


def test_a_schedule_of_another_origin_gives_lags_but_no_arrivals(tmp_path: Path) -> None:
    """As in a log whose scheduled times count from the start of the run, and its sent ones since 1970."""
    records = [aiperf_record(float(i), i + 0.9, 100, 11, issued_s=i - 0.1 * i - 1e6) for i in range(4)]
    trace = read(tmp_path, records, "aiperf")
    assert "the two clocks are 1,000,000 s apart" in " ".join(trace.provenance)
    with pytest.raises(TraceError, match=r"credit_issued_ns.*one counts since 1970.*clock=sent"):
        read(tmp_path, records, "aiperf", clock="scheduled")


def test_a_servers_count_is_taken_before_a_clients_and_the_difference_is_told(tmp_path: Path) -> None:
    both = numbered(client_prompt_tokens=80)
    trace = read(tmp_path, both, "gateway")
    assert trace.frame["prompt_tokens"].to_list() == [100] * 12
    assert "the median is +25.0% (12 requests with both)" in " ".join(trace.provenance)
    assert read(tmp_path, both, "gateway", counts="client").frame["prompt_tokens"].to_list() == [80] * 12
    with pytest.raises(TraceError, match="the file has none of the client"):
        read(tmp_path, numbered(), "gateway", counts="client")


def test_a_count_twice_another_stops_with_a_question(tmp_path: Path) -> None:
    twice = numbered(client_prompt_tokens=45)
    with pytest.raises(TraceError, match=r"usage.prompt_tokens is 2.22 times client_prompt_tokens.*counts=server"):
        read(tmp_path, twice, "gateway")
    assert read(tmp_path, twice, "gateway", counts="server").frame["prompt_tokens"][0] == 100


def test_a_missing_server_count_is_filled_and_counted(tmp_path: Path) -> None:
    some = [aiperf_record(float(i), i + 1.0, 100, 11, usage=(118, 11) if i else None) for i in range(3)]
    trace = read(tmp_path, some, "aiperf")
    assert trace.frame["prompt_tokens"].to_list() == [100, 118, 118]
    assert "1 requests have the client's count only" in " ".join(trace.provenance)


def test_a_first_token_before_its_request_is_another_events_stamp(tmp_path: Path) -> None:
    wrong = numbered(first_token_time=lambda i: i - 0.5 if i == 3 else i + 0.5)
    with pytest.raises(TraceError, match=r"row 4, column 'first_token_time'.*a first token after its request"):
        read(tmp_path, wrong, "gateway")


def test_a_first_token_after_the_end_is_impossible(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 1, column 'info.timings.request_end'.*an end after its first token"):
        read(tmp_path, guidellm_json(guidellm_benchmark(CONSTANT, [guidellm_request(0, 3.0, 2.0, 9, 9)])), "guidellm")


def test_a_start_logged_at_the_end_of_the_stream_is_seen_by_its_first_token(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a first token after its request"):
        read(tmp_path, [gateway_record(5.0, -4.0, 5.0, 100, 50)], "gateway")


def test_a_time_a_token_in_another_unit_contradicts_the_ends(tmp_path: Path) -> None:
    def records(itl_ms: float) -> list[Json]:
        return [
            dynamo_record(
                str(i),
                1_000 * i,
                1_500.0,
                600,
                101,
                [1, 2],
                session=str(i),
                ttft_ms=500.0,
                itl_ms=itl_ms,
                finish="stop",
            )
            for i in range(3)
        ]

    assert read(tmp_path, records(10.0), "dynamo").frame["tpot_s"][0] == pytest.approx(0.01)
    with pytest.raises(TraceError, match=r"column 'avg_itl_ms'.*0.001 times.*implausible=keep"):
        read(tmp_path, records(0.01), "dynamo")  # seconds under a name that says ms
    assert read(tmp_path, records(0.01), "dynamo", implausible="keep").frame["tpot_s"][0] == pytest.approx(1e-5)


def test_latencies_in_milliseconds_in_a_file_of_seconds_stop_with_a_question(tmp_path: Path) -> None:
    n = 12
    run = vllm_run(
        request_rate=1.0,
        max_concurrency=None,
        input_lens=[100] * n,
        output_lens=[11] * n,
        ttfts=[500.0] * n,
        itls=[[50.0] * 10] * n,
        latencies=None,
        start_times=[float(i) for i in range(n)],
        queue_times=[0.0] * n,
        errors=[""] * n,
        duration=1000.0,  # a run that says nothing against them
    )
    with pytest.raises(TraceError, match="milliseconds read as seconds"):
        read(tmp_path, vllm_json(run), "vllm_bench")


def test_a_rate_that_no_client_reaches_stops_with_a_question(tmp_path: Path) -> None:
    burst = [aiperf_record(i * 1e-6, 1.0 + i * 1e-6, 100, 11) for i in range(50)]
    with pytest.raises(TraceError, match=r"column 'metadata.request_start_ns'.*a rate below.*implausible=keep"):
        read(tmp_path, burst, "aiperf")
    assert len(read(tmp_path, burst, "aiperf", implausible="keep")) == 50


def test_a_gap_that_no_load_has_stops_with_a_question(tmp_path: Path) -> None:
    sparse = [dynamo_record(str(i), 90_000 * i, 500.0, 600, 5, [1, 2]) for i in range(12)]
    with pytest.raises(TraceError, match=r"column 'request_received_ms'.*less than 60 s apart"):
        read(tmp_path, sparse, "dynamo")
    assert len(read(tmp_path, sparse, "dynamo", implausible="keep")) == 12


def test_streams_are_as_few_as_overlaps_allow_and_continue_what_ended_last() -> None:
    arrival, end = np.array([0.0, 0.0, 1.0, 2.5, 4.0]), np.array([1.0, 2.0, 4.0, 3.0, 5.0])
    streams = streams_of(arrival, end)
    assert streams.stream.tolist() == [0, 1, 0, 1, 0]
    assert streams.think_s.tolist() == pytest.approx([np.nan, np.nan, 0.0, 0.5, 0.0], nan_ok=True)
    assert streams.parent.tolist() == [-1, -1, 0, 1, 2]
    assert in_flight(arrival, end).tolist() == [1, 2, 2, 2, 1]
    apart = streams_of(arrival, end, group=np.array([0, 1, 1, 0, 0]))
    assert apart.stream.tolist() == [0, 1, 2, 0, 0]
    one = streams_of(arrival, end, limit=1)
    assert (one.late, one.stream.max()) == (3, 0)
