"""How a model is spread over GPUs, and the KV law of one worker then.

A worker is one data-parallel rank of attention: ``tensor_parallel`` GPUs with the weights of attention between them,
and all KV of their sequences. The ranks of one instance share the experts and step together.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.hardware.attention_kinds import hit_granularity
from envs.hardware.errors import ProfileError
from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import ModelShape, reserve_bytes
from envs.hardware.profile import KvLaw

SEQUENCE_TOKENS = 4096
"""Length of the sequence at which windows and constant states are counted by token: a law is a number of tokens."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One instance's parallelism.

    Attributes:
        tensor_parallel: GPUs of one rank, which share attention, dense layers and shared experts.
        attention_dp: ranks, each with sequences of its own.
        expert_parallel: groups of GPUs among which whole experts are dealt out; the GPUs of a group split each expert.

    Raises:
        ProfileError: the GPUs do not divide into so many groups.
    """

    tensor_parallel: int = 1
    attention_dp: int = 1
    expert_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "attention_dp", "expert_parallel"):
            if getattr(self, name) < 1:
                raise ProfileError(f"layout.{name} = {getattr(self, name)}: expected at least 1")
        if self.gpus % self.expert_parallel:
            raise ProfileError(
                f"layout.expert_parallel = {self.expert_parallel}: expected a divisor of tensor_parallel * "
                f"attention_dp = {self.gpus}"
            )

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.tensor_parallel * self.attention_dp

    @property
    def expert_tensor_parallel(self) -> int:
        """GPUs that split each expert."""
        return self.gpus // self.expert_parallel


SCALE_BLOCK = 128
"""Side of the blocks that ``fp8_block`` scales: no GPU can hold a part of one."""


def check_layout(shape: ModelShape, layout: Layout, precision: str) -> None:
    """Refuse a layout that splits heads or experts into what no kernel can hold.

    Raises:
        ProfileError: names the degree.
    """
    if shape.heads % layout.tensor_parallel:
        raise ProfileError(
            f"{shape.name}: tensor_parallel = {layout.tensor_parallel}: expected a divisor of heads = {shape.heads}"
        )
    if shape.experts is None:
        return
    if layout.expert_parallel > shape.experts.count:
        raise ProfileError(
            f"{shape.name}: expert_parallel = {layout.expert_parallel}: expected at most {shape.experts.count} experts"
        )
    width, split = shape.experts.intermediate, layout.expert_tensor_parallel
    block = SCALE_BLOCK if precision == "fp8_block" else 1
    if width % (split * block):
        raise ProfileError(
            f"{shape.name}: experts {width} wide over {split} GPUs each: expected whole blocks of {block} in "
            f"{precision}; a larger expert_parallel splits them less"
        )


def gpu_weight_bytes(shape: ModelShape, precision: str, layout: Layout) -> float:
    """Bytes of the weights on each GPU: experts over all GPUs, routers on every one, all else over a rank's."""
    parts = {part: params * shape.part_bytes(precision, part) for part, params in shape.part_params.items() if params}
    routers = shape.expert_layers * shape.hidden * shape.experts.count if shape.experts else 0
    rank = parts["attention"] + parts.get("mlp", 0.0) + 2.0 * (shape.other_params - routers)
    return rank / layout.tensor_parallel + parts.get("experts", 0.0) / layout.gpus + 2.0 * routers


def gpu_kv_bytes(shape: ModelShape, tokens: int, precision: str, tensor_parallel: int) -> float:
    """KV bytes of one sequence on each GPU of its rank.

    Heads are shared out, and replicated where there are more GPUs than heads; states are shared out; a latent is not.
    """
    heads = max(1.0 / tensor_parallel, 1.0 / shape.kv_heads)
    share = {"full": heads, "window": heads, "mla": 1.0, "state": 1.0 / tensor_parallel}
    return sum(shape.group_kv_bytes(group, tokens, precision) * share[group.kind] for group in shape.attention)


def gpu_reserve_bytes(shape: ModelShape, gpu: Gpu, layout: Layout, max_batched_tokens: int, max_num_seqs: int) -> float:
    """Bytes on each GPU that are neither weights nor KV, as for dense models.

    Residual, its norm and the layer's output; gate, up and their product of a dense layer or, sharded alike, of the
    experts that a token visits; logits; NCCL's buffers and captured graphs.
    """
    widest = shape.intermediate if shape.expert_layers < shape.layers else 0
    if shape.experts:
        widest = max(widest, (shape.experts.per_token + shape.experts.shared) * shape.experts.intermediate)
    nccl = gpu.nccl_bytes.get(layout.gpus, max(gpu.nccl_bytes.values(), default=0.0)) if layout.gpus > 1 else 0.0
    return reserve_bytes(shape, widest / layout.tensor_parallel, nccl, max_batched_tokens, max_num_seqs)


def worker_kv_law(
    shape: ModelShape,
    gpu: Gpu,
    layout: Layout,
    precision: str,
    kv_precision: str,
    utilisation: float = 0.9,
    max_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    block_tokens: int = 16,
    sequence_tokens: int = SEQUENCE_TOKENS,
) -> KvLaw:
    """KV bytes a token, tokens that fit and the granularity of prefix hits, for one worker.

    Args:
        shape: the model.
        gpu: the GPU.
        layout: how the model is spread.
        precision: of the weights.
        kv_precision: of the cache.
        utilisation: share of the GPU's memory that the engine may use.
        max_batched_tokens: token budget that the activation reserve is sized for.
        max_num_seqs: sequences that the sampler's logits are sized for.
        block_tokens: smallest block of the cache.
        sequence_tokens: length at which windows and states are counted by token; no matter to full attention or MLA.

    Raises:
        ProfileError: the model does not fit.
    """
    tp = layout.tensor_parallel
    on_gpu = gpu_kv_bytes(shape, sequence_tokens, kv_precision, tp) / sequence_tokens
    weights = gpu_weight_bytes(shape, precision, layout)
    reserve = gpu_reserve_bytes(shape, gpu, layout, max_batched_tokens, max_num_seqs)
    free = gpu.memory_bytes * utilisation - weights - reserve
    page = 2 * shape.kv_heads * shape.head_dim * shape.value_bytes(kv_precision) * max(1 / tp, 1 / shape.kv_heads)
    block = hit_granularity(shape.attention, page, tp, block_tokens)
    tokens = int(free / on_gpu) // block * block if free > 0 else 0
    if tokens <= 0:
        raise ProfileError(
            f"{shape.name} in {precision} does not fit on {layout.gpus} x {gpu.name}: {free / 1e9:.1f} GB left for KV "
            f"on each GPU; expected more GPUs or a smaller precision"
        )
    return KvLaw(shape.kv_bytes(sequence_tokens, kv_precision) / sequence_tokens, tokens, block)
