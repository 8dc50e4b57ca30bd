"""The public traces, counted again in a few lines that share nothing with the readers."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from traces import Trace, load_trace
from traces.catalog import ENTRIES, zones
from traces.describe import ideal_hit_share
from traces.readers import canonical
from traces.transform import losses

NAMES = ("azure_conv", "azure_code", "mooncake_conversation", "agentic")


@pytest.fixture(scope="module")
def mooncake(public_data: Path) -> Trace:
    return load_trace("mooncake_conversation", data_dir=public_data)


@pytest.fixture(scope="module")
def agentic(public_data: Path) -> Trace:
    return load_trace("agentic", data_dir=public_data, duplicates="keep")


def test_every_shared_file_is_the_one_the_catalogue_knows(public_data: Path) -> None:
    for name in NAMES:
        folder = public_data / ENTRIES[name].files[0]
        if folder.exists():
            assert load_trace(name, data_dir=public_data).provenance[-1].split("; ")[-1] == "verified"


@pytest.mark.parametrize("name", ["azure_conv", "azure_code"])
def test_azure_rows_and_token_sums(public_data: Path, name: str) -> None:
    with gzip.open(public_data / ENTRIES[name].files[0], "rt") as lines:
        rows = list(csv.DictReader(lines))
    trace = load_trace(name, data_dir=public_data)
    assert len(trace) == len(rows)
    assert trace.frame["prompt_tokens"].sum() == sum(int(r["ContextTokens"]) for r in rows)
    assert trace.frame["output_tokens"].sum() == sum(int(r["GeneratedTokens"]) for r in rows)
    minutes = [float(r["TIMESTAMP"][14:16]) * 60 + float(r["TIMESTAMP"][17:]) for r in rows]
    assert trace.frame["arrival_s"].to_numpy() == pytest.approx((np.array(minutes) - minutes[0]) % 3600, abs=1e-6)


def mooncake_lines(folder: Path) -> Iterator[dict[str, list[int]]]:
    with gzip.open(folder / ENTRIES["mooncake_conversation"].files[0], "rt") as lines:
        yield from map(json.loads, lines)


def test_mooncake_rows_tokens_and_ideal_hits(public_data: Path, mooncake: Trace) -> None:
    rows = list(mooncake_lines(public_data))
    assert len(mooncake) == len(rows)
    assert mooncake.frame["prompt_tokens"].sum() == sum(r["input_length"] for r in rows)  # type: ignore[misc]
    assert mooncake.frame["output_tokens"].sum() == sum(r["output_length"] for r in rows)  # type: ignore[misc]
    seen: set[int] = set()
    hits = blocks = 0
    for row in rows:
        full = row["hash_ids"][: row["input_length"] // 512]  # type: ignore[operator]
        hits += len(seen.intersection(full))
        blocks += len(full)
        seen.update(full)
    assert ideal_hit_share(mooncake, outputs=False) == pytest.approx(hits / blocks, abs=1e-6)


def test_mooncake_sessions(mooncake: Trace) -> None:
    later = mooncake.frame["turn"].to_numpy() > 1
    assert later.mean() == pytest.approx(0.31, abs=0.01)
    frame = mooncake.frame.sort("session", "turn")
    answered = (pl.col("prompt_tokens") + pl.col("output_tokens")).shift(1).over("session")
    new = frame.with_columns(new=pl.col("prompt_tokens") - answered).filter(pl.col("turn") > 1)["new"]
    assert new.min() >= -64  # type: ignore[operator]
    assert (new >= 0).to_numpy().mean() > 0.9
    arrival, stamp = mooncake.frame["arrival_s"].to_numpy(), np.arange(0, 2701, 3)
    assert np.histogram(arrival, [*stamp, 2703.1])[0].sum() == len(mooncake)


def test_agentic_rows_tokens_sessions_and_reuse(public_data: Path, agentic: Trace) -> None:
    raw = pl.read_parquet(public_data / ENTRIES["agentic"].files[0])
    assert len(agentic) == raw.height
    assert agentic.frame["prompt_tokens"].sum() == raw["input_length"].sum()
    assert agentic.frame["output_tokens"].sum() == raw["output_length"].clip(1).sum()
    assert agentic.n_sessions == raw.select("trace_id", "subagent").n_unique()
    # Reuse within streams, in whole coarse blocks: exactly what the file's counts say.
    expected = (raw["prefix_seen_blocks"] // 8).sum() / (raw["input_length"] // 512).sum()
    assert ideal_hit_share(agentic, outputs=False) == pytest.approx(expected, abs=1e-9)


def test_agentic_caps_make_it_fit_a_cluster(public_data: Path) -> None:
    trace = load_trace("agentic", data_dir=public_data, max_context_tokens=100_000, max_think_s=30.0, max_turns=25)
    context = trace.frame["prompt_tokens"] + trace.frame["output_tokens"]
    assert context.max() <= 100_000  # type: ignore[operator]
    assert trace.frame["think_s"].max() == 30.0
    assert trace.frame["turn"].max() == 25


@pytest.mark.parametrize("name", ["azure_conv", "azure_code", "mooncake_conversation"])
def test_round_trip(public_data: Path, tmp_path: Path, name: str) -> None:
    trace = load_trace(name, data_dir=public_data)
    canonical.write(trace, tmp_path / "t.parquet")
    assert load_trace(tmp_path / "t.parquet").sha256 == trace.sha256


def test_round_trip_of_sessions_with_long_chains(public_data: Path, tmp_path: Path) -> None:
    trace = load_trace("agentic", data_dir=public_data, max_turns=5)
    canonical.write(trace, tmp_path / "t.parquet")
    assert load_trace(tmp_path / "t.parquet").sha256 == trace.sha256


def test_zones_hold_forty_twenty_forty_and_lose_what_they_say(public_data: Path, mooncake: Trace) -> None:
    for trace in (load_trace("azure_conv", data_dir=public_data), load_trace("azure_code", data_dir=public_data)):
        parts = zones(trace)
        assert sum(map(len, parts.values())) == len(trace)
    parts = zones(mooncake)
    assert [round(part.duration_s) for part in parts.values()] == [1080, 540, 1083]
    lost = losses(mooncake, (1080.0, 1620.0, 2703.0))
    assert [zone["lost_by_drop"] for zone in lost.values()] == [0, 302, 570]
    assert [zone["lost_by_apart"] for zone in lost.values()] == [0, 0, 187]
    assert [len(part) for part in parts.values()] == [n["inside"] - n["lost_by_apart"] for n in lost.values()]
    strict = zones(mooncake, across="drop")
    assert sum(part.n_sessions for part in strict.values()) == mooncake.n_sessions


@pytest.mark.slow
def test_the_agentic_originals_can_be_compared_on(public_data: Path) -> None:
    """Recorded starts of sub-agents, one five days late, would leave validation and test all but empty."""
    trace = load_trace("agentic_sessions", data_dir=public_data)
    sizes = [len(part) for part in zones(trace).values()]
    assert sum(sizes) == len(trace) == 36_685
    assert min(sizes) > 0.1 * len(trace)
