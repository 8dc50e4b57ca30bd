from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_serving import ENGINE, lines, vllm_json, vllm_run
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, *runs: dict[str, Any], **options: Any) -> Trace:
    path = tmp_path / "result.json"
    path.write_bytes(vllm_json(*(runs or (vllm_run(),))))
    return load_trace(path, **options)


OPEN = {"request_rate": 2.0, "max_concurrency": None}


def test_a_concurrency_run_is_a_closed_loop_of_users(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert trace.replay == "clients"
    assert trace.n_sessions == 2
    assert trace.frame.select("session", "turn", "think_s").rows() == [(0, 1, None), (1, 1, None), (0, 2, 0.25)]
    assert "a closed loop" in " ".join(trace.provenance)


def test_a_rate_run_is_an_open_loop_at_the_times_of_sending(tmp_path: Path) -> None:
    trace = read(tmp_path, vllm_run(**OPEN))
    assert trace.replay == "open"
    assert trace.frame["arrival_s"].to_list() == [0.0, 0.0, 1.25]
    assert trace.frame["ttft_s"].to_list() == [0.5, 1.0, 0.5]
    assert trace.frame["tpot_s"].to_list() == pytest.approx([0.05] * 3)
    assert trace.duration_s == 2.5  # the failed request arrived too


def test_a_capped_rate_run_says_how_often_the_cap_was_reached(tmp_path: Path) -> None:
    trace = read(tmp_path, vllm_run(request_rate=2.0, max_concurrency=2))
    assert trace.replay == "open"
    assert "max_concurrency=2: 50.0% of requests filled the last slot" in " ".join(trace.provenance)
    assert read(tmp_path, vllm_run(request_rate=2.0, max_concurrency=2), replay="clients").n_sessions == 2


def test_the_schedule_is_before_the_wait_and_latencies_then_include_it(tmp_path: Path) -> None:
    trace = read(tmp_path, vllm_run(**OPEN), clock="scheduled")
    assert trace.frame["arrival_s"].to_list() == [0.0, 0.0, 0.0]
    assert trace.frame["ttft_s"].to_list() == [0.5, 1.0, 1.75]


def test_without_start_times_a_closed_loop_is_rebuilt_and_an_open_one_refused(tmp_path: Path) -> None:
    old = {"start_times": None, "queue_times": None, "latencies": None}
    trace = read(tmp_path, vllm_run(**old))
    assert trace.frame["arrival_s"].to_list() == [0.0, 0.0, 1.0]  # the slot of the first request, which took 1 s
    with pytest.raises(TraceError, match=r"column 'start_times'.*arrivals are not known"):
        read(tmp_path, vllm_run(**old, **OPEN))


def test_failures_are_dropped_or_kept(tmp_path: Path) -> None:
    trace = read(tmp_path, vllm_run(**OPEN), failures="keep")
    assert trace.frame["status"].to_list() == ["ok", "ok", "ok", "error"]
    assert "failures=drop: 1 of 4" in " ".join(read(tmp_path).provenance)


def test_several_runs_in_a_file_are_never_mixed(tmp_path: Path) -> None:
    runs = (vllm_run(), vllm_run(**OPEN))
    with pytest.raises(TraceError, match=r"trace.options.benchmark.*there are 2.*1: rate 2.0, concurrency None"):
        read(tmp_path, *runs)
    assert read(tmp_path, *runs, benchmark=1).replay == "open"
    with pytest.raises(TraceError, match="a run from 0 to 1"):
        read(tmp_path, *runs, benchmark=2)


def test_a_result_without_details_says_what_to_ask_vllm_for(tmp_path: Path) -> None:
    run = vllm_run()
    del run["ttfts"]
    with pytest.raises(TraceError, match="--save-detailed"):
        read(tmp_path, run)


def test_lists_must_agree_and_hold_numbers(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"column 'ttfts'.*found '3 entries', expected 4 entries"):
        read(tmp_path, vllm_run(ttfts=[0.5, 1.0, 0.5]))
    with pytest.raises(TraceError, match=r"row 3, column 'ttfts'.*found 'x'"):
        read(tmp_path, vllm_run(ttfts=[0.5, 1.0, "x", 0.5]))


def engine(tmp_path: Path, **options: Any) -> Trace:
    (tmp_path / "requests.jsonl").write_bytes(lines(ENGINE))
    return load_trace(tmp_path / "requests.jsonl", format="vllm_engine", **options)


def test_an_engines_latencies_are_on_the_engines_clock(tmp_path: Path) -> None:
    trace = engine(tmp_path)
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0.0, 1.1, 2.0])
    assert trace.frame["ttft_s"].to_list() == pytest.approx([1.0, 0.9, 1.0])
    assert "different origins" in " ".join(trace.provenance)
    front = engine(tmp_path, clock="scheduled")
    assert front.frame["arrival_s"].to_list() == pytest.approx([0.0, 1.0, 2.0])
    assert front.frame["ttft_s"].to_list() == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("gpu", "ttft_ms", "tpot_ms"), [("RTX4090", 65456.6, 32.4), ("RTXPRO6000", None, None)], ids=["4090", "pro6000"]
)
def test_measured_runs_have_the_latencies_that_their_authors_publish(
    public_data: Path, gpu: str, ttft_ms: float | None, tpot_ms: float | None
) -> None:
    folder = public_data / "measurements/llmservingsim/bench/examples" / gpu / "Llama-3.1-8B"
    trace = load_trace(folder / "vllm/requests.jsonl.gz")
    summary = (folder / "validation/summary.txt").read_text() if ttft_ms is None else ""
    means = [float(line.split()[2]) for line in summary.splitlines() if line.startswith(("TTFT Mean", "TPOT Mean"))]
    expected = means if means else [ttft_ms, tpot_ms]
    assert len(trace) == 300
    assert trace.frame["ttft_s"].mean() * 1e3 == pytest.approx(expected[0], abs=0.06)
    assert trace.frame["tpot_s"].mean() * 1e3 == pytest.approx(expected[1], abs=0.06)


def test_lists_that_contradict_the_run_are_a_question(tmp_path: Path) -> None:
    for change, question in (
        ({"ttfts": [500.0, 1000.0, 500.0, 0.0]}, r"column 'ttfts'.*within the run, which took 4.5 s, but one is 1000"),
        ({"mean_ttft_ms": 0.667}, r"column 'ttfts'.*whose mean is mean_ttft_ms=0.667; it is 1e\+03 times that"),
    ):
        with pytest.raises(TraceError, match=rf"{question}.*implausible=keep"):
            read(tmp_path, vllm_run(latencies=None, **change))
    assert len(read(tmp_path, vllm_run(mean_ttft_ms=0.667), implausible="keep")) == 3
    assert len(read(tmp_path, vllm_run(mean_ttft_ms=666.7))) == 3
    n = 12
    many = {name: [value] * n for name, value in (("input_lens", 9), ("output_lens", 11), ("ttfts", 0.5))}
    many |= {"itls": [[0.05] * 20] * n, "start_times": [0.2 * k for k in range(n)], "errors": None}
    with pytest.raises(TraceError, match=r"column 'itls'.*about one gap a token after the first, as there are 11"):
        read(tmp_path, vllm_run(**OPEN, **many, latencies=None, queue_times=None))


def test_a_list_that_is_null_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"column 'itls'.*this list to be present.*--save-detailed"):
        read(tmp_path, vllm_run(itls=None))
