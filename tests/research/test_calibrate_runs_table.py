"""Benchmark runs of one's own: read strictly, mistakes named with file, line, column and value."""

from __future__ import annotations

import pytest

from envs.hardware.errors import MeasurementError
from research.calibrating.runs_table import read_runs

HEAD = "prompt_tokens,output_tokens,concurrency,ttft_ms,tpot_ms"
ROWS = ("512,128,1,50,10", "512,128,32,200,15", "4096,128,8,600,20", "4096,512,16,700,21", "1024,1024,64,300,25")


def write(folder, head=HEAD, rows=ROWS):
    path = folder / "runs.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_milliseconds_and_seconds_say_the_same(tmp_path):
    ms = read_runs(write(tmp_path)).runs
    rows = ["512,128,1,0.05,0.01", "512,128,32,0.2,0.015", *(f"{a},{b},{c},0.6,0.02" for a, b, c in [(4096, 128, 8)])]
    rows += ["4096,512,16,0.7,0.021", "1024,1024,64,0.3,0.025"]
    s = read_runs(write(tmp_path, HEAD.replace("_ms", "_s"), rows)).runs
    assert [r.ttft_s for r in ms] == pytest.approx([r.ttft_s for r in s])
    assert [r.tpot_s for r in ms] == pytest.approx([r.tpot_s for r in s])
    assert ms[0].point == (512, 128, 1)
    assert (ms[0].rounds, ms[0].jitter, ms[0].start) == (None, None, None)


def test_protocol_engine_and_version_are_read_and_may_be_empty(tmp_path):
    head = f"{HEAD},engine,version,rounds,jitter,start"
    rows = [f"{row},vllm,0.11.0,10,0.2,staggered" for row in ROWS[:4]] + [f"{ROWS[4]},,,,,"]
    table = read_runs(write(tmp_path, head, rows))
    assert (table.engines, table.versions) == (("vllm",), ("0.11.0",))
    assert (table.runs[0].rounds, table.runs[0].jitter, table.runs[0].start) == (10, 0.2, "staggered")
    assert (table.runs[4].rounds, table.runs[4].jitter, table.runs[4].start) == (None, None, None)
    assert table.runs[4].line == 6


def test_blank_lines_count_in_line_numbers_only(tmp_path):
    table = read_runs(write(tmp_path, HEAD, [ROWS[0], "", *ROWS[1:]]))
    assert [run.line for run in table.runs] == [2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (HEAD.replace("prompt", "promt"), "unknown column 'promt_tokens' (did you mean 'prompt_tokens'?)"),
        (HEAD.replace(",concurrency", ",rounds"), "column 'concurrency' is missing: the file has prompt_tokens"),
        (HEAD.replace("ttft_ms", "ttft"), "column 'ttft' has no unit: expected ttft_ms or ttft_s"),
        (HEAD.replace("ttft_ms", "tpot_s"), "expected one of ttft_ms and ttft_s, found none"),
        (HEAD.replace("concurrency", "tpot_ms"), "column 'tpot_ms' is there twice"),
    ],
)
def test_columns_that_are_no_good_are_named(tmp_path, head, message):
    with pytest.raises(MeasurementError) as error:
        read_runs(write(tmp_path, head))
    assert message in str(error.value)


def test_both_units_of_one_time_are_refused(tmp_path):
    with pytest.raises(MeasurementError, match="expected one of tpot_ms and tpot_s, found tpot_ms and tpot_s"):
        read_runs(write(tmp_path, f"{HEAD},tpot_s", [f"{row},1" for row in ROWS]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("512,128,1,-50,10", "line 3: ttft_ms = '-50': expected a time above 0"),
        ("512,128,1,,10", "line 3: ttft_ms = '': expected a time above 0"),
        ("512,128,1,nan,10", "line 3: ttft_ms = 'nan'"),
        ("512,1,1,50,10", "line 3: output_tokens = '1': expected a whole number from 2"),
        ("512.5,128,1,50,10", "line 3: prompt_tokens = '512.5': expected a whole number from 1"),
        ("512,128,0,50,10", "line 3: concurrency = '0': expected a whole number from 1"),
        ("512,128,4097,50,10", "line 3: concurrency = '4097': expected a whole number from 1 to 4,096"),
        ("512,128,1,50", "line 3: 4 values: expected 5, as in the header"),
    ],
)
def test_values_that_are_no_good_are_named_with_their_line(tmp_path, row, message):
    with pytest.raises(MeasurementError) as error:
        read_runs(write(tmp_path, HEAD, [ROWS[0], row, *ROWS[1:]]))
    assert message in str(error.value)


def test_a_start_that_is_none_names_the_nearest(tmp_path):
    with pytest.raises(MeasurementError, match=r"start = 'togther': expected one of .*did you mean 'together'"):
        read_runs(write(tmp_path, f"{HEAD},start", [f"{row},togther" for row in ROWS]))


def test_seconds_in_a_column_of_milliseconds_are_asked_about(tmp_path):
    rows = [f"{','.join(row.split(',')[:3])},0.2,0.01" for row in ROWS]
    with pytest.raises(
        MeasurementError,
        match=r"ttft_ms has a median of 0\.2 ms: expected 1 to 100,000 ms; should the column be ttft_s\?",
    ):
        read_runs(write(tmp_path, HEAD, rows))
    rows = [f"{','.join(row.split(',')[:3])},0.2,15" for row in ROWS]
    with pytest.raises(
        MeasurementError, match=r"tpot_s has a median of 15 s: expected 0\.0001 to 10 s; should the column be tpot_ms\?"
    ):
        read_runs(write(tmp_path, HEAD.replace("_ms", "_s"), rows))


def test_other_separators_are_told(tmp_path):
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        with pytest.raises(MeasurementError, match=rf"line 1: the header is separated by {name}: .* comma-separated"):
            read_runs(write(tmp_path, HEAD.replace(",", mark), [row.replace(",", mark) for row in ROWS]))


def test_fewer_than_five_runs_are_refused(tmp_path):
    with pytest.raises(MeasurementError, match="4 runs: expected at least 5"):
        read_runs(write(tmp_path, HEAD, ROWS[:4]))
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(MeasurementError, match="empty: expected a header line and at least 5 runs"):
        read_runs(tmp_path / "empty.csv")
    with pytest.raises(MeasurementError, match="cannot be read"):
        read_runs(tmp_path / "none.csv")


def test_repeats_of_two_points_are_refused(tmp_path):
    with pytest.raises(MeasurementError, match=r"2 different .* expected at least 3"):
        read_runs(write(tmp_path, HEAD, [ROWS[0]] * 3 + [ROWS[1]] * 2))


def test_repeats_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(MeasurementError, match=r"lines 2 and 7 contradict each other: tpot of 0\.01 and 0\.02 s"):
        read_runs(write(tmp_path, HEAD, [*ROWS, "512,128,1,50,20"]))
    assert len(read_runs(write(tmp_path, HEAD, [*ROWS, "512,128,1,55,11"])).runs) == 6


def test_runs_of_two_engines_are_refused(tmp_path):
    rows = [f"{row},{engine}" for row, engine in zip(ROWS, ["vllm"] * 4 + ["sglang"], strict=True)]
    with pytest.raises(MeasurementError, match="engine: sglang, vllm: expected runs of one engine"):
        read_runs(write(tmp_path, f"{HEAD},engine", rows))


def test_a_row_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(
        MeasurementError, match="lines 3 and 7 are the same run twice: 512 prompt and 128 output tokens"
    ):
        read_runs(write(tmp_path, HEAD, [*ROWS, ROWS[1]]))
    # Another protocol is another run, and so is a repeat that came out otherwise.
    rows = [f"{row},{rounds}" for row, rounds in zip([*ROWS, ROWS[1]], [3, 3, 3, 3, 3, 10], strict=True)]
    assert len(read_runs(write(tmp_path, f"{HEAD},rounds", rows)).runs) == 6


def test_swapped_columns_and_units_that_differ_are_asked_about(tmp_path):
    with pytest.raises(
        MeasurementError, match=r"TTFT is shorter than TPOT in 5 of 5 runs \(line 2 first\): .* swapped"
    ):
        read_runs(write(tmp_path, "prompt_tokens,output_tokens,concurrency,tpot_ms,ttft_ms"))
    assert len(read_runs(write(tmp_path, HEAD, [*ROWS, "64,64,64,9,10"])).runs) == 6


def test_one_row_is_too_few(tmp_path):
    with pytest.raises(MeasurementError, match="1 runs: expected at least 5"):
        read_runs(write(tmp_path, HEAD, ROWS[:1]))
