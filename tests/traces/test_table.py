from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.traces.samples import TABLE, parquet, write
from traces import Trace, TraceError, load_trace
from traces.catalog import zones


def csv(tmp_path: Path, text: str, **options: Any) -> Trace:
    return load_trace(write(tmp_path, "my.csv", text.encode()), format="table", **options)


def test_columns_under_their_own_names(tmp_path: Path) -> None:
    trace = csv(tmp_path, TABLE, sort=False)
    rows = trace.frame.select("arrival_s", "session", "turn", "think_s", "prompt_tokens", "class").rows()
    assert rows == [
        (0.0, 0, 1, None, 100, "chat"),
        (0.5, 1, 1, None, 200, "chat"),
        (4.0, 0, 2, 1.5, 150, "batch"),
        (5.0, -1, 1, None, 50, "chat"),
    ]
    assert trace.classes == ("batch", "chat")


def test_a_parquet_table_reads_the_same(tmp_path: Path) -> None:
    frame = pl.read_csv(TABLE.encode())
    typed = load_trace(write(tmp_path, "my.parquet", parquet(frame)), format="table")
    assert typed.sha256 == csv(tmp_path, TABLE).sha256


def test_a_column_map_counts_turns_and_names_what_it_ignores(tmp_path: Path) -> None:
    text = "ts,in,out,chat,note\n1000,10,5,x,a\n2000,20,5,y,b\n2500,30,5,x,c\n"
    columns = {"arrival_s": "ts", "prompt_tokens": "in", "output_tokens": "out", "session": "chat"}
    trace = csv(tmp_path, text, columns=columns, arrival_unit="ms")
    assert trace.frame["arrival_s"].to_list() == [1.0, 2.0, 2.5]
    assert trace.frame.select("session", "turn").rows() == [(0, 1), (1, 1), (0, 2)]
    assert "columns ignored: note" in trace.provenance


def test_closed_replay_needs_think_times(tmp_path: Path) -> None:
    assert csv(tmp_path, TABLE, replay="closed").replay == "closed"
    with pytest.raises(TraceError, match=r"think_s.*replay=closed"):
        csv(tmp_path, TABLE.replace("1.5", ""), replay="closed")
    with pytest.raises(TraceError, match="did you mean 'closed'"):
        csv(tmp_path, TABLE, replay="close")


def stamped(tmp_path: Path, stamps: list[str], **options: Any) -> Trace:
    rows = "".join(f"{stamp},10,5\n" for stamp in stamps)
    return csv(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + rows, **options)


EPOCHS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@pytest.mark.parametrize("unit", EPOCHS)
def test_epoch_stamps_are_recognised_and_declared(tmp_path: Path, unit: str) -> None:
    stamps = [str(int((1_700_000_000 + k) * EPOCHS[unit])) for k in (0, 1, 3)]
    for given in ("auto", unit):
        trace = stamped(tmp_path, stamps, arrival_unit=given)
        assert trace.frame["arrival_s"].to_list() == [0.0, 1.0, 3.0]
        assert f"arrivals: epoch stamps in {unit}, from the first" in trace.provenance


def test_epoch_nanoseconds_keep_their_digits(tmp_path: Path) -> None:
    trace = stamped(tmp_path, ["1700000000000000001", "1700000000000000101"])
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0.0, 1e-7], abs=1e-12)


@pytest.mark.parametrize(
    "stamps",
    [
        ["2026-01-31T23:59:59.5Z", "2026-02-01T00:00:00Z"],
        ["2026-01-31 23:59:59.5", "2026-02-01 00:00:00"],
        ["2026-02-01T00:59:59.5+01:00", "2026-02-01T00:00:00+00:00"],
    ],
)
def test_date_times(tmp_path: Path, stamps: list[str]) -> None:
    assert stamped(tmp_path, stamps).frame["arrival_s"].to_list() == [0.0, 0.5]


def test_typed_date_times(tmp_path: Path) -> None:
    start = dt.datetime(2026, 1, 31, 23, 59, 59)
    frame = pl.DataFrame(
        {"arrival_s": [start, start + dt.timedelta(seconds=2)], "prompt_tokens": [1, 2], "output_tokens": [3, 4]}
    )
    trace = load_trace(write(tmp_path, "my.parquet", parquet(frame)), format="table")
    assert trace.frame["arrival_s"].to_list() == [0.0, 2.0]


def test_a_first_arrival_at_zero_or_later_is_kept(tmp_path: Path) -> None:
    assert stamped(tmp_path, ["0", "0.5"]).frame["arrival_s"].to_list() == [0.0, 0.5]
    assert stamped(tmp_path, ["2", "10"]).frame["arrival_s"].to_list() == [2.0, 10.0]


def test_a_stretch_from_the_middle_of_a_log_starts_at_zero(tmp_path: Path) -> None:
    trace = stamped(tmp_path, ["5000", "5010"])
    assert trace.frame["arrival_s"].to_list() == [0.0, 10.0]
    assert "arrivals: s, counted from the first" in trace.provenance


def test_implausible_rates_stop_with_a_question(tmp_path: Path) -> None:
    slow = [str(150 * i) for i in range(20)]
    with pytest.raises(TraceError, match=r"arrival_unit=ms if they are milliseconds"):
        stamped(tmp_path, slow)
    assert stamped(tmp_path, slow, arrival_unit="ms").duration_s == pytest.approx(2.85)
    assert stamped(tmp_path, slow, arrival_unit="s").duration_s == 2850
    fast = [str(1e-7 * i) for i in range(20)]
    with pytest.raises(TraceError, match=r"a rate below 100,000"):
        stamped(tmp_path, fast)
    with pytest.raises(TraceError, match=r"below ten years"):
        stamped(tmp_path, ["0", "500000000"])
    with pytest.raises(TraceError, match="did you mean 'ms'"):
        stamped(tmp_path, ["0"], arrival_unit="mss")


BAD = [
    ("NaN", "0.5,200", "NaN,200", 3, "arrival_s"),
    ("negative stamp", "0.5,200", "-1,200", 3, "arrival_s"),
    ("text", "0.5,200", "soon,200", 3, "arrival_s"),
    ("negative length", "0.5,200", "0.5,-200", 3, "prompt_tokens"),
    ("implausible length", "0.5,200", "0.5,1000000000000", 3, "prompt_tokens"),
    ("no output", "4,150,30", "4,150,0", 4, "output_tokens"),
    ("negative think", "a,2,1.5", "a,2,-1.5", 4, "think_s"),
    ("duplicate turn", "a,2,1.5", "a,1,1.5", 4, "turn"),
    ("missing turn", "a,2,1.5", "a,3,1.5", 4, "turn"),
    ("no class", "1.5,batch", "1.5,", 4, "class"),
    ("unsorted", "4,150,30", "0.25,150,30", 4, "arrival_s"),
]


@pytest.mark.parametrize(("old", "new", "row", "column"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_value_names_row_and_column(tmp_path: Path, old: str, new: str, row: int, column: str) -> None:
    assert old in TABLE
    with pytest.raises(TraceError) as raised:
        csv(tmp_path, TABLE.replace(old, new))
    assert (raised.value.row, raised.value.column) == (row, column)


def test_a_float_column_holds_whole_numbers_only(tmp_path: Path) -> None:
    for value, works in ((5.0, True), (5.5, False), (float("nan"), False), (float("inf"), False), (1e300, False)):
        frame = pl.DataFrame({"arrival_s": [0.0], "prompt_tokens": [value], "output_tokens": [1]})
        path = write(tmp_path, "my.parquet", parquet(frame))
        if works:
            assert load_trace(path, format="table").frame["prompt_tokens"].to_list() == [5]
        else:
            with pytest.raises(TraceError, match="row 1, column 'prompt_tokens'"):
                load_trace(path, format="table")


def test_a_column_that_holds_no_numbers(tmp_path: Path) -> None:
    frame = pl.DataFrame({"arrival_s": [0.0], "prompt_tokens": [[1, 2]], "output_tokens": [1]})
    with pytest.raises(TraceError, match=r"'prompt_tokens'.*a column of numbers or text"):
        load_trace(write(tmp_path, "my.parquet", parquet(frame)), format="table")


def test_missing_and_unknown_columns_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.options\.columns\.prompt_tokens=NAME; did you mean 'prompt_toks'"):
        csv(tmp_path, TABLE.replace("prompt_tokens", "prompt_toks"))
    with pytest.raises(TraceError, match=r"'prompt_token'.*did you mean 'prompt_tokens'"):
        csv(tmp_path, TABLE, columns={"prompt_tokens": "prompt_token"})
    with pytest.raises(TraceError, match=r"trace\.options\.columns\.promt_tokens.*did you mean 'prompt_tokens'"):
        csv(tmp_path, TABLE, columns={"promt_tokens": "prompt_tokens"})


def test_a_missing_column_is_not_guessed_to_be_another_ones(tmp_path: Path) -> None:
    for header in ("arrival_s,in_tok,output_tokens", "arrival_s,in_tok,out_tok", "arrival_s,in_tok,output_toks"):
        with pytest.raises(TraceError, match=r"columns\.prompt_tokens=NAME \(found: arrival_s, in_tok, out"):
            csv(tmp_path, f"{header}\n0,10,5\n")


def test_options_are_named_as_they_are_typed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.options\.sort=true"):
        csv(tmp_path, TABLE.replace("4,150,30", "0.25,150,30"))
    with pytest.raises(TraceError, match=r"trace\.options\.zero_output=drop"):
        csv(tmp_path, TABLE.replace("150,30", "150,0"))
    with pytest.raises(TraceError, match=r"trace\.options\.columns.*'when'.*a mapping"):
        csv(tmp_path, TABLE, columns="when")


def test_a_broken_parquet_is_called_that(tmp_path: Path) -> None:
    sound = parquet(pl.DataFrame({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]}))
    for name, data in (("a.parquet", sound[:-9]), ("a.parquet", sound[4:]), ("a.bin", sound[4:]), ("a.pq", b"xyz")):
        with pytest.raises(TraceError, match="a sound Parquet file"):
            load_trace(write(tmp_path, name, data), format="table")


@pytest.mark.parametrize("rows", [1, 2])
def test_a_trace_too_short_for_zones_says_so(tmp_path: Path, rows: int) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},10,5\n" for i in range(rows))
    with pytest.raises(TraceError, match=rf"{rows} requests? in .*too few to cut into zones"):
        zones(csv(tmp_path, text))


def test_dropping_a_turn_renumbers_its_session(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,session,turn\n0,10,5,a,1\n1,20,0,a,2\n2,30,5,a,3\n"
    trace = csv(tmp_path, text, zero_output="drop")
    assert trace.frame.select("turn", "prompt_tokens").rows() == [(1, 10), (2, 30)]


def test_a_log_of_a_real_cluster_keeps_what_it_recorded(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,prefill_worker,decode_worker,ttft_s,tpot_s,status,cancel_after_s\n"
    trace = csv(tmp_path, text + "0,10,5,0,2,0.5,0.02,ok,\n1,10,5,1,3,,,failed,2.5\n")
    assert trace.frame["decode_worker"].to_list() == [2, 3]
    assert trace.frame["ttft_s"].to_list() == [0.5, None]
    assert trace.frame["cancel_after_s"].to_list() == [None, 2.5]
    assert np.isfinite(trace.duration_s)


@pytest.mark.parametrize("name", ["b\rc", "x" * 200_000])
def test_odd_names_of_columns_are_no_names_of_ours(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match="column 'arrival_s': expected this column to be present"):
        load_trace(write(tmp_path, "log.csv", f"a{name},d\n1,2\n".encode()), format="table")


def test_a_name_that_two_columns_have_is_refused(tmp_path: Path) -> None:
    text = 'arrival_s,"prompt_tokens",output_tokens, prompt_tokens\n0,5,5,900\n'
    with pytest.raises(TraceError, match=r"column 'prompt_tokens': found '2 times', expected each name of a column"):
        load_trace(write(tmp_path, "log.csv", text.encode()), format="table")


@pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_other_separators_are_named(tmp_path: Path, separator: str, word: str) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n0,5,5\n".replace(",", separator)
    path = write(tmp_path, "log.csv", text.encode())
    for form in (None, "table", "azure", "burstgpt", "vidur"):
        with pytest.raises(TraceError, match=rf"separated by {word}', expected comma-separated values"):
            load_trace(path, format=form)
