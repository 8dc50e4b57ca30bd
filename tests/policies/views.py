"""Hand-made views: a request and workers with easy numbers, and a way to ask a policy once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from policies.contract import (
    DECODE,
    MIXED,
    PER_WORKER,
    PREFILL,
    REQUEST_DTYPE,
    WORKER_DTYPE,
    Action,
    RequestView,
    WorkerView,
)
from policies.rulepolicy import RulePolicy

REQUEST_DEFAULTS: dict[str, Any] = {
    "id": 7,
    "now_s": 10.0,
    "arrival_s": 10.0,
    "replica": 0,
    "prompt_tokens": 1000,
    "max_output_tokens": -1,
    "output_hint_tokens": -1,
    "session": -1,
    "turn": 1,
    "since_last_turn_s": math.nan,
    "last_prefill": -1,
    "last_decode": -1,
    "class_id": 0,
    "priority": 0,
    "tenant": -1,
    "model": -1,
    "lora": -1,
    "slo_ttft_s": 2.0,
    "slo_tpot_s": 0.05,
    "holds": 0,
    "mean_output_tokens": math.nan,
}

# Easy law: a step costs 10 ms, 0.1 ms a prefill token, 0.1 ms a stream; attention and KV reads are free unless set.
WORKER_DEFAULTS: dict[str, Any] = {
    "id": 0,
    "group": -1,
    "role": MIXED,
    "can_prefill": 1,
    "can_decode": 1,
    "prefix_cache": 1,
    "rack": 0,
    "kv_capacity_tokens": 400_000,
    "max_batched_tokens": 2048,
    "max_num_seqs": 256,
    "age_s": 100.0,
    "prefill_requests": 0,
    "prefill_tokens": 0,
    "local_prefills": 0,
    "decode_requests": 0,
    "decode_tokens": 0,
    "streams": 0,
    "transfers": 0,
    "finished": 0,
    "failures": 0,
    "last_tbt_s": math.nan,
    "min_slo_tpot_s": math.inf,
    "scraped_running": math.nan,
    "scraped_waiting": math.nan,
    "scraped_kv_usage": math.nan,
    "scraped_pinned": math.nan,
    "scrape_age_s": math.inf,
    "cached_tokens": 0,
    "floor_s": 0.0,
    "c0_s": 0.01,
    "c_tok_s": 1e-4,
    "c_attn_s": 0.0,
    "c_seq_s": 1e-4,
    "c_kv_s": 0.0,
    "kv_bytes_per_token": 1e5,
    "handover_s": 0.005,
    "link_bytes_per_s": 1e10,
}


def make_request(**fields: Any) -> Any:
    """A request; fields not given are quiet defaults."""
    unknown = set(fields) - set(REQUEST_DEFAULTS)
    assert not unknown, f"no such request field: {unknown}"
    return RequestView(**{**REQUEST_DEFAULTS, **fields})


def make_worker(**fields: Any) -> Any:
    """A worker; ``streams`` implies as many decode requests, ``prefill_tokens`` a prefill request, unless given."""
    unknown = set(fields) - set(WORKER_DEFAULTS)
    assert not unknown, f"no such worker field: {unknown}"
    fields.setdefault("decode_requests", fields.get("streams", 0) + fields.get("local_prefills", 0))
    fields.setdefault("prefill_requests", 1 if fields.get("prefill_tokens", 0) else 0)
    return WorkerView(**{**WORKER_DEFAULTS, **fields})


def p(worker_id: int, **fields: Any) -> Any:
    """A prefill worker with a large step budget."""
    return make_worker(**{"id": worker_id, "role": PREFILL, "max_batched_tokens": 8192, **fields})


def d(worker_id: int, **fields: Any) -> Any:
    """A decode worker."""
    return make_worker(**{"id": worker_id, "role": DECODE, **fields})


def param_namespace(policy: RulePolicy) -> Any:
    """Parameters as an interpreted rule reads them."""
    return SimpleNamespace(**{k: np.asarray(v) if isinstance(v, tuple) else float(v) for k, v in policy.params.items()})


def memory_namespace(policy: RulePolicy, workers: int) -> Any:
    """Fresh memory as an interpreted rule reads it."""
    return SimpleNamespace(
        **{k: np.zeros(workers) if v == PER_WORKER else float(v) for k, v in policy.spec.memory.items()}
    )


def ask(policy: RulePolicy, request: Any, workers: Sequence[Any], memory: Any = None, seed: int = 0) -> Action:
    """One interpreted decision."""
    if memory is None:
        memory = memory_namespace(policy, len(workers))
    answer = policy.decide(request, list(workers), param_namespace(policy), memory, seed)
    assert isinstance(answer, Action)
    return answer


def records(request: Any, workers: Sequence[Any]) -> tuple[Any, Any]:
    """The same request and view as numpy records."""
    return np.array([tuple(request)], REQUEST_DTYPE), np.array([tuple(w) for w in workers], WORKER_DTYPE)


def random_view(rng: np.random.Generator, roles: Sequence[int] | None = None) -> tuple[Any, list[Any]]:
    """A random request and view, consistent in its counters; ids are distinct but neither dense nor sorted."""
    n = int(rng.integers(1, 9)) if roles is None else len(roles)
    ids = rng.permutation(40)[:n]
    workers = []
    prompt = int(10 ** rng.uniform(0, 5))
    for k in range(n):
        role = int(rng.integers(0, 4)) if roles is None else roles[k]
        streams = int(rng.integers(0, 100)) if role != PREFILL and rng.random() < 0.8 else 0
        queued = int(rng.integers(0, 6)) if rng.random() < 0.6 else 0
        local = int(rng.integers(0, queued + 1)) if role != PREFILL else 0
        workers.append(
            make_worker(
                id=int(ids[k]),
                role=role,
                max_batched_tokens=int(rng.choice([64, 512, 2048, 8192])),
                prefill_requests=queued,
                prefill_tokens=int(queued * 10 ** rng.uniform(0, 4)),
                local_prefills=local,
                streams=streams,
                decode_requests=streams + local + int(rng.integers(0, 5)) * (role != PREFILL),
                decode_tokens=int(streams * 10 ** rng.uniform(0, 4)),
                min_slo_tpot_s=float(rng.choice([0.025, 0.05, 0.2])) if streams else math.inf,
                cached_tokens=int(rng.integers(0, prompt + 1)) // 512 * 512 if rng.random() < 0.5 else 0,
                can_prefill=int(rng.random() < 0.9),
                can_decode=int(rng.random() < 0.9),
                floor_s=float(rng.choice([0.0, 0.012])),
                c_attn_s=float(rng.choice([0.0, 2e-9])),
                c_kv_s=float(rng.choice([0.0, 2e-8])),
                kv_bytes_per_token=float(rng.choice([1e5, 1.6e5])),
                link_bytes_per_s=float(rng.choice([1e9, 1e10])),
            )
        )
    request = make_request(
        id=int(rng.integers(0, 1 << 30)),
        prompt_tokens=prompt,
        session=int(rng.integers(-1, 3)),
        turn=int(rng.integers(1, 4)),
        last_prefill=int(rng.choice([-1, *ids])),
        last_decode=int(rng.choice([-1, *ids])),
        slo_ttft_s=float(rng.choice([0.25, 2.0, 30.0])),
        mean_output_tokens=float(rng.choice([math.nan, 150.0])),
    )
    return request, workers
