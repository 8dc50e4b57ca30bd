"""What calibrate action=show and action=fit say of a profile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envs.hardware.load import load_profile
from envs.hardware.recipe import RECIPE_DIR
from envs.hardware.steps import StepPoint
from envs.hardware.tables import StepTables
from envs.hardware.write import tables_record, to_yaml
from research.calibrate import main
from research.calibrating import show, show_tables

NAME = "llama-3.1-8b-bf16-h100-tp1"
TABLES = StepTables(
    tokens=(1, 64, 8192), w_s=(0.006, 0.0063, 0.152), seqs=(1, 16, 256),
    d0_s=(0.0002, 0.0002, 0.0004), d1_s=(9.0e-08, 5.0e-08, 4.4e-08), c_attn_s=8.3e-10, a0_s=3e-4, h0_s=1e-3, h1_s=1e-5,
)  # fmt: skip


def test_a_table_law_is_shown_at_its_knots():
    profile = load_profile(NAME).with_tables(TABLES)
    found = show_tables.summary(profile)
    assert found["least_ms"] == pytest.approx(6.0)
    assert found["w_ms"]["64"] == pytest.approx(6.3)
    assert found["w_ms"]["8192"] == pytest.approx(152.0)
    row = next(row for row in found["decode"] if row["sequences"] == 16)
    assert row["d0_ms"] == pytest.approx(0.2)
    assert row["d1_ns"] == pytest.approx(50.0)
    assert row["ms"] == pytest.approx(0.2 + 50e-6 * 16 * 2048)
    assert found["host_seq_us"] == pytest.approx(10.0)
    assert show_tables.summary(load_profile(NAME)) == {}


def test_show_prints_tables_origin_misfit_and_what_is_corrected(tmp_path, capsys):
    base = load_profile(NAME)
    errors = {"all": {"points": 9, "mape": 1.5, "max": 7.5, "bias": -0.5}}
    record = {
        "name": "mine", "model": base.model, "gpu": base.gpu, "tensor_parallel": 1, "engine": "vllm",
        "engine_version": "0.9.1", "precision": "bf16",
        "step": {key: getattr(base.step, key) for key, *_ in show.TERMS}, "tables": tables_record(TABLES),
        "kv": {"bytes_per_token": 131072, "capacity_tokens": 451184, "block_tokens": 16},
        "source": {
            "kind": "measured", "name": "runs", "licence": "yours", "corrects": "other", "base": {"commit": "c0ffee"},
            "host_time": "from somewhere", "files": [{"path": "runs.csv", "sha256": "ab" * 32}],
        },
        "fit": {
            "range": {"new_tokens": [16, 8192]}, "tables_errors_percent": errors,
            "tables_relative_sd": {"matrices": 0.02, "decode": 0.03, "prefill": 0.04, "host": 0.5},
        },
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(to_yaml(record, "hand"))
    assert main(["action=show", f"profile={tmp_path / 'mine.yaml'}", f"out={tmp_path}"]) == 0
    said = capsys.readouterr().out
    for words in (
        "vllm 0.9.1", "licence: yours", "corrects: other (c0ffee)", "file: runs.csv, sha256 abababababababab",
        "W(1) = 6 ms", "1 ms (h0) a step, 10 us (h1) a decode; from somewhere", "1.5 /   7.5   -0.5", "host 50.0 %",
        "fitted new tokens: 16 to 8,192",
    ):  # fmt: skip
        assert words in said
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert summary["profile"]["engine_version"] == "0.9.1"
    assert f"next: python -m research.compare hardware.profile={tmp_path / 'mine.yaml'}\n" in said
    assert summary["tables"]["errors_percent"] == errors


def test_a_step_tells_its_cached_length():
    append = StepPoint("append", 128, 128 * (4096 + 64.0), 0, 0, 0.01)
    assert show.cached_tokens(append) == 4096.0
    assert show.cached_tokens(replace(append, kind="prefill", attention=128 * 64.0)) == 0.0
    assert show.cached_tokens(StepPoint("decode", 0, 0.0, 4, 400, 0.01)) == 0.0


def test_worst_steps_name_the_cached_length(tmp_path, capsys, public_data):
    assert main(["action=fit", f"profile={NAME}", f"data_dir={public_data}", f"out={tmp_path}"]) == 0
    assert " new over " in capsys.readouterr().out
    header = (tmp_path / "residuals.csv").read_text().splitlines()[0]
    assert header.startswith("kind,new_tokens,cached_tokens,")


def test_an_engine_without_tables_is_named_with_the_nearest(tmp_path, capsys):
    text = (RECIPE_DIR / f"{NAME}.yaml").read_text().replace("engine: vllm", "engine: vllmm")
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["action=fit", f"profile={tmp_path / 'mine.yaml'}", f"out={tmp_path}"]) == 2
    assert "engine = 'vllmm': unknown engine (did you mean 'vllm'?)" in capsys.readouterr().err
