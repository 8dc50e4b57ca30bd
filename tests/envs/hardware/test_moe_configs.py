"""Published configs of models with experts are read as the shapes that ship."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from envs.hardware.errors import ProfileError
from envs.hardware.model_shape import load_model

# the keys that matter, as the model's publisher has them
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": DEEPSEEK
    | {
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
    },
}
QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
QWEN_NEXT = QWEN | {
    "architectures": ["Qwen3NextForCausalLM"],
    "full_attention_interval": 4,
    "head_dim": 256,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
QWEN35 = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {key: value for key, value in QWEN_NEXT.items() if key not in ("architectures", "intermediate_size")}
    | {
        "hidden_size": 4096,
        "linear_num_value_heads": 64,
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_hidden_layers": 60,
        "shared_expert_intermediate_size": 1024,
        "vocab_size": 248320,
    },
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_qk_norm": True,
    "vocab_size": 200064,
}
CONFIGS = {
    "deepseek-v3": DEEPSEEK,
    "kimi-k2.5": KIMI,
    "qwen3-30b-a3b": QWEN,
    "qwen3-next-80b-a3b": QWEN_NEXT,
    "qwen3.5-397b-a17b": QWEN35,
    "gpt-oss-120b": GPT_OSS,
    "minimax-m2.5": MINIMAX,
}


def read(tmp_path, name, config):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(folder / "config.json")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_the_shipped_shape(tmp_path, name):
    shipped = load_model(name)
    assert replace(read(tmp_path, name, CONFIGS[name]), source=shipped.source, published=shipped.published) == shipped


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({key: value for key, value in DEEPSEEK.items() if key != "kv_lora_rank"}, "kv_lora_rank is missing"),
        (DEEPSEEK | {"n_routed_experts": "many"}, "n_routed_experts = 'many'"),
        (QWEN | {"mlp_only_layers": [0]}, "expected experts in every layer"),
        (QWEN_NEXT | {"shared_expert_intermediate_size": 700}, "expected a multiple of 512"),
        (MINIMAX | {"shared_intermediate_size": 100}, "expected a multiple of 1536"),
        (GPT_OSS | {"layer_types": ["chunked_attention"]}, "layer_types"),
        (GPT_OSS | {"architectures": ["GptOsForCausalLM"]}, "did you mean 'GptOssForCausalLM'"),
    ],
)
def test_a_config_that_cannot_be_meant_is_one_clear_error(tmp_path, config, words):
    with pytest.raises(ProfileError, match=words):
        read(tmp_path, "odd", config)
