from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from envs.hardware.errors import ProfileError
from envs.hardware.gpu import GPU_DIR, gpu_names, load_gpu
from envs.hardware.load import load_profile
from envs.hardware.model_shape import MODEL_DIR, activation_reserve_bytes, kv_law, load_model, model_names


def test_parameters_are_the_published_ones():
    assert load_model("llama-3.1-8b").params == 8_030_261_248
    assert load_model("llama-3.1-70b").params == 70_553_706_496
    assert load_model("llama2-70b").params == 68_976_648_192


def test_kv_bytes_by_hand():
    # 2 (K, V) x layers x KV heads x head dim x bytes
    assert load_model("llama-3.1-8b").kv_bytes(1, "bf16") == 2 * 32 * 8 * 128 * 2
    assert load_model("llama-3.1-70b").kv_bytes(1, "fp8") == 2 * 80 * 8 * 128
    # 0.31 GiB for 1,024 tokens of a 70B in fp16
    assert load_model("llama2-70b").kv_bytes(1024, "fp16") / 2**30 == pytest.approx(0.3125)


def test_weights_below_16_bits_are_the_matrices_only():
    shape = load_model("llama-3.1-70b")
    assert shape.weight_bytes("bf16") == 2 * shape.params
    assert shape.weight_bytes("fp8") == shape.linear_params + 2 * (shape.params - shape.linear_params)


def test_capacity_by_hand():
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm-80gb")
    reserve = 8192 * (3 * 4096 + 3 * 14336) * 2 + 256 * 128256 * 4 + 2**30
    assert activation_reserve_bytes(shape, gpu, 1, 8192, 256) == reserve
    free = 0.9 * 85899345920 - 2 * 8030261248 - reserve
    law = kv_law(shape, gpu, 1, "bf16", "bf16")
    assert law.capacity_tokens == int(free / 131072) // 16 * 16
    assert law.capacity_tokens == load_profile("llama-3.1-8b-bf16-h100-tp1").kv.capacity_tokens


def test_a_larger_share_of_memory_holds_more():
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("a100-sxm-80gb")
    less, more = (kv_law(shape, gpu, 1, "bf16", "bf16", utilisation=u).capacity_tokens for u in (0.8, 0.95))
    assert more - less == pytest.approx(0.15 * gpu.memory_bytes / 131072, abs=16)


def test_kv_heads_are_replicated_beyond_their_number():
    shape, gpu = replace(load_model("llama-3.1-8b"), kv_heads=4), load_gpu("h100-sxm-80gb")
    four, eight = (kv_law(shape, gpu, tp, "bf16", "bf16").capacity_tokens for tp in (4, 8))
    assert eight < 1.2 * four  # the weights shrink, a KV head does not


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(ProfileError, match="does not fit on 1 x h100-sxm-80gb"):
        kv_law(load_model("llama-3.1-70b"), load_gpu("h100-sxm-80gb"), 1, "bf16", "bf16")


def test_unknown_precisions_and_names_are_refused():
    with pytest.raises(ProfileError, match="did you mean 'fp8'"):
        load_model("llama-3.1-8b").weight_bytes("f8")
    with pytest.raises(ProfileError, match="has no fp8"):
        load_gpu("a100-sxm-80gb").peak("fp8")
    with pytest.raises(ProfileError, match=r"did you mean 'llama-3\.1-8b'"):
        load_model("llama-3-8b")
    assert {"a100-sxm-80gb", "b200-sxm", "gb200", "h100-sxm-80gb"} <= set(gpu_names())
    assert {"llama-3.1-70b", "llama-3.1-8b", "llama2-70b", "qwen3-32b"} <= set(model_names())


def test_models_and_gpus_are_found_by_the_names_that_measurements_use():
    assert load_model("meta-llama/Llama-3.1-8B-Instruct") == load_model("llama-3.1-8b")
    assert load_gpu("h100_sxm") == load_gpu("h100-sxm-80gb")
    assert load_gpu("gb200").stand_in == load_gpu("b200-sxm").tables


def test_four_bits_hold_a_scale_for_each_sixteen_values():
    shape = load_model("qwen3-32b")
    assert shape.weight_bytes("nvfp4") == shape.linear_params * 9 // 16 + 2 * shape.other_params
    # published: 32.8 billion, 31.2 without embeddings
    assert shape.params == pytest.approx(32.8e9, rel=2e-3)


QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
    "num_hidden_layers": 64,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "use_sliding_window": False,
}


def config(tmp_path, **changes):
    folder = tmp_path / "Qwen3-32B"
    folder.mkdir()
    kept = {key: value for key, value in (QWEN | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder / "config.json"


def test_a_shape_is_read_from_a_published_config(tmp_path):
    read, shipped = load_model(config(tmp_path)), load_model("qwen3-32b")
    assert replace(read, source=shipped.source, published=shipped.published) == shipped


def test_heads_of_a_config_share_the_hidden_width_where_it_says_nothing_else(tmp_path):
    path = config(tmp_path, architectures=["LlamaForCausalLM"], head_dim=..., num_key_value_heads=..., hidden_size=4096)
    shape = load_model(path)
    assert (shape.head_dim, shape.kv_heads, shape.qk_norm) == (64, 64, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*dense"),
        ({"vocab_size": ...}, "vocab_size is missing"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding_window = 4096"),
        ({"hidden_size": "wide"}, "hidden = 'wide'"),
        ({"head_dim": ..., "hidden_size": "wide"}, "hidden_size = 'wide'"),
    ],
)
def test_a_config_that_is_no_dense_model_is_one_clear_error(tmp_path, changes, words):
    with pytest.raises(ProfileError, match=words):
        load_model(config(tmp_path, **changes))


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_a_config_that_cannot_be_read_is_one_clear_error(tmp_path, text):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProfileError, match=r"config\.json"):
        load_model(path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kv_heads", 7, "divisor"),
        ("attention", [], "at least one item"),
        ("attention", [{"kind": "sparse", "layers": 3}], r"attention\[0\]\.kind"),
        ("tied_embeddings", "no", "true or false"),
    ],
)
def test_a_bad_shape_is_one_clear_error(tmp_path, key, value, words):
    data = yaml.safe_load((MODEL_DIR / "llama-3.1-8b.yaml").read_text()) | {key: value}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ProfileError, match=words):
        load_model(path)


def test_a_bad_gpu_is_one_clear_error(tmp_path):
    data = yaml.safe_load((GPU_DIR / "a100-sxm-80gb.yaml").read_text()) | {"flop_per_s": {"bf16": 312}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ProfileError, match=r"flop_per_s\.bf16 = 312"):
        load_gpu(path)
