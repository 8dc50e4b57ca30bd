"""Look-ups of experts and of what moves tokens to them, and what the columns mean."""

from __future__ import annotations

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError, OutsideError
from envs.hardware.model_shape import load_model
from envs.hardware.sources.moe_tables import CROSS_BYTES_PER_S, CROSS_S, load_expert_tables
from tests.envs.hardware.moe_toys import SHAPE, experts_ms, write_moe
from tests.envs.hardware.tables import BASE, change

MOE = BASE / "moe" / "vllm" / "1.0" / "moe_perf.parquet"


@pytest.fixture
def ops(tmp_path):
    return load_expert_tables(write_moe(tmp_path), "toy_gpu", "vllm", None, SHAPE, "bf16")


def test_a_measured_point_is_read_back_under_its_distribution(ops):
    assert ops.experts_s(256, "bf16", 1, 2, "balanced") == pytest.approx(experts_ms(256, 1, 2) * 1e-3)
    assert ops.experts_s(256, "bf16", 1, 2, "power_law_1.2") == pytest.approx(2e-3 * experts_ms(256, 1, 2))


def test_the_faster_kernel_counts_where_it_was_measured(ops):
    assert ops.experts_s(16, "bf16", 2, 1, "balanced") == pytest.approx(0.5e-3 * experts_ms(16, 2, 1))


def test_more_tokens_than_measured_run_in_several_passes(ops):
    once = ops.experts_s(4096, "bf16", 1, 1, "balanced")
    assert ops.experts_s(8192, "bf16", 1, 1, "balanced") == pytest.approx(2 * once)
    assert once < ops.experts_s(4097, "bf16", 1, 1, "balanced") < 1.2 * once


def test_a_split_or_precision_that_was_not_measured_is_told(ops):
    with pytest.raises(OutsideError, match="moe_ep_size=8"):
        ops.experts_s(16, "bf16", 1, 8, "balanced")
    with pytest.raises(OutsideError, match="moe_dtype=nvfp4"):
        ops.experts_s(16, "nvfp4", 1, 1, "balanced")


def test_experts_of_another_shape_are_told(tmp_path):
    write_moe(tmp_path)
    with pytest.raises(OutsideError, match="no experts of qwen3-30b-a3b's shape"):
        load_expert_tables(tmp_path, "toy_gpu", "vllm", None, load_model("qwen3-30b-a3b"), "bf16")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda f: f.with_columns(latency=-pl.col("latency")), "latency = -.*time above 0"),
        (lambda f: f.drop("topk"), "column 'topk' is missing"),
        (lambda f: f.with_columns(num_tokens=pl.col("num_tokens") + 0.5), "expected whole numbers"),
    ],
)
def test_bad_tables_are_one_clear_error(tmp_path, how, words):
    write_moe(tmp_path)
    change(tmp_path / MOE, how)
    with pytest.raises(MeasurementError, match=words):
        load_expert_tables(tmp_path, "toy_gpu", "vllm", None, SHAPE, "bf16")


def test_collectives_count_elements_of_sixteen_bits(ops):
    assert ops.collective_s("all_gather", 2**20, 4, 8) == pytest.approx((0.01 + 2**20 * 1e-8) * 1e-3)
    # a smaller message than any takes the smallest one's time; a larger one the largest one's in proportion
    assert ops.collective_s("all_gather", 1, 4, 8) == ops.collective_s("all_gather", 2**8, 4, 8)
    assert ops.collective_s("all_gather", 2**26, 4, 8) == pytest.approx(2 * ops.collective_s("all_gather", 2**25, 4, 8))
    assert ops.collective_s("all_gather", 2**20, 1, 8) == 0.0


def test_bytes_between_machines_cross_their_ports(ops):
    inside = ops.collective_s("all_gather", 2**20, 16, 72)
    assert inside == ops.collective_s("all_gather", 2**20, 8, 8)
    # half of what each of two machines needs lies on the other, and comes through eight ports
    crossing = CROSS_S + 2 * 2**20 / 2 / 8 / CROSS_BYTES_PER_S
    assert ops.collective_s("all_gather", 2**20, 16, 8) == pytest.approx(inside + crossing)
    reduced = ops.collective_s("all_reduce", 2**20, 16, 8) - ops.collective_s("all_reduce", 2**20, 8, 8)
    assert reduced == pytest.approx(2 * crossing)
    # each GPU sends its tokens through a port of its own
    sent = ops.collective_s("alltoall", 2**20, 16, 8) - ops.collective_s("alltoall", 2**20, 8, 8)
    assert sent == pytest.approx(CROSS_S + 2**20 / CROSS_BYTES_PER_S)


def test_only_files_whose_rows_were_used_are_named(ops):
    assert not any("moe_perf" in path for path, _ in ops.files())
    ops.experts_s(16, "bf16", 1, 1, "balanced")
    assert [path.rsplit("/", 1)[1] for path, _ in ops.files()] == ["gemm_perf.parquet", "moe_perf.parquet"]


def test_published_tables_mean_what_is_said_of_them(public_data):
    """Units against what a B200 can do: 4.5e15 fp8 FLOP/s, 7.7e12 B/s of memory, 0.9e12 B/s of NVLink each way."""
    shape = load_model("deepseek-v3")
    ops = load_expert_tables(public_data, "b200_sxm", "trtllm", None, shape, "fp8_block")
    flop = 16384 * 8 * 3 * 7168 * 2048 * 2
    balanced = ops.experts_s(16384, "fp8_block", 1, 8, "balanced")
    # tokens of all ranks: were they those of one, the GPU would compute at twice its peak
    assert 0.25 < flop / 8 / 4.5e15 / balanced < 0.7
    assert flop / 4.5e15 > 2 * balanced
    assert 1.2 < ops.experts_s(16384, "fp8_block", 1, 8, "power_law_1.01") / balanced < 2.5
    weights = 32 * 3 * 7168 * 2048
    assert 0.3 < weights / 7.7e12 / ops.experts_s(256, "fp8_block", 1, 8, "power_law_1.01") < 1.0
    # elements: each GPU gets 7/8 of 2**28 of them, in two bytes
    assert 0.4 < 2**28 * 2 * 7 / 8 / ops.collective_s("all_gather", 2**28, 8, 8) / 0.9e12 < 1.0
    assert 0.4 < 2**28 * 2 * 7 / 8 / ops.collective_s("alltoall", 2**28, 8, 8) / 0.9e12 < 1.0


def test_deepep_is_read_in_microseconds_of_one_rank(public_data):
    ops = load_expert_tables(public_data, "b200_sxm", "sglang", None, load_model("deepseek-v3"), "fp8_block")
    # 1,024 tokens: out in fp8, back in 16 bits, to at most 7 of 8 GPUs
    sent = 1024 * 7168 * 8 * 3 * 7 / 8
    assert 0.3 < sent / ops.deepep_s(1024, 8, 8) / 0.9e12 < 1.0
    sorted_ones = ops.experts_s(4096, "fp8_block", 1, 32, "power_law_1.01", behind_deepep=True)
    assert sorted_ones < ops.experts_s(4096, "fp8_block", 1, 32, "power_law_1.01")
