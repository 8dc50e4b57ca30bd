"""Step times of experts: what each layout pays for, by hand from toy tables, and whole laws from the public ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.hardware.attention_kinds import LayerGroup, Linear
from envs.hardware.errors import MeasurementError, OutsideError, ProfileError
from envs.hardware.estimate import profile_for
from envs.hardware.estimate_moe import expert_profile_for
from envs.hardware.layout import Layout
from envs.hardware.model_shape import load_model
from envs.hardware.sources.compose_moe import ExpertComposer, check_plausible_experts
from envs.hardware.sources.moe_tables import load_expert_tables
from tests.envs.hardware.moe_toys import GPU, SHAPE, experts_ms, write_moe
from tests.envs.hardware.tables import gemm_ms


@pytest.fixture
def compose(tmp_path):
    write_moe(tmp_path)

    def made(layout=Layout(), engine="vllm", gpu=GPU, shape=SHAPE):  # noqa: B008
        if engine != "vllm":
            write_moe(tmp_path, engine)
        ops = load_expert_tables(tmp_path, "toy_gpu", "vllm", None, shape, "bf16")
        ops.engine = engine
        return ExpertComposer(ops, shape, gpu, layout.tensor_parallel, "bf16", "bf16", True, None, layout=layout)

    return made


def test_experts_by_hand(compose):
    """30 of 32 layers have a router, 8 experts and a shared one; graphs run the shared one beside the others."""
    one = compose()
    tokens = 64
    without = compose(shape=replace(SHAPE, experts=replace(SHAPE.experts, shared=0)))
    memory_s = tokens * 3 * 1024 * 2 / (2e12 * 0.8) + 3e-6
    shared_s = (gemm_ms(tokens, 2048, 4096) + gemm_ms(tokens, 4096, 1024)) * 1e-3 + memory_s
    routed_s = (gemm_ms(tokens, 1024, 4096) + 2.0 * experts_ms(tokens, 1, 1)) * 1e-3  # the grid's narrowest router
    assert shared_s < routed_s
    assert one.matrices_s(tokens) == pytest.approx(without.matrices_s(tokens))
    fewer = compose(shape=replace(SHAPE, experts=replace(SHAPE.experts, shared=0, dense_layers=3)))
    dense_s = gemm_ms(tokens, 28672, 4096) + gemm_ms(tokens, 4096, 14336)
    dense_s = dense_s * 1e-3 + tokens * 3 * 14336 * 2 / (2e12 * 0.8) + 3e-6
    assert fewer.matrices_s(tokens) - without.matrices_s(tokens) == pytest.approx(dense_s - routed_s, rel=1e-3)


def test_beyond_a_graph_the_shared_expert_waits_its_turn(compose):
    without = replace(SHAPE, experts=replace(SHAPE.experts, shared=0))
    assert compose().matrices_s(512) == compose(shape=without).matrices_s(512)
    assert compose().matrices_s(1024) > compose(shape=without).matrices_s(1024)


def test_experts_see_the_tokens_of_all_ranks(compose):
    ranks, alone = compose(Layout(1, 4, 4)), compose(Layout(1, 1, 1))
    tokens = 64
    volume = tokens * 4 * SHAPE.hidden
    moved = 2 * (0.01 + volume * 1e-8)  # gathered, then reduced and scattered
    more = 2.0 * (experts_ms(4 * tokens, 1, 4) - experts_ms(tokens, 1, 1)) + moved
    assert ranks.matrices_s(tokens) - alone.matrices_s(tokens) == pytest.approx(30 * more * 1e-3, rel=0.02)


def test_one_rank_of_two_gpus_reduces_instead(compose):
    split, dealt = compose(Layout(2, 1, 1)), compose(Layout(2, 1, 2))
    assert split._moved_s(64, True) == dealt._moved_s(64, True) == split.ops.allreduce_s(64 * 4096, 2, captured=True)


def test_tensorrt_sends_to_the_gpus_of_a_tokens_experts_where_nvlink_joins_them(compose):
    far = compose(Layout(1, 4, 4), "trtllm", replace(GPU, sm=100, scale_up_gpus=72))
    near = compose(Layout(1, 4, 4), "trtllm", replace(GPU, sm=100))
    reached = 4 * (1 - (3 / 4) ** 2)
    assert far._moved_s(256, True) == pytest.approx(2e-3 * (0.01 + 256 * 4096 * reached * 1e-8), rel=0.02)
    assert near._moved_s(256, True) == pytest.approx(2e-3 * (0.01 + 256 * 4096 * 4 * 1e-8), rel=0.02)


def test_tokens_travel_in_the_precision_of_experts_on_blackwell_with_tensorrt_only(compose):
    times = {}
    for sm in (90, 100, 103, 120):
        composer = replace(compose(Layout(1, 4, 4), "trtllm", replace(GPU, sm=sm)), precision="nvfp4")
        times[sm] = composer._moved_s(256, True)
    saved = 256 * 4096 * 4 * (1 - 0.5625 / 2) * 1e-8
    assert times[90] - times[100] == pytest.approx(saved * 1e-3, rel=0.02)
    assert (times[103], times[120]) == (times[100], times[90])


STATES = (LayerGroup("full", 8), LayerGroup("state", 24, state_bytes=1000))
LINEAR = Linear(key_heads=2, value_heads=4, key_dim=32, value_dim=64, kernel=4)


def test_a_state_that_does_not_say_what_it_computes_is_told(compose):
    with pytest.raises(OutsideError, match="no key `linear`"):
        compose(shape=replace(SHAPE, attention=STATES)).prefill(64)


def test_decodes_read_and_write_a_state_each_whatever_their_context(compose):
    """4 heads x 32 x 64 values of 4 bytes, both ways, in 24 layers; a quarter of the layers attends to its context."""
    composer, full = compose(shape=replace(SHAPE, attention=STATES, linear=LINEAR)), compose()
    one, two = (composer._decode_attention_s(8, context) for context in (1024, 2048))
    shared = 8 / 32 * full._decode_attention_s(8, 1024)
    state_s = 24 * 8 * 2 * 4 * 32 * 64 * 4 / (GPU.memory_bytes_per_s * 0.8)
    assert one - shared == pytest.approx(state_s)
    assert two - one == pytest.approx(8 / 32 * (full._decode_attention_s(8, 2048) - full._decode_attention_s(8, 1024)))


def test_prompts_take_linear_attention_longer_by_their_tokens_only(compose):
    composer, full = compose(shape=replace(SHAPE, attention=STATES, linear=LINEAR)), compose()
    quarter = {tokens: 8 / 32 * full._prefill_attention_s(tokens, 1) for tokens in (1024, 2048)}
    assert composer._prefill_attention_s(2048, 1) == pytest.approx(quarter[2048])
    assert composer._chunk_attention_s(1024, 0) == pytest.approx(quarter[1024] + 24 * 5 * 3e-6)
    late = composer._chunk_attention_s(1024, 1024)
    assert late == pytest.approx(max(quarter[1024], quarter[2048] * 0.75) + 24 * 5 * 3e-6)


def test_a_gated_output_is_a_wider_product(compose):
    plain, gated = compose(), compose(shape=replace(SHAPE, output_gate=True))
    heads, kv_heads, head_dim = plain.heads
    wider = gemm_ms(64, (2 * heads + 2 * kv_heads) * head_dim, SHAPE.hidden)
    more = wider - gemm_ms(64, (heads + 2 * kv_heads) * head_dim, SHAPE.hidden)
    assert gated._projections_s(64) - plain._projections_s(64) == pytest.approx(more * 1e-3, rel=0.02)


def test_times_in_another_unit_are_refused(compose):
    composer = compose()
    points = [composer.prefill(256), composer.decode(8, 1024)]
    check_plausible_experts(points, composer, "bf16")
    for factor in (1e3, 1e-3):
        with pytest.raises(MeasurementError, match="are the units swapped"):
            check_plausible_experts([replace(p, time_s=p.time_s * factor) for p in points], composer, "bf16")


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "layout", "precision", "kv"),
    [
        ("deepseek-v3", "b200_sxm", "trtllm", Layout(8, 1, 8), "nvfp4", "fp8"),
        ("deepseek-ai/DeepSeek-R1", "b200_sxm", "sglang", Layout(1, 8, 8), "fp8_block", "fp8"),
        ("kimi-k2.5", "gb200", "vllm", Layout(4, 1, 4), "nvfp4", "fp8"),
        ("qwen3-30b-a3b", "h100_sxm", "vllm", Layout(1, 1, 1), "fp8_block", "bf16"),
        ("qwen3-235b-a22b", "h100_sxm", "trtllm", Layout(8, 1, 8), "fp8_block", "fp8"),
        ("gpt-oss-120b", "h100_sxm", "vllm", Layout(2, 1, 1), "mxfp4", "bf16"),
    ],
)
def test_profiles_from_public_tables_hold_what_they_are_made_of(public_data, model, gpu, engine, layout, precision, kv):
    profile = expert_profile_for(model, gpu, engine, None, layout, precision, kv, public_data)
    assert profile.tables is not None
    assert profile.gpus == layout.tensor_parallel
    assert profile.fit["tables_errors_percent"]["all"]["mape"] < 4.0
    assert profile.source["layout"]["attention_dp"] == layout.attention_dp
    one, many = (profile.seconds(0, 0, batch, batch * 2048) for batch in (1, 64))
    assert 1e-3 < one < many < 20 * one
    files = [record["path"] for record in profile.source["files"]]
    assert any("moe_perf" in path for path in files)
    assert any("/mla/" in path for path in files) == (load_model(model).latent is not None)
    assert not any("attention_perf" in path for path in files if load_model(model).latent)


def test_a_window_bounds_what_a_long_context_costs(public_data):
    place = ("h100_sxm", "vllm", None, Layout(2, 1, 1), "mxfp4", "bf16", public_data)
    shape = load_model("gpt-oss-120b")
    ops = load_expert_tables(public_data, "h100_sxm", "vllm", None, shape, "mxfp4")
    heads = (32, 4, 64)
    windowed = [ops.window_decode_s(context, 64, heads, "bf16") for context in (1024, 16384)]
    full = [ops.generation_attention_s(context, 64, *heads, "bf16") for context in (1024, 16384)]
    assert windowed[1] < 1.1 * windowed[0]
    assert full[1] > 4 * full[0]
    assert expert_profile_for("gpt-oss-120b", *place).kv.bytes_per_token < shape.kv_bytes(1, "bf16")


def test_a_layout_that_no_kernel_can_hold_is_refused(public_data):
    with pytest.raises(ProfileError, match="2048 wide over 32 GPUs each"):
        expert_profile_for("deepseek-v3", "gb200", "sglang", None, Layout(1, 32, 1), "fp8_block", "fp8", public_data)
    with pytest.raises(ProfileError, match="tensor_parallel = 3"):
        expert_profile_for("deepseek-v3", "gb200", "sglang", None, Layout(3, 1, 1), "nvfp4", "fp8", public_data)
    with pytest.raises(ProfileError, match="at most 256 experts"):
        expert_profile_for("deepseek-v3", "gb200", "sglang", None, Layout(1, 512, 512), "nvfp4", "fp8", public_data)


def test_one_call_makes_either_kind_of_profile(public_data):
    place = ("b200_sxm", "trtllm", None, 1, "nvfp4", "fp8", public_data)
    rank = profile_for("deepseek-v3", *place, attention_dp=8, expert_parallel=8)
    assert rank is expert_profile_for("deepseek-v3", *place[:3], Layout(1, 8, 8), *place[4:])
    with pytest.raises(ProfileError, match=r"attention_dp = 8.*dense"):
        profile_for("qwen3-32b", *place, attention_dp=8)


def test_a_step_launched_op_by_op_takes_as_long_as_its_ops(compose):
    """16.6 ms / 36 layers / 11 ops is one launch; a shared expert adds four, and quantised products one each."""
    composer = compose(engine="trtllm")
    dense, expert = 5 + 4, 5 + 8 + 4
    assert composer.launched_ops == SHAPE.experts.dense_layers * dense + SHAPE.expert_layers * expert
    assert composer.launch_floor_s == pytest.approx(composer.launched_ops * 16.6e-3 / 36 / 11)
    quantised = replace(composer, precision="fp8_block")
    assert quantised.launched_ops - composer.launched_ops == SHAPE.layers * (2 + 2) + SHAPE.expert_layers
    assert replace(composer, precision="int4").launched_ops == composer.launched_ops
    assert replace(composer, as_served=False).launch_floor_s == 0.0


def test_latent_attention_launches_more(compose):
    latent = ExpertComposer(compose(engine="trtllm").ops, load_model("deepseek-v3"), GPU, 1, "bf16", "bf16", True, None)
    assert latent.launched_ops == 3 * (10 + 4) + 58 * (10 + 8 + 4)
