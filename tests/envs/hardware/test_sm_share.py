from __future__ import annotations

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.sm_share import TABLE, read_slowdowns, slowdowns


def rows(**more: object) -> pl.DataFrame:
    """Two models: prefill minds the share, decode does not; the second minds less."""
    found = [
        {
            "model": model, "gpu": "A100-80G", "tp": 1, "phase": phase, "tokens_bucket": "lt1k",
            "sm_share_pct": percent,
            "slowdown_median": 1.0 + weight * (100 / percent - 1.0) * (1.0 if phase == "prefill" else 0.0),
        }
        for model, weight in (("a", 1.0), ("b", 0.5))
        for phase in ("prefill", "decode")
        for percent in (25, 50, 100)
    ]  # fmt: skip
    return pl.DataFrame(found).with_columns(**more)


def write(tmp_path, frame):
    path = tmp_path / TABLE
    path.parent.mkdir(parents=True)
    frame.write_csv(path)
    return tmp_path


def test_medians_and_held_out_errors_by_hand(tmp_path):
    found = {(r.phase, r.share): r for r in slowdowns(read_slowdowns(write(tmp_path, rows())))}
    half = found["prefill", 0.5]
    assert (half.median, half.low, half.high, half.configurations) == (1.75, 1.5, 2.0, 2)
    assert half.held_out_percent == pytest.approx((0.5 / 2.0 + 0.5 / 1.5) / 2 * 100)
    assert found["decode", 0.25].median == 1.0


def test_a_smaller_share_never_takes_less_time(tmp_path):
    shaky = pl.when(pl.col("sm_share_pct") == 25).then(0.9).otherwise(pl.col("slowdown_median"))
    found = slowdowns(read_slowdowns(write(tmp_path, rows(slowdown_median=shaky))))
    assert [r.median for r in found if r.phase == "prefill"] == [1.0, 1.75, 1.75]


def test_the_bucket_of_failed_runs_is_left_out(tmp_path):
    failed = rows(tokens_bucket=pl.lit("ge16k"), slowdown_median=pl.lit(-0.0002))
    table = read_slowdowns(write(tmp_path, pl.concat([rows(), failed])))
    assert table.frame.height == rows().height


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (rows().drop("phase"), "'phase' is missing"),
        (rows(slowdown_median=pl.lit(-1.0)), "row 1: slowdown = -1.0: expected a ratio of times"),
        (rows(slowdown_median=pl.lit(250.0)), "slowdown = 250.0: expected a ratio of times"),
        (rows(slowdown_median=pl.lit(None, pl.Float64)), "slowdown = None: expected a ratio"),
        (rows(slowdown_median=pl.lit("slow")), "slowdown"),
        (rows(sm_share_pct=pl.col("sm_share_pct") / 100), "sm_share_pct = 0: expected percent|sm_share_pct"),
        (rows(sm_share_pct=pl.lit(250)), "sm_share_pct = 250: expected percent of the SMs"),
        (rows(phase=pl.lit("both")), "phase = both: expected one of prefill, decode"),
        (rows().clear(), "no rows"),
        (pl.concat([rows(), rows(slowdown_median=pl.col("slowdown_median") * 2)]), "contradictory duplicates"),
        (rows().head(6), "1 configuration: expected at least 2"),
    ],
)
def test_bad_measurements_are_one_clear_error(tmp_path, frame, words):
    with pytest.raises(MeasurementError, match=words) as error:
        slowdowns(read_slowdowns(write(tmp_path, frame)))
    assert "slowdown.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_public_ratios(public_data):
    found = {(r.phase, r.tokens, r.share): r for r in slowdowns(read_slowdowns(public_data))}
    assert 1.4 < found["prefill", "1k-4k", 0.5].median < 1.7
    assert found["decode", "1k-4k", 0.5].median < 1.05
