"""What the reference simulator keeps of a request and of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envs.cluster.reference_law import Law
from envs.cluster.reference_memory import Holding, KvMemory


@dataclass(eq=False, slots=True)
class Request:
    """A request on its way. ``to_prefill`` > ``computed`` while it prefills; ``decoding`` once that is over."""

    index: int
    prompt: int
    output: int
    view_prompt: int
    replica: int
    session: int
    slo_tpot_s: float
    chain: list[int]
    out: Any  # its row of the outcomes
    arrival_ps: int = -1
    holds: int = 0
    prefill: int = -1
    decode: int = -1
    local: bool = False
    order_key: float = 0.0
    chunk_cap: int = 0
    predicted_prefill: int = 0
    binding: bool = False  # the next ASK is for the decode worker
    remote_done: bool = False  # prefilled elsewhere, to be pulled
    pulled: bool = False  # on its decode worker for good: a second prefill is local
    decoding: bool = False
    to_prefill: int = 0
    computed: int = 0
    emitted: int = 0
    last_token_ps: int = -1
    here: Holding = field(default_factory=Holding)  # on the worker that works on it
    pinned: Holding = field(default_factory=Holding)  # on the prefill worker until the pull ends

    @property
    def context(self) -> int:
        """Tokens of a decoding request."""
        return self.prompt + self.emitted

    @property
    def prefills_remotely(self) -> bool:
        """Does the prefill that it is in hand over to another worker?"""
        return not self.local and not self.pulled


@dataclass(eq=False, slots=True)
class Worker:
    """One worker: its lists, its memory, and the step it is in."""

    index: int
    group: int
    law: Law
    memory: KvMemory
    split: bool
    share: int  # permille
    max_batched_tokens: int
    max_num_seqs: int
    kv_bytes_per_token: float
    out: Any  # its row of the worker outcomes
    running: list[Request] = field(default_factory=list)
    queue: list[tuple[tuple[int, float, int], Request]] = field(default_factory=list)
    ready: list[Request] = field(default_factory=list)
    pulling: int = 0
    pinned_blocks: int = 0
    credit: int = 0
    contested: bool = False  # the step it is in ran while the other phase had work too
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    last_emit_ps: int = -1
