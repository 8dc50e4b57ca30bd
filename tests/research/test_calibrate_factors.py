from __future__ import annotations

import json

import pytest
import yaml

from research.calibrate import main
from tests.envs.hardware import op_profiles as toy
from tests.envs.hardware import test_sm_share as shares


def test_both_factors_with_source_range_and_held_out_error(tmp_path, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    for model in ("maker/one", "maker/two"):
        toy.write_profile(data, model)
    shares.write(data, shares.rows())
    assert main(["action=factors", f"data_dir={data}", f"out={out}"]) == 0
    printed = capsys.readouterr().out
    assert "paid by vLLM on GPUs where it runs FlashAttention 2" in printed
    assert "next: python -m research.calibrate" in printed
    assert (out / "factors.png").stat().st_size > 10_000
    record = yaml.safe_load((out / "factors.yaml").read_text())
    assert record == json.loads((out / "summary.json").read_text())
    mixed = record["mixed_attention"]
    assert mixed["held_out_mape_percent"] == 0.0  # both profiles are alike
    assert mixed["without_factor_mape_percent"] > 20
    assert {"repository", "commit", "licence", "files"} <= set(mixed["source"])
    assert {row["profile"] for row in mixed["regions"]} == {"toy one tp1", "toy two tp1"}
    assert record["sm_share"]["held_out_mape_percent"]["decode"] == 0.0
    assert record["sm_share"]["held_out_mape_percent"]["prefill"] > 10


@pytest.mark.parametrize("models", [(), ("maker/one",)])
def test_too_few_profiles_are_told_in_one_line(tmp_path, capsys, models):
    for model in models:
        toy.write_profile(tmp_path, model)
    assert main(["action=factors", f"data_dir={tmp_path}", f"out={tmp_path}/out"]) == 2
    error = capsys.readouterr().err
    assert "expected at least 2" in error
    assert error.count("\n") == 1


def test_public_factors(tmp_path, public_data):
    assert main(["action=factors", f"data_dir={public_data}", f"out={tmp_path}"]) == 0
    mixed = json.loads((tmp_path / "summary.json").read_text())["mixed_attention"]
    heavy = [row["median"] for row in mixed["regions"] if row["heavy"] and row["decodes"] == [64, 64]]
    assert all(1.5 < median < 3.0 for median in heavy)
    assert mixed["held_out_mape_percent"] < mixed["without_factor_mape_percent"]
