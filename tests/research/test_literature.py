"""The reproduction command: its tables from hand-made cells, and a tiny run of the whole."""

from __future__ import annotations

import json

import polars as pl
import pytest

from research import literature


def cells():
    rows = []
    for layout, arm, ttft, tpot in [
        ("1p3d", "x=0", 0.100, 0.010), ("1p3d", "x=1", 0.040, 0.011), ("colocated4", "x=1", 0.030, 0.012),
    ]:  # fmt: skip
        rows.append(
            {"layout": layout, "arm": arm, "turn1": "a", "turn2": "b", "qps": 1.0, "ttft_s": ttft, "tpot_s": tpot}
        )
    return pl.DataFrame(rows)


def test_change_is_relative_to_static_placement():
    assert literature.table1(cells(), {"low": [0.5, 2]}) == {"1p3d": {"low": pytest.approx(-60.0)}}


def test_disagreement_counts_cells_whose_two_best_entrants_differ():
    assert literature.disagreement_percent(cells()) == 100.0
    same = cells().with_columns(tpot_s=pl.col("ttft_s"))
    assert literature.disagreement_percent(same) == 0.0
    slower = literature.disagreement_if_slower(same, [1.0, 2.0])
    assert slower == {"1": 0.0, "2": 100.0}


def test_verdicts_follow_the_figures():
    rising = {"low": -40.0, "mid": -30.0, "high": -20.0}
    falling = {"low": -40.0, "mid": -50.0, "high": -60.0}
    claims = literature.verdicts({"1p3d": falling, "2p2d": falling, "3p1d": rising}, 92.0)
    assert all(claims.values())
    assert not any(literature.verdicts({"1p3d": rising, "2p2d": {"low": 1.0}, "3p1d": falling}, 40.0).values())


def test_the_command_prints_ours_beside_the_papers(tmp_path, capsys):
    few = ["seeds=1", "qps=[1,6,12]", "duration_s=3", "turn1=[[128,128]]", "turn2=[[64,64]]", "prefill_cache=[false]"]
    argv = [f"out={tmp_path}", *few]
    assert literature.main(argv) == 0
    said = capsys.readouterr().out
    assert "(-57.8)" in said
    assert str(tmp_path / "summary.json") in said
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["without_cache"]["table1_percent"]["1p3d"]["low"] < 0
