"""What a model's shape says: KV bytes a token, weight bytes, and how many KV tokens fit beside the weights.

Shapes are small YAML files in ``envs/hardware/models``. Layers come in groups that share one kind of attention.
Only ``full`` is known so far; a sliding window (``min(n, window)`` tokens), a constant state or latent (MLA)
attention are further kinds of group, each with its own term in :meth:`ModelShape.kv_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.hardware.errors import ProfileError, nearest
from envs.hardware.gpu import Gpu
from envs.hardware.hf_config import read_config
from envs.hardware.profile import KvLaw
from envs.hardware.schema import Count, Flag, Free, Many, Record, Text, Words, find_file, read_record, read_yaml

MODEL_DIR = Path(__file__).parent / "models"

BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_dynamic": 1.0, "fp8_block": 1.0 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16}
"""Bytes of one value, by precision, scales included: a float for each block of 128 x 128, a byte for each 16."""

# The activation reserve: what an engine sets aside besides weights and KV when it profiles a full step.
CUDA_GRAPH_BYTES = 2**30  # assumption: captured graphs and the allocator's slack take about 1 GiB on each GPU
LOGIT_BYTES = 4  # sampling works on float32 logits


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one kind of attention."""

    kind: str
    layers: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder's shape.

    Attributes:
        intermediate: width of one gate or up projection.
        qk_norm: whether queries and keys are normalised before attention.
        published: names that the model is published under, by which it is found too.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied_embeddings: bool
    attention: tuple[LayerGroup, ...]
    source: Mapping[str, Any]
    qk_norm: bool = False
    published: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Decoder layers of every kind."""
        return sum(group.layers for group in self.attention)

    @property
    def linear_params(self) -> int:
        """Parameters of the layers' matrices: query, key, value, output, gate, up, down."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def other_params(self) -> int:
        """Parameters that stay in 16 bits: embeddings, output head, norms."""
        tables = 1 if self.tied_embeddings else 2
        norms = (2 * self.layers + 1) * self.hidden + (2 * self.layers * self.head_dim if self.qk_norm else 0)
        return tables * self.vocabulary * self.hidden + norms

    @property
    def params(self) -> int:
        """All parameters."""
        return self.linear_params + self.other_params

    def weight_bytes(self, precision: str) -> int:
        """Bytes of the weights; below 16 bits only the layers' matrices are quantised."""
        return round(self.linear_params * _bytes(precision)) + self.other_params * 2

    def kv_bytes(self, tokens: int, precision: str) -> int:
        """KV bytes of one sequence of ``tokens``, over all tensor-parallel ranks."""
        per_layer = 2 * self.kv_heads * self.head_dim * _bytes(precision)
        return round(sum(group.layers * per_layer * tokens for group in self.attention))

    def flop(self, new_tokens: int, attention_work: float, sampled: int) -> float:
        """FLOP of one step: matrices, attention over ``attention_work`` token pairs, output head."""
        matrices = 2.0 * self.linear_params * new_tokens
        attention = 4.0 * self.layers * self.heads * self.head_dim * attention_work
        return matrices + attention + 2.0 * self.vocabulary * self.hidden * sampled


def activation_reserve_bytes(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int, max_batched_tokens: int, max_num_seqs: int
) -> float:
    """Bytes on each GPU that are neither weights nor KV.

    The largest step's activations (residual, its norm and the layer's output, each ``hidden`` wide; gate, up and
    their product, sharded; 16 bits), the sampler's float32 logits, NCCL's buffers and the captured graphs.
    """
    width = 3 * shape.hidden + 3 * shape.intermediate / tensor_parallel
    logits = max_num_seqs * shape.vocabulary * LOGIT_BYTES
    nccl = gpu.nccl_bytes.get(tensor_parallel, max(gpu.nccl_bytes.values(), default=0.0))
    return max_batched_tokens * width * 2 + logits + nccl + CUDA_GRAPH_BYTES


def kv_law(
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    utilisation: float = 0.9,
    max_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    block_tokens: int = 16,
) -> KvLaw:
    """KV bytes a token and the tokens that fit: memory x utilisation - weights - activation reserve.

    Args:
        shape: the model.
        gpu: the GPU.
        tensor_parallel: GPUs that share weights and KV heads.
        precision: of the weights.
        kv_precision: of the KV cache.
        utilisation: share of the GPU's memory that the engine may use (vLLM's ``gpu_memory_utilization``).
        max_batched_tokens: token budget the activation reserve is sized for.
        max_num_seqs: sequences the sampler's logits are sized for.
        block_tokens: tokens in a KV block; the capacity is rounded down to whole blocks.

    Raises:
        ProfileError: the model does not fit.
    """
    per_token = shape.kv_bytes(1, kv_precision)
    reserve = activation_reserve_bytes(shape, gpu, tensor_parallel, max_batched_tokens, max_num_seqs)
    # With more GPUs than KV heads the heads are replicated, so a GPU never holds less than one head.
    share = max(1.0 / tensor_parallel, 1.0 / shape.kv_heads)
    free = gpu.memory_bytes * utilisation - shape.weight_bytes(precision) / tensor_parallel - reserve
    tokens = int(free / (per_token * share)) // block_tokens * block_tokens if free > 0 else 0
    if tokens <= 0:
        raise ProfileError(
            f"{shape.name} in {precision} does not fit on {tensor_parallel} x {gpu.name}: "
            f"{free / 1e9:.1f} GB left for KV on each GPU; expected more GPUs or a smaller precision"
        )
    return KvLaw(float(per_token), tokens, block_tokens)


MODEL = Record(
    {
        "name": Text(),
        "hidden": Count("values", low=1),
        "heads": Count("heads", low=1),
        "kv_heads": Count("heads", low=1),
        "head_dim": Count("values", low=1),
        "intermediate": Count("values", low=1),
        "vocabulary": Count("tokens", low=1),
        "tied_embeddings": Flag(),
        "attention": Many(Record({"kind": Words("full"), "layers": Count("layers", low=1)})),
        "qk_norm": Flag(),
        "published": Many(Text()),
        "source": Free(required=("name",)),
    },
    optional=("qk_norm", "published"),
)


def model_names() -> list[str]:
    """Names of the model shapes that ship with the project."""
    return sorted(path.stem for path in MODEL_DIR.glob("*.yaml"))


@cache
def _by_published() -> dict[str, str]:
    """Published name -> name of the shipped shape."""
    shapes = {name: read_yaml(MODEL_DIR / f"{name}.yaml") for name in model_names()}
    return {published: name for name, shape in shapes.items() for published in shape.get("published", ())}


def load_model(name_or_path: str | Path) -> ModelShape:
    """A model's shape by name (its own or a published one), from a YAML file or a Hugging Face ``config.json``.

    Raises:
        ProfileError: unknown name, unknown or missing key, wrong type, value out of range, a model that is not dense.
    """
    if str(name_or_path).endswith(".json"):
        data = read_config(Path(name_or_path).expanduser())
        path = Path(name_or_path)
    else:
        named = _by_published().get(str(name_or_path), name_or_path)
        path = find_file(named, MODEL_DIR, model_names(), "model")
        data = read_yaml(path)
    data = read_record(path, data, MODEL)
    if data["heads"] % data["kv_heads"]:
        raise ProfileError(f"{path}: kv_heads = {data['kv_heads']}: expected a divisor of heads = {data['heads']}")
    data["attention"] = tuple(LayerGroup(**group) for group in data["attention"])
    data["published"] = tuple(data.get("published", ()))
    return ModelShape(**data)


def _bytes(precision: str) -> float:
    if precision not in BYTES:
        raise ProfileError(f"precision {precision!r}{nearest(precision, BYTES)}: expected one of {', '.join(BYTES)}")
    return BYTES[precision]
