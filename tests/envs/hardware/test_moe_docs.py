"""The numbers in docs/models.md are those of the shipped shapes and of the public tables."""

from __future__ import annotations

import re

import pytest

from envs.hardware.estimate import profile_for
from envs.hardware.model_shape import load_model

SHAPES = {
    "deepseek-v3": "fp8_block",
    "kimi-k2.5": "int4",
    "qwen3-235b-a22b": "fp8_block",
    "qwen3-30b-a3b": "bf16",
    "gpt-oss-120b": "mxfp4",
    "qwen3-next-80b-a3b": "bf16",
    "minimax-m2.5": "fp8_block",
    "qwen3.5-397b-a17b": "fp8_block",
}
PROFILES = (
    ("deepseek-v3", "b200_sxm", "trtllm", 8, "nvfp4", "fp8", 1, 8),
    ("deepseek-v3", "b200_sxm", "trtllm", 1, "nvfp4", "fp8", 8, 8),
    ("deepseek-v3", "b200_sxm", "sglang", 1, "fp8_block", "fp8", 8, 8),
    ("kimi-k2.5", "b200_sxm", "vllm", 8, "int4", "bf16", 1, 1),
    ("qwen3-235b-a22b", "h100_sxm", "trtllm", 8, "fp8_block", "fp8", 1, 8),
    ("qwen3-30b-a3b", "h100_sxm", "vllm", 1, "fp8_block", "bf16", 1, 1),
    ("gpt-oss-120b", "b200_sxm", "trtllm", 2, "mxfp4", "fp8", 1, 1),
    ("minimax-m2.5", "b200_sxm", "vllm", 4, "fp8_block", "fp8", 1, 1),
    ("qwen3.5-397b-a17b", "b200_sxm", "sglang", 4, "fp8_block", "fp8", 1, 4),
)


@pytest.fixture(scope="module")
def rows(root):
    """Table rows by their first cell."""
    text = (root / "docs" / "models.md").read_text()
    found = re.findall(r"^\| `([\w.-]+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in found}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(rows, name):
    shape, precision = load_model(name), SHAPES[name]
    assert rows[name] == [
        f"{shape.params / 1e9:.1f}",
        f"{(shape.active_linear_params + shape.other_params) / 1e9:.1f}",
        precision,
        f"{shape.weight_bytes(precision) / 1e9:.0f}",
        f"{shape.kv_bytes(1000, 'bf16') / 1e6:.1f}",
        f"{shape.kv_bytes(100000, 'bf16') / 1e6:.0f}",
    ]


@pytest.mark.parametrize("place", PROFILES)
def test_steps(rows, place, public_data):
    model, gpu, engine, tp, precision, kv, dp, ep = place
    profile = profile_for(model, gpu, engine, None, tp, precision, kv, public_data, attention_dp=dp, expert_parallel=ep)
    decodes = [f"{profile.seconds(0, 0, batch, batch * 2048) * 1e3:.1f}" for batch in (1, 16, 64, 256)]
    prompt = f"{profile.seconds(4096, 4096**2 / 2, 0, 0) * 1e3:.0f}"
    error = f"{profile.fit['tables_errors_percent']['all']['mape']:.1f}"
    assert rows[profile.name] == [f"{profile.kv.capacity_tokens:,}", *decodes, prompt, error]
