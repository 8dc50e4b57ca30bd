"""Large files: read in pieces, to the same trace and the same errors as at once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard

from tests.traces.samples import parquet, write
from tests.traces.test_source import tar
from traces import Trace, TraceError, load_trace
from traces.readers import records, turns

HEADER = "arrival_s,prompt_tokens,output_tokens,session,class\n"
ROWS = [f"{i / 4:g},{100 + i % 7},{1 + i % 5},s{i % 9},{'chat' if i % 3 else 'batch'}" for i in range(60)]
TEXT = HEADER + "\n".join(ROWS) + "\n"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def shrink(piece_bytes: int) -> None:
        monkeypatch.setattr(records, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(turns, "CHUNK", 7)

    return shrink


def read(tmp_path: Path, data: str | bytes, name: str = "big.csv", **options: Any) -> Trace:
    raw = data.encode() if isinstance(data, str) else data
    return load_trace(write(tmp_path, name, raw), format="table", **options)


@pytest.mark.parametrize("size", [1, 30, 64, 1000])
def test_pieces_of_any_size_give_the_same_trace(tmp_path: Path, small_pieces: Any, size: int) -> None:
    whole = read(tmp_path, TEXT)
    small_pieces(size)
    assert read(tmp_path, TEXT).sha256 == whole.sha256
    assert whole.n_sessions == 9


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text + "\n \r\n\n" * 40,
        lambda text: "\n\n" + text.rstrip("\n"),
        lambda text: text.replace(",chat\n", ',"chat"\n').replace("arrival_s", '"arrival_s"'),
        lambda text: text.replace("class\n", "class,note\n").replace("chat\n", 'chat,"a ""quoted""\n, break"\n'),
    ],
    ids=["CRLF", "BOM", "blank end", "blank start", "quotes", "line breaks in quotes"],
)
def test_ways_of_writing_a_csv(tmp_path: Path, small_pieces: Any, change: Callable[[str], str]) -> None:
    plain = read(tmp_path, TEXT)
    small_pieces(50)
    assert read(tmp_path, change(TEXT)).sha256 == plain.sha256


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, zstandard.compress, lambda b: tar({"a/big.csv": b}), lambda b: gzip.compress(tar({"big.csv": b}))],
    ids=["gz", "zst", "tar", "tar.gz"],
)
def test_packed_files(tmp_path: Path, small_pieces: Any, pack: Callable[[bytes], bytes]) -> None:
    plain = read(tmp_path, TEXT)
    small_pieces(64)
    assert read(tmp_path, pack(TEXT.encode()), "packed").sha256 == plain.sha256


def bad(line: int, old: str, new: str) -> str:
    lines = TEXT.splitlines(keepends=True)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    return "".join(lines)


LATE = [
    ("a bad number", bad(50, ",10", ",x0"), 50, "prompt_tokens", "'x0"),
    ("a bad stamp", bad(50, "12,", "noon,"), 50, "arrival_s", "'noon'"),
    ("a stamp back in time", bad(50, "12,", "1,"), 50, "arrival_s", "'1'"),
    ("no output", bad(53, ",2,", ",0,"), 53, "output_tokens", "'0'"),
    ("too many fields", bad(50, "batch", "batch,more"), 50, None, "5 fields"),
    ("a blank line", bad(50, "\n", "\n\n"), 51, "arrival_s", "nothing"),
    ("no class", bad(50, "batch", ""), 50, "class", "nothing"),
]


@pytest.mark.parametrize(("text", "row", "column", "shown"), [b[1:] for b in LATE], ids=[b[0] for b in LATE])
@pytest.mark.parametrize("size", [60, 10_000])
def test_an_error_names_line_column_and_value(
    tmp_path: Path, small_pieces: Any, size: int, text: str, row: int, column: str | None, shown: str
) -> None:
    small_pieces(size)
    with pytest.raises(TraceError) as raised:
        read(tmp_path, text)
    assert (raised.value.row, raised.value.column) == (row, column)
    assert shown in str(raised.value)


@pytest.mark.parametrize("size", [60, 10_000])
def test_lines_are_counted_through_quoted_breaks(tmp_path: Path, small_pieces: Any, size: int) -> None:
    small_pieces(size)
    text = "note,arrival_s,prompt_tokens,output_tokens\n" + '"two\nlines",0,1,1\n' * 10 + "x,1,0,1\n"
    with pytest.raises(TraceError, match=r"row 22, column 'prompt_tokens'"):
        read(tmp_path, text)


def test_a_quote_that_never_closes_names_its_line(tmp_path: Path, small_pieces: Any, monkeypatch: Any) -> None:
    text = bad(21, "chat", '"chat')
    for longest in (10**9, 200):
        monkeypatch.setattr(records, "LONGEST_RECORD_BYTES", longest)
        small_pieces(64)
        with pytest.raises(TraceError, match=r"row 21: found .*quotes that close on their line"):
            read(tmp_path, text)


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path, small_pieces: Any) -> None:
    small_pieces(64)
    with pytest.raises(TraceError, match=r"row 42: .*UTF-8"):
        read(tmp_path, bad(42, "chat", "\udcff").encode("utf-8", "surrogateescape"))


def test_sessions_are_numbered_by_first_appearance_whatever_the_pieces(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    keys = [f"k{k}" if k else "" for k in rng.integers(0, 40, 500)]
    seen: dict[str, int] = {}
    wanted = [seen.setdefault(key, len(seen)) if key else -1 for key in keys]
    table = pl.DataFrame({"key": keys})
    from traces.readers.columns import Table
    from traces.source import Source

    column = turns.SessionColumn("key")
    got: list[int] = []
    for at in range(0, 500, 90):
        got += column(Table(table.slice(at, 90), Source(tmp_path, tmp_path), 1)).to_list()
    assert got == wanted


def test_parquet_is_read_as_typed(tmp_path: Path) -> None:
    frame = pl.read_csv(TEXT.encode())
    typed = frame.with_columns(pl.col("prompt_tokens").cast(pl.UInt16), pl.col("arrival_s").cast(pl.Float32))
    want = read(tmp_path, TEXT).sha256
    for number, data in enumerate((frame, typed)):
        raw = parquet(data)
        assert read(tmp_path, raw, f"{number}.parquet").sha256 == want
        assert read(tmp_path, gzip.compress(raw), f"{number}.parquet.gz").sha256 == want
    wrong = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == 40).then(0).otherwise("prompt_tokens").alias("prompt_tokens")
    )
    with pytest.raises(TraceError, match="row 41, column 'prompt_tokens': found 0"):
        read(tmp_path, parquet(wrong), "wrong.parquet")
