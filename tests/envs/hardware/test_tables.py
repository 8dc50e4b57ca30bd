"""The step law as tables: its values by hand, its form in a profile, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from envs.hardware.errors import ProfileError
from envs.hardware.load import PROFILE_DIR, load_profile
from envs.hardware.tables import StepTables
from envs.hardware.write import tables_record, to_yaml

TABLES = StepTables(
    tokens=(1, 5, 6, 10),
    w_s=(0.010, 0.010, 0.016, 0.020),
    seqs=(1, 3),
    d0_s=(0.001, 0.002),
    d1_s=(1e-4, 6e-5),
    c_attn_s=1e-6,
    a0_s=0.003,
    h0_s=0.1,
    h1_s=0.01,
)
SHIPPED = "llama-3.1-8b-bf16-h100-tp1"


def written(tmp_path: Path, change=None) -> Path:
    """A shipped profile with tables."""
    data = yaml.safe_load((PROFILE_DIR / f"{SHIPPED}.yaml").read_text())
    data["tables"] = tables_record(TABLES)
    if change:
        change(data["tables"])
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(data, "hand"))
    return path


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        ((1, 0.5, 0, 0), 0.010 + 0.1 + 0.003 + 5e-7),
        ((5, 12.5, 0, 0), 0.010 + 0.1 + 0.003 + 12.5e-6),
        ((6, 18.0, 0, 0), 0.016 + 0.1 + 0.003 + 18e-6),  # one token past the tile
        ((8, 0.0, 0, 0), 0.018 + 0.1 + 0.003),
        ((12, 0.0, 0, 0), 0.022 + 0.1 + 0.003),  # beyond the last knot, 1 ms a token as before it
        ((0, 0.0, 1, 50), 0.010 + 0.1 + 0.01 + 0.001 + 50e-4),
        ((0, 0.0, 3, 100), 0.010 + 0.1 + 0.03 + 0.002 + 100 * 6e-5),
        # two decodes: half way from 1 * 1e-4 to 3 * 6e-5 is 1.4e-4 a token of mean context, of which there are 50
        ((0, 0.0, 2, 100), 0.010 + 0.1 + 0.02 + 0.0015 + 50 * 1.4e-4),
        # five: 3 * 6e-5 and 4e-5 a sequence more
        ((0, 0.0, 5, 100), 0.010 + 0.1 + 0.05 + 0.003 + 20 * 2.6e-4),
        ((4, 8.0, 2, 100), 0.016 + 0.1 + 0.003 + 8e-6 + 0.02 + 0.0015 + 50 * 1.4e-4),  # W of six tokens
        ((0, 0.0, 0, 0), 0.010 + 0.1),  # a pass with nothing in it
    ],
)
def test_step_times_by_hand(step, seconds):
    assert TABLES.seconds(*step) == pytest.approx(seconds, rel=1e-12)


def test_a_last_slope_below_zero_counts_as_none():
    falling = replace(TABLES, d0_s=(0.002, 0.00199))
    assert falling.seconds(0, 0, 9, 0) == pytest.approx(0.019 + 0.1 + 0.09 + 0.00199)


def test_the_plane_stays_the_predictor_and_the_tables_are_the_law(tmp_path):
    profile, plain = load_profile(written(tmp_path)), load_profile(SHIPPED)
    assert profile.tables == TABLES
    assert profile.step == plain.step
    assert plain.tables is None
    assert profile.seconds(8, 0.0, 0, 0) == pytest.approx(0.121)
    assert plain.seconds(8, 0.0, 0, 0) == plain.step.seconds(8, 0.0, 0, 0)
    assert profile.with_tables(None).seconds(8, 0.0, 0, 0) == plain.step.seconds(8, 0.0, 0, 0)


def test_tables_are_written_as_rows(tmp_path):
    assert "tokens: [1, 5, 6, 10]\n" in written(tmp_path).read_text()


def put(key, value):
    return lambda tables: tables.update({key: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("w_ss", [1.0]), ["tables.w_ss", "'w_s'"]),
        (lambda tables: tables.pop("h0_s"), ["tables.h0_s is missing"]),
        (put("w_s", [10.0, 10.0, 16.0, 200.0]), ["tables.w_s[3]", "another unit"]),
        (put("w_s", [0.01, 0.01, 0.02]), ["tables.w_s has 3 values", "expected 4", "tables.tokens"]),
        (put("w_s", [0.01, 0.01, 0.02, 0.019]), ["tables.w_s falls", "tokens 6 and 10"]),
        (put("w_s", [0.0, 0.01, 0.02, 0.03]), ["tables.w_s[0]", "more than 0"]),
        (put("w_s", []), ["tables.w_s", "at least one item"]),
        (put("w_s", 0.01), ["tables.w_s", "a list"]),
        (put("w_s", [0.01, "x", 0.02, 0.03]), ["tables.w_s[1]", "'x'", "seconds"]),
        (put("tokens", [2, 5, 6, 10]), ["tables.tokens", "the first of them 1"]),
        (put("tokens", [1, 5, 5, 10]), ["tables.tokens[2] = 5 after 5", "rising"]),
        (put("tokens", [1, 5, 6.5, 10]), ["tables.tokens[2]", "whole number"]),
        (put("seqs", [1]), ["tables.seqs", "two knots"]),
        (put("d1_s", [1e-4, 3e-5]), ["tables.seqs*d1_s falls", "seqs 1 and 3"]),
        (put("d1_s", [1e-4, 3e-3]), ["tables.d1_s[1]", "another unit"]),
        (put("d0_s", [0.001, -0.1]), ["tables.d0_s[1]", "from 0"]),
        (put("d0_s", [0.002, 0.0001]), ["tables.d0_s + seqs*d1_s falls"]),
    ],
)
def test_bad_tables_are_one_clear_error(tmp_path, change, words):
    path = written(tmp_path, change)
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    for word in words:
        assert word in message


def test_tables_made_in_python_are_checked_too():
    with pytest.raises(ProfileError, match=r"tables\.w_s falls"):
        replace(TABLES, w_s=(0.01, 0.01, 0.02, 0.019))
