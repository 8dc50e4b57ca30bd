"""From op times to step times of mixture-of-experts models, with full, windowed or latent attention.

A step of ``t`` tokens a rank runs in every layer, as :mod:`envs.hardware.sources.compose` has it for dense models:
norm, attention, all-reduce over the rank's GPUs, norm, and in the first dense layers a gated MLP. In the others:

* the router, a 16-bit product over all experts;
* the shared experts, split over the rank's GPUs. Where a captured graph launches the step they run beside the routed
  ones on a second stream, so that the longer of the two counts (TensorRT-LLM, SGLang and vLLM all do so);
* the routed experts over the tokens of *all* ranks, which step together: a rank's law holds while the others carry as
  many tokens, and a rank with fewer waits for them. The table's time is that of the busiest GPU under the distribution
  that aiconfigurator assumes: a power law of exponent 1.01 for DeepSeek and Kimi, 1.2 for others;
* what moves tokens to experts and back. One rank: an all-reduce. Several: an all-gather and a reduce-scatter over all
  GPUs; SGLang with whole experts on each GPU: DeepEP; TensorRT-LLM with whole experts on each GPU and NVLink across the
  instance's nodes: an all-to-all to those GPUs that a token's experts lie on. TensorRT-LLM on Blackwell sends tokens
  out in the experts' precision, others in 16 bits; results come back in 16 bits.

Latent attention. The law's W holds the products that all tokens run: down to the latents, queries up, latents up to
keys and values, output. Attention is the rest: of a module row, what it takes beyond these; of a kernel row, the kernel
and, for decodes, what the products into and out of the latent space take more than those up to keys and values.

Linear attention (Qwen3-Next, Qwen3.5) is an estimate: its products are in the tables, the rest by the bytes it moves.

Not counted: redundant experts and their placement, two micro-batches overlapped, quantising what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from envs.hardware.attention_kinds import Linear, part_precision
from envs.hardware.errors import MeasurementError, OutsideError
from envs.hardware.layout import Layout, gpu_weight_bytes
from envs.hardware.sources.compose import ACTIVATION_BYTES, MEMORY_LATENCY_S, Composer
from envs.hardware.sources.floors import LAYER_OPS, QK_NORMS, launch_floor_s, served_product_s
from envs.hardware.sources.moe_tables import ExpertTables
from envs.hardware.steps import StepPoint

ONE_GPU = Layout()
SIXTEEN_BITS = ("bf16", "fp16", "int4")
"""Precisions of parts whose products take 16-bit inputs."""
DISTRIBUTION = {True: "power_law_1.01", False: "power_law_1.2"}
"""Latent attention (DeepSeek and Kimi) or not -> distribution of tokens over experts."""
ATTENTION_OPS = {"full": 5, "window": 5, "mla": 10, "state": 8}
"""Kernels that one layer's attention launches. Full: norm, product, rotation, attention, product. Latent: norm, product
down, two norms, product up of queries, rotation, product up to keys and values, joining of keys, attention, product.
State: norm, two products, convolution, gates, recurrence, gated norm, product."""
MLP_OPS, EXPERT_OPS, SHARED_OPS = 4, 8, 4
"""Dense layer: norm, product, activation, product. Experts: norm, router, choice, sorting,
product, activation, product, combination. Shared experts: product, activation, product, sum."""
QUANTISATIONS = {"full": 2, "window": 2, "mla": 4, "state": 2, "mlp": 2, "experts": 1}
"""Kernels that quantise the inputs of a part's products, where they are quantised."""
STATE_VALUE_BYTES = 4
"""Bytes of a value of a state where it is computed with."""
CHUNK_TOKENS, CHUNK_KERNELS, CHUNK_SLOWER = 64, 6, 5
"""Prompt tokens that kernels of linear attention take at once, each chunk's state kept between them, how many kernels
follow each other (fla-org/flash-linear-attention, ops/gated_delta_rule/chunk.py, which vLLM and SGLang run), and how
much longer they take than their bytes (B200's table in the published package, SGLang 0.5.14: 168 us for 4,096 tokens
of 8 value heads, 35 by bytes; decodes take as long as their bytes, 13.4 us for 64)."""
CAPTURED = 512
"""Largest step from a captured graph: vLLM's default, and what published DeepSeek launch scripts set for the others."""
FASTEST, SLOWEST = 0.5, 60.0
"""Plausible step times, as multiples of what arithmetic or the weights touched would take alone."""


@dataclass(frozen=True, slots=True)
class ExpertComposer(Composer):
    """Step times of one rank of a mixture-of-experts model; ``tensor_parallel`` are the rank's GPUs."""

    layout: Layout = ONE_GPU

    @property
    def tables(self) -> ExpertTables:
        """The op tables."""
        assert isinstance(self.ops, ExpertTables)
        return self.ops

    @property
    def captured_tokens(self) -> int:
        """Tokens of the largest step that is launched from a captured graph."""
        return CAPTURED

    @property
    def launch_floor_s(self) -> float:
        """With ``as_served``, least time of a step that is launched op by op: as for dense models, by launched ops."""
        if not self.as_served:
            return 0.0
        floor_s = [launch_floor_s(self.ops, self.engine_version, 1, gpus) for gpus in (1, self.tensor_parallel)]
        op_s = floor_s[0] / (LAYER_OPS if self.ops.engine == "vllm" else LAYER_OPS + QK_NORMS)
        return self.launched_ops * op_s + self.shape.layers * (floor_s[1] - floor_s[0])

    @property
    def launched_ops(self) -> int:
        """Kernels that all layers launch, collectives aside."""
        shape = self.shape
        dense, norms = shape.layers - shape.expert_layers, QK_NORMS if shape.qk_norm else 0
        ops = dense * (MLP_OPS + self._quantisations("mlp", "mlp"))
        for group in shape.attention:
            own = ATTENTION_OPS[group.kind] + norms + self._quantisations("attention", group.kind)
            ops += group.layers * own
        if shape.experts:
            shared = SHARED_OPS + self._quantisations("mlp", "mlp") if shape.experts.shared else 0
            ops += shape.expert_layers * (EXPERT_OPS + self._quantisations("experts", "experts") + shared)
        return ops

    def _quantisations(self, part: str, name: str) -> int:
        return 0 if self._precision(part) in SIXTEEN_BITS else QUANTISATIONS[name]

    @property
    def domain_gpus(self) -> int:
        """GPUs that exchange data without a network port."""
        return self.gpu.scale_up_gpus

    def prefill(self, tokens: int, batch: int = 1) -> StepPoint:
        """``batch`` prompts of ``tokens`` tokens each, nothing cached."""
        total = tokens * batch
        attention_s = self._prefill_attention_s(tokens, batch) + self._chunks_s
        time_s = self.common_s(total, sampled=batch) + attention_s
        return StepPoint("prefill", total, batch * tokens * tokens / 2, 0, 0, time_s)

    def append(self, new: int, cached: int) -> StepPoint:
        """``new`` prompt tokens over ``cached`` ones."""
        time_s = self.common_s(new, sampled=1) + self._chunk_attention_s(new, cached)
        return StepPoint("append", new, new * (cached + new / 2), 0, 0, time_s)

    def decode(self, batch: int, context: int) -> StepPoint:
        """``batch`` sequences of ``context`` tokens, one new token each."""
        time_s = self.common_s(batch, sampled=batch) + self._decode_attention_s(batch, context)
        return StepPoint("decode", 0, 0.0, batch, batch * context, time_s)

    def mixed(self, new: int, cached: int, batch: int, context: int) -> StepPoint:
        """A chunk of ``new`` prompt tokens over ``cached`` ones together with ``batch`` decodes."""
        attention_s = self._chunk_attention_s(new, cached) + self._decode_attention_s(batch, context)
        time_s = self.common_s(new + batch, sampled=batch + 1) + attention_s
        return StepPoint("mixed", new, new * (cached + new / 2), batch, batch * context, time_s)

    def matrices_s(self, tokens: int) -> float:
        """The layers without attention, and the last norm, over ``tokens`` tokens of the rank."""
        shape, tp = self.shape, self.tensor_parallel
        captured = tokens <= self.captured_tokens
        reduce_s = self.tables.reduce_s(tokens * shape.hidden, tp, captured, self.domain_gpus)
        layer_s = reduce_s + 2 * self._memory_s(tokens * 4 * shape.hidden)
        dense_s = experts_s = 0.0
        if shape.expert_layers < shape.layers:
            dense_s = self._mlp_s(tokens, shape.intermediate) + reduce_s
        if shape.experts:
            shared_s = self._mlp_s(tokens, shape.experts.shared * shape.experts.intermediate)
            routed_s = self._routed_s(tokens, captured)
            experts_s = max(shared_s, routed_s) if captured else shared_s + routed_s
        gpu_s = (
            shape.layers * layer_s
            + sum(group.layers * self._around_s(group.kind, tokens) for group in shape.attention)
            + (shape.layers - shape.expert_layers) * dense_s
            + shape.expert_layers * experts_s
            + self._memory_s(tokens * 2 * shape.hidden)
        )
        return gpu_s if captured else max(gpu_s, self.launch_floor_s)

    def _routed_s(self, tokens: int, captured: bool) -> float:
        """Router, routed experts and what moves tokens to them and back, of one layer."""
        shape, layout = self.shape, self.layout
        assert shape.experts is not None
        times_s = self.tables.experts_s(
            tokens * layout.attention_dp,
            self._precision("experts"),
            layout.expert_tensor_parallel,
            layout.expert_parallel,
            DISTRIBUTION[shape.latent is not None],
            behind_deepep=self._deepep,
        )
        router_s = self.ops.gemm_s(tokens, shape.experts.count, shape.hidden, "bf16")
        return router_s + times_s + self._moved_s(tokens, captured)

    @property
    def _deepep(self) -> bool:
        """Whether DeepEP moves the tokens: SGLang's choice where ranks of one GPU each hold whole experts."""
        layout = self.layout
        alone = layout.tensor_parallel == layout.expert_tensor_parallel == 1
        return self.ops.engine == "sglang" and alone and layout.attention_dp > 1

    def _moved_s(self, tokens: int, captured: bool) -> float:
        shape, layout, domain = self.shape, self.layout, self.domain_gpus
        assert shape.experts is not None
        volume, whole = float(tokens * shape.hidden), layout.expert_tensor_parallel == 1
        if layout.attention_dp == 1:
            return self.tables.reduce_s(round(volume), layout.gpus, captured, domain)
        if self._deepep:
            return self.tables.deepep_s(tokens, layout.gpus, domain)
        blackwell = self.ops.engine == "trtllm" and self.gpu.blackwell
        out = shape.part_bytes(self.precision, "experts") / 2.0 if blackwell else 1.0
        if blackwell and whole and self.gpu.joins_machines and domain >= layout.gpus:
            reached = layout.gpus * (1.0 - (1.0 - 1.0 / layout.gpus) ** shape.experts.per_token)
            sizes = (("alltoall", volume * reached * out), ("alltoall", volume * reached))
        else:
            everything = volume * layout.attention_dp
            sizes = (("all_gather", everything * out), ("reduce_scatter", everything))
        return sum(self.tables.collective_s(op, size, layout.gpus, domain) for op, size in sizes)

    def _precision(self, part: str) -> str:
        return part_precision(self.precision, part, self.shape.latent is not None)

    def _mlp_s(self, tokens: int, width: int) -> float:
        """A gated MLP ``width`` wide, split over the rank's GPUs."""
        if width == 0:
            return 0.0
        own, hidden, precision = width // self.tensor_parallel, self.shape.hidden, self._precision("mlp")
        products = self.ops.gemm_s(tokens, 2 * own, hidden, precision) + self.ops.gemm_s(tokens, hidden, own, precision)
        return products + self._memory_s(tokens * 3 * own)

    def _around_s(self, kind: str, tokens: int) -> float:
        """What one layer of a kind runs over all tokens around its attention: products, and what lies between."""
        if kind == "state":
            return self._linear_s(tokens)
        return self._projections_s(tokens) + self._around_attention_s(tokens)

    def _linear_s(self, tokens: int) -> float:
        """Linear attention's products, convolution, recurrence and gated norm, but for the states of decodes.

        A step that no graph launches holds prompts: there a state is written and read for each chunk.
        """
        shape, precision, linear = self.shape, self._precision("attention"), self._linear
        channels, values = linear.channels // self.tensor_parallel, linear.values // self.tensor_parallel
        products_s = (
            self.ops.gemm_s(tokens, channels + values, shape.hidden, precision)
            + self.ops.gemm_s(tokens, 2 * linear.value_heads // self.tensor_parallel, shape.hidden, "bf16")
            + self.ops.gemm_s(tokens, shape.hidden, values, precision)
        )
        recurrent = tokens * (channels + values)
        if tokens > self.captured_tokens:
            recurrent = CHUNK_SLOWER * (recurrent + self._states(math.ceil(tokens / CHUNK_TOKENS)))
        return products_s + sum(
            self._memory_s(moved) for moved in (2 * tokens * channels, recurrent, 3 * tokens * values)
        )

    @property
    def _linear(self) -> Linear:
        if self.shape.linear is None:
            raise OutsideError(
                f"{self.shape.name}: layers that keep a state, and no key `linear` that says what they compute"
            )
        return self.shape.linear

    def _states(self, count: int) -> int:
        """16-bit values that reading and writing ``count`` states of one layer moves on one GPU."""
        return 2 * count * self._linear.state_values // self.tensor_parallel * STATE_VALUE_BYTES // ACTIVATION_BYTES

    def _projections_s(self, tokens: int) -> float:
        """Products of one layer's attention that every token runs."""
        shape, precision = self.shape, self._precision("attention")
        heads, kv_heads, head_dim = self.heads
        if shape.latent is None:
            place = (self.ops, shape, self.gpu, self.tensor_parallel, precision)
            wide = (2 if shape.output_gate else 1) * heads + 2 * kv_heads
            qkv_s = served_product_s(*place, "qkv", tokens, wide * head_dim, shape.hidden)
            return qkv_s + served_product_s(*place, "output", tokens, shape.hidden, heads * head_dim)
        latent = shape.latent
        sizes = (
            (latent.query_rank + latent.cached_values, shape.hidden),
            (heads * (latent.nope_dim + latent.rope_dim), latent.query_rank),
            (heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
            (shape.hidden, heads * latent.value_dim),
        )
        return sum(self.ops.gemm_s(tokens, n, k, precision) for n, k in sizes)

    def _around_attention_s(self, tokens: int) -> float:
        """Rotation, norms and the write to the cache; inside the tables of latent attention."""
        return 0.0 if self.shape.latent else Composer._around_attention_s(self, tokens)

    def _prefill_attention_s(self, tokens: int, batch: int) -> float:
        """Attention of all layers over ``batch`` prompts, nothing cached."""
        total = 0.0
        for group in self.shape.attention:
            if group.kind == "full":
                layer_s = self.ops.context_attention_s(tokens, batch, *self.heads, self.kv_precision)
            elif group.kind == "window":
                layer_s = self.tables.window_prefill_s(tokens, batch, self.heads, self.kv_precision)
            elif group.kind == "mla":
                layer_s = self._latent_s("context", tokens, batch)
                if self.tables.latent == "module":
                    layer_s = max(0.0, layer_s - self._projections_s(tokens * batch))
            else:
                continue  # what a state layer does over all tokens is in _linear_s
            total += group.layers * layer_s
        return total

    def _chunk_attention_s(self, new: int, cached: int) -> float:
        """Attention of all layers of ``new`` tokens over ``cached`` ones, as for dense models.

        A window that is full costs as much for every token, so cached tokens cost it nothing more.
        """
        alone, states = self._prefill_attention_s(new, 1), self._chunks_s
        if cached == 0:
            return alone + states
        share = 1.0 - (cached / (cached + new)) ** 2
        return max(alone, self._prefill_attention_s(cached + new, 1) * share) + states

    def _decode_attention_s(self, batch: int, context: int) -> float:
        """Attention of all layers, of ``batch`` sequences of ``context`` tokens."""
        total = 0.0
        for group in self.shape.attention:
            if group.kind == "full":
                layer_s = self.ops.generation_attention_s(context, batch, *self.heads, self.kv_precision)
            elif group.kind == "window":
                layer_s = self.tables.window_decode_s(context, batch, self.heads, self.kv_precision)
            elif group.kind == "mla":
                layer_s = self._latent_s("generation", context, batch)
                if self.tables.latent == "module":
                    layer_s = max(0.0, layer_s - self._projections_s(batch))
                else:
                    layer_s += max(0.0, self.tables.absorbed_s(batch, self.heads[0]) - self._unfolded_s(batch))
            else:
                layer_s = self._memory_s(self._states(batch)) - MEMORY_LATENCY_S
            total += group.layers * layer_s
        return total

    def _latent_s(self, phase: str, tokens: int, batch: int) -> float:
        return self.tables.latent_s(phase, tokens, batch, self.heads[0], self.kv_precision)

    def _unfolded_s(self, tokens: int) -> float:
        """The product of latents up to keys and values."""
        latent = self.shape.latent
        assert latent is not None
        width = self.heads[0] * (latent.nope_dim + latent.value_dim)
        return self.ops.gemm_s(tokens, width, latent.kv_rank, self._precision("attention"))

    @property
    def _chunks_s(self) -> float:
        """What prompts add to linear attention of all layers, whatever their length: its further kernels."""
        layers = sum(group.layers for group in self.shape.attention if group.kind == "state")
        return layers * (CHUNK_KERNELS - 1) * MEMORY_LATENCY_S


def check_plausible_experts(points: Sequence[StepPoint], composer: ExpertComposer, precision: str) -> None:
    """Refuse step times that no such GPUs can have: most often milliseconds read as seconds, or the reverse.

    Bounds: arithmetic at the GPU's highest peak, or one read of weights: at least all but experts, and of these as many
    as one sequence visits; at most all, and once a layer the activations of all ranks.

    Raises:
        MeasurementError: names the step, its time and the plausible range.
    """
    shape, gpu, layout = composer.shape, composer.gpu, composer.layout
    peak = max(gpu.flop_per_s.values())
    experts = shape.part_params["experts"] * shape.part_bytes(precision, "experts") / layout.gpus
    share = shape.experts.per_token / shape.experts.count if shape.experts else 1.0
    most_s = gpu_weight_bytes(shape, precision, layout) / gpu.memory_bytes_per_s
    least_s = most_s - experts * (1.0 - share) / gpu.memory_bytes_per_s
    for point in points:
        flop = shape.flop(point.new + point.seqs, point.attention + point.kv, max(1, point.seqs))
        peak_s = flop / peak / composer.tensor_parallel
        values = shape.layers * (point.new + point.seqs) * layout.attention_dp * shape.hidden
        moved_s = values * ACTIVATION_BYTES / gpu.memory_bytes_per_s
        low = FASTEST * max(peak_s, least_s)
        high = SLOWEST * max(peak_s, most_s + moved_s) + composer.launch_floor_s
        if not low <= point.time_s <= high:
            raise MeasurementError(
                f"a {point.kind} step of {point.new} new tokens and {point.seqs} decodes over {point.kv} tokens takes "
                f"{point.time_s:.4g} s: expected {low:.4g} to {high:.4g} s for {shape.name} in {precision} on "
                f"{layout.gpus} x {gpu.name}; are the units swapped?"
            )
