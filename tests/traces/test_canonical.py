from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl
import pytest

from tests.traces.samples import TABLE, mooncake_jsonl, parquet, write
from traces import Trace, TraceError, load_trace
from traces.readers import canonical


def examples(tmp_path: Path) -> list[Trace]:
    return [
        load_trace(write(tmp_path, "m.jsonl", mooncake_jsonl())),
        load_trace(write(tmp_path, "t.csv", TABLE.encode()), format="table", replay="closed"),
        load_trace("default").windows(50)[7],
    ]


def test_a_round_trip_has_an_equal_hash_and_keeps_the_rest(tmp_path: Path) -> None:
    for trace in examples(tmp_path):
        path = tmp_path / "new" / "trace.parquet"
        canonical.write(trace, path)
        again = load_trace(path)
        assert again.sha256 == trace.sha256
        assert (again.name, again.provenance, again.classes) == (trace.name, trace.provenance, trace.classes)
        assert [p.name for p in path.parent.iterdir()] == ["trace.parquet"]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    trace = examples(tmp_path)[0]
    canonical.write(trace, tmp_path / "a.parquet")
    canonical.write(trace, tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def changed(tmp_path: Path, frame_change: object = None, **head: object) -> Path:
    trace = examples(tmp_path)[0]
    canonical.write(trace, tmp_path / "a.parquet")
    raw = (tmp_path / "a.parquet").read_bytes()
    meta = json.loads(pl.read_parquet_metadata(io.BytesIO(raw))[canonical.KEY]) | head
    frame = pl.read_parquet(io.BytesIO(raw))
    if callable(frame_change):
        frame = frame_change(frame)
    frame.write_parquet(tmp_path / "b.parquet", metadata={canonical.KEY: json.dumps(meta)})
    return tmp_path / "b.parquet"


def test_content_that_was_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="its hash differs"):
        load_trace(changed(tmp_path, lambda f: f.with_columns(pl.col("output_tokens") + 1)))
    assert load_trace(changed(tmp_path, name="renamed")).name == "renamed"


def test_bad_metadata(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="version 1"):
        load_trace(changed(tmp_path, version=2))
    for key in ("replay", "classes", "duration_s", "prefix_block_tokens"):
        with pytest.raises(TraceError):
            load_trace(changed(tmp_path, **{key: None}))
    with pytest.raises(TraceError, match="format=table"):
        load_trace(write(tmp_path, "c.parquet", parquet(pl.DataFrame({"x": [1]}))), format="pdgym")


def test_a_parquet_without_our_metadata_is_a_table(tmp_path: Path) -> None:
    plain = pl.DataFrame({"arrival_s": [0.0, 1.5], "prompt_tokens": [5, 6], "output_tokens": [1, 2]})
    trace = load_trace(write(tmp_path, "c.parquet", parquet(plain)))
    assert trace.frame["prompt_tokens"].to_list() == [5, 6]
    with pytest.raises(TraceError, match=r"prompt_tokens.*trace\.options\.columns"):
        load_trace(write(tmp_path, "d.parquet", parquet(plain.rename({"prompt_tokens": "n"}))))
    with pytest.raises(TraceError, match="version 1"):
        load_trace(changed(tmp_path, version=2))


def test_bad_chains(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"List\(Int32\)"):
        load_trace(changed(tmp_path, lambda f: f.with_columns(chain=pl.lit(1))))
    with pytest.raises(TraceError, match="a list on every row"):
        load_trace(changed(tmp_path, lambda f: f.with_columns(chain=pl.lit(None, pl.List(pl.Int32)))))


def test_no_parquet(tmp_path: Path) -> None:
    for data in (b"PAR1", b"PAR1" + b"x" * 100, parquet(pl.DataFrame({"x": [1]}))[:-10]):
        with pytest.raises(TraceError, match="Parquet"):
            load_trace(write(tmp_path, "x.parquet", data), format="pdgym")
    with pytest.raises(TraceError, match="a sound Parquet file"):
        load_trace(write(tmp_path, "x.csv", TABLE.encode()), format="pdgym")
