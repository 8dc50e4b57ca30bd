"""Layers that do not attend to everything, and models of experts: what they keep, weigh and fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from envs.hardware.attention_kinds import hit_granularity
from envs.hardware.errors import ProfileError
from envs.hardware.gpu import load_gpu
from envs.hardware.layout import Layout, gpu_kv_bytes, gpu_weight_bytes, worker_kv_law
from envs.hardware.model_shape import MODEL_DIR, kv_law, load_model


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        # the model cards' figures; DeepSeek-V3 without its second-token layer
        ("deepseek-v3", 671.0, 37.0),
        ("kimi-k2.5", 1026.4, 32.0),
        ("qwen3-30b-a3b", 30.53, 3.3),
        ("qwen3-235b-a22b", 235.1, 22.0),
        ("gpt-oss-120b", 116.8, 5.1),
        ("qwen3-next-80b-a3b", 80.0, 3.0),
    ],
)
def test_parameters_are_the_published_ones(model, billions, active):
    shape = load_model(model)
    assert shape.params / 1e9 == pytest.approx(billions, rel=0.005)
    # cards differ in whether they count the embeddings
    tables = shape.vocabulary * shape.hidden / 1e9
    assert -0.5 < (shape.active_linear_params + shape.other_params) / 1e9 - active < 0.9 + tables


def test_published_counts_to_the_parameter():
    # of the safetensors index
    assert load_model("Qwen/Qwen3-30B-A3B").params == 30_532_122_624
    assert load_model("Qwen/Qwen3-235B-A22B-FP8").params == 235_093_634_560


def test_a_latent_is_cached_once_whatever_the_degree():
    shape = load_model("deepseek-ai/DeepSeek-R1")
    assert shape.kv_bytes(1, "bf16") == (512 + 64) * 2 * 61 == 70272
    assert gpu_kv_bytes(shape, 100, "bf16", 1) == gpu_kv_bytes(shape, 100, "bf16", 8) == 7027200


def test_heads_are_shared_out_and_replicated_beyond_their_number():
    shape = load_model("qwen3-235b-a22b")
    whole = shape.kv_bytes(1, "fp8")
    assert [whole / gpu_kv_bytes(shape, 1, "fp8", tp) for tp in (1, 2, 4, 8)] == [1, 2, 4, 4]


def test_a_window_stops_growing():
    shape = load_model("gpt-oss-120b")
    layer = 2 * 8 * 64
    assert shape.kv_bytes(100, "fp8") == 36 * 100 * layer
    assert shape.kv_bytes(5000, "fp8") == 18 * (5000 + 128) * layer


def test_a_state_is_constant():
    shape = load_model("qwen3-next-80b-a3b")
    state = 36 * (32 * 128 * 128 + 3 * 8192) * 2
    assert shape.kv_bytes(1, "bf16") == state + 12 * 2 * 2 * 256 * 2
    assert shape.kv_bytes(2001, "bf16") - shape.kv_bytes(1, "bf16") == 2000 * 12 * 2 * 2 * 256 * 2
    assert gpu_kv_bytes(shape, 1, "bf16", 2) == shape.kv_bytes(1, "bf16") / 2


def test_hits_of_a_hybrid_are_rounded_to_the_block_that_vllm_announces():
    # "Setting attention block size to 544 tokens to ensure that attention page size is >= mamba page size"
    shape, gpu = load_model("qwen3-next-80b-a3b"), load_gpu("b200-sxm")
    assert worker_kv_law(shape, gpu, Layout(), "bf16", "bf16").block_tokens == 544
    # "Padding mamba page size by 1.49%"
    assert 544 * 2 * 2 * 256 * 2 / shape.attention[1].state_bytes == pytest.approx(1.0149, abs=5e-5)
    assert hit_granularity(shape.attention, 1024.0, 4, 16) == 272
    assert hit_granularity(load_model("deepseek-v3").attention, 1152.0, 8, 64) == 64


def test_experts_are_dealt_over_all_gpus_and_attention_over_a_rank():
    shape = load_model("deepseek-v3")
    parts = shape.part_params
    routers = 58 * 7168 * 256
    for layout in (Layout(8, 1, 8), Layout(8, 1, 1), Layout(1, 8, 8)):
        ranks = (parts["attention"] + parts["mlp"] + shape.other_params - routers) / layout.tensor_parallel
        assert gpu_weight_bytes(shape, "bf16", layout) == pytest.approx(2 * (ranks + parts["experts"] / 8 + routers))


def test_what_a_checkpoint_keeps_in_sixteen_bits():
    shape = load_model("kimi-k2.5")
    parts = shape.part_params
    assert shape.weight_bytes("int4") == pytest.approx(
        0.5625 * parts["experts"] + 2 * (shape.params - parts["experts"])
    )
    nvfp4 = 0.5625 * (parts["experts"] + parts["mlp"]) + 2 * (parts["attention"] + shape.other_params)
    assert shape.weight_bytes("nvfp4") == pytest.approx(nvfp4)
    # 63 GB of weights: the published reason that one H100 is enough
    assert load_model("openai/gpt-oss-120b").weight_bytes("mxfp4") / 2**30 == pytest.approx(60.8, rel=0.02)


def test_attention_ranks_hold_more_sequences_of_a_latent():
    shape, gpu = load_model("deepseek-v3"), load_gpu("b200-sxm")
    split = worker_kv_law(shape, gpu, Layout(8, 1, 8), "fp8_block", "fp8")
    ranks = worker_kv_law(shape, gpu, Layout(1, 8, 8), "fp8_block", "fp8")
    assert 5 * split.capacity_tokens < 8 * ranks.capacity_tokens < 8 * split.capacity_tokens
    assert split.bytes_per_token == 35136


def test_experts_that_do_not_fit_are_refused():
    with pytest.raises(ProfileError, match="deepseek-v3 in bf16 does not fit on 4 x b200-sxm"):
        worker_kv_law(load_model("deepseek-v3"), load_gpu("b200-sxm"), Layout(4, 1, 4), "bf16", "fp8")
    with pytest.raises(ProfileError, match=r"expected a divisor of .* = 8"):
        Layout(8, 1, 3)
    with pytest.raises(ProfileError, match="attention_dp = 0"):
        Layout(8, 0, 1)


def test_the_dense_law_names_the_one_for_other_kinds():
    with pytest.raises(ProfileError, match="worker_kv_law"):
        kv_law(load_model("deepseek-v3"), load_gpu("b200-sxm"), 8, "fp8", "fp8")


def test_both_laws_agree_where_everything_is_full():
    shape, gpu = load_model("qwen3-32b"), load_gpu("h100-sxm-80gb")
    assert worker_kv_law(shape, gpu, Layout(4), "bf16", "bf16") == kv_law(shape, gpu, 4, "bf16", "bf16")


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("gpt-oss-120b", {"attention": [{"kind": "window", "layers": 36}]}, r"attention\[0\]\.window"),
        ("gpt-oss-120b", {"attention": [{"kind": "full", "layers": 36, "window": 128}]}, r"attention\[0\]\.window"),
        ("qwen3-32b", {"attention": [{"kind": "state", "layers": 64}]}, "state_bytes"),
        ("qwen3-32b", {"attention": [{"kind": "mla", "layers": 64}]}, "latent"),
        ("deepseek-v3", {"attention": [{"kind": "full", "layers": 61}]}, "latent"),
        ("qwen3-30b-a3b", {"experts": {"count": 4, "per_token": 8, "intermediate": 768}}, "per_token = 8"),
        (
            "qwen3-30b-a3b",
            {"experts": {"count": 4, "per_token": 2, "intermediate": 768, "dense_layers": 48}},
            "dense_layers = 48",
        ),
    ],
)
def test_a_shape_that_contradicts_itself_is_one_clear_error(tmp_path, model, changes, words):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((MODEL_DIR / f"{model}.yaml").read_text()) | changes))
    with pytest.raises(ProfileError, match=words):
        load_model(path)


def test_work_counts_what_a_token_visits():
    shape = load_model("qwen3-30b-a3b")
    one = replace(shape, experts=replace(shape.experts, per_token=1))
    seven = 7 * 48 * 3 * 2048 * 768
    assert shape.flop(10, 0.0, 0) - one.flop(10, 0.0, 0) == 2 * 10 * seven
    latent = load_model("deepseek-v3")
    assert latent.flop(0, 1.0, 0) == 2 * 61 * 128 * (128 + 64 + 128)
