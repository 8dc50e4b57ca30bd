"""From op times to step times: what one engine step of a dense model costs, layer by layer.

A step of ``m`` tokens runs, in every layer: norm, QKV product, attention, output product, all-reduce, norm, gate-up
product, activation, down product, all-reduce; then the output head over the sampled positions. Products and
all-reduces run once over all tokens of the step, prompts and decodes together. Norms and activations are bound by
memory: bytes over 80 % of the peak bandwidth plus 3 us, as aiconfigurator counts them (an estimate, not measured).

What the tables do not hold, and what is put in its place:

* attention over cached tokens (append): the tables start prompts at 0, so attention of ``n`` new tokens over ``p``
  cached ones is that of ``p + n`` tokens times ``1 - p^2 / (p + n)^2``, at least that of ``n`` alone;
* mixed attention: the sum of both kernels. Where mixed kernels were measured (another GPU), they cost 1.1 to 1.4
  times the sum at the median and more at many long decodes;
* the engine's own work between steps (scheduling, sampling, detokenising) is not in these times.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import ModelShape
from envs.hardware.sources.op_tables import OpTables
from envs.hardware.steps import StepPoint

MEMORY_SHARE = 0.8
MEMORY_LATENCY_S = 3e-6
CAPTURED_TOKENS = 512
"""Largest step that vLLM launches from a captured CUDA graph by default; larger ones are launched op by op."""
ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class Composer:
    """Step times of one model on ``tensor_parallel`` GPUs from op tables."""

    ops: OpTables
    shape: ModelShape
    gpu: Gpu
    tensor_parallel: int
    precision: str
    kv_precision: str

    @property
    def heads(self) -> tuple[int, int, int]:
        """(query heads, KV heads, head dim) of one GPU."""
        shape, tp = self.shape, self.tensor_parallel
        return shape.heads // tp, max(1, shape.kv_heads // tp), shape.head_dim

    def prefill(self, tokens: int, batch: int = 1) -> StepPoint:
        """``batch`` prompts of ``tokens`` tokens each, nothing cached."""
        total = tokens * batch
        attention_s = self.ops.context_attention_s(tokens, batch, *self.heads, self.kv_precision)
        time_s = self._common_s(total, sampled=batch) + self.shape.layers * attention_s
        return StepPoint("prefill", total, batch * tokens * tokens / 2, 0, 0, time_s)

    def append(self, new: int, cached: int) -> StepPoint:
        """``new`` prompt tokens over ``cached`` ones."""
        time_s = self._common_s(new, sampled=1) + self.shape.layers * self._append_attention_s(new, cached)
        return StepPoint("append", new, new * (cached + new / 2), 0, 0, time_s)

    def decode(self, batch: int, context: int) -> StepPoint:
        """``batch`` sequences of ``context`` tokens, one new token each."""
        attention_s = self.ops.generation_attention_s(context, batch, *self.heads, self.kv_precision)
        time_s = self._common_s(batch, sampled=batch) + self.shape.layers * attention_s
        return StepPoint("decode", 0, 0.0, batch, batch * context, time_s)

    def mixed(self, new: int, cached: int, batch: int, context: int) -> StepPoint:
        """A chunk of ``new`` prompt tokens over ``cached`` ones together with ``batch`` decodes."""
        decode_s = self.ops.generation_attention_s(context, batch, *self.heads, self.kv_precision)
        attention_s = self._append_attention_s(new, cached) + decode_s
        time_s = self._common_s(new + batch, sampled=batch + 1) + self.shape.layers * attention_s
        return StepPoint("mixed", new, new * (cached + new / 2), batch, batch * context, time_s)

    def _append_attention_s(self, new: int, cached: int) -> float:
        alone = self.ops.context_attention_s(new, 1, *self.heads, self.kv_precision)
        if cached == 0:
            return alone
        full = self.ops.context_attention_s(cached + new, 1, *self.heads, self.kv_precision)
        return max(alone, full * (1.0 - (cached / (cached + new)) ** 2))

    def _common_s(self, tokens: int, sampled: int) -> float:
        """Everything but attention, of a step over ``tokens`` tokens that samples ``sampled`` of them."""
        shape, tp = self.shape, self.tensor_parallel
        heads, kv_heads, head_dim = self.heads
        width = 2 * shape.intermediate // tp
        layer = (
            self.ops.gemm_s(tokens, (heads + 2 * kv_heads) * head_dim, shape.hidden, self.precision)
            + self.ops.gemm_s(tokens, shape.hidden, heads * head_dim, self.precision)
            + self.ops.gemm_s(tokens, width, shape.hidden, self.precision)
            + self.ops.gemm_s(tokens, shape.hidden, shape.intermediate // tp, self.precision)
            + 2 * self.ops.allreduce_s(tokens * shape.hidden, tp, captured=tokens <= CAPTURED_TOKENS)
            + 2 * self._memory_s(tokens * 4 * shape.hidden)
            + self._memory_s(tokens * 3 * shape.intermediate // tp)
        )
        head = self.ops.gemm_s(sampled, shape.vocabulary // tp, shape.hidden, "bf16")
        return shape.layers * layer + head + self._memory_s(tokens * 2 * shape.hidden)

    def _memory_s(self, values: int) -> float:
        return values * ACTIVATION_BYTES / (self.gpu.memory_bytes_per_s * MEMORY_SHARE) + MEMORY_LATENCY_S
