"""A user's own log as a table: prefix hashes, ends of requests, workers by name."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.traces.samples import write
from traces import Trace, TraceError, load_trace
from traces.readers import table_chains


def csv(tmp_path: Path, text: str, **options: Any) -> Trace:
    return load_trace(write(tmp_path, "log.csv", text.encode()), format="table", **options)


def chains(trace: Trace) -> list[list[int]]:
    return [trace.chain_ids[a:b].tolist() for a, b in pairwise(trace.chain_offsets)]


# Blocks of 16: 40 tokens are two blocks and a part, 32 are two, 64 four.
HASHED = """arrival_s,prompt_tokens,output_tokens,session,hash_ids
0,40,10,a,{0}
1,32,5,b,{1}
2,64,8,a,{2}
3,10,8,,{3}
"""
LISTS = [[7, 9, 100], [7, 8], [7, 9, 30, 31], []]
WRITTEN = {
    "spaces": lambda ids: " ".join(map(str, ids)),
    "brackets": lambda ids: f'"[{", ".join(map(str, ids))}]"',
    "semicolons": lambda ids: ";".join(map(str, ids)),
}


@pytest.mark.parametrize("style", WRITTEN)
def test_hashes_written_in_a_csv(tmp_path: Path, style: str) -> None:
    trace = csv(tmp_path, HASHED.format(*map(WRITTEN[style], LISTS)), prefix_block_tokens=16)
    # The first request's output completes its third block (50 tokens), which the next turn's prompt names.
    assert chains(trace) == [[0, 1, 2], [0, 3], [0, 1, 2, 4], []]
    assert trace.prefix_block_tokens == 16
    note = next(n for n in trace.provenance if n.startswith("prefixes from hash_ids"))
    assert "1 partial last blocks left out" in note
    assert "blocks of 1 outputs are known" in note


def hashed_parquet(tmp_path: Path, lists: pl.Series, metadata: dict[str, str] | None = None, **more: Any) -> Path:
    frame = pl.DataFrame(
        {"arrival_s": [0.0, 1, 2, 3], "prompt_tokens": [40, 32, 64, 10], "output_tokens": [10, 5, 8, 8], **more}
    ).with_columns(lists.alias("hash_ids"))
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=metadata or {})
    return write(tmp_path, "log.parquet", buffer.getvalue())


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64, pl.Int32])
def test_hashes_in_a_parquet(tmp_path: Path, dtype: Any) -> None:
    big = 2**31 - 1 if dtype == pl.Int32 else 2**63 - 1 if dtype == pl.Int64 else 2**64 - 1
    lists = pl.Series([[big if i == 7 else i for i in ids] for ids in LISTS], dtype=pl.List(dtype))
    head = {"pdgym.hash": json.dumps({"version": 1, "block_tokens": 16, "tokenizer": "t"})}
    trace = load_trace(hashed_parquet(tmp_path, lists, head), format="table")
    assert chains(trace) == [[0, 1], [0, 2], [0, 1, 3, 4], []]
    with pytest.raises(TraceError, match=r"prefix_block_tokens.*expected 16, as the file's own pdgym\.hash says"):
        load_trace(tmp_path / "log.parquet", format="table", prefix_block_tokens=32)


def test_bad_metadata_of_hashes(tmp_path: Path) -> None:
    lists = pl.Series(LISTS, dtype=pl.List(pl.Int64))
    for text in ("no json", "[]", '{"version": 2, "block_tokens": 16}', '{"version": 1, "block_tokens": true}'):
        with pytest.raises(TraceError, match=r"pdgym\.hash"):
            load_trace(hashed_parquet(tmp_path, lists, {"pdgym.hash": text}), format="table")


def test_block_hashes_are_chained_here(tmp_path: Path) -> None:
    text = (
        "arrival_s,prompt_tokens,output_tokens,hash_ids\n"
        "0,48,1,5 5 6\n"  # the same block twice, then another
        "1,48,1,5 6 5\n"
        "2,32,1,5 5\n"
        "3,32,1,6 5\n"
    )
    trace = csv(tmp_path, text, prefix_block_tokens=16, hash_kind="block")
    assert chains(trace) == [[0, 1, 2], [0, 3, 4], [0, 1], [5, 6]]
    with pytest.raises(TraceError, match=r"row 2, column 'hash_ids': .*hash_kind=block"):
        csv(tmp_path, text, prefix_block_tokens=16)


def test_rows_without_hashes_are_counted(tmp_path: Path) -> None:
    trace = csv(tmp_path, HASHED.format("7 9", "", "7 9 30 31", "[]"), prefix_block_tokens=16)
    assert chains(trace)[1] == []
    assert any("1 requests without hashes" in n for n in trace.provenance)


def test_hashes_follow_repairs(tmp_path: Path) -> None:
    head, *rows = HASHED.format(*map(WRITTEN["spaces"], LISTS)).splitlines(keepends=True)
    straight = csv(tmp_path, head + "".join(rows), prefix_block_tokens=16)
    turned = csv(tmp_path, head + "".join(reversed(rows)), prefix_block_tokens=16, sort=True)
    assert turned.sha256 == straight.sha256
    failed = rows[1].replace("32,5", "32,0")
    dropped = csv(tmp_path, head + rows[0] + failed + "".join(rows[2:]), prefix_block_tokens=16, zero_output="drop")
    assert chains(dropped) == [[0, 1, 2], [0, 1, 2, 3], []]


BAD_HASHES = [
    ("text", ["7 9", "7 x", "7 9 30 31", ""], {}, 3, "whole numbers below"),
    ("negative", ["7 9", "7 -8", "7 9 30 31", ""], {}, 3, "whole numbers below"),
    ("too few", ["7 9", "7 8", "7 9 30", ""], {}, 4, "4 or 5 hashes.*here are 3"),
    ("too many", ["7 9", "7 8 1 2", "7 9 30 31", ""], {}, 3, "2 or 3 hashes.*here are 4"),
    ("two parents", ["7 9", "8 9", "7 9 30 31", ""], {}, 3, "names the whole prefix"),
    ("no block", ["7 9", "7 8", "7 9 30 31", ""], {"prefix_block_tokens": None}, None, "prefix_block_tokens=16"),
    ("a kind", ["7 9", "7 8", "7 9 30 31", ""], {"hash_kind": "blocks"}, None, "did you mean 'block'"),
    ("two sources", ["7 9", "7 8", "7 9 30 31", ""], {"context": "grows"}, None, "table has hashes"),
]


@pytest.mark.parametrize(
    ("lists", "options", "row", "message"), [b[1:] for b in BAD_HASHES], ids=[b[0] for b in BAD_HASHES]
)
def test_bad_hashes(tmp_path: Path, lists: list[str], options: dict[str, Any], row: int | None, message: str) -> None:
    with pytest.raises(TraceError, match=message) as raised:
        csv(tmp_path, HASHED.format(*lists), **{"prefix_block_tokens": 16, **options})
    assert raised.value.row == row


def test_hash_kind_needs_hashes(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a column hash_ids with it"):
        csv(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,1\n", hash_kind="block")


ROWS = [
    # arrival, session, prompt, output, end, latency, ttft, tpot
    (100.0, "a", 10, 5, 102.0, 2.0, 1.0, 0.25),
    (101.0, "b", 10, 1, 101.5, 0.5, 0.5, None),
    (110.0, "a", 20, 5, 111.0, 1.0, 0.5, 0.125),
    (110.5, "a", 30, 5, 114.0, 3.5, 1.5, 0.5),
    (120.0, "b", 30, 5, 121.0, 1.0, 0.5, 0.125),
]
NAMES = ("arrival_s", "session", "prompt_tokens", "output_tokens", "end_s", "e2e_s", "ttft_s", "tpot_s")
THINK = [None, None, 8.0, None, 18.5]  # the third starts half a second before the second ends: a parallel call


def ended(tmp_path: Path, *names: str, change: dict[str, Any] | None = None, **options: Any) -> Trace:
    frame = pl.DataFrame(ROWS, schema=NAMES, orient="row").select("arrival_s", *NAMES[1:4], *names)
    frame = frame.with_columns(**{k: pl.lit(v) if not isinstance(v, pl.Expr) else v for k, v in (change or {}).items()})
    return csv(tmp_path, frame.write_csv(), **options)


@pytest.mark.parametrize(
    ("names", "how"),
    [(["end_s"], "logged end stamps"), (["e2e_s"], "logged latency"), (["ttft_s", "tpot_s"], r"ttft + tpot")],
)
def test_think_times_from_logged_ends(tmp_path: Path, names: list[str], how: str) -> None:
    trace = ended(tmp_path, *names, replay="closed")
    assert trace.frame["think_s"].to_list() == THINK
    note = next(n for n in trace.provenance if n.startswith("think time"))
    assert how in note
    assert "0.0% of gaps were negative" in note
    told = (
        "parallel calls: 1 of 3 later turns begin before the one before has ended; the sessions concerned are 2 streams"
    )
    assert any(told in n for n in trace.provenance)


def test_the_best_known_end_counts(tmp_path: Path) -> None:
    first = pl.when(pl.int_range(pl.len()) == 0).then(None)
    trace = ended(tmp_path, "end_s", "ttft_s", "tpot_s", change={"end_s": first.otherwise("end_s")})
    assert trace.frame["think_s"].to_list() == THINK
    note = next(n for n in trace.provenance if n.startswith("think time"))
    assert "50.0% from logged end stamps" in note
    assert "50.0% from arrival + logged ttft" in note


def test_without_ends_think_times_are_not_known_or_assumed(tmp_path: Path) -> None:
    assert ended(tmp_path).frame["think_s"].null_count() == 5
    with pytest.raises(TraceError, match=r"think_s.*end_s.*assumed_ttft_s"):
        ended(tmp_path, replay="closed")
    trace = ended(tmp_path, replay="closed", assumed_ttft_s=0.5, assumed_tpot_s=0.1)
    assert trace.frame["think_s"].to_list() == pytest.approx([None, None, 9.0, 0.0, 18.4])
    assert any("an assumed service of 0.5 s + 0.1 s a token" in n for n in trace.provenance)


def test_end_stamps_take_the_clock_of_the_arrivals(tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS, schema=NAMES, orient="row")
    epoch = pl.col("arrival_s", "end_s") + 1_700_000_000
    forms = {
        "epoch": frame.with_columns(epoch),
        "ms": frame.with_columns((epoch * 1000).cast(pl.Int64)),
        "dates": frame.with_columns((epoch * 1000).cast(pl.Int64).cast(pl.Datetime("ms"))),
    }
    for form, table in forms.items():
        text = table.select("arrival_s", *NAMES[1:4], "end_s").write_csv()
        assert csv(tmp_path, text).frame["think_s"].to_list() == THINK, form
    named = forms["ms"].select(pl.col("arrival_s").alias("arrival_ms"), *NAMES[1:4], pl.col("end_s").alias("finish_ms"))
    assert csv(tmp_path, named.write_csv()).frame["think_s"].to_list() == THINK
    mixed = frame.select(pl.col("arrival_s"), *NAMES[1:4], (pl.col("end_s") * 1000).alias("end_ms"))
    assert csv(tmp_path, mixed.write_csv()).frame["think_s"].to_list() == THINK
    mixed = frame.select((pl.col("arrival_s") * 1000).alias("arrival_ms"), *NAMES[1:5])
    assert csv(tmp_path, mixed.write_csv()).frame["think_s"].to_list() == THINK
    wrong = forms["epoch"].select(*NAMES[:4], pl.col("end_s").alias("end_ms"))
    with pytest.raises(TraceError, match=r"'end_ms' says, but they are such in s"):
        csv(tmp_path, wrong.write_csv())
    for column in ("arrival_s", "end_s"):
        apart = frame.with_columns(pl.col(column) + 1_700_000_000).select(*NAMES[:5])
        with pytest.raises(TraceError, match=r"column 'end_s'.*ends on the clock of the arrivals"):
            csv(tmp_path, apart.write_csv())


def test_ends_in_another_unit_than_arrivals_are_a_question(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,end_s\n"
    text += "".join(f"{100 + k},1,1,{(100 + k) * 1000 + 500}\n" for k in range(20))
    with pytest.raises(TraceError, match=r"row 2, column 'end_s'.*median of .* s: are the ends in another unit"):
        csv(tmp_path, text)
    assert len(csv(tmp_path, text, arrival_unit="s")) == 20
    assert len(csv(tmp_path, text.replace("end_s", "end_ms"))) == 20


def test_an_end_before_its_arrival_is_an_error(tmp_path: Path) -> None:
    late = pl.when(pl.int_range(pl.len()) == 2).then(109.0).otherwise("end_s")
    with pytest.raises(TraceError, match=r"row 4, column 'end_s': found '109.0', expected an end after its arrival"):
        ended(tmp_path, "end_s", change={"end_s": late})


def test_assumptions_that_nothing_would_use_are_refused(tmp_path: Path) -> None:
    for options, change, message in (
        ({"assumed_ttft_s": 1.0}, {}, "both"),
        ({"assumed_ttft_s": 1.0, "assumed_tpot_s": -1.0}, {}, "a number from 0"),
        ({"assumed_ttft_s": 1.0, "assumed_tpot_s": 0.1}, {"think_s": 1.0}, "none, as the table has think times"),
    ):
        with pytest.raises(TraceError, match=message):
            ended(tmp_path, change=change, **options)
    with pytest.raises(TraceError, match="a session column"):
        csv(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,1\n", assumed_ttft_s=1.0, assumed_tpot_s=0.1)


def test_contexts_that_grow_beyond_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_chains, "MOST_IDS", 3)
    with pytest.raises(TraceError, match=r"at most 3 prefix blocks.*make 5.*prefix_block_tokens=32"):
        ended(tmp_path, context="grows", change={"prompt_tokens": 16})
    assert ended(tmp_path, context="grows", change={"prompt_tokens": 16}, prefix_block_tokens=32).n_prefix_ids == 0


ROUTES = "arrival_s,prompt_tokens,output_tokens,prefill_worker,decode_worker\n"


def test_workers_with_names_are_numbered_in_natural_order(tmp_path: Path) -> None:
    text = ROUTES + "0,1,1,p-10,d-2\n1,1,1,p-2,d-10\n2,1,1,,d-2\n3,1,1,p-2,p-10\n"
    trace = csv(tmp_path, text)
    assert trace.frame["prefill_worker"].to_list() == [1, 0, None, 0]
    assert trace.frame["decode_worker"].to_list() == [2, 3, 2, 1]
    assert "workers numbered in natural order, prefill first: p-2=0, p-10=1, d-2=2, d-10=3" in trace.provenance


def test_minus_one_is_no_worker_among_names(tmp_path: Path) -> None:
    trace = csv(tmp_path, ROUTES + "0,1,1,-1,d-2\n1,1,1,p,d-10\n")
    assert trace.frame["prefill_worker"].to_list() == [-1, 0]
    assert trace.frame["decode_worker"].to_list() == [1, 2]


def test_every_column_that_a_trace_keeps_is_read(tmp_path: Path) -> None:
    head = ROUTES.strip() + ",routed_after_s,order_key,local_chunk_tokens,logged_order\n"
    trace = csv(tmp_path, head + "0,1,1,0,1,0.5,-2.5,512,0\n1,1,1,0,1,,,,1\n")
    kept = trace.frame.select("routed_after_s", "order_key", "local_chunk_tokens", "logged_order").rows()
    assert kept == [(0.5, -2.5, 512, 0), (None, None, None, 1)]


def test_workers_with_numbers_keep_them(tmp_path: Path) -> None:
    trace = csv(tmp_path, ROUTES + "0,1,1,7,12\n1,1,1, 3 ,\n")
    assert trace.frame["prefill_worker"].to_list() == [7, 3]
    assert trace.frame["decode_worker"].to_list() == [12, None]
    assert not any("workers" in n and "numbered" in n for n in trace.provenance)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROUTES + "0,1,1,7,12\n1,1,1,pod,12\n", r"row 3, column 'prefill_worker': found 'pod'.*throughout"),
        (ROUTES + "0,1,1,7,12\n1,1,1,8,-5\n", r"row 3, column 'decode_worker': found '-5'"),
    ],
)
def test_bad_workers(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        csv(tmp_path, text)


def test_floats_of_workers_and_sessions_are_whole_numbers(tmp_path: Path) -> None:
    """What pandas writes where a column of numbers has gaps."""
    frame = pl.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 2.0],
            "prompt_tokens": [1, 1, 1],
            "output_tokens": [1, 1, 1],
            "session": [4.0, np.nan, 4.0],
            "decode_worker": [3.0, None, 5.0],
        }
    )
    frame.write_parquet(tmp_path / "x.parquet")
    trace = load_trace(tmp_path / "x.parquet", format="table")
    assert trace.frame["session"].to_list() == [0, -1, 0]
    assert trace.frame["decode_worker"].to_list() == [3, None, 5]
