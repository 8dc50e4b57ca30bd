from __future__ import annotations

import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.versions import at_least, nearest_version, version_key


def folder(tmp_path, *versions):
    for version in versions:
        (tmp_path / version).mkdir()
        (tmp_path / version / "t.parquet").touch()
    (tmp_path / "9.9.9").mkdir()  # a version without the table
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("0.19.0", "0.19.0"),
        ("0.20.1", "0.19.0"),
        ("0.9.2", "0.14.0"),
        ("99.0", "0.24.0"),
        (None, "0.24.0"),
        ("nightly-dev-20260402", "0.24.0"),
    ],
)
def test_the_newest_version_that_is_not_newer_stands_in(tmp_path, wanted, found):
    assert nearest_version(folder(tmp_path, "0.14.0", "0.19.0", "0.24.0"), "t.parquet", wanted) == found


def test_versions_are_ordered_as_they_were_released():
    names = ["0.5.9", "0.5.10", "1.0.0rc3", "1.0.0", "1.0.0.post1", "1.2.0rc5", "1.2.0rc10", "1.2.0"]
    keys = [version_key(name) for name in names]
    assert None not in keys
    assert keys == sorted(keys)


def test_no_version_is_an_error_that_names_the_table(tmp_path):
    with pytest.raises(MeasurementError, match=r"no version with t\.parquet"):
        nearest_version(folder(tmp_path), "t.parquet", None)
    # a stated version is left to the reader, who names the file
    assert nearest_version(tmp_path, "t.parquet", "1.0") == "1.0"


@pytest.mark.parametrize(
    ("version", "later"),
    [("0.9.1", False), ("0.19.0", True), ("0.19.1rc1", True), (None, True), ("", True), ("nightly-dev", True)],
)
def test_what_is_not_known_counts_as_the_newest(version: str | None, later: bool) -> None:
    assert at_least(version, "0.19") is later
