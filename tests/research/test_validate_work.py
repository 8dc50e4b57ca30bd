"""What a finished run is named by."""

from __future__ import annotations

from pathlib import Path

from research.validating.work import version


def test_every_measurement_is_part_of_the_name(tmp_path: Path) -> None:
    empty = version(tmp_path)
    for name in ("aiconfigurator/data/h100/gemm_perf.parquet", "llmservingsim/profiler/dense.csv.gz"):
        before, path = version(tmp_path), tmp_path / "measurements" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1")
        assert version(tmp_path) not in (before, empty)
    assert version(tmp_path) == version(tmp_path)
