"""What a learned policy sees of a decision: a fixed number of candidates, a fixed list of numbers for each.

The candidates do not grow with the cluster, so one set of weights serves any cluster and an interpreted decision
stays fast: two prefill workers x two decode workers, and a local prefill on two decode workers (:data:`SLOTS`). Two,
not one: the policy can still spread load where the best looks best to everybody. Finding them takes one pass over the
workers with cheap keys; the features of a candidate then use the full estimates of ``policies.predict``.

Every feature is a share of an objective of the request (TTFT over its TTFT objective, a step over its TPOT objective)
or a number of order one, so that weights can be compared and need no normalisation. The environment compiles these
functions, the rule ``policies.learned`` calls them: there is one source.
"""

from __future__ import annotations

import math
from typing import Any

from policies.contract import DECODE, PREFILL, tie_hash
from policies.predict import (
    handover_time_s,
    joined_kv_tokens,
    new_tokens,
    prefill_done_s,
    prefill_work_s,
    queued_work_s,
    step_s,
)

SLOTS = 6
"""Candidates: (p1, d1), (p2, d1), (p1, d2), (p2, d2), local on l1, local on l2."""

FEATURES = (
    "ttft",  # predicted TTFT / objective, at most 20
    "log_ttft",  # log(1 + predicted TTFT / objective): concave, so that one hopeless request cannot outweigh many
    "late",  # relu(predicted TTFT / objective - 0.7), at most 20
    "interference",  # local: own prefill work x streams / 64 / TTFT objective, at most 20
    "harm",  # local: predicted TTFT x decode requests / 64 / TTFT objective, at most 20
    "step",  # decode step once all on their way have joined / TPOT objective
    "slow_step",  # relu(step - 0.7)
    "prefill_backlog",  # work queued on the worker that would prefill / TTFT objective, at most 20
    "decode_backlog",  # remote: prefill work queued on the decode worker / TTFT objective, at most 20
    "pool_backlog",  # local: mean work queued on the prefill pool / TTFT objective, at most 20
    "local",  # 1 if the decode worker prefills
    "kv",  # KV tokens of the decode worker once all on their way have joined / its capacity
    "cached",  # share of the prompt cached where it would be prefilled
    "sticky",  # 1 if the decode worker served the session's last turn
    "transfers",  # requests on their way from prefill to the decode worker / 8
    "last_gap",  # last token gap seen on the decode worker / TPOT objective, at most 4
)
N_FEATURES = 16

LATE_FROM = 0.7
MOST = 20.0
OTHER_POOL = 1e9
"""Added to the key of a worker that belongs to the pool by capability only: it stands in if nobody belongs by role."""


def shortlist(request: Any, view: Any, seed: int) -> tuple[int, int, int, int, int, int, float]:
    """Positions (p1, p2, d1, d2, l1, l2), -1 where there is none, and the mean backlog of the prefill pool in seconds.

    ``p``: least queued plus own prefill work. ``d``: least own share of the decode step, pending chunk and transfer.
    ``l``: least prefill work, the own part times ``1 + streams / 4``. Pools as in ``policies.pools``. Ties by hash.
    """
    prompt = request.prompt_tokens
    p1, p2, pk1, pk2, ph1, ph2 = -1, -1, math.inf, math.inf, 0, 0
    d1, d2, dk1, dk2, dh1, dh2 = -1, -1, math.inf, math.inf, 0, 0
    l1, l2, lk1, lk2, lh1, lh2 = -1, -1, math.inf, math.inf, 0, 0
    backlog_s, pool = 0.0, 0
    for i in range(len(view)):
        w = view[i]
        role = w.role
        prefills, decodes = w.can_prefill != 0, w.can_decode != 0
        queued = w.prefill_tokens
        cached = w.cached_tokens
        new = prompt - cached
        if new < 1:
            new = 1
        h = -1
        if prefills:
            queued_s = w.c_tok_s * queued
            if role != DECODE:
                backlog_s += queued_s
                pool += 1
            key = queued_s + w.c_tok_s * new + w.c_attn_s * new * (cached + 0.5 * new)
            if queued > 0:
                key += w.c_attn_s * 0.5 * queued * queued / max(1, w.prefill_requests)
            if role == DECODE:
                key += OTHER_POOL
            if key <= pk2 * 1.000000002:
                h = tie_hash(seed, request.id, w.id)
                if ahead(key, h, pk1, ph1):
                    p2, pk2, ph2 = p1, pk1, ph1
                    p1, pk1, ph1 = i, key, h
                elif ahead(key, h, pk2, ph2):
                    p2, pk2, ph2 = i, key, h
        if decodes:
            streams = w.streams
            key = (w.decode_requests + 1) * (w.c_seq_s + w.c_kv_s * (w.decode_tokens + prompt) / (streams + 1))
            key += w.c_tok_s * min(queued, w.max_batched_tokens)
            key += new * w.kv_bytes_per_token / w.link_bytes_per_s
            if role == PREFILL:
                key += OTHER_POOL
            if key <= dk2 * 1.000000002:
                if h < 0:
                    h = tie_hash(seed, request.id, w.id)
                if ahead(key, h, dk1, dh1):
                    d2, dk2, dh2 = d1, dk1, dh1
                    d1, dk1, dh1 = i, key, h
                elif ahead(key, h, dk2, dh2):
                    d2, dk2, dh2 = i, key, h
            if prefills:
                key = w.c_tok_s * (queued + new * (1.0 + 0.25 * streams))
                if role == PREFILL:
                    key += OTHER_POOL
                if key <= lk2 * 1.000000002:
                    if h < 0:
                        h = tie_hash(seed, request.id, w.id)
                    if ahead(key, h, lk1, lh1):
                        l2, lk2, lh2 = l1, lk1, lh1
                        l1, lk1, lh1 = i, key, h
                    elif ahead(key, h, lk2, lh2):
                        l2, lk2, lh2 = i, key, h
    # A stand-in is a candidate only where the whole pool is made of stand-ins.
    if pk1 < OTHER_POOL <= pk2:
        p2 = -1
    if dk1 < OTHER_POOL <= dk2:
        d2 = -1
    if dk1 < OTHER_POOL <= lk1:
        l1 = -1
    if dk1 < OTHER_POOL <= lk2:
        l2 = -1
    if pool > 0:
        backlog_s /= pool
    return p1, p2, d1, d2, l1, l2, backlog_s


def ahead(key: float, h: int, best_key: float, best_h: int) -> bool:
    """``contract.better`` for keys that are never negative."""
    if key < best_key * 0.999999999:
        return True
    return key <= best_key * 1.000000001 and h < best_h


def slot(k: int, p1: int, p2: int, d1: int, d2: int, l1: int, l2: int) -> tuple[int, int]:
    """Candidate ``k`` as positions (prefill, decode), equal if local; (-1, -1) if there is no such candidate."""
    if k >= 4:
        d = l1 if k == 4 else l2
        return d, d
    p = p1 if k % 2 == 0 else p2
    d = d1 if k < 2 else d2
    if p < 0 or d < 0 or p == d:
        return -1, -1
    return p, d


def capped(x: float) -> float:
    """At most :data:`MOST`: an overloaded cluster must not drown the other features."""
    return x if x < 20.0 else 20.0


def candidate_features(
    request: Any, prefill: Any, decode: Any, local: bool, pool_backlog_s: float
) -> tuple[
    float, float, float, float, float, float, float, float, float, float, float, float, float, float, float, float
]:
    """The features of one candidate, in the order of :data:`FEATURES`.

    Args:
        request: the request.
        prefill: the worker that would prefill (the decode worker itself if local).
        decode: the worker that would decode.
        local: whether they are one.
        pool_backlog_s: from :func:`shortlist`.
    """
    prompt = request.prompt_tokens
    slo_ttft, slo_tpot = request.slo_ttft_s, request.slo_tpot_s
    cached = prefill.cached_tokens
    new = new_tokens(prefill, prompt)
    done = prefill_done_s(prefill, new, cached)
    kv = joined_kv_tokens(decode, float(prompt))
    step = step_s(decode, 0.0, 0.0, decode.decode_requests + 1.0, kv)
    requests = decode.decode_requests
    if local:
        ttft = done / slo_ttft
        interference = capped(prefill_work_s(decode, new, cached) * decode.streams / 64.0 / slo_ttft)
        harm = capped(ttft * requests / 64.0)
        decode_backlog = 0.0
        pool_backlog = capped(pool_backlog_s / slo_ttft)
        is_local = 1.0
    else:
        moved = prompt - decode.cached_tokens
        if moved < 0:
            moved = 0
        pending_s = queued_work_s(decode)
        # The step that emits the first token also carries a chunk of the worker's own prefills.
        chunk_s = min(pending_s, decode.c_tok_s * decode.max_batched_tokens)
        ttft = (done + handover_time_s(prefill, decode, float(moved)) + step + chunk_s) / slo_ttft
        interference = 0.0
        harm = 0.0
        decode_backlog = capped(pending_s / slo_ttft)
        pool_backlog = 0.0
        is_local = 0.0
    late = ttft - 0.7
    step /= slo_tpot
    slow = step - 0.7
    gap = decode.last_tbt_s / slo_tpot
    sticky = 1.0 if request.last_decode == decode.id else 0.0
    return (
        capped(ttft),
        math.log(1.0 + ttft),
        capped(late) if late > 0.0 else 0.0,
        interference,
        harm,
        capped(step),
        capped(slow) if slow > 0.0 else 0.0,
        capped(queued_work_s(prefill) / slo_ttft),
        decode_backlog,
        pool_backlog,
        is_local,
        kv / max(1, decode.kv_capacity_tokens),
        min(1.0, cached / max(1, prompt)),
        sticky,
        min(4.0, decode.transfers / 8.0),
        (min(4.0, gap) if gap > 0.0 else 0.0),  # NaN before the first gap
    )
