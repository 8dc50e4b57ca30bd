"""A whole step of the model: its layers with random weights, prompt tokens and decodes in one pass, then the head.

One layer's weights stand for all (they are larger than any cache), KV caches go round copies that are. In a layer:
norm, QKV product, writing K and V, attention, output product, norm, gate-up product, SiLU and product, down product,
residual sums. Left out: rotary embedding, sampling, and all that an engine does on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envs.hardware.measure import kernels
from envs.hardware.measure.lab import Lab
from envs.hardware.model_shape import ModelShape

PREFIXES = ("distinct", "shared", "cascade")
OWN = 32
"""Tokens of each sequence's own behind a prefix that the batch shares."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        new: prompt tokens computed, of one prompt.
        cached: its tokens that are cached.
        batch: decodes.
        context: tokens that each of them attends to, its new one included.
        attend: False leaves attention out, so that the rest can be told from it.
        prefix: ``distinct``: each sequence has a cache of its own; ``shared``: all read the same memory, each by
            itself; ``cascade``: the shared prefix is read once for all tokens of the step, own tokens apart.
    """

    new: int = 0
    cached: int = 0
    batch: int = 0
    context: int = 0
    attend: bool = True
    prefix: str = "distinct"

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.new + self.batch


def step_flop(shape: ModelShape, step: Step) -> float:
    """Floating-point operations of a step."""
    work = step.new * (step.cached + step.new / 2) + step.batch * step.context if step.attend else 0.0
    return shape.flop(step.tokens, work, step.batch + (1 if step.new else 0))


def step_bytes(shape: ModelShape, step: Step) -> float:
    """Bytes that a step must read: weights of every layer, KV of every sequence."""
    kv = step.cached + step.new + step.batch * step.context if step.attend else 0
    return 2.0 * shape.linear_params + 2.0 * shape.vocabulary * shape.hidden + shape.kv_bytes(1, "bf16") * kv


def held_bytes(shape: ModelShape, step: Step) -> float:
    """Memory that a step takes on the device: one layer's weights, head, one layer's caches, activations."""
    kv = 4.0 * shape.kv_heads * shape.head_dim * (step.cached + step.new + step.batch * step.context)
    weights = 2.0 * shape.linear_params / shape.layers + 2.0 * shape.vocabulary * shape.hidden
    activations = 2.0 * step.tokens * (6 * shape.hidden + 4 * shape.intermediate)
    return weights + 2 * kv + activations + 4.0 * (step.batch + 1) * shape.vocabulary


class Stack:
    """The layers on the device."""

    def __init__(self, lab: Lab) -> None:
        """Draw one layer's weights and the head's."""
        shape = lab.shape
        heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.lab = lab
        self.qkv = self._matrix(heads + 2 * kv_heads, shape.hidden)
        self.output = self._matrix(shape.hidden, heads)
        self.gate_up = self._matrix(2 * shape.intermediate, shape.hidden)
        self.down = self._matrix(shape.hidden, shape.intermediate)
        self.head = self._matrix(shape.vocabulary, shape.hidden)
        self.norm = lab.random(shape.hidden)

    def _matrix(self, n: int, k: int) -> Any:
        return self.lab.random(n, k) / k**0.5

    def prepare(self, step: Step, layers: int | None = None, head: bool = True) -> Callable[[], Any]:
        """A call that runs the step over ``layers`` layers (all of the model's), its caches filled.

        The call returns the sampled rows' logits, shape (sampled, vocabulary); without the head the last layer's
        output, shape (tokens, hidden).
        """
        lab, shape = self.lab, self.lab.shape
        functional = lab.torch.nn.functional
        attention = _Attention(lab, step)
        x = lab.random(step.tokens, shape.hidden)
        rows = list(range(step.batch)) + ([step.tokens - 1] if step.new else [])
        sampled = lab.torch.tensor(rows, device=lab.device)
        sizes = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim]

        def forward() -> Any:
            h = x
            for layer in range(layers or shape.layers):
                q, k, v = functional.linear(self._normed(h), self.qkv).split(sizes, dim=1)
                out = attention(layer, q, k, v) if step.attend else q
                h = h + functional.linear(out, self.output)
                gate, up = functional.linear(self._normed(h), self.gate_up).chunk(2, dim=1)
                h = h + functional.linear(functional.silu(gate) * up, self.down)
            return functional.linear(self._normed(h[sampled]), self.head) if head else h

        return forward

    def _normed(self, h: Any) -> Any:
        return self.lab.torch.nn.functional.rms_norm(h, (h.shape[1],), self.norm)


class _Attention:
    """Caches of one step, and its attention in every layer: decodes first, then the prompt's new tokens."""

    def __init__(self, lab: Lab, step: Step) -> None:
        shape = lab.shape
        self.lab, self.step = lab, step
        cascade, shared = step.prefix == "cascade", step.prefix == "shared"
        own = min(OWN, step.context) if cascade else step.context
        held = 1 if shared else step.batch
        size = 4 * shape.kv_heads * shape.head_dim * (held * own + step.cached + step.new)
        copies = min(lab.copies(size), shape.layers) if step.attend else 0

        def cache(sequences: int, tokens: int) -> list[Any]:
            return [lab.random(sequences, shape.kv_heads, tokens, shape.head_dim) for _ in range(2)]

        self.prefix = [cache(1, max(step.context - own, step.cached)) for _ in range(copies if cascade else 0)]
        self.decodes = [cache(held, own) for _ in range(copies if step.batch else 0)]
        prompt = step.new if cascade else step.cached + step.new
        self.prompts = [cache(1, prompt) for _ in range(copies if step.new else 0)]

    def __call__(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Attention of one layer: q (tokens, heads * d), k and v (tokens, KV heads * d); returns like q."""
        shape, step = self.lab.shape, self.step
        q = q.view(step.tokens, shape.heads, shape.head_dim)
        k, v = (t.view(step.tokens, shape.kv_heads, shape.head_dim) for t in (k, v))
        b = step.batch
        parts = []
        if b:
            cache = self.decodes[layer % len(self.decodes)]
            for held, fresh in zip(cache, (k, v), strict=True):
                held[:, :, -1] = fresh[: held.shape[0]]
            parts.append((q[:b], *cache, kernels.own_decode))
        if step.new:
            cache = self.prompts[layer % len(self.prompts)]
            for held, fresh in zip(cache, (k, v), strict=True):
                held[0, :, -step.new :] = fresh[b:].transpose(0, 1)
            parts.append((q[b:], *cache, kernels.own_chunk))
        if step.prefix == "cascade":
            own = [kernel(self.lab, queries, keys, values) for queries, keys, values, kernel in parts]
            joined = [self.lab.torch.cat([part[i] for part in own]) for i in range(2)]
            prefix = kernels.shared_prefix(self.lab, q, *self.prefix[layer % len(self.prefix)])
            out = kernels.merge(self.lab, prefix, (joined[0], joined[1]))
        else:
            out = self.lab.torch.cat([self._apart(*part) for part in parts])
        return out.reshape(step.tokens, -1)

    def _apart(self, q: Any, k: Any, v: Any, kernel: Any) -> Any:
        if kernel is kernels.own_chunk:
            return kernels.causal(self.lab, q.transpose(0, 1).unsqueeze(0), k, v)[0].transpose(0, 1)
        return kernels.decode(self.lab, q, k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1))
