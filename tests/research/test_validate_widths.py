"""The table of prediction errors: how wide worlds are, by class, made from a finished validation."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from envs.hardware import prediction_errors
from envs.hardware.load import load_handover
from research.errors import ResearchError
from research.validating import scores, widths
from tests.research.validate_runs import disaggregated, measured, run


def frame_of(rows, factors, late_s=0.0):
    """Predictions: TPOT times a factor each, TTFT too short by ``late_s``."""
    runs, none = measured(rows), [None] * len(rows)
    guesses = {}
    for row, factor in zip(rows, factors, strict=True):
        times = {"ttft_s": row["ttft_s"] - late_s, "tpot_s": row["tpot_s"] * factor, "preemptions": 0}
        guesses[row["run"]] = {"rounds": [times]}
    return scores.gathered(runs, guesses, none, none)


def rows_of(n, make=run, **given):
    """Runs of ``n`` strata, one each."""
    return [
        make(run=f"{given.get('engine', 'vllm')}{i}", prompt_tokens=1000 + i, **given)
        | {"ttft_s": 0.5, "tpot_s": 0.01, "gpus": 8}
        for i in range(n)
    ]


def by_key(rows):
    return {tuple(row[axis] for axis in prediction_errors.AXES): row for row in rows}


def test_a_width_holds_the_errors_of_its_class():
    errors = np.full(40, np.log(1.2))
    made = by_key(widths.table(frame_of(rows_of(40), np.exp(errors))))
    row = made["vllm", "8", "dense", "none"]
    assert (row["strata"], row["runs"]) == (40, 40)
    assert row["tpot_relative_sd"] == pytest.approx(np.log(1.2) / 1.96 * np.sqrt(41 / 39), abs=1e-3)  # a bias is width


def test_widths_of_normal_errors_are_their_standard_deviation():
    errors = 0.1 * np.random.default_rng(0).standard_normal(400)
    row = by_key(widths.table(frame_of(rows_of(400), np.exp(errors))))["any", "any", "any", "any"]
    assert row["tpot_relative_sd"] == pytest.approx(0.1, abs=0.015)


def test_few_strata_are_left_to_a_wider_class():
    rows = [*rows_of(6), *rows_of(3, engine="sglang")]
    made = by_key(widths.table(frame_of(rows, [1.1] * 9)))
    assert ("vllm", "8", "dense", "none") in made
    assert not any(key[0] == "sglang" for key in made)
    assert made["any", "any", "dense", "none"]["strata"] == 6  # the same strata: models, GPUs, precisions, lengths
    assert made["any", "any", "any", "any"]["runs"] == 9


def test_strata_weigh_the_same_whatever_their_runs():
    rows = rows_of(10)
    many = [row | {"run": f"{row['run']}-{k}", "users": k + 1} for row in rows[:1] for k in range(500)]
    errors = [1.5] * len(many) + [1.1] * 9
    row = by_key(widths.table(frame_of([*many, *rows[1:]], errors)))["vllm", "8", "dense", "none"]
    assert row["tpot_relative_sd"] == pytest.approx(np.log(1.5) / 1.96 * np.sqrt(11 / 9), abs=1e-3)
    errors = [1.1] * len(many) + [1.5] * 9
    other = by_key(widths.table(frame_of([*many, *rows[1:]], errors)))["vllm", "8", "dense", "none"]
    assert other["tpot_relative_sd"] == row["tpot_relative_sd"]  # nine strata of ten, but nine runs of 509


def test_a_handover_takes_what_runs_with_few_users_took_longer():
    def split(**given):
        return disaggregated(1, 1, **given)

    rows = rows_of(6, split, users=4)
    busy = [row | {"run": f"{row['run']}-busy", "users": 400} for row in rows_of(6, split)]
    frame = frame_of(rows, [1.0] * 6, late_s=0.2)
    made = widths.handover(frame)["rdma"]
    assert (made["strata"], made["runs"], made["median_excess_s"]) == (6, 6, pytest.approx(0.2))
    assert made["predicted_base_s"] == pytest.approx(load_handover("nixl-rdma").base_s, abs=1e-4)
    found = widths.handover(frame_of([*rows, *busy], [1.0] * 12, late_s=0.2))
    assert found["any"]["runs"] == 6  # with many users a TTFT is a queue


def test_the_command_writes_the_table_from_a_finished_validation(tmp_path, capsys):
    frame_of(rows_of(6), [1.1] * 6).write_parquet(tmp_path / "runs.parquet")
    summary = {"part": "all", "git_sha": "x", "predicted": 6, "runs": 6, "table": {"path": "t"}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert widths.main([str(tmp_path), str(tmp_path / "made.yaml")]) == 0
    made = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert made["source"]["command"] == "python -m research.validate part=all"
    assert [prediction_errors.ErrorClass(**row) for row in made["classes"]]
    assert made["handover"]["any"]["median_excess_s"] == 0.0
    with pytest.raises(ResearchError, match=r"nowhere: expected summary\.json and runs\.parquet"):
        widths.main([str(tmp_path / "nowhere")])
    assert widths.main([]) == 2
    assert "FOLDER" in capsys.readouterr().out


def test_the_committed_table_answers_every_class():
    for engine in ("vllm", "sglang", "trtllm", "mine"):
        for precision in ("bf16", "fp8_block", "nvfp4", "odd"):
            for link in ("none", "nvlink", "rdma", "tcp"):
                found = prediction_errors.error_class(engine, precision, "experts", link)
                assert 0.01 < found.tpot_relative_sd < 2.0
                assert link in (found.link, "tcp") or found.link == "any"
    assert prediction_errors.error_class("mine", "bf16", "dense", "none").engine == "any"
    assert prediction_errors.handover_excess_s("tcp", 0.001) == prediction_errors.handover_excess_s("any", 0.001)


@pytest.mark.parametrize("link", ["none", "nvlink", "rdma", "tcp"])
@pytest.mark.parametrize(
    ("engine", "precision", "held"),
    [
        ("vllm", "bf16", ("vllm", "16")),
        ("trtllm", "bf16", ("trtllm", "16")),
        ("trtllm", "nvfp4", ("trtllm", "any")),
        ("mine", "bf16", ("any", "any")),
    ],
)
def test_a_dense_model_has_errors_of_dense_models_whatever_its_wire(engine, precision, held, link):
    found = prediction_errors.error_class(engine, precision, "dense", link)
    assert (found.engine, found.bits, found.kind, found.link) == (*held, "dense", "none")


def test_a_wire_counts_among_models_of_a_kind_and_an_unknown_kind_keeps_its_wire():
    found = prediction_errors.error_class("vllm", "fp8", "experts", "rdma")
    assert (found.engine, found.kind, found.link) == ("any", "experts", "rdma")
    found = prediction_errors.error_class("vllm", "fp8", "any", "nvlink")
    assert (found.kind, found.link) == ("any", "nvlink")
    found = prediction_errors.error_class("vllm", "fp8", "experts", "tcp")
    assert (found.engine, found.bits, found.kind, found.link) == ("vllm", "8", "experts", "none")


@pytest.mark.parametrize(
    ("precision", "bits"), [("bf16", "16"), ("fp8_dynamic", "8"), ("mxfp4", "4"), ("int4", "4"), ("odd", "any")]
)
def test_bits_of_a_precision(precision, bits):
    assert prediction_errors.bits_of(precision) == bits
