"""The policy contract, version 1: what a policy sees, what it may answer, and how it is declared.

This module is the floor of the project. It imports the standard library and numpy only, so that an
exported policy can carry a copy of it into a real router.

A policy is written in one of two ways:

* a **rule**: one module-level pure function ``decide(request, view, params, memory, seed)``, marked with
  :func:`rule`. The marker adds no wrapper. The simulator compiles the function, the exporter copies its
  source text; both run the same lines.
* any **object** with ``route(request, view)``, called once a decision (see :class:`Policy`).

``request`` has the fields of :data:`REQUEST_FIELDS`; ``view`` is a sequence of workers, each with the
fields of :data:`WORKER_FIELDS`. Fields are read as attributes (``view[i].streams``). Compiled code passes
numpy records, interpreted code passes named tuples: the same source reads both.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

VERSION = 1

LOCAL = -1
"""``Action.prefill``: the decode worker prefills the prompt itself."""
LATE = -2
"""``Action.decode``: the decode worker is chosen by ``bind`` when the prefill ends."""

ROUTE = 0
HOLD = 1
REJECT = 2

KV_AUTO = 0
"""``Action.kv_source``: the engine pulls the blocks that the decode worker lacks (the only source in v1)."""

ROLES = ("prefill", "decode", "mixed", "split")
PREFILL, DECODE, MIXED, SPLIT = range(4)

TIE_RELATIVE = 1e-9
"""Two scores closer than this, relatively, are a tie; :func:`tie_hash` breaks it, never the index."""

# --------------------------------------------------------------------------------------------------
# What a policy sees. (name, numpy type, meaning); units are in the names. NaN or -1 = not known.
# --------------------------------------------------------------------------------------------------

REQUEST_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("id", "i8", "request id, unique in a run"),
    ("now_s", "f8", "time of this decision"),
    ("arrival_s", "f8", "time the request reached the router"),
    ("replica", "i8", "router replica that decides"),
    ("prompt_tokens", "i8", "prompt length as the router knows it (exact, or an estimate)"),
    ("max_output_tokens", "i8", "the client's limit, -1 if none"),
    ("output_hint_tokens", "i8", "an output-length hint, only if the trace carries one, else -1"),
    ("session", "i8", "session key, -1 if none"),
    ("turn", "i8", "turn in the session, from 1"),
    ("since_last_turn_s", "f8", "time since this session's last turn ended, NaN if unseen"),
    ("last_prefill", "i8", "worker that prefilled the session's last turn, -1 if unseen"),
    ("last_decode", "i8", "worker that decoded the session's last turn, -1 if unseen"),
    ("class_id", "i8", "service class"),
    ("priority", "i8", "priority, larger is more urgent"),
    ("tenant", "i8", "tenant id, -1 if none"),
    ("model", "i8", "model id, -1 if none"),
    ("lora", "i8", "LoRA adapter id, -1 if none"),
    ("slo_ttft_s", "f8", "time-to-first-token objective of this request"),
    ("slo_tpot_s", "f8", "time-per-output-token objective of this request"),
    ("holds", "i8", "how often this request was held before"),
    ("mean_output_tokens", "f8", "mean output length of the requests this replica saw finish, NaN before"),
)

WORKER_FIELDS: tuple[tuple[str, str, str], ...] = (
    # identity, capabilities, capacity
    ("id", "i8", "worker id"),
    ("group", "i8", "instance whose ranks step in lockstep"),
    ("role", "i8", "default role: index into ROLES"),
    ("can_prefill", "i8", "1 if the worker may prefill"),
    ("can_decode", "i8", "1 if the worker may decode"),
    ("prefix_cache", "i8", "1 if the worker keeps a prefix cache"),
    ("rack", "i8", "rack id"),
    ("kv_capacity_tokens", "i8", "KV cache capacity"),
    ("max_batched_tokens", "i8", "token budget of one step"),
    ("max_num_seqs", "i8", "most sequences in one step"),
    ("age_s", "f8", "time since the worker started"),
    # router-held counters: fresh, of this replica only
    ("prefill_requests", "i8", "requests sent here whose prefill has not been seen to end"),
    ("prefill_tokens", "i8", "their new (uncached) prompt tokens, as predicted at dispatch"),
    ("local_prefills", "i8", "of prefill_requests, those that will also decode here"),
    ("decode_requests", "i8", "requests that decode here and have not ended (arrived or on their way)"),
    ("decode_tokens", "i8", "context tokens of the streams here: prompt + tokens seen"),
    ("streams", "i8", "requests decoding here whose first token was seen"),
    ("transfers", "i8", "remote prefills done whose first token from here was not seen yet"),
    ("finished", "i8", "requests seen to finish here"),
    ("failures", "i8", "requests seen to fail here"),
    ("last_tbt_s", "f8", "last gap between two tokens on a stream here, NaN before"),
    ("min_slo_tpot_s", "f8", "tightest TPOT objective among the streams here, inf if none"),
    # scraped metrics: shared by replicas, stale by scrape_age_s
    ("scraped_running", "f8", "sequences running at the last scrape, NaN if never scraped"),
    ("scraped_waiting", "f8", "requests waiting at the last scrape"),
    ("scraped_kv_usage", "f8", "share of KV blocks in use at the last scrape, pinned included"),
    ("scraped_pinned", "f8", "share of KV blocks pinned for a pull at the last scrape"),
    ("scrape_age_s", "f8", "age of the scraped metrics, inf if never scraped"),
    # prefix index
    ("cached_tokens", "i8", "leading prompt tokens of this request believed to be cached here"),
    # the predictor's law for this worker (not the world's): see policies.predict
    ("floor_s", "f8", "least step time"),
    ("c0_s", "f8", "step constant"),
    ("c_tok_s", "f8", "per new prefill token"),
    ("c_attn_s", "f8", "per chunk * (context + chunk / 2)"),
    ("c_seq_s", "f8", "per decoding sequence"),
    ("c_kv_s", "f8", "per KV token attended by decodes"),
    ("kv_bytes_per_token", "f8", "KV bytes a token that a handover moves"),
    ("handover_s", "f8", "fixed part of a handover to this worker"),
    ("link_bytes_per_s", "f8", "bandwidth of this worker's link"),
)

REQUEST_DTYPE = np.dtype([(name, kind) for name, kind, _ in REQUEST_FIELDS], align=True)
WORKER_DTYPE = np.dtype([(name, kind) for name, kind, _ in WORKER_FIELDS], align=True)

# Plain-tuple twins of the records: what interpreted rules and exported policies read. Made from the field
# tables above, so that there is one list of names.
RequestView = namedtuple("RequestView", [name for name, _, _ in REQUEST_FIELDS])  # type: ignore[misc]
WorkerView = namedtuple("WorkerView", [name for name, _, _ in WORKER_FIELDS])  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------
# What a policy answers
# --------------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """One decision as plain numbers; build it with :func:`route`, :func:`hold` or :func:`reject`."""

    kind: int
    prefill: int
    decode: int
    order_key: float
    local_chunk_tokens: int
    kv_source: int
    until_s: float
    reason: int


def route(prefill: int, decode: int, order_key: float = 0.0, local_chunk_tokens: int = 0, reason: int = 0) -> Action:
    """Send the request to ``prefill`` (a worker id or LOCAL) and ``decode`` (a worker id or LATE).

    ``order_key`` orders the engine queue (smaller first, ties first come first served);
    ``local_chunk_tokens`` caps the prefill tokens a step computes for this request (0: the engine's budget);
    ``reason`` indexes the ``reasons`` that the policy declares.
    """
    return Action(0, prefill, decode, order_key, local_chunk_tokens, 0, 0.0, reason)


def hold(until_s: float, reason: int = 0) -> Action:
    """Keep the request at the router and ask again at ``until_s`` (must be later than now)."""
    return Action(1, -1, -1, 0.0, 0, 0, until_s, reason)


def reject(reason: int = 0) -> Action:
    """Refuse the request."""
    return Action(2, -1, -1, 0.0, 0, 0, 0.0, reason)


# --------------------------------------------------------------------------------------------------
# Same bits everywhere: counter-based randomness and ties
# --------------------------------------------------------------------------------------------------

_MASK = 0xFFFFFFFF


def tie_hash(seed: int, request_id: int, worker_id: int) -> int:
    """A 32-bit hash of (seed, request, worker); equal in compiled, interpreted and exported code.

    Only operations on values below 2**63 are used, so that Python's big integers and 64-bit machine
    integers agree. (lowbias32 rounds, C. Wellons, public domain.)
    """
    x = (seed * 2654435761 + request_id * 2246822519 + worker_id * 3266489917 + 374761393) & _MASK
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _MASK
    x ^= x >> 15
    x = (x * 0x846CA68B) & _MASK
    x ^= x >> 16
    return x


def better(score: float, worker_hash: int, best_score: float, best_hash: int) -> bool:
    """True if (score, hash) beats the best so far: lower score wins, ties go to the smaller hash.

    Start with ``best_score = inf``. Scores within TIE_RELATIVE of each other are ties; inf and NaN never win.
    """
    if not score < np.inf:
        return False
    if best_score == np.inf:
        return True
    margin = 1e-9 * max(abs(score), abs(best_score))
    if score < best_score - margin:
        return True
    if score > best_score + margin:
        return False
    return worker_hash < best_hash


# --------------------------------------------------------------------------------------------------
# How a rule is declared
# --------------------------------------------------------------------------------------------------

PER_WORKER = "per_worker"
"""Memory field declared with one float a worker, indexed by position in the view."""

Param = float | tuple[float, ...]
MemoryField = float | str


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """What a rule declares about itself; found on the function as ``__pdgym_rule__``."""

    name: str
    params: Mapping[str, Param]
    memory: Mapping[str, MemoryField]
    needs: tuple[str, ...]
    reasons: tuple[str, ...]
    bind: Callable[..., int] | None = field(default=None)


F = TypeVar("F", bound=Callable[..., Any])


def rule(
    *,
    name: str,
    params: Mapping[str, Param] | None = None,
    memory: Mapping[str, MemoryField] | None = None,
    needs: Sequence[str] = (),
    reasons: Sequence[str] = ("",),
    bind: Callable[..., int] | None = None,
) -> Callable[[F], F]:
    """Mark ``decide`` as a rule. Adds an attribute, changes nothing else.

    Args:
        name: the policy's name.
        params: parameters with their defaults: a float, or a tuple of floats (read as an array).
        memory: fields kept between decisions, per router replica: a float start value, or PER_WORKER.
        needs: what the target must offer: ``WORKER_FIELDS``/``REQUEST_FIELDS`` names, ``"local_prefill"``,
            ``"late_binding"``, ``"hold"``, ``"reject"``, ``"order_key"``, ``"chunk"``.
        reasons: texts that ``Action.reason`` indexes.
        bind: ``bind(request, view, params, memory, seed) -> decode worker id``, for LATE.
    """
    spec = RuleSpec(name, dict(params or {}), dict(memory or {}), tuple(needs), tuple(reasons), bind)

    def mark(decide: F) -> F:
        decide.__pdgym_rule__ = spec  # type: ignore[attr-defined]
        return decide

    return mark


def rule_spec(decide: object) -> RuleSpec | None:
    """The declaration of a marked rule, or None."""
    return getattr(decide, "__pdgym_rule__", None)


# --------------------------------------------------------------------------------------------------
# Policies as objects
# --------------------------------------------------------------------------------------------------


class Policy(Protocol):
    """Any object with ``route``. The other methods are optional and looked up by name.

    ``bind_decode(request, view) -> worker id`` for LATE; ``adjust(view) -> {worker id: prefill share}`` on a
    timer; ``on_dispatched(request_id, time_s, prefill, decode)``, ``on_prefill_done(request_id, time_s, worker)``,
    ``on_first_token(request_id, time_s, worker)``, ``on_finished(request_id, time_s, worker, output_tokens)``
    are called, in order of time, before the next decision; ``reset(workers, seed)`` before a run.
    """

    def route(self, request: Any, view: Any) -> Action:
        """Decide one request."""
        ...
