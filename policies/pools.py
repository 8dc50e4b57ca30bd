"""Which workers a rule considers, and the plain load orders that several rules share.

A worker's role is a default, its capabilities are the limit. So the prefill pool is every worker that can
prefill and is not a decode worker; where there is none, every worker that can prefill. The decode pool
mirrors it. Mixed and split workers are in both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import DECODE, PREFILL, better, tie_hash
from policies.predict import new_tokens, prefill_done_s


def prefill_rank(worker: Any) -> int:
    """2: prefills by role; 1: a decode worker that can prefill; 0: cannot prefill."""
    if worker.can_prefill == 0:
        return 0
    return 1 if worker.role == DECODE else 2


def decode_rank(worker: Any) -> int:
    """2: decodes by role; 1: a prefill worker that can decode; 0: cannot decode."""
    if worker.can_decode == 0:
        return 0
    return 1 if worker.role == PREFILL else 2


def pools(view: Any) -> tuple[int, int]:
    """(:func:`prefill_pool`, :func:`decode_pool`) in one pass."""
    p_rank, d_rank = 0, 0
    for i in range(len(view)):
        w = view[i]
        if w.can_prefill != 0:
            p_rank = 1 if w.role == DECODE and p_rank < 2 else 2
        if w.can_decode != 0:
            d_rank = 1 if w.role == PREFILL and d_rank < 2 else 2
    return p_rank if p_rank > 0 else 3, d_rank if d_rank > 0 else 3


def prefill_pool(view: Any) -> int:
    """The rank that makes up the prefill pool of this view; 3 (nobody's rank) if no worker can prefill."""
    rank = 0
    for i in range(len(view)):
        rank = max(rank, prefill_rank(view[i]))
    return rank if rank > 0 else 3


def decode_pool(view: Any) -> int:
    """The rank that makes up the decode pool of this view; 3 (nobody's rank) if no worker can decode."""
    rank = 0
    for i in range(len(view)):
        rank = max(rank, decode_rank(view[i]))
    return rank if rank > 0 else 3


def find(view: Any, worker_id: int) -> int:
    """Position of a worker in the view, -1 if it is not there."""
    for i in range(len(view)):
        if view[i].id == worker_id:
            return i
    return -1


def least_pending_prefill(request: Any, view: Any, seed: int) -> int:
    """Position of the prefill-pool worker with the fewest pending prefill tokens, -1 if there is none."""
    pool = prefill_pool(view)
    best, best_hash, best_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if prefill_rank(w) == pool:
            h = tie_hash(seed, request.id, w.id)
            if better(float(w.prefill_tokens), h, best_score, best_hash):
                best, best_hash, best_score = i, h, float(w.prefill_tokens)
    return best


def least_decode_requests(request: Any, view: Any, seed: int) -> int:
    """Position of the decode-pool worker with the fewest decode requests, -1 if there is none."""
    pool = decode_pool(view)
    best, best_hash, best_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if decode_rank(w) == pool:
            h = tie_hash(seed, request.id, w.id)
            if better(float(w.decode_requests), h, best_score, best_hash):
                best, best_hash, best_score = i, h, float(w.decode_requests)
    return best


def local_rank(worker: Any) -> int:
    """2: may prefill and decode one request and is not a prefill worker; 1: a prefill worker that may; 0: may not."""
    if worker.can_prefill == 0 or worker.can_decode == 0:
        return 0
    return 1 if worker.role == PREFILL else 2


def local_pool(view: Any) -> int:
    """The rank of those that serve a request alone; 3 (nobody's rank) if no worker can."""
    rank = 0
    for i in range(len(view)):
        rank = max(rank, local_rank(view[i]))
    return rank if rank > 0 else 3


def requests_here(worker: Any) -> int:
    """Requests in flight on a worker, each once: a local prefill is in both of the router's counts."""
    return int(worker.prefill_requests + worker.decode_requests - worker.local_prefills)


def soonest_prefill(request: Any, view: Any, skip: int, seed: int) -> int:
    """Position of the prefill-pool worker that would end the prefill first, ``skip`` left out, -1 if none."""
    pool = prefill_pool(view)
    best, best_hash, best_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if i != skip and prefill_rank(w) == pool:
            score = prefill_done_s(w, new_tokens(w, request.prompt_tokens), w.cached_tokens)
            h = tie_hash(seed, request.id, w.id)
            if better(score, h, best_score, best_hash):
                best, best_hash, best_score = i, h, score
    return best
