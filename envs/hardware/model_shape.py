"""What a model's shape says: KV bytes a token, weight bytes, and how many KV tokens fit beside the weights.

Shapes are small YAML files in ``envs/hardware/models``. Layers come in groups that share one kind of attention
(:mod:`envs.hardware.attention_kinds`), each with its own term in :meth:`ModelShape.kv_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.hardware.attention_kinds import EXPERT_BYTES, KINDS, Experts, Latent, LayerGroup, Linear, part_precision
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
class ModelShape:
    """A decoder's shape.

    Attributes:
        intermediate: width of one gate or up projection of a dense layer.
        qk_norm: whether queries and keys are normalised before attention.
        published: names that the model is published under, by which it is found too.
        latent: of ``mla`` layers.
        experts: None: every layer is dense.
        linear: of ``state`` layers; None: what they compute is not known, only what they keep.
        output_gate: whether full attention's output is gated by a projection of its own, as wide as the queries.
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
    latent: Latent | None = None
    experts: Experts | None = None
    linear: Linear | None = None
    output_gate: bool = False

    @property
    def layers(self) -> int:
        """Decoder layers of every kind."""
        return sum(group.layers for group in self.attention)

    @property
    def needs_experts(self) -> bool:
        """Whether it has experts, or layers that do not attend to everything: then it is composed as such."""
        return self.experts is not None or any(group.kind != "full" for group in self.attention)

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward part is experts."""
        return self.layers - self.experts.dense_layers if self.experts else 0

    @property
    def part_params(self) -> dict[str, int]:
        """Parameters of the layers' matrices by part: ``attention``, ``mlp`` (shared experts too) and ``experts``."""
        attention = sum(group.layers * self._attention_params(group) for group in self.attention)
        mlp = 3 * self.hidden * (self.layers - self.expert_layers) * self.intermediate
        routed = 0
        if self.experts:
            width = 3 * self.hidden * self.expert_layers * self.experts.intermediate
            mlp, routed = mlp + self.experts.shared * width, self.experts.count * width
        return {"attention": attention, "mlp": mlp, "experts": routed}

    @property
    def linear_params(self) -> int:
        """Parameters of the layers' matrices: attention, gate, up, down; of every expert."""
        return sum(self.part_params.values())

    @property
    def active_linear_params(self) -> int:
        """Those of them that one token visits."""
        parts = self.part_params
        if self.experts:
            parts["experts"] = parts["experts"] // self.experts.count * self.experts.per_token
        return sum(parts.values())

    @property
    def other_params(self) -> int:
        """Parameters that stay in 16 bits: embeddings, output head, norms, routers."""
        tables = 1 if self.tied_embeddings else 2
        norms = (2 * self.layers + 1) * self.hidden + (2 * self.layers * self.head_dim if self.qk_norm else 0)
        if self.latent:
            norms += self.layers * (self.latent.query_rank + self.latent.kv_rank)
        routers = self.expert_layers * self.hidden * self.experts.count if self.experts else 0
        return tables * self.vocabulary * self.hidden + norms + routers

    @property
    def params(self) -> int:
        """All parameters."""
        return self.linear_params + self.other_params

    def weight_bytes(self, precision: str) -> int:
        """Bytes of the weights; below 16 bits only the layers' matrices are quantised."""
        parts = self.part_params.items()
        layers = sum(params * self.part_bytes(precision, part) for part, params in parts if params)
        return round(layers) + self.other_params * 2

    def part_bytes(self, precision: str, part: str) -> float:
        """Bytes of one value of a part's matrices (see :func:`envs.hardware.attention_kinds.part_precision`)."""
        return _bytes(part_precision(precision, part, self.latent is not None))

    def kv_bytes(self, tokens: int, precision: str) -> int:
        """KV bytes of one sequence of ``tokens``, over all tensor-parallel ranks; a latent, which each holds, once."""
        return round(sum(self.group_kv_bytes(group, tokens, precision) for group in self.attention))

    def group_kv_bytes(self, group: LayerGroup, tokens: int, precision: str) -> float:
        """The same of one group of layers."""
        values = 2 * self.kv_heads * self.head_dim
        if group.kind == "mla" and self.latent:
            values = self.latent.cached_values
        return group.layers * (group.cached_tokens(tokens) * values * _bytes(precision) + group.state_bytes)

    def value_bytes(self, precision: str) -> float:
        """Bytes of one value.

        Raises:
            ProfileError: no such precision.
        """
        return _bytes(precision)

    def flop(self, new_tokens: int, attention_work: float, sampled: int) -> float:
        """FLOP of one step: matrices, full attention over ``attention_work`` token pairs, output head."""
        matrices = 2.0 * self.active_linear_params * new_tokens
        width = 2 * self.head_dim
        if self.latent:
            width = self.latent.nope_dim + self.latent.rope_dim + self.latent.value_dim
        layers = sum(group.layers for group in self.attention if group.kind in ("full", "mla"))
        attention = 2.0 * layers * self.heads * width * attention_work
        return matrices + attention + 2.0 * self.vocabulary * self.hidden * sampled

    def _attention_params(self, group: LayerGroup) -> int:
        if group.params:
            return group.params
        if group.kind == "mla" and self.latent:
            return self.latent.params(self.hidden, self.heads)
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)


def activation_reserve_bytes(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int, max_batched_tokens: int, max_num_seqs: int
) -> float:
    """Bytes on each GPU that are neither weights nor KV.

    The largest step's activations (residual, its norm and the layer's output, each ``hidden`` wide; gate, up and
    their product, sharded; 16 bits), the sampler's float32 logits, NCCL's buffers and the captured graphs.
    """
    nccl = gpu.nccl_bytes.get(tensor_parallel, max(gpu.nccl_bytes.values(), default=0.0))
    return reserve_bytes(shape, shape.intermediate / tensor_parallel, nccl, max_batched_tokens, max_num_seqs)


def reserve_bytes(
    shape: ModelShape, widest: float, nccl_bytes: float, max_batched_tokens: int, max_num_seqs: int
) -> float:
    """The reserve where the widest layer of a GPU makes gate, up and product of ``widest`` values each a token."""
    width = 3 * shape.hidden + 3 * widest
    logits = max_num_seqs * shape.vocabulary * LOGIT_BYTES
    return max_batched_tokens * width * 2 + logits + nccl_bytes + CUDA_GRAPH_BYTES


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
        ProfileError: the model does not fit, or has layers that keep no keys and values of every token.
    """
    for group in shape.attention:
        if group.kind != "full":
            raise ProfileError(
                f"{shape.name}: attention of kind {group.kind!r}: expected full attention in all layers; "
                f"envs.hardware.layout.worker_kv_law knows the other kinds"
            )
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
        "attention": Many(
            Record(
                {
                    "kind": Words(*KINDS),
                    "layers": Count("layers", low=1),
                    "window": Count("tokens", low=1),
                    "state_bytes": Count("bytes", low=1),
                    "params": Count("parameters", low=1),
                },
                optional=("window", "state_bytes", "params"),
            )
        ),
        "latent": Record(
            {name: Count("values", low=1) for name in ("query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")}
        ),
        "experts": Record(
            {
                "count": Count("experts", low=2),
                "per_token": Count("experts", low=1),
                "intermediate": Count("values", low=1),
                "shared": Count("experts"),
                "dense_layers": Count("layers"),
            },
            optional=("shared", "dense_layers"),
        ),
        "linear": Record(
            {
                "key_heads": Count("heads", low=1),
                "value_heads": Count("heads", low=1),
                "key_dim": Count("values", low=1),
                "value_dim": Count("values", low=1),
                "kernel": Count("inputs", low=1),
            }
        ),
        "output_gate": Flag(),
        "qk_norm": Flag(),
        "published": Many(Text()),
        "source": Free(required=("name",)),
    },
    optional=("qk_norm", "published", "latent", "experts", "linear", "output_gate"),
)
NEEDS = {"window": "window", "state": "state_bytes"}
"""Kind of layer group -> the key that it needs, and that no other kind has."""


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
    data["latent"] = Latent(**data["latent"]) if "latent" in data else None
    data["linear"] = Linear(**data["linear"]) if "linear" in data else None
    data["experts"] = Experts(**data["experts"]) if "experts" in data else None
    shape = ModelShape(**data)
    _check_groups(path, shape)
    return shape


def _check_groups(path: Path, shape: ModelShape) -> None:
    """Each kind of group has what it needs and nothing else; experts are as many as their numbers say.

    Raises:
        ProfileError: names the group or key.
    """
    for i, group in enumerate(shape.attention):
        for kind, key in NEEDS.items():
            if (getattr(group, key) > 0) != (group.kind == kind):
                raise ProfileError(
                    f"{path}: attention[{i}].{key}: expected for layers of kind {kind}, and for no others"
                )
    latent = any(group.kind == "mla" for group in shape.attention)
    if latent != (shape.latent is not None):
        raise ProfileError(f"{path}: latent: expected where layers are of kind mla, and only there")
    if shape.linear and not any(group.kind == "state" for group in shape.attention):
        raise ProfileError(f"{path}: linear: expected only where layers are of kind state")
    if shape.experts and shape.experts.per_token > shape.experts.count:
        raise ProfileError(
            f"{path}: experts.per_token = {shape.experts.per_token}: expected at most count = {shape.experts.count}"
        )
    if shape.experts and shape.experts.dense_layers >= shape.layers:
        raise ProfileError(
            f"{path}: experts.dense_layers = {shape.experts.dense_layers}: expected fewer than {shape.layers} layers"
        )


def _bytes(precision: str) -> float:
    known = BYTES | EXPERT_BYTES
    if precision not in known:
        raise ProfileError(f"precision {precision!r}{nearest(precision, known)}: expected one of {', '.join(known)}")
    return known[precision]
