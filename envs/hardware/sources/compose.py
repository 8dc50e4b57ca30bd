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

``as_served`` adds what engines are known to do: quantisation as they launch it (:mod:`floors`), the rotation of queries
and keys, their norms where the model has them and the write to the cache where the attention kernel does neither,
gathering logits over the GPUs, sampling (:mod:`sampling`), and the time that the host takes to launch a step op by op,
once it is too large for a captured graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import LOGIT_BYTES, ModelShape
from envs.hardware.sources import sampling as samplers
from envs.hardware.sources.floors import CAPTURED_TOKENS, MEMORY_SHARE, fused_bytes, launch_floor_s, served_product_s
from envs.hardware.sources.op_tables import OpTables
from envs.hardware.steps import StepPoint

MEMORY_LATENCY_S = 3e-6
ACTIVATION_BYTES = 2
SAMPLER_S = 25e-6
"""Sampling one token from logits, measured on an RTX PRO 6000 (LLMServingSim profiler, vLLM 0.19.0)."""


@dataclass(frozen=True, slots=True)
class Composer:
    """Step times of one model on ``tensor_parallel`` GPUs from op tables.

    Attributes:
        as_served: whether ops are counted as the engine launches them, or as the tables timed them.
        engine_version: version that runs, where it decides what is launched; None: not known.
        sampling: with ``as_served``, how tokens are chosen: ``greedy``, or by the server's ``default``.
    """

    ops: OpTables
    shape: ModelShape
    gpu: Gpu
    tensor_parallel: int
    precision: str
    kv_precision: str
    as_served: bool = False
    engine_version: str | None = None
    sampling: str = samplers.GREEDY

    @property
    def heads(self) -> tuple[int, int, int]:
        """(query heads, KV heads, head dim) of one GPU."""
        shape, tp = self.shape, self.tensor_parallel
        return shape.heads // tp, max(1, shape.kv_heads // tp), shape.head_dim

    @property
    def captured_tokens(self) -> int:
        """Tokens of the largest step that is launched from a captured graph; larger ones are launched op by op."""
        return CAPTURED_TOKENS.get(self.ops.engine, max(CAPTURED_TOKENS.values()))

    @property
    def launch_floor_s(self) -> float:
        """With ``as_served``, least time of a step that is launched op by op."""
        if not self.as_served:
            return 0.0
        shape = self.shape
        return launch_floor_s(self.ops, self.engine_version, shape.layers, self.tensor_parallel, shape.qk_norm)

    def prefill(self, tokens: int, batch: int = 1) -> StepPoint:
        """``batch`` prompts of ``tokens`` tokens each, nothing cached."""
        total = tokens * batch
        attention_s = self.ops.context_attention_s(tokens, batch, *self.heads, self.kv_precision)
        time_s = self.common_s(total, sampled=batch) + self.shape.layers * attention_s
        return StepPoint("prefill", total, batch * tokens * tokens / 2, 0, 0, time_s)

    def append(self, new: int, cached: int) -> StepPoint:
        """``new`` prompt tokens over ``cached`` ones."""
        time_s = self.common_s(new, sampled=1) + self.shape.layers * self._append_attention_s(new, cached)
        return StepPoint("append", new, new * (cached + new / 2), 0, 0, time_s)

    def decode(self, batch: int, context: int) -> StepPoint:
        """``batch`` sequences of ``context`` tokens, one new token each."""
        attention_s = self.ops.generation_attention_s(context, batch, *self.heads, self.kv_precision)
        time_s = self.common_s(batch, sampled=batch) + self.shape.layers * attention_s
        return StepPoint("decode", 0, 0.0, batch, batch * context, time_s)

    def mixed(self, new: int, cached: int, batch: int, context: int) -> StepPoint:
        """A chunk of ``new`` prompt tokens over ``cached`` ones together with ``batch`` decodes."""
        decode_s = self.ops.generation_attention_s(context, batch, *self.heads, self.kv_precision)
        attention_s = self._append_attention_s(new, cached) + decode_s
        time_s = self.common_s(new + batch, sampled=batch + 1) + self.shape.layers * attention_s
        return StepPoint("mixed", new, new * (cached + new / 2), batch, batch * context, time_s)

    def _append_attention_s(self, new: int, cached: int) -> float:
        alone = self.ops.context_attention_s(new, 1, *self.heads, self.kv_precision)
        if cached == 0:
            return alone
        full = self.ops.context_attention_s(cached + new, 1, *self.heads, self.kv_precision)
        return max(alone, full * (1.0 - (cached / (cached + new)) ** 2))

    def common_s(self, tokens: int, sampled: int) -> float:
        """Everything but attention, of a step over ``tokens`` tokens that samples ``sampled`` of them."""
        return self.matrices_s(tokens) + self.head_s(sampled)

    def matrices_s(self, tokens: int) -> float:
        """The layers without attention, and the last norm, over ``tokens`` tokens.

        With ``as_served``, at least the time to launch the layers' ops where no captured graph launches them.
        """
        shape, tp = self.shape, self.tensor_parallel
        heads, kv_heads, head_dim = self.heads
        width = 2 * shape.intermediate // tp
        layer = (
            self._product_s("qkv", tokens, (heads + 2 * kv_heads) * head_dim, shape.hidden)
            + self._product_s("output", tokens, shape.hidden, heads * head_dim)
            + self._product_s("gate_up", tokens, width, shape.hidden)
            + self._product_s("down", tokens, shape.hidden, shape.intermediate // tp)
            + 2 * self._reduce_s(tokens)
            + 2 * self._memory_s(tokens * 4 * shape.hidden)
            + self._memory_s(tokens * 3 * shape.intermediate // tp)
        )
        last = self._memory_s(tokens * 2 * shape.hidden)
        if not self.as_served:
            return shape.layers * layer + last
        if self._norms_fused(tokens):
            layer -= 2 * MEMORY_LATENCY_S
        gpu_s = shape.layers * (layer + self._around_attention_s(tokens)) + last
        if tokens <= self.captured_tokens:
            return gpu_s
        return max(gpu_s, self.launch_floor_s)

    def _norms_fused(self, tokens: int) -> bool:
        """Whether the all-reduces over ``tokens`` tokens hold the norms that follow."""
        if not self.as_served:
            return False
        most = fused_bytes(self.ops.engine, self.engine_version, self.shape, self.gpu, self.tensor_parallel)
        return tokens * self.shape.hidden * ACTIVATION_BYTES <= most

    def _reduce_s(self, tokens: int) -> float:
        """One all-reduce over ``tokens`` tokens."""
        elements = tokens * self.shape.hidden
        if self._norms_fused(tokens):
            return self.ops.fused_allreduce_s(elements, self.tensor_parallel)
        return self.ops.allreduce_s(elements, self.tensor_parallel, captured=tokens <= self.captured_tokens)

    def head_s(self, sampled: int) -> float:
        """The output head over ``sampled`` positions; with ``as_served``, gathering its logits and sampling too.

        Gathering moves half of what an all-reduce of as many values does.
        """
        shape = self.shape
        head = self.ops.gemm_s(sampled, shape.vocabulary // self.tensor_parallel, shape.hidden, "bf16")
        if not self.as_served:
            return head
        engine = self.ops.engine
        values = sampled * shape.vocabulary
        gathered_s = self.ops.allreduce_s(values, self.tensor_parallel, captured=True) / 2
        passed = float(samplers.passes(engine, self.sampling) * values * LOGIT_BYTES)
        passes_s = passed / (self.gpu.memory_bytes_per_s * MEMORY_SHARE)
        kernel = samplers.kernel_of(engine, self.engine_version, self.sampling)
        return head + gathered_s + SAMPLER_S + passes_s + samplers.cut_s(kernel, sampled, shape.vocabulary)

    def _product_s(self, product: str, m: int, n: int, k: int) -> float:
        if not self.as_served:
            return self.ops.gemm_s(m, n, k, self.precision)
        place = (self.ops, self.shape, self.gpu, self.tensor_parallel, self.precision)
        return served_product_s(*place, product, m, n, k)

    def _around_attention_s(self, tokens: int) -> float:
        """Kernels between the QKV product and attention that the attention kernel does not do itself.

        TRT-LLM's attention rotates and writes the cache; a model that normalises queries and keys has them normalised
        and rotated by one kernel before it. The others rotate by a kernel and normalise by two; vLLM writes the cache
        by one more.
        """
        heads, kv_heads, head_dim = self.heads
        rotated = self._memory_s(2 * tokens * (heads + kv_heads) * head_dim)
        if self.ops.engine == "trtllm":
            return rotated if self.shape.qk_norm else 0.0
        norms = 0.0
        if self.shape.qk_norm:
            norms = sum(self._memory_s(2 * tokens * count * head_dim) for count in (heads, kv_heads))
        written = self._memory_s(4 * tokens * kv_heads * head_dim) if self.ops.engine == "vllm" else 0.0
        return rotated + norms + written

    def _memory_s(self, values: int) -> float:
        return values * ACTIVATION_BYTES / (self.gpu.memory_bytes_per_s * MEMORY_SHARE) + MEMORY_LATENCY_S
