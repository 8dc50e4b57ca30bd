"""What a published ``config.json`` says of experts, latent attention, windows and states, beyond a dense decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envs.hardware.attention_kinds import Linear
from envs.hardware.errors import ProfileError, nearest

Config = Mapping[str, Any]
STATE_VALUE_BYTES = 2
"""States of linear attention are kept in 16 bits, as vLLM does by default."""


def text_config(config: Config) -> Config:
    """The decoder's part of a config that describes images too."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _whole(path: Path, config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if value is None:
        raise ProfileError(f"{path}: {key} is missing{nearest(key, config)}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ProfileError(f"{path}: {key} = {value!r}: expected a whole number")
    return value


def _deepseek(path: Path, config: Config) -> dict[str, Any]:
    parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank")
    nope, rope, value, query_rank, kv_rank = (_whole(path, config, key) for key in parts)
    return {
        "head_dim": nope + rope,
        "attention": [{"kind": "mla", "layers": _whole(path, config, "num_hidden_layers")}],
        "latent": {
            "query_rank": query_rank,
            "kv_rank": kv_rank,
            "nope_dim": nope,
            "rope_dim": rope,
            "value_dim": value,
        },
        "experts": {
            "count": _whole(path, config, "n_routed_experts"),
            "per_token": _whole(path, config, "num_experts_per_tok"),
            "intermediate": _whole(path, config, "moe_intermediate_size"),
            "shared": _whole(path, config, "n_shared_experts", 0),
            "dense_layers": _whole(path, config, "first_k_dense_replace", 0),
        },
    }


def _qwen(path: Path, config: Config) -> dict[str, Any]:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ProfileError(f"{path}: mlp_only_layers or decoder_sparse_step: expected experts in every layer")
    intermediate = _whole(path, config, "moe_intermediate_size")
    shared = _whole(path, config, "shared_expert_intermediate_size", 0)
    if shared % intermediate:
        raise ProfileError(f"{path}: shared_expert_intermediate_size = {shared}: expected a multiple of {intermediate}")
    experts = {
        "count": _whole(path, config, "num_experts"),
        "per_token": _whole(path, config, "num_experts_per_tok"),
        "intermediate": intermediate,
        "shared": shared // intermediate,
    }
    return {"experts": {key: value for key, value in experts.items() if value or key != "shared"}, "qk_norm": True}


def _qwen_next(path: Path, config: Config) -> dict[str, Any]:
    layers, every = _whole(path, config, "num_hidden_layers"), _whole(path, config, "full_attention_interval", 4)
    hidden, heads = _whole(path, config, "hidden_size"), _whole(path, config, "num_attention_heads")
    kv_heads, head_dim = _whole(path, config, "num_key_value_heads"), _whole(path, config, "head_dim")
    linear = Linear(
        key_heads=_whole(path, config, "linear_num_key_heads"),
        value_heads=_whole(path, config, "linear_num_value_heads"),
        key_dim=_whole(path, config, "linear_key_head_dim"),
        value_dim=_whole(path, config, "linear_value_head_dim"),
        kernel=_whole(path, config, "linear_conv_kernel_dim"),
    )
    channels, values = linear.channels, linear.values
    state = linear.state_values + (linear.kernel - 1) * channels
    mixer = hidden * (channels + values + 2 * linear.value_heads) + channels * linear.kernel + values * hidden
    mixer += linear.value_dim + 2 * linear.value_heads  # the output's norm; decay and step of each head
    gated = hidden * head_dim * (3 * heads + 2 * kv_heads)
    full = layers // every
    return _qwen(path, config) | {
        "linear": asdict(linear),
        "output_gate": True,
        "attention": [
            {"kind": "full", "layers": full, "params": gated},
            {
                "kind": "state",
                "layers": layers - full,
                "state_bytes": STATE_VALUE_BYTES * state,
                "params": mixer,
            },
        ],
    }


def _gpt_oss(path: Path, config: Config) -> dict[str, Any]:
    kinds = config.get("layer_types")
    known = {"full_attention", "sliding_attention"}
    if not isinstance(kinds, list) or not set(kinds) <= known:
        raise ProfileError(f"{path}: layer_types = {kinds!r}: expected a list of {', '.join(sorted(known))}")
    windowed = kinds.count("sliding_attention")
    groups: list[dict[str, Any]] = [{"kind": "full", "layers": len(kinds) - windowed}]
    groups.append({"kind": "window", "layers": windowed, "window": _whole(path, config, "sliding_window")})
    return {
        "attention": [group for group in groups if group["layers"]],
        "experts": {
            "count": _whole(path, config, "num_local_experts"),
            "per_token": _whole(path, config, "num_experts_per_tok"),
            "intermediate": _whole(path, config, "intermediate_size"),
        },
    }


def _minimax(path: Path, config: Config) -> dict[str, Any]:
    intermediate, shared = (
        _whole(path, config, "intermediate_size"),
        _whole(path, config, "shared_intermediate_size", 0),
    )
    if shared % intermediate:
        raise ProfileError(f"{path}: shared_intermediate_size = {shared}: expected a multiple of {intermediate}")
    experts = {
        "count": _whole(path, config, "num_local_experts"),
        "per_token": _whole(path, config, "num_experts_per_tok"),
        "intermediate": intermediate,
    }
    if shared:
        experts["shared"] = shared // intermediate
    return {"experts": experts, "qk_norm": bool(config.get("use_qk_norm", False))}


EXPERT_READERS: dict[str, Callable[[Path, Config], dict[str, Any]]] = {
    "DeepseekV3ForCausalLM": _deepseek,
    "KimiK25ForConditionalGeneration": _deepseek,
    "Qwen3MoeForCausalLM": _qwen,
    "Qwen3NextForCausalLM": _qwen_next,
    "Qwen3_5MoeForConditionalGeneration": _qwen_next,
    "GptOssForCausalLM": _gpt_oss,
    "MiniMaxM2ForCausalLM": _minimax,
}
"""Architecture -> what its config says beyond the keys of a dense decoder, in the words of a model's YAML file."""
