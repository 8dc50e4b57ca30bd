from __future__ import annotations

import json

import pytest

from envs.hardware.load import load_handover, load_profile, profile_names
from research.calibrate import main


@pytest.mark.parametrize("name", profile_names())
def test_show_prints_law_errors_and_the_transfer_example(tmp_path, capsys, name):
    assert main(["action=show", f"profile={name}", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert f"results: {tmp_path}" in printed
    assert "next: python -m research." in printed
    summary = json.loads((tmp_path / "summary.json").read_text())
    profile = load_profile(name)
    assert summary["profile"]["step_ms"]["c0_ms"] == pytest.approx(profile.step.c0_s * 1e3)
    assert summary["profile"]["kv_capacity_tokens"] == profile.kv.capacity_tokens
    fast, slow = summary["transfer"]["rates"]
    assert (fast["transfer_500mb_ms"], slow["transfer_500mb_ms"]) == (5.0, 50.0)
    assert fast["transfer_ms"] == pytest.approx(4096 * profile.kv.bytes_per_token / 100e9 * 1e3)
    assert {row["link"] for row in summary["handovers"]} >= {"nvlink", "rdma", "tcp"}


def test_fit_writes_a_profile_that_loads(tmp_path, capsys, public_data):
    words = ["action=fit", "profile=llama2-70b-fp16-a100-tp8", f"data_dir={public_data}", f"out={tmp_path}"]
    assert main(words) == 0
    profile = load_profile(tmp_path / "llama2-70b-fp16-a100-tp8.yaml")
    assert profile == load_profile("llama2-70b-fp16-a100-tp8")
    residuals = (tmp_path / "residuals.csv").read_text().splitlines()
    assert len(residuals) == 1 + profile.fit["errors_percent"]["all"]["points"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["errors_percent"]["all"]["held_out_mape"] > 0
    assert "worst steps" in capsys.readouterr().out


def test_fit_writes_a_link_that_loads(tmp_path, public_data):
    assert main(["action=fit", "link=rdma", f"data_dir={public_data}", f"out={tmp_path}"]) == 0
    assert load_handover(tmp_path / "rdma.yaml") == load_handover("rdma")


def test_a_bound_that_is_missed_writes_nothing(tmp_path, capsys, public_data):
    words = ["action=fit", "profile=llama2-70b-fp16-a100-tp8", f"data_dir={public_data}", "bound_percent=1"]
    assert main([*words, f"out={tmp_path}"]) == 2
    assert "expected at most 1 %" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([*words, "force=true", f"out={tmp_path}"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["action=fitt", "profile=x"], "did you mean 'fit'"),
        (["action=show"], "expected profile=NAME"),
        (["action=fit"], "expected profile=NAME or link=NAME"),
        (["action=fit", "profile=x", "link=rdma"], "one of them"),
        (["action=show", "profile=llama-3.1-8b-h100"], "did you mean 'llama-3.1-8b-bf16-h100-tp1'"),
        (["action=fit", "profile=llama-3.1-8b-h100"], "unknown recipe"),
        (["action=fit", "profile=llama-3.1-8b-bf16-h100-tp1", "data_dir=none"], "not found in the data folder none"),
        (["action=fit", "profile=llama-3.1-8b-bf16-h100-tp1", "data_dir=none"], "docs/hardware.md, 'Getting the"),
        (["action=score_from_runs", "data_dir=none"], "`pip install 'pdgym[ops]'`"),
        (["action=fit", "profile=llama-3.1-8b-bf16-h100-tp1", "bound_percent=-1"], "bound_percent=-1"),
        (["action=fit", "profile=llama-3.1-8b-bf16-h100-tp1", "force=maybe"], "force=maybe"),
        (["action=fit", "link=rdna", "data_dir=none"], "did you mean 'rdma'"),
        (["action=show", "profle=x"], "did you mean 'profile'"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert expected in error
