from __future__ import annotations

import polars as pl
import pytest

from envs.hardware.sources.allreduce import read_allreduce
from tests.envs.hardware.tables import ALLREDUCE, VERSION, change, write, write_tables


def of(version: str):
    return ALLREDUCE.parent.parent / version / ALLREDUCE.name


def times(data_dir, version: str, gpus: int = 2) -> dict[int, float]:
    frame = read_allreduce(data_dir, str(of(version))).frame.filter(pl.col("captured"), pl.col("num_gpus") == gpus)
    return dict(frame.select("message_size", "latency").iter_rows())


def at(size: int, factor: float):
    slow = pl.when(pl.col("message_size") == size).then(pl.col("latency") * factor).otherwise(pl.col("latency"))
    return lambda frame: frame.with_columns(slow)


def write_versions(data_dir, *versions: str) -> None:
    write_tables(data_dir)
    for version in versions:
        write(data_dir / of(version), pl.read_parquet(data_dir / of(VERSION)))


def test_a_row_that_every_other_version_contradicts_is_read_from_them(tmp_path):
    write_versions(tmp_path, "1.1", "1.2")
    clean = times(tmp_path, VERSION)
    change(tmp_path / of(VERSION), at(8192, 4.0))
    change(tmp_path / of("1.2"), at(8192, 1.5))
    read = times(tmp_path, VERSION)
    assert read[8192] == pytest.approx(1.5 * clean[8192])  # the slowest of the others
    assert {size: time for size, time in read.items() if size != 8192} == {
        size: time for size, time in clean.items() if size != 8192
    }


@pytest.mark.parametrize(("factor", "others"), [(1.9, ("1.1", "1.2")), (3.0, ("1.1",))])
def test_versions_may_differ(tmp_path, factor, others):
    """By less than twofold, or where a single other version says so."""
    write_versions(tmp_path, *others)
    clean = times(tmp_path, VERSION)
    change(tmp_path / of(VERSION), at(8192, factor))
    assert times(tmp_path, VERSION)[8192] == pytest.approx(factor * clean[8192])


def test_disturbed_rows_of_a_public_table(public_data):
    folder = "measurements/aiconfigurator/data/h100_sxm/comm/trtllm"
    path = f"{folder}/1.2.0rc5/custom_allreduce_perf.parquet"
    raw = pl.read_parquet(public_data / path).filter(pl.col("num_gpus") == 4)
    read = read_allreduce(public_data, path).frame.filter(pl.col("num_gpus") == 4)
    size = 65536
    assert raw.filter(pl.col("message_size") == size)["latency"][0] > 0.010
    assert read.filter(pl.col("message_size") == size)["latency"][0] < 0.005
