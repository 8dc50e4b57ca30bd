"""Times told apart: by the name of their column, and by what is plausible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples import write
from traces import Trace, TraceError, load_trace
from traces.readers.naming import unit_of


def log(tmp_path: Path, given: dict[str, list[Any]], **options: Any) -> Trace:
    """A CSV of these columns, with lengths."""
    n = len(next(iter(given.values())))
    whole = {**given, "prompt_tokens": [10] * n, "output_tokens": [5] * n}
    rows = zip(*whole.values(), strict=True)
    text = "\n".join([",".join(whole), *(",".join("" if v is None else str(v) for v in row) for row in rows)])
    return load_trace(write(tmp_path, "log.csv", text.encode()), format="table", **options)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ts_ms", "ms"),
        ("timestamp_us", "us"),
        ("arrival_ns", "ns"),
        ("startMs", "ms"),
        ("TTFT (ms)", "ms"),
        ("latency seconds", "s"),
        ("created", None),
        ("times", None),
        ("ms", None),
        ("TIMESTAMP", None),
    ],
)
def test_units_in_names(name: str, unit: str | None) -> None:
    assert unit_of(name) == unit


@pytest.mark.parametrize(("name", "per_second"), [("arrival_ms", 1e3), ("arrival_us", 1e6), ("arrival_ns", 1e9)])
def test_a_column_by_its_own_name_in_another_unit(tmp_path: Path, name: str, per_second: float) -> None:
    trace = log(tmp_path, {name: [int(k * per_second) for k in range(20)]})
    assert trace.frame["arrival_s"].to_list() == list(range(20))
    assert f"arrivals: {name[-2:]} (by its name) from the start" in trace.provenance


def test_a_mapped_name_says_its_unit(tmp_path: Path) -> None:
    given = {"ts_ms": [1000 * k for k in range(20)]}
    assert log(tmp_path, given, columns={"arrival_s": "ts_ms"}).duration_s == 19
    assert log(tmp_path, given, columns={"arrival_s": "ts_ms"}, arrival_unit="us").duration_s == 0.019


def test_created_is_an_epoch_stamp(tmp_path: Path) -> None:
    created = [1_700_000_000 + k for k in range(20)]
    trace = log(tmp_path, {"created": created}, columns={"arrival_s": "created"})
    assert trace.duration_s == 19
    assert "arrivals: epoch stamps in s, from the first" in trace.provenance


QUESTIONS = [
    ("seconds in a column of ms", "ts_ms", [0.2 * k + 0.05 for k in range(20)], r"'ts_ms' says.*are they seconds.*=s"),
    ("whole seconds in ms", "ts_us", list(range(20)), r"a rate below 100,000"),
    ("epoch s in ms", "ts_ms", [1_700_000_000 + k for k in range(20)], r"epoch stamps in ms.*they are such in s"),
    ("epoch ms in s", "when_s", [1_700_000_000_000 + k for k in range(20)], r"they are such in ms.*arrival_unit=ms"),
    ("ms in a column of s", "when_s", [100_000 * k for k in range(20)], r"arrival_unit=ms if they are milliseconds"),
    ("hours apart in ms", "ts_ms", [100_000_000 * k for k in range(20)], r"arrival_unit=us if they are microseconds"),
    ("epoch and relative", "when", [0, *(1_700_000_000 + k for k in range(20))], r"apart on average|below ten years"),
]


@pytest.mark.parametrize(("name", "stamps", "question"), [q[1:] for q in QUESTIONS], ids=[q[0] for q in QUESTIONS])
def test_a_name_against_plausibility_is_a_question(
    tmp_path: Path, name: str, stamps: list[float], question: str
) -> None:
    with pytest.raises(TraceError, match=question) as raised:
        log(tmp_path, {name: stamps}, columns={"arrival_s": name})
    assert raised.value.column == name
    assert raised.value.row is not None


def test_the_answer_to_a_question_is_taken(tmp_path: Path) -> None:
    seconds = {"ts_ms": [0.2 * k + 0.05 for k in range(20)]}
    for unit, duration in (("s", 3.85), ("ms", 0.00385)):
        trace = log(tmp_path, seconds, columns={"arrival_s": "ts_ms"}, arrival_unit=unit)
        assert trace.duration_s == pytest.approx(duration)


def test_busy_epoch_milliseconds_are_no_question(tmp_path: Path) -> None:
    stamps = [1_700_000_000_000 + k // 5 for k in range(100)]  # 5,000 a second
    assert log(tmp_path, {"ts_ms": stamps}, columns={"arrival_s": "ts_ms"}).duration_s == pytest.approx(0.019)


def test_of_several_times_it_asks_which(tmp_path: Path) -> None:
    given = {"scheduled_s": list(range(20)), "sent_s": list(range(20)), "latency_ms": [5] * 20}
    with pytest.raises(TraceError, match=r"which of scheduled_s, sent_s is meant.*arrival_s=NAME.*fell behind"):
        log(tmp_path, given)
    assert log(tmp_path, given, columns={"arrival_s": "sent_s"}).duration_s == 19


def test_of_a_single_time_it_asks_whether(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"columns\.arrival_s=NAME; did you mean 'created_at'"):
        log(tmp_path, {"created_at": list(range(20))})


def test_of_counts_by_client_and_server_it_asks_which(tmp_path: Path) -> None:
    text = "arrival_s,client_input_tokens,server_prompt_tokens,output_tokens\n0,10,12,5\n"
    path = write(tmp_path, "counts.csv", text.encode())
    with pytest.raises(TraceError, match=r"which of client_input_tokens, server_prompt_tokens.*chat template"):
        load_trace(path, format="table")
    trace = load_trace(path, format="table", columns={"prompt_tokens": "server_prompt_tokens"})
    assert trace.frame["prompt_tokens"].to_list() == [12]
    text = "arrival_s,prompt_tokens,expected_output_tokens,completion_tokens\n0,10,12,5\n"
    with pytest.raises(TraceError, match=r"which of expected_output_tokens, completion_tokens.*streamed chunks"):
        load_trace(write(tmp_path, "out.csv", text.encode()), format="table")


def test_latencies_in_the_unit_of_their_name(tmp_path: Path) -> None:
    trace = log(tmp_path, {"arrival_s": list(range(20)), "ttft_ms": [250] * 20, "tpot_us": [20_000] * 20})
    assert trace.frame["ttft_s"].to_list() == [0.25] * 20
    assert trace.frame["tpot_s"].to_list() == [0.02] * 20
    assert "ttft_s: ttft_ms in ms by its name" in trace.provenance


@pytest.mark.parametrize(
    ("name", "value", "question"),
    [
        ("ttft_s", 250, r"median below 100 s, but it is 250 s: trace.options.latency_unit=ms"),
        ("tpot_s", 30, r"median below 10 s.*latency_unit=ms"),
        ("ttft_ms", 0.25, r"median above 0.001 s, but it is 0.25 ms: trace.options.latency_unit=s"),
        ("e2e_s", 9000, r"median below 3600 s"),
    ],
)
def test_implausible_latencies_are_a_question(tmp_path: Path, name: str, value: float, question: str) -> None:
    columns = {"arrival_s": list(range(20)), name: [value] * 20}
    with pytest.raises(TraceError, match=question) as raised:
        log(tmp_path, columns)
    assert (raised.value.row, raised.value.column) == (2, name)
    unit = name.rsplit("_", 1)[1]
    assert len(log(tmp_path, columns, latency_unit=unit)) == 20  # the user is sure


def test_options_of_units_are_checked(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.options\.latency_unit.*one of auto, s, ms, us, ns"):
        log(tmp_path, {"arrival_s": [0]}, latency_unit="minutes")


def test_date_times_hours_apart_are_a_question_too(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    days = "".join(f"2026-01-{day:02d}T00:00:00Z,5,5\n" for day in range(1, 20))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{days}")
    with pytest.raises(TraceError, match=r"less than 60 s apart on average.*arrival_unit=iso if that is right"):
        load_trace(path)
    assert len(load_trace(path, arrival_unit="iso")) == 19
