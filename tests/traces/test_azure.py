from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.traces.samples import AZURE, AZURE_HEADER, azure_csv, write
from tests.traces.samples_public import AZURE_2024
from traces import TraceError, load_trace


def test_reads_stamps_to_100_ns_and_counts_from_the_first(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, "conv.csv", azure_csv()), format="azure")
    assert np.round(trace.frame["arrival_s"].to_numpy() * 1e7).tolist() == [0, 1, 43145790]
    assert trace.frame["prompt_tokens"].to_list() == [374, 396, 879]
    assert trace.frame["output_tokens"].to_list() == [44, 109, 55]
    assert trace.frame["session"].to_list() == [-1, -1, -1]
    assert (trace.replay, trace.prefix_block_tokens, trace.name) == ("open", 0, "conv")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_files_read_the_same_whatever_their_name(tmp_path: Path, pack: object) -> None:
    plain = load_trace(write(tmp_path, "a.csv", azure_csv()))
    packed = load_trace(write(tmp_path, "b.csv", pack(azure_csv())))  # type: ignore[operator]
    assert packed.sha256 == plain.sha256


def test_stamps_of_2024_have_a_zone_and_microseconds_or_none(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path, "week.csv", azure_csv(AZURE_2024)))
    assert trace.frame["arrival_s"].to_list() == pytest.approx([0, 0.041683, 1.5], abs=1e-9)
    moved = [row.replace("+00:00", "+02:00").replace(" 00:", " 02:") for row in AZURE_2024[1:]]
    assert load_trace(write(tmp_path, "zone.csv", azure_csv([AZURE_2024[0], *moved]))).sha256 == trace.sha256


def test_one_file_has_one_form_of_stamps(tmp_path: Path) -> None:
    path = write(tmp_path, "mixed.csv", azure_csv([*AZURE_2024, "2024-05-12 00:00:02,5,5"]))
    with pytest.raises(TraceError, match=r"row 5, column 'TIMESTAMP': found '2024-05-12 00:00:02'.*\+00:00"):
        load_trace(path)


def test_requests_with_images_are_refused(tmp_path: Path) -> None:
    header = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
    path = write(tmp_path, "images.csv", azure_csv(["2024-10-15 00:00:00,2,90,8"], header))
    with pytest.raises(TraceError, match=r"'NumImages'.*not in ContextTokens"):
        load_trace(path, format="azure")


def test_windows_line_ends_byte_order_mark_and_blank_last_lines(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + azure_csv().replace(b"\n", b"\r\n") + b"\r\n\r\n"
    assert load_trace(write(tmp_path, "a.csv", data)).sha256 == load_trace(write(tmp_path, "b.csv", azure_csv())).sha256


BAD_ROWS = [
    ("negative length", "2023-11-16 18:15:46.7,-3,44", "ContextTokens", "-3", "whole number from 1 to 10,000,000"),
    ("no prompt", "2023-11-16 18:15:46.7,0,44", "ContextTokens", "0", "whole number from 1"),
    ("implausible length", "2023-11-16 18:15:46.7,1000000000000,44", "ContextTokens", "10000", "10,000,000"),
    ("NaN", "2023-11-16 18:15:46.7,NaN,44", "ContextTokens", "NaN", "whole number"),
    ("fraction", "2023-11-16 18:15:46.7,1.5,44", "ContextTokens", "1.5", "whole number"),
    ("nothing", "2023-11-16 18:15:46.7,,44", "ContextTokens", "nothing", "whole number"),
    ("short row", "2023-11-16 18:15:46.7,12", "GeneratedTokens", "nothing", "whole number"),
    ("no time", "yesterday,12,44", "TIMESTAMP", "yesterday", "2023-11-16 18:17:03"),
    ("no day", "2023-11-31 18:15:46.7,12,44", "TIMESTAMP", "2023-11-31", "2023-11-16"),
    ("no output", "2023-11-16 18:15:46.7,12,0", "GeneratedTokens", "0", "zero_output=drop"),
]


@pytest.mark.parametrize(
    ("row", "column", "value", "expected"), [b[1:] for b in BAD_ROWS], ids=[b[0] for b in BAD_ROWS]
)
def test_a_bad_value_names_file_row_column_value(
    tmp_path: Path, row: str, column: str, value: str, expected: str
) -> None:
    path = write(tmp_path, "bad.csv", azure_csv([AZURE[0], row, AZURE[2]]))
    with pytest.raises(TraceError) as raised:
        load_trace(path, format="azure")
    error = raised.value
    assert (error.file, error.row, error.column) == (str(path), 3, column)
    assert value in str(error)
    assert expected in str(error)


def test_zero_output_repairs_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "zero.csv", azure_csv([*AZURE, "2023-11-16 18:15:51,12,0"]))
    dropped, one = load_trace(path, zero_output="drop"), load_trace(path, zero_output="one")
    assert (len(dropped), len(one), one.frame["output_tokens"][-1]) == (3, 4, 1)
    assert any("1 requests without output left out" in note for note in dropped.provenance)
    assert any("1 requests set to one token" in note for note in one.provenance)


def test_unsorted_stamps_name_the_repair_and_the_repair_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "unsorted.csv", azure_csv([AZURE[2], AZURE[0], AZURE[1]]))
    with pytest.raises(TraceError, match=r"row 3, column 'TIMESTAMP'.*46\.6805900.*sort=true"):
        load_trace(path)
    trace = load_trace(path, sort=True)
    assert trace.sha256 == load_trace(write(tmp_path, "sorted.csv", azure_csv())).sha256
    assert any("repair sort: 1 steps back" in note for note in trace.provenance)


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", azure_csv(header="TIMESTAMP,ContextToken,GeneratedTokens"))
    with pytest.raises(TraceError, match=r"'ContextTokens'.*did you mean 'ContextToken'"):
        load_trace(path, format="azure")


FILES = [
    ("empty", b"", "an empty file"),
    ("blank", b"\n\n", "an empty file"),
    ("header only", AZURE_HEADER.encode() + b"\n", "at least one request"),
    ("truncated gzip", gzip.compress(azure_csv() * 50)[:-20], "truncated gzip"),
    ("damaged gzip", b"\x1f\x8b" + b"x" * 50, "damaged gzip"),
    ("truncated zstd", zstandard.compress(azure_csv() * 50)[:-5], "truncated zstd"),
    ("damaged zstd", b"\x28\xb5\x2f\xfd" + b"x" * 50, "damaged zstd"),
    ("not UTF-8", azure_csv() + b"2023-11-16 18:15:46.7,\xff\xfe,44\n", r"row 5.*UTF-8"),
    ("too many fields", azure_csv(["2023-11-16 18:15:46.7,12,44,9"]), "row 2.*3 fields"),
    ("an open quote", azure_csv(['2023-11-16 18:15:46.7,"12,44', AZURE[2]]), "row 2.*quotes"),
]


@pytest.mark.parametrize(("data", "message"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_a_bad_file_is_one_clear_error(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load_trace(write(tmp_path, "bad.csv", data), format="azure")


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    write(tmp_path, "conversation.csv", azure_csv())
    with pytest.raises(TraceError, match="a directory"):
        load_trace(tmp_path)
    with pytest.raises(TraceError, match=r"did you mean 'conversation\.csv'"):
        load_trace(tmp_path / "conversatio.csv")


def test_an_unknown_format_and_option_name_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", azure_csv())
    with pytest.raises(TraceError, match="did you mean 'azure'"):
        load_trace(path, format="azur")
    with pytest.raises(TraceError, match="did you mean 'zero_output'"):
        load_trace(path, zero_outputs="drop")
    with pytest.raises(TraceError, match="error, drop, one"):
        load_trace(path, zero_output="keep")
    with pytest.raises(TraceError, match="a known format"):
        load_trace(write(tmp_path, "b.csv", b"what,is,this\n1,2,3\n"))
