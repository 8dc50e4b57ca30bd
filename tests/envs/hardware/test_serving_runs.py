"""Measured serving runs: what is kept, and which rule excludes the rest."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.serving_runs import COLUMNS, RULES, TABLE, serving_runs


def run(name: str, **changes: Any) -> dict[str, Any]:
    """A colocated run, made by hand."""
    return {
        "id": name,
        "silicon_data_source": "source_file=a.csv; silicon_concurrency=8; wip=False",
        "backend": "vllm",
        "model_path": "meta-llama/Llama-3.1-70B",
        "system": "h100_sxm",
        "mode": "agg",
        "isl": 1024,
        "osl": 128,
        "tp_size": 4,
        "pp_size": 1,
        "silicon_ttft_ms": 100 + len(name),
        "silicon_tpot_ms": 10 + sum(name.encode()) / 1e3,
    } | changes


SPLIT = {
    "mode": "disagg",
    "tp_size": "",
    "pp_size": "",
    "prefill_num_workers": 2,
    "prefill_tp_size": 1,
    "prefill_pp_size": 1,
    "prefill_attention_dp_size": 4,
    "decode_num_workers": 3,
    "decode_tp_size": 8,
    "decode_pp_size": 1,
}


def folder(path: Path, rows: list[dict[str, Any]], columns: Iterable[str] = COLUMNS) -> Path:
    file = path / TABLE
    file.parent.mkdir(parents=True)
    with gzip.open(file, "wt", newline="") as stream:
        writer = csv.DictWriter(stream, list(columns), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_run_in_seconds_tokens_and_gpus(tmp_path: Path) -> None:
    kept = serving_runs(folder(tmp_path, [run("a"), run("b", **SPLIT)])).kept
    a, b = kept.rows(named=True)
    assert (a["users"], a["prompt_tokens"], a["output_tokens"], a["gpus"], a["layout"]) == (
        8,
        1024,
        128,
        4,
        "colocated",
    )
    assert a["ttft_s"] == pytest.approx(0.101)
    assert b["layout"] == "disaggregated"
    assert b["gpus"] == 2 * 4 + 3 * 8


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("no concurrency", {"silicon_data_source": "source_file=a.csv"}),
        ("no worker counts", SPLIT | {"decode_num_workers": ""}),
        ("contradictory parallelism", {"moe_tp_size": 0}),
        ("impossible parallelism", {"tp_size": 36}),
        ("unfinished", {"silicon_data_source": "source_file=a.csv; silicon_concurrency=8; wip=True"}),
    ],
)
def test_each_rule_excludes_what_it_says(tmp_path: Path, rule: str, changes: dict[str, Any]) -> None:
    runs = serving_runs(folder(tmp_path, [run("a"), run("b", **changes)]))
    assert runs.kept["run"].to_list() == ["a"]
    assert runs.excluded.rows() == [("b", rule)]


def test_a_run_filed_again_under_a_second_name_of_its_model_counts_once(tmp_path: Path) -> None:
    same = {"silicon_ttft_ms": 1.5, "silicon_tpot_ms": 2.5}
    rows = [
        run("a", model_path="deepseek-ai/DeepSeek-R1", **same),
        run("b", model_path="deepseek-ai/DeepSeek-V3", **same),
        run("c", model_path="Qwen/Qwen3-32B", **same),
    ]
    runs = serving_runs(folder(tmp_path, rows))
    assert runs.kept["run"].to_list() == ["a", "c"]
    assert runs.excluded.rows() == [("b", "repeated filing")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"silicon_tpot_ms": -1}, "row 2: silicon_tpot_ms = -1.0: expected a finite time above 0"),
        ({"silicon_ttft_ms": ""}, "row 2: silicon_ttft_ms = None"),
        ({"isl": 0}, "row 2: isl and osl"),
        ({"mode": "both"}, "row 2: mode: expected agg or disagg"),
        ({"id": "a"}, "row 2: id: expected each run once"),
        ({"tp_size": "four"}, "row 2: tp_size = 'four': expected whole numbers"),
        ({"decode_num_workers": -1}, "row 2: tp_size, pp_size"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementError, match=re.escape(message)):
        serving_runs(folder(tmp_path, [run("a"), run("b") | changes]))


@pytest.mark.parametrize(("column", "seconds"), [("silicon_ttft_ms", 0.4), ("silicon_tpot_ms", 0.012)])
def test_seconds_under_a_name_in_ms_are_a_question(tmp_path: Path, column: str, seconds: float) -> None:
    rows = [run("a", **{column: seconds}), run("b", **{column: seconds * 1.1}), run("c")]
    with pytest.raises(MeasurementError, match=f"{column}: its median is .* seconds under a name that says ms?"):
        serving_runs(folder(tmp_path, rows))


@pytest.mark.parametrize(("column", "micros"), [("silicon_ttft_ms", 4e5), ("silicon_tpot_ms", 12e3)])
def test_microseconds_under_a_name_in_ms_are_a_question(tmp_path: Path, column: str, micros: float) -> None:
    rows = [run("a", **{column: micros}), run("b", **{column: micros * 1.1}), run("c")]
    with pytest.raises(MeasurementError, match=f"{column}: its median is .* microseconds under a name that says ms?"):
        serving_runs(folder(tmp_path, rows))


@pytest.mark.parametrize(("column", "value"), [("silicon_ttft_ms", 310), ("silicon_tpot_ms", 3.3)])
def test_repeats_that_contradict_each_other_are_named(tmp_path: Path, column: str, value: float) -> None:
    rows = [run("other", tp_size=2), run("a"), run("b", **{column: value})]
    with pytest.raises(MeasurementError, match=rf"rows (2|3) \(id (a|b)\) and (2|3) \(id (a|b)\): .* {column} = "):
        serving_runs(folder(tmp_path, rows))


@pytest.mark.parametrize(
    "changes",
    [
        {"silicon_ttft_ms": 250},
        {"silicon_ttft_ms": 900, "osl": 256},
        {"silicon_ttft_ms": 900, "backend_version": "0.13.0"},
        {"silicon_ttft_ms": 900, "silicon_data_source": "source_file=b.csv; silicon_concurrency=8; wip=False"},
        {"silicon_ttft_ms": 900, "silicon_data_source": "source_file=a.csv; silicon_concurrency=8; wip=True"},
    ],
)
def test_what_differs_or_is_near_is_no_contradiction(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert serving_runs(folder(tmp_path, [run("a"), run("b") | changes])).kept["run"][0] == "a"


def test_a_missing_column_is_no_zero(tmp_path: Path) -> None:
    columns = [name for name in COLUMNS if name != "silicon_tpot_ms"]
    with pytest.raises(MeasurementError, match="column 'silicon_tpot_ms' is missing"):
        serving_runs(folder(tmp_path, [run("a")], columns))


def test_the_public_runs_that_count_are_these(public_data: Path) -> None:
    """The list was fixed before any prediction was compared with them; the hash holds it."""
    runs = serving_runs(public_data)
    counts = dict(runs.excluded["rule"].value_counts().rows())
    assert set(counts) == set(RULES)
    assert counts == {
        "no worker counts": 828,
        "repeated filing": 474,
        "unfinished": 65,
        "no concurrency": 19,
        "contradictory parallelism": 15,
        "impossible parallelism": 53,
    }
    assert runs.kept.filter(pl.col("layout") == "disaggregated").height == 180
    names = "\n".join(sorted(runs.kept["run"]))
    assert hashlib.sha256(names.encode()).hexdigest() == (
        "b8d8ca235cb3b1a2c8e16b22ba176647eca9ae7cd86e9cb2fc9b569823913288"
    )
