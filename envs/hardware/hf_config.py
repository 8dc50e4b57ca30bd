"""A model's shape from the ``config.json`` that Hugging Face publishes beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.hardware.errors import ProfileError, nearest
from envs.hardware.hf_experts import EXPERT_READERS, text_config

QK_NORM = {
    "LlamaForCausalLM": False,
    "MistralForCausalLM": False,
    "Qwen2ForCausalLM": False,
    "Qwen3ForCausalLM": True,
}
"""Dense decoders that can be read -> whether they normalise queries and keys (no config says so)."""

KEYS = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
}


def read_config(path: Path) -> dict[str, Any]:
    """The content of a model's YAML file, from its ``config.json``.

    Args:
        path: a ``config.json``; the model is named after ``_name_or_path`` inside it, or its folder.

    Raises:
        ProfileError: no such file, no JSON, an architecture that is not known, a missing key.
    """
    whole = _read(path)
    config = text_config(whole)
    architecture = (whole.get("architectures") or ["none"])[0]
    known = (*QK_NORM, *EXPERT_READERS)
    if architecture not in known:
        raise ProfileError(
            f"{path}: architectures = {architecture!r}{nearest(str(architecture), known)}: expected a dense decoder or "
            f"a known one of experts: {', '.join(known)}; write other shapes as YAML"
        )
    windowed = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    if windowed and architecture in QK_NORM:
        raise ProfileError(
            f"{path}: sliding_window = {config['sliding_window']!r}: expected full attention in all layers"
        )
    if architecture in EXPERT_READERS and "moe_intermediate_size" in config:  # no dense layer, no width of one
        config = {"intermediate_size": config["moe_intermediate_size"], **config}
    for key in (*KEYS.values(), "num_hidden_layers"):
        if key not in config:
            raise ProfileError(f"{path}: {key} is missing{nearest(key, config)}")
    name = str(whole.get("_name_or_path") or path.resolve().parent.name)
    more = EXPERT_READERS[architecture](path, config) if architecture in EXPERT_READERS else {}
    head_dim = more.get("head_dim", config.get("head_dim"))
    if head_dim is None:
        head_dim = _divided(path, config, "hidden_size", "num_attention_heads")
    return {
        "name": name.rsplit("/", 1)[-1].lower(),
        **{ours: config[theirs] for ours, theirs in KEYS.items()},
        "kv_heads": config.get("num_key_value_heads", config["num_attention_heads"]),
        "head_dim": head_dim,
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "qk_norm": QK_NORM.get(architecture, False),
        "attention": [{"kind": "full", "layers": config["num_hidden_layers"]}],
        "source": {"name": f"{name} config.json"},
        **more,
    }


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ProfileError(f"{path}: expected a mapping, as in a model's config.json")
    return config


def _divided(path: Path, config: Mapping[str, Any], whole: str, parts: str) -> int:
    try:
        return int(config[whole]) // int(config[parts])
    except (TypeError, ValueError, ZeroDivisionError):
        raise ProfileError(
            f"{path}: {whole} = {config[whole]!r}, {parts} = {config[parts]!r}: expected counts"
        ) from None
