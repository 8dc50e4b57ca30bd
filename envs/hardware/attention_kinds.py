"""What kinds of layers keep of a sequence, and what mixture-of-experts layers are made of.

A model's layers come in groups. What one layer of a group keeps of a sequence of ``n`` tokens:

* ``full``: keys and values of ``n`` tokens;
* ``window``: those of the last ``min(n, window)`` tokens;
* ``mla``: one latent vector and one rotated key a token, shared by all heads (so that no number of GPUs divides it);
* ``state``: a state of constant size, whatever ``n`` (linear attention, Mamba).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("full", "window", "mla", "state")


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one kind of attention.

    Attributes:
        kind: one of KINDS.
        layers: how many.
        window: tokens that a ``window`` layer attends to.
        state_bytes: what a ``state`` layer keeps of a sequence, over all tensor-parallel ranks.
        params: parameters of one layer's attention where heads and their dimension do not say; 0: they say.
    """

    kind: str
    layers: int
    window: int = 0
    state_bytes: int = 0
    params: int = 0

    def cached_tokens(self, tokens: int) -> int:
        """Tokens of a sequence whose keys and values (or latents) one of the layers keeps."""
        if self.kind == "state":
            return 0
        return min(tokens, self.window) if self.kind == "window" else tokens


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 and later).

    Attributes:
        query_rank: width that queries are projected through.
        kv_rank: width of the latent that is cached.
        nope_dim: of a head's query and key, the part that is not rotated.
        rope_dim: the part that is; its key is cached once for all heads.
        value_dim: of a head's value.
    """

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def cached_values(self) -> int:
        """Values that one layer caches of a token."""
        return self.kv_rank + self.rope_dim

    def params(self, hidden: int, heads: int) -> int:
        """Parameters of one layer's matrices."""
        down = hidden * (self.query_rank + self.kv_rank + self.rope_dim)
        query = self.query_rank * heads * (self.nope_dim + self.rope_dim)
        key_value = self.kv_rank * heads * (self.nope_dim + self.value_dim)
        return down + query + key_value + heads * self.value_dim * hidden


@dataclass(frozen=True, slots=True)
class Linear:
    """Gated linear attention with the delta rule (Qwen3-Next, Qwen3.5): what a ``state`` layer computes.

    Attributes:
        key_heads: heads of queries and keys.
        value_heads: heads of values, each with a state of its own.
        key_dim: of a head's query or key.
        value_dim: of a head's value.
        kernel: inputs that the convolution before it sees.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def values(self) -> int:
        """Width of values, of their gate and of the output."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together, which the convolution runs over."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def state_values(self) -> int:
        """Values of one layer's state of a sequence, without the convolution's inputs."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward layers as experts, of which each token visits a few.

    Attributes:
        count: routed experts of a layer.
        per_token: how many of them a token visits.
        intermediate: width of one expert's gate or up projection.
        shared: experts of the same width that every token visits.
        dense_layers: first layers without experts.
    """

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    dense_layers: int = 0


EXPERT_BYTES = {"int4": 0.5 + 2 / 32, "mxfp4": 0.5 + 1 / 32}
"""Bytes of one value in formats that only experts come in, scales included: 16 bits or one byte for each 32 values."""

PARTS = ("attention", "mlp", "experts")


def part_precision(precision: str, part: str, latent: bool) -> str:
    """The precision that one part of a checkpoint is in.

    Checkpoints in int4 (Kimi-K2.5) and mxfp4 (gpt-oss) hold their routed experts so and all else in bf16. Those of
    DeepSeek and Kimi in nvfp4 keep attention in bf16. All others hold every matrix of the layers alike.

    Args:
        precision: what the checkpoint is called by.
        part: ``attention``, ``mlp`` (dense layers and shared experts) or ``experts`` (routed).
        latent: whether attention is latent (MLA).
    """
    if precision in EXPERT_BYTES:
        return precision if part == "experts" else "bf16"
    if precision == "nvfp4" and latent and part == "attention":
        return "bf16"
    return precision


def hit_granularity(
    groups: tuple[LayerGroup, ...], page_token_bytes: float, tensor_parallel: int, block_tokens: int
) -> int:
    """Tokens that a prefix hit is rounded down to.

    Layers that cache by token share blocks of ``block_tokens``. A model with state layers hands out pages of one size,
    so a block is made large enough for a page of one attention layer to hold one layer's state (vLLM: Qwen3-Next on one
    GPU gets blocks of 544 tokens), and a state is kept at the end of a block only.

    Args:
        groups: the model's layers.
        page_token_bytes: what one attention layer caches of a token on one GPU.
        tensor_parallel: GPUs that share a state.
        block_tokens: smallest block.
    """
    state_bytes = max((group.state_bytes for group in groups), default=0) / tensor_parallel
    if state_bytes == 0.0:
        return block_tokens
    return math.ceil(state_bytes / page_token_bytes / block_tokens) * block_tokens
