"""Who misses measurements is told where to get them, by commands that read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.hardware.errors import MeasurementError
from research import validate
from research.measurements import HINT, told_where_from

PAGE = Path(__file__).parents[2] / "docs" / "hardware.md"


def test_the_page_has_the_section_that_messages_name():
    assert "\n### Getting the measurements\n" in PAGE.read_text(encoding="utf-8")
    assert "'Getting the measurements'" in HINT


@pytest.mark.parametrize("words", [[], ["part=vllm_requests"]])
def test_validation_without_a_data_folder_names_page_and_extra(tmp_path, capsys, words):
    assert validate.main([*words, f"data_dir={tmp_path}", f"out={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"; {HINT}\n")
    assert error.count("\n") == 1


def test_other_errors_stay_as_they_are():
    with pytest.raises(MeasurementError, match=r"^a time of -1$"), told_where_from():
        raise MeasurementError("a time of -1")
