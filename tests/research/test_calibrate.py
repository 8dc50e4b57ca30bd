"""Where calibrate leaves its results."""

from __future__ import annotations

import pytest

from research.calibrate import main


@pytest.mark.parametrize("name", ["llama-3.1-70b-fp8-h100-tp4", "llama-3.1-8b-bf16-h100-tp1"])
def test_every_profile_has_a_folder_of_its_own(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert main(["action=show", f"profile={name}"]) == 0
    assert [p.name for p in (tmp_path / "results").iterdir()] == [f"calibrate-show-{name}"]
