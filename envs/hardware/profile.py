"""Hardware profiles: how long a step takes, how much KV memory there is, what a handover costs.

A profile is a small YAML file in ``envs/hardware/profiles`` (one for each model, GPU, tensor-parallel
degree, engine and precision) that says where its numbers come from, in which range they were fitted, and how
large the error is outside the fit. Cluster links have profiles of their own in ``profiles/links``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envs.hardware.tables import StepTables

RANGE_AXES = ("new_tokens", "context_tokens", "sequences", "kv_tokens")
"""Keys of ``fit.range``, each with the smallest and the largest value that the law was fitted to."""


@dataclass(frozen=True, slots=True)
class StepLaw:
    """Time of one engine step, in seconds.

    ``t = max(floor, c0 + c_tok*new) + c_attn*sum(chunk*(ctx + chunk/2)) + c_seq*B + c_kv*kv`` with ``new`` the
    prefill tokens of the step, ``ctx`` the tokens already cached when a chunk starts, ``B`` the decoding
    sequences and ``kv`` the tokens their attention reads. The floor is the time to read the weights and to launch:
    below some number of tokens the matrix products are bound by memory, so more tokens are free until it is reached.
    Attention and what each sequence costs come on top.
    """

    floor_s: float
    c0_s: float
    c_tok_s: float
    c_attn_s: float
    c_seq_s: float
    c_kv_s: float

    def seconds(self, new: float, attn: float, seqs: float, kv: float) -> float:
        """Step time for ``new`` prefill tokens, attention work ``attn``, ``seqs`` decodes over ``kv`` tokens."""
        matrices = max(self.floor_s, self.c0_s + self.c_tok_s * new)
        return matrices + self.c_attn_s * attn + self.c_seq_s * seqs + self.c_kv_s * kv

    def scaled(self, factor: float) -> StepLaw:
        """Every term times ``factor`` (a predictor that is uniformly off)."""
        return StepLaw(*(getattr(self, name) * factor for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class KvLaw:
    """KV cache of one worker: bytes a token, capacity, and the block that memory is handed out in."""

    bytes_per_token: float
    capacity_tokens: int
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class HandoverLaw:
    """What lies between the end of a remote prefill and the decode worker's first step.

    ``dispatch_s`` is paid on every hop of a request to a worker; ``connect_s`` on the first use of a (prefill,
    decode) pair; ``base_s`` and ``per_block_s`` (a KV block of the decode worker) before bytes flow; the bytes
    then share ``bandwidth_bytes_per_s`` of each worker's link with the other active flows. ``gpus``: GPUs of a
    worker with this bandwidth where each GPU brings a port of its own; 0 where the link belongs to the machine.
    """

    name: str
    dispatch_s: float
    connect_s: float
    base_s: float
    per_block_s: float
    bandwidth_bytes_per_s: float
    source: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 0

    def for_gpus(self, gpus: int) -> HandoverLaw:
        """The law between workers of ``gpus`` GPUs: ports add up where each GPU has its own."""
        if self.gpus == 0 or gpus == self.gpus:
            return self
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * gpus / self.gpus, gpus=gpus)

    def seconds(self, kv_bytes: float, blocks: int, first_use: bool = False) -> float:
        """Time of one undisturbed pull of ``kv_bytes`` into ``blocks`` KV blocks, dispatch included."""
        fixed = self.dispatch_s + self.base_s + (self.connect_s if first_use else 0.0) + self.per_block_s * blocks
        return fixed + kv_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class FittedRange:
    """Upper ends of the range in which a step law was fitted; 0 where the profile does not say.

    Below the lower ends the law rests on its floor, so they are no limits.

    Attributes:
        tokens: in one step.
        context: tokens that a prefill token attends to, on the mean of a step.
        seqs: decodes in one step.
        kv: KV tokens that they attend to together.
    """

    tokens: int = 0
    context: int = 0
    seqs: int = 0
    kv: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one GPU type with one tensor-parallel degree, engine and precision.

    ``tables``, where there are any, are the law of the simulated engine; ``step`` is then what policies predict with.
    """

    name: str
    model: str
    gpu: str
    tensor_parallel: int
    engine: str
    precision: str
    step: StepLaw
    kv: KvLaw
    source: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    engine_version: str = ""
    tables: StepTables | None = None

    @property
    def gpus(self) -> int:
        """GPUs that one worker of this profile occupies."""
        return self.tensor_parallel

    @property
    def fitted(self) -> FittedRange:
        """Where the law that the simulator uses was fitted: the knots of tables, else ``fit.range``."""
        given = self.fit.get("range", {})
        top = {axis: int(given[axis][1]) if axis in given else 0 for axis in RANGE_AXES}
        context = top["context_tokens"] or top["new_tokens"]
        if self.tables is None:
            return FittedRange(top["new_tokens"], context, top["sequences"], top["kv_tokens"])
        return FittedRange(self.tables.tokens[-1], context, self.tables.seqs[-1], top["kv_tokens"])

    def seconds(self, new: float, attn: float, seqs: float, kv: float) -> float:
        """Time of a step by the law that the simulator uses: the tables, or the plane where there are none."""
        return (self.tables or self.step).seconds(new, attn, seqs, kv)

    def with_step(self, step: StepLaw) -> Profile:
        """The same worker under another plane."""
        return replace(self, step=step)

    def with_tables(self, tables: StepTables | None) -> Profile:
        """The same worker under other tables."""
        return replace(self, tables=tables)
