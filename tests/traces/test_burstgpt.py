from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples import write
from tests.traces.samples_public import BURSTGPT, BURSTGPT_HEADER, BURSTGPT_OLD, burstgpt_csv
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, rows: list[str] | None = None, **options: Any) -> Trace:
    return load_trace(write(tmp_path, "BurstGPT_3.csv", burstgpt_csv(rows)), **{"zero_output": "drop", **options})


def test_stamps_count_from_the_first_and_log_types_are_classes(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert trace.frame["arrival_s"].to_list() == [0, 51, 51, 60, 65]
    assert sorted(trace.frame["class"].to_list()) == ["api", *["conversation"] * 4]
    assert trace.classes == ("api", "conversation")
    assert set(trace.frame["model"].to_list()) == {"GPT-4", "ChatGPT"}
    assert "status" not in trace.frame.columns
    assert (trace.replay, trace.prefix_block_tokens, trace.duration_s) == ("open", 0, 65.0)


def test_think_times_count_from_recorded_ends(tmp_path: Path) -> None:
    trace = read(tmp_path)
    rows = {row[0]: row[1:] for row in trace.frame[["prompt_tokens", "session", "turn", "think_s"]].rows()}
    assert [rows[p][1] for p in (906, 1400, 1300)] == [1, 2, 3]
    assert rows[1400][2] == 60 - 43
    assert rows[1300][2] == 0  # came before the end of the turn before
    assert rows[2000][0] == -1
    notes = " ".join(trace.provenance)
    assert "100.0% from Elapsed time" in notes
    assert "50.0% of gaps were negative" in notes
    assert read(tmp_path, replay="closed").replay == "closed"


def test_where_the_elapsed_time_is_absent_a_service_is_assumed(tmp_path: Path) -> None:
    rows = [BURSTGPT[0].replace(",43,", ",,"), *BURSTGPT[1:]]
    trace = read(tmp_path, rows, assumed_ttft_s=2.0, assumed_tpot_s=0.1)
    think = dict(trace.frame[["prompt_tokens", "think_s"]].rows())
    assert think[1400] == pytest.approx(60 - 2 - 44.6)
    assert "50.0% from Elapsed time, 50.0% from an assumed service" in " ".join(trace.provenance)


def test_failures(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 6, column 'Response tokens'.*zero_output=drop"):
        read(tmp_path, zero_output="error")
    assert "repair zero_output=drop: 1 requests without output left out" in read(tmp_path).provenance
    with pytest.raises(TraceError, match=r"row 6, column 'Request tokens': found '0'.*at least 1"):
        read(tmp_path, zero_output="one")
    kept = read(tmp_path, [*BURSTGPT[:4], "161.0,,0,ChatGPT,90,0,90,API log"], zero_output="one")
    assert kept.frame["status"].to_list() == ["ok"] * 4 + ["failed"]


def test_files_without_sessions(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, "BurstGPT_1.csv", BURSTGPT_OLD))
    assert trace.frame["arrival_s"].to_list() == [0, 40, 113]
    assert trace.n_sessions == 0
    with pytest.raises(TraceError, match=r"context.*a file with Session ID"):
        load_trace(tmp_path / "BurstGPT_1.csv", context="grows")
    bare = b"Timestamp,Request tokens,Response tokens\n0,3,16\n1,2,16\n"
    assert load_trace(write(tmp_path, "bare.csv", bare)).classes == ("default",)


def test_a_context_that_grows_is_an_assumption(tmp_path: Path) -> None:
    trace = read(tmp_path, context="grows", prefix_block_tokens=100)
    chains = {p: trace.chain(i).tolist() for i, p in enumerate(trace.frame["prompt_tokens"].to_list())}
    assert chains[1400][:13] == chains[906][:13]  # 906 + 446 tokens are in the prompt of 1400
    assert not set(chains[1300]) & set(chains[1400])  # shorter: compacted
    assert any("prefixes assumed, context=grows" in note for note in trace.provenance)
    with pytest.raises(TraceError, match="context=grows with it"):
        read(tmp_path, prefix_block_tokens=100)


def test_totals_that_do_not_add_up_are_counted(tmp_path: Path) -> None:
    rows = [BURSTGPT[0].replace(",1352,", ",1353,"), *BURSTGPT[1:]]
    assert any(
        "1 rows whose Total tokens are not request + response" in note for note in read(tmp_path, rows).provenance
    )


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    names = BURSTGPT_HEADER.split(",")
    turned = [",".join(reversed(row.split(","))) for row in BURSTGPT]
    path = write(tmp_path, "turned.csv", burstgpt_csv(turned, ",".join(reversed(names))))
    assert load_trace(path, zero_output="drop").sha256 == read(tmp_path).sha256


BAD = [
    ("a stamp", BURSTGPT[0].replace("100.0", "noon"), "Timestamp", "noon"),
    ("an epoch stamp", BURSTGPT[0].replace("100.0", "1700000000"), "Timestamp", "s from the first day"),
    ("a negative length", BURSTGPT[0].replace(",906,", ",-1,"), "Request tokens", "-1"),
    ("an elapsed time", BURSTGPT[0].replace(",43,", ",-3,"), "Elapsed time", "-3"),
    ("a text", BURSTGPT[0].replace(",446,", ",many,"), "Response tokens", "many"),
]


@pytest.mark.parametrize(("row", "column", "value"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_value_names_line_and_column(tmp_path: Path, row: str, column: str, value: str) -> None:
    with pytest.raises(TraceError) as raised:
        read(tmp_path, [row, *BURSTGPT[1:]])
    assert (raised.value.row, raised.value.column) == (2, column)
    assert value in str(raised.value)


def test_stamps_out_of_order(tmp_path: Path) -> None:
    rows = [BURSTGPT[i] for i in (1, 0, 2, 3, 5)]
    with pytest.raises(TraceError, match=r"row 3, column 'Timestamp': found '100\.0'.*sort=true"):
        read(tmp_path, rows)
    assert read(tmp_path, rows, sort=True).sha256 == read(tmp_path).sha256
