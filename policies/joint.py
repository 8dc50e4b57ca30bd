"""The exact joint argmin over prefill worker and decode worker, in time linear in the number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import LOCAL, better, tie_hash
from policies.pools import decode_rank, pools, prefill_rank
from policies.predict import (
    first_step_s,
    handover_time_s,
    harm_s,
    joined_step_s,
    new_tokens,
    prefill_done_s,
    ttft_local_s,
)


def best_route(request: Any, view: Any, kappa: float, mu: float, seed: int) -> tuple[int, int]:
    """(prefill worker id or LOCAL, decode worker id) of least score, (LOCAL, -1) if nobody can serve it.

    ``score = predicted TTFT + kappa * harm / 64 (local only) + mu * joined step of the decode worker``.

    Score of (p, d) = done(p) + handover(p, d) + terms of d. The handover depends on p only through the bytes a
    token and ``min(link p, link d)``. Where neither differs between the prefill workers of a decode worker, the
    best p is the one done first (or the second, if the first is d itself), so one pass over each pool is exact.
    Else that decode worker tries them all.
    """
    n = len(view)
    prompt = request.prompt_tokens
    p_pool, d_pool = pools(view)

    first, first_hash, first_s = -1, 0, np.inf
    second, second_hash, second_s = -1, 0, np.inf
    least_bytes, most_bytes, least_link, most_link = np.inf, 0.0, np.inf, 0.0
    for i in range(n):
        w = view[i]
        if prefill_rank(w) == p_pool:
            done = prefill_done_s(w, new_tokens(w, prompt), w.cached_tokens)
            h = tie_hash(seed, request.id, w.id)
            if better(done, h, first_s, first_hash):
                second, second_hash, second_s = first, first_hash, first_s
                first, first_hash, first_s = i, h, done
            elif better(done, h, second_s, second_hash):
                second, second_hash, second_s = i, h, done
            if w.kv_bytes_per_token < least_bytes:
                least_bytes = w.kv_bytes_per_token
            if w.kv_bytes_per_token > most_bytes:
                most_bytes = w.kv_bytes_per_token
            if w.link_bytes_per_s < least_link:
                least_link = w.link_bytes_per_s
            if w.link_bytes_per_s > most_link:
                most_link = w.link_bytes_per_s

    best_p, best_d, best_hash, best_score = -1, -1, 0, np.inf
    for j in range(n):
        d = view[j]
        if decode_rank(d) == d_pool:
            h = tie_hash(seed, request.id, d.id)
            step = joined_step_s(d, prompt)
            spread = mu * step
            if d.can_prefill != 0:
                local_s = ttft_local_s(d, prompt)
                score = local_s + spread + kappa * harm_s(d, local_s) / 64.0
                if better(score, h, best_score, best_hash):
                    best_p, best_d, best_hash, best_score = LOCAL, d.id, h, score
            moved = prompt - d.cached_tokens
            if moved < 0:
                moved = 0
            p, done = first, first_s
            if first == j:
                p, done = second, second_s
            if p >= 0 and (least_bytes != most_bytes or (least_link != most_link and least_link < d.link_bytes_per_s)):
                p, done = _first_arrival(request, view, p_pool, j, moved, seed)
            if p >= 0:
                if d.prefill_tokens != 0:
                    step = first_step_s(d, prompt)
                score = done + handover_time_s(view[p], d, moved) + step + spread
                if better(score, h, best_score, best_hash):
                    best_p, best_d, best_hash, best_score = view[p].id, d.id, h, score
    return best_p, best_d


def _first_arrival(request: Any, view: Any, p_pool: int, j: int, moved: int, seed: int) -> tuple[int, float]:
    """(position, done) of the prefill worker whose KV would be first on worker ``j``, itself left out."""
    best, best_hash, best_score, best_done = -1, 0, np.inf, np.inf
    for i in range(len(view)):
        w = view[i]
        if i != j and prefill_rank(w) == p_pool:
            done = prefill_done_s(w, new_tokens(w, request.prompt_tokens), w.cached_tokens)
            score = done + handover_time_s(w, view[j], moved)
            h = tie_hash(seed, request.id, w.id)
            if better(score, h, best_score, best_hash):
                best, best_hash, best_score, best_done = i, h, score, done
    return best, best_done
