"""Latent attention: what a table's row holds, and how a law divides it."""

from __future__ import annotations

import polars as pl
import pytest

from envs.hardware.errors import OutsideError
from envs.hardware.layout import Layout
from envs.hardware.model_shape import load_model
from envs.hardware.sources.compose_moe import ExpertComposer
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.mla_tables import read_latent
from envs.hardware.sources.moe_tables import load_expert_tables
from envs.hardware.sources.table_law import compose_tables
from tests.envs.hardware.moe_toys import GPU, LATENT, latent_ms, write_latent, write_moe
from tests.envs.hardware.tables import gemm_ms


@pytest.fixture(params=["module", "kernel"])
def composer(tmp_path, request):
    write_moe(tmp_path, shape=LATENT)
    write_latent(tmp_path, request.param)
    ops = load_expert_tables(tmp_path, "toy_gpu", "vllm", None, LATENT, "bf16")
    assert ops.latent == request.param
    return ExpertComposer(ops, LATENT, GPU, 1, "bf16", "bf16", True, None, layout=Layout())


def test_steps_count_the_token_that_is_made(composer):
    grid = composer.ops.decode_grid(*composer.heads, "bf16")
    assert grid == [(b, n) for b in (1, 8, 64, 256) for n in (16, 64, 256, 1024, 4096, 16384, 32768)]


def test_attention_is_what_a_row_holds_beyond_the_products_of_every_token(composer):
    tokens, batch, context = 1024, 64, 4096
    prefill_s = composer._prefill_attention_s(tokens, 1)
    decode_s = composer._decode_attention_s(batch, context)
    if composer.tables.latent == "module":
        assert prefill_s == pytest.approx(32 * (2e-3 * latent_ms(1, tokens) - composer._projections_s(tokens)))
        assert decode_s == pytest.approx(32 * (2e-3 * latent_ms(batch, context) - composer._projections_s(batch)))
    else:
        assert prefill_s == pytest.approx(32e-3 * latent_ms(1, tokens))
        # the grid's narrowest side stands for the latent's 512
        unfolded_ms = gemm_ms(batch, 8192, 1024)
        assert decode_s == pytest.approx(32e-3 * (latent_ms(batch, context) + 0.1 - unfolded_ms), rel=1e-6)


def test_both_kinds_of_table_make_a_law(composer):
    tables = compose_tables(composer, 2048, 256, 2**20)
    for point in compose_steps(composer, 2048, 256, 2**20):
        if point.kind == "decode":
            assert tables.seconds(0, 0, point.seqs, point.kv) == pytest.approx(point.time_s, rel=0.12)


def test_where_no_latent_attention_was_measured_the_error_says_so(tmp_path):
    write_moe(tmp_path, shape=LATENT)
    ops = load_expert_tables(tmp_path, "toy_gpu", "vllm", None, LATENT, "bf16")
    with pytest.raises(OutsideError, match="no latent attention was measured"):
        ops.latent_s("context", 64, 1, 32, "bf16")


def test_a_module_is_its_parts(public_data):
    """TensorRT-LLM's table of whole modules against its tables of their parts, on the same GPU."""
    shape = load_model("deepseek-v3")
    ops = load_expert_tables(public_data, "b200_sxm", "trtllm", None, shape, "fp8_block")
    layout = Layout(8, 1, 8)
    composer = ExpertComposer(ops, shape, GPU, 8, "fp8_block", "fp8", True, None, layout=layout)
    folder = "measurements/aiconfigurator/data/b200_sxm/mla/trtllm/1.3.0rc20"
    kernel = read_latent(public_data, f"{folder}/generation_mla_perf.parquet", "generation").frame
    for batch in (1, 16, 64, 256):
        module_s = ops.latent_s("generation", 1024, batch, 16, "fp8")
        point = {"kv_cache_dtype": "fp8", "num_heads": 16, "batch_size": batch, "tokens": 1024}
        alone_ms = kernel.filter(*(pl.col(name) == value for name, value in point.items()))["latency"].item()
        products_s = composer._projections_s(batch) - composer._unfolded_s(batch) + ops.absorbed_s(batch, 16)
        assert 0.7 < (products_s + alone_ms * 1e-3) / module_s < 1.1
