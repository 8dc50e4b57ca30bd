"""What a cluster is: workers, the links between them, and what its routers get to see."""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.hardware.profile import HandoverLaw, Profile
from policies.contract import ROLES


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One routing target: an engine instance, or one data-parallel rank of it."""

    profile: Profile
    role: str = "mixed"
    group: int = -1  # ranks with one group number step in lockstep; -1: a group of its own
    rack: int = 0
    max_batched_tokens: int = 2048
    max_num_seqs: int = 256
    kv_tokens: int | None = None  # None: the profile's capacity
    prefix_cache: bool = True
    can_prefill: bool = True
    can_decode: bool = True
    prefill_share: float = 0.5  # split workers only: share of time for prefill while both phases have work

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"worker role {self.role!r}: expected one of {', '.join(ROLES)}")
        if not (self.can_prefill or self.can_decode):
            raise ValueError("worker can neither prefill nor decode")
        if self.max_batched_tokens < 1 or self.max_num_seqs < 1:
            raise ValueError("max_batched_tokens and max_num_seqs must be at least 1")
        if not 0.0 < self.prefill_share < 1.0:
            raise ValueError(f"prefill_share {self.prefill_share}: expected a number between 0 and 1")


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """What the routers see, and how late.

    ``prefix``: ``exact`` (KV events, ``kv_event_delay_s`` late), ``approximate`` (what this replica itself sent
    there in the last ``approximate_ttl_s``) or ``none``. ``scrape_period_s`` 0 means live metrics.
    """

    replicas: int = 1
    scrape_period_s: float = 1.0
    prefix: str = "exact"
    kv_event_delay_s: float = 0.0
    approximate_ttl_s: float = 120.0

    def __post_init__(self) -> None:
        if self.prefix not in ("exact", "approximate", "none"):
            raise ValueError(f"view.prefix {self.prefix!r}: expected exact, approximate or none")
        if self.replicas < 1:
            raise ValueError(f"view.replicas {self.replicas}: expected at least 1")
        if self.scrape_period_s < 0 or self.kv_event_delay_s < 0 or self.approximate_ttl_s < 0:
            raise ValueError("view periods and delays must not be negative")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Workers, links and view.

    ``predictors`` and ``predicted_handover`` are the laws that policies predict with; default: the true ones.
    """

    name: str
    workers: tuple[WorkerSpec, ...]
    handover: HandoverLaw
    view: ViewSpec = field(default_factory=ViewSpec)
    predictors: tuple[Profile, ...] | None = None
    predicted_handover: HandoverLaw | None = None

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError(f"cluster {self.name!r} has no workers")
        if not any(w.can_prefill for w in self.workers) or not any(w.can_decode for w in self.workers):
            raise ValueError(f"cluster {self.name!r} needs a worker that can prefill and one that can decode")
        if self.predictors is not None and len(self.predictors) != len(self.workers):
            raise ValueError("predictors: expected one profile a worker")

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return sum(w.profile.gpus for w in self.workers)
