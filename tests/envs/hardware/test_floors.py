from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import load_model
from envs.hardware.sources.compose import MEMORY_LATENCY_S, Composer
from envs.hardware.sources.floors import (
    EAGER_LAUNCH_S,
    PRODUCTS,
    QUANTISE,
    QUANTISE_S,
    fused_bytes,
    launch_floor_s,
    launched,
    served_product_s,
)
from envs.hardware.sources.op_tables import load_op_tables
from tests.envs.hardware.quantised import of, write_engine
from tests.envs.hardware.tables import ALLREDUCE, GPU, VERSION, change

LLAMA, SMALL_LLAMA, QWEN = (load_model(name) for name in ("llama-3.1-70b", "llama-3.1-8b", "qwen3-32b"))
H100 = load_gpu("h100-sxm-80gb")


def quantised(engine, precision, shape, tensor_parallel):
    return [product for product in PRODUCTS if launched(engine, precision, shape, tensor_parallel, product)]


@pytest.mark.parametrize(
    ("engine", "precision", "shape", "tensor_parallel", "products"),
    [
        ("trtllm", "fp8", LLAMA, 8, []),
        ("trtllm", "fp8", LLAMA, 1, ["qkv", "gate_up"]),  # no all-reduce to fuse with
        ("trtllm", "fp8", SMALL_LLAMA, 8, ["qkv", "gate_up"]),  # fused above 4,096 values only
        ("trtllm", "fp8", QWEN, 8, ["qkv", "gate_up"]),
        ("trtllm", "nvfp4", LLAMA, 8, ["down"]),
        ("vllm", "fp8", LLAMA, 8, ["output"]),
        ("sglang", "fp8", LLAMA, 8, list(PRODUCTS)),
    ],
)
def test_who_launches_a_quantisation(engine, precision, shape, tensor_parallel, products):
    assert quantised(engine, precision, shape, tensor_parallel) == products


def test_norms_that_launch_nothing():
    a100 = load_gpu("a100-sxm-80gb")
    fused = {
        (engine, version, gpu.name, shape.name, degree)
        for engine, version in (
            ("vllm", "0.12.0"),
            ("vllm", "0.16.0"),
            ("vllm", None),
            ("sglang", None),
            ("trtllm", None),
        )
        for gpu in (H100, a100)
        for shape in (LLAMA, QWEN)
        for degree in (1, 2)
        if fused_bytes(engine, version, shape, gpu, degree) > 0.0
    }
    assert fused == {
        ("vllm", "0.16.0", "h100-sxm-80gb", "llama-3.1-70b", 2),
        ("vllm", "0.16.0", "h100-sxm-80gb", "qwen3-32b", 2),
        ("vllm", None, "h100-sxm-80gb", "llama-3.1-70b", 2),
        ("vllm", None, "h100-sxm-80gb", "qwen3-32b", 2),
        ("trtllm", None, "h100-sxm-80gb", "llama-3.1-70b", 2),
        ("trtllm", None, "a100-sxm-80gb", "llama-3.1-70b", 2),
    }


def test_how_large_a_message_a_norm_is_fused_into():
    ada, b300 = replace(H100, sm=89), replace(H100, sm=103)
    sizes = {
        (gpu.sm, degree): fused_bytes("vllm", None, LLAMA, gpu, degree) / 2**20
        for gpu in (H100, ada, b300)
        for degree in (2, 8)
    }
    assert sizes == {(90, 2): 64.0, (90, 8): 0.5, (89, 2): 0.0, (89, 8): 0.0, (103, 2): 64.0, (103, 8): 1.0}
    assert fused_bytes("trtllm", None, LLAMA, ada, 2) == float("inf")


def test_a_fused_all_reduce_is_the_kernel_that_it_is_made_with(tmp_path):
    write_engine(tmp_path, "trtllm")
    write_engine(tmp_path, "vllm")
    change(tmp_path / of(ALLREDUCE, "trtllm"), lambda frame: frame.with_columns(pl.col("latency") / 2))
    ops = load_op_tables(tmp_path, GPU, "vllm", VERSION)
    composer = Composer(ops, SMALL_LLAMA, H100, 2, "bf16", "bf16", as_served=True)
    unfused = replace(composer, engine_version="0.15.0")
    small = composer.matrices_s(8)
    assert any("comm/trtllm" in path for path, _ in ops.files())
    saved = 32 * 2 * (ops.allreduce_s(8 * 4096, 2, True) / 2 + MEMORY_LATENCY_S)
    assert unfused.matrices_s(8) - small == pytest.approx(saved)
    most = 64 * 2**20 // (2 * 4096)
    beyond = unfused.matrices_s(most + 1) - composer.matrices_s(most + 1)
    assert beyond == 0.0 < unfused.matrices_s(most) - composer.matrices_s(most)


def product(ops, shape, name, m, precision="fp8"):
    return served_product_s(ops, shape, H100, 2, precision, name, m, 4096, 4096)


def test_a_calibrated_product_pays_no_search_for_its_scale(tmp_path):
    ops = load_op_tables(write_engine(tmp_path, "trtllm"), GPU, "trtllm", VERSION)
    timed = ops.gemm_s(1, 4096, 4096, "fp8")
    excess = ops.gemm_floor_s("fp8") - ops.gemm_floor_s("bf16")
    assert product(ops, LLAMA, "qkv", 1) == pytest.approx(timed - excess)  # neither kernel
    assert product(ops, QWEN, "qkv", 1) == pytest.approx(timed - excess + QUANTISE_S)
    assert product(ops, QWEN, "qkv", 1, "fp8_dynamic") == timed
    assert product(ops, QWEN, "qkv", 1, "bf16") == ops.gemm_s(1, 4096, 4096, "bf16")


def test_long_prompts_save_the_bytes_of_the_kernels(tmp_path):
    ops = load_op_tables(write_engine(tmp_path, "trtllm"), GPU, "trtllm", VERSION)
    saved = ops.gemm_s(8192, 4096, 4096, "fp8") - product(ops, LLAMA, "down", 8192)
    # two reads to search, a read and a write to quantise
    assert saved == pytest.approx(8192 * 4096 * (2 * 2 + 2 + 1) / (0.8 * H100.memory_bytes_per_s))


def test_what_a_table_left_out_is_added(tmp_path):
    ops = load_op_tables(write_engine(tmp_path, "sglang"), GPU, "sglang", VERSION)
    assert product(ops, LLAMA, "down", 1) == pytest.approx(ops.gemm_s(1, 4096, 4096, "fp8") + QUANTISE_S)


def test_no_product_is_faster_than_a_launch(tmp_path):
    ops = load_op_tables(write_engine(tmp_path, "trtllm"), GPU, "trtllm", VERSION)
    thin = replace(H100, memory_bytes_per_s=1e10)  # kernels bound by memory would take more than the product
    seconds = served_product_s(ops, LLAMA, thin, 2, "fp8", "qkv", 8192, 4096, 4096)
    assert seconds == ops.gemm_floor_s("bf16")


def test_products_timed_launch_by_launch_are_read_from_an_engine_that_captured_them(tmp_path):
    write_engine(tmp_path, "sglang", "fp8_block")
    write_engine(tmp_path, "vllm", "fp8_block")
    ops, other = (load_op_tables(tmp_path, GPU, engine, VERSION) for engine in ("vllm", "sglang"))
    assert ops.gemm_s(1, 4096, 4096, "fp8_block") == other.gemm_s(1, 4096, 4096, "fp8_block")
    assert any("sglang" in path for path, _ in ops.files())


def test_products_timed_untuned_are_read_from_an_engine_with_tuned_kernels(tmp_path):
    write_engine(tmp_path, "trtllm", "nvfp4")
    alone = load_op_tables(tmp_path, GPU, "trtllm", VERSION).gemm_s(1, 4096, 4096, "nvfp4")  # vLLM's has no such rows
    write_engine(tmp_path, "vllm", "nvfp4")
    own, other = (load_op_tables(tmp_path, GPU, engine, VERSION) for engine in ("trtllm", "vllm"))
    assert own.gemm_s(1, 4096, 4096, "nvfp4") == other.gemm_s(1, 4096, 4096, "nvfp4") < alone
    assert own.gemm_s(1, 4096, 4096, "bf16") == other.gemm_s(1, 4096, 4096, "bf16")


def test_launch_floors(tmp_path):
    for engine in ("vllm", "sglang", "trtllm"):
        write_engine(tmp_path, engine)
    vllm, sglang, trtllm = (load_op_tables(tmp_path, GPU, engine, VERSION) for engine in ("vllm", "sglang", "trtllm"))
    assert launch_floor_s(vllm, None, 32, 1) == pytest.approx(32 * 9 * EAGER_LAUNCH_S)
    assert launch_floor_s(vllm, None, 32, 2) == pytest.approx(32 * 11 * EAGER_LAUNCH_S)
    assert launch_floor_s(vllm, None, 32, 2, qk_norm=False) == launch_floor_s(vllm, None, 32, 2)  # compiled
    assert launch_floor_s(sglang, "0.5.8.post1", 36, 1) == pytest.approx(16.6e-3)  # as published
    assert launch_floor_s(sglang, "0.5.14", 32, 1) == launch_floor_s(sglang, None, 32, 1) == 0.0
    assert launch_floor_s(trtllm, "1.0.0rc3", 32, 1, qk_norm=False) == pytest.approx(32 * 9 * EAGER_LAUNCH_S)
    assert launch_floor_s(trtllm, "1.0.0rc3", 32, 8) == pytest.approx(32 * 13 * EAGER_LAUNCH_S)


def test_the_rules_agree_with_kernels_measured_alone(public_data):
    """aiconfigurator-core's own tables of the search: 6.9 to 8.6 us; of quantising: 1.4 to 2.2 us."""
    for gpu in ("h100_sxm", "b200_sxm"):
        ops = load_op_tables(public_data, gpu, "trtllm", None)
        both = ops.gemm_floor_s("fp8") - ops.gemm_floor_s("bf16")
        assert 6.9e-6 < both - QUANTISE_S < 9e-6, gpu
    assert launched("trtllm", "fp8", LLAMA, 1, "qkv") == (QUANTISE,)
