"""A degree that a record counts twice is counted once; everything else stays as recorded."""

from pathlib import Path

import polars as pl

from envs.hardware.sources.recorded_layout import counted_once
from envs.hardware.sources.serving_runs import serving_runs

DUMP, OWN = "db-dump/2026-04-27", "data/h100_sxm/trtllm/1.0.0rc3/model.csv"
COLUMNS = ("engine", "tp", "dp", "moe_tp", "moe_ep", "gpus", "campaign", "layout")


def degrees(*run: object) -> tuple[object, ...]:
    """``tp, dp, moe_tp, moe_ep, gpus`` of one run, counted once."""
    frame = pl.DataFrame([dict(zip(COLUMNS, run, strict=True))], schema_overrides={"dp": pl.Int64})
    return counted_once(frame).select("tp", "dp", "moe_tp", "moe_ep", "gpus").row(0)


def test_tp_8_and_ep_8_are_the_same_eight_gpus() -> None:
    assert degrees("sglang", 64, 1, 8, 8, 64, DUMP, "colocated") == (8, 1, 1, 8, 8)
    assert degrees("trtllm", 16, 1, 4, 4, 16, "2026-04-06.csv", "colocated") == (4, 1, 1, 4, 4)


def test_data_parallel_ranks_stay_ranks() -> None:
    assert degrees("trtllm", 1, 64, 8, 8, 64, DUMP, "colocated") == (1, 8, 1, 8, 8)


def test_vllm_counts_its_ranks_twice() -> None:
    assert degrees("vllm", 4, 4, 1, 16, 16, DUMP, "colocated") == (4, 1, 1, 4, 4)


def test_what_is_counted_once_already_stays() -> None:
    for run in (
        ("sglang", 4, 1, 1, 4, 4, DUMP, "colocated"),
        ("trtllm", 1, 8, 1, 8, 8, DUMP, "colocated"),
        ("trtllm", 8, 1, 8, 1, 8, DUMP, "colocated"),
        ("vllm", 1, 8, 1, 8, 8, DUMP, "colocated"),
        ("sglang", 16, 1, 4, 4, 16, DUMP, "disaggregated"),
        ("trtllm", 4, None, 2, 2, 4, OWN, "colocated"),
    ):
        assert degrees(*run) == run[1:6]


def test_public_runs_of_one_machine_need_eight_gpus_at_most(public_data: Path) -> None:
    runs = serving_runs(public_data).kept
    one = runs.filter((pl.col("layout") == "colocated") & ~pl.col("gpu").str.starts_with("gb"))
    assert one["gpus"].max() == 8
    assert runs.filter(pl.col("gpus") != pl.col("recorded_gpus")).height == 188
