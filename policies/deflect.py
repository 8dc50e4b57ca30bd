"""Load-aware prefill deflection: prefill on a decode worker, in the largest chunks that are safe for its streams.

Rule (Kairos, Algorithm 1 "LargestSafe" and Equations 1 and 2)::

    TTFT_p = min over prefill workers of their prefill path
    TTFT_d = for a decode worker without a local prefill: the time of its chunks, each the largest of
             {2048, 1024, 512, 256, 128} (capped by the step's budget and what remains) with
             max(floor, c0 + c_tok*chunk) + c_attn*chunk*(done + chunk/2) + c_seq*streams
             + c_kv*(decode_tokens + done) <= beta * tightest TPOT objective among its streams;
             infeasible if even 128 is not safe
    local on argmin TTFT_d  iff  TTFT_d <= alpha * TTFT_p  and  TTFT_d <= the request's TTFT objective
    else argmin TTFT_p, decoding on the worker whose step would be shortest

Parameters:
    alpha: how much longer a deflected request may take, relative to the prefill path (1). Above 1 so that the
        prefill queue drains.
    beta: share of the tightest TPOT objective that a mixed step may take (1).
    printed: 1: the prefill path as printed, ``queue = (t/chunk) * step(chunk, t/2)`` with ``t`` the pending tokens
        and fractional steps, then the request's own chunks; 0: ``predict.prefill_done_s`` (whole steps, shared
        between prompts; the printed one takes the whole queue for one long prompt).
    handover_aware: 1: TTFT_p includes the handover and the first decode step; 0: as printed, it does not.
    prefix_aware: 1: only uncached tokens count, on both paths; 0: as printed, the full prompt.

Source: Kairos, "Towards Load-Aware Prefill Deflection" (2607.02043), Algorithm 1, Eq. 1-2; alpha 1.3, beta 1.0.
Its code is not public; details follow an independent port. Where we differ: the engine takes one chunk cap a
request, so we send the smallest full chunk of the plan, where Kairos picks a chunk every step; and Kairos leaves the
choice of the decode worker open. ``printed=1 handover_aware=0 prefix_aware=0`` is the rule as printed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import LOCAL, Action, better, reject, route, rule, tie_hash
from policies.pools import decode_rank, pools, prefill_rank
from policies.predict import (
    chunk_budget,
    chunked_s,
    first_step_s,
    handover_time_s,
    joined_step_s,
    new_tokens,
    prefill_attention_s,
    prefill_done_s,
    step_s,
    ttft_local_s,
)

LARGEST_CHUNK = 2048
SMALLEST_CHUNK = 128


def largest_safe(worker: Any, remaining: int, done: int, limit_s: float) -> tuple[float, int]:
    """LargestSafe for ``remaining`` tokens after ``done`` cached ones: (seconds, chunk cap), (inf, 0) if unsafe.

    The cap is the smallest chunk but for the last. A full chunk once unsafe stays so, since ``done`` grows; so each
    size's run of chunks has a closed form, until what remains could fit in one last chunk.
    """
    streams, kv = float(worker.streams), float(worker.decode_tokens)
    budget = chunk_budget(worker)
    top = min(LARGEST_CHUNK, budget)
    size = LARGEST_CHUNK
    total_s = 0.0
    cap = top
    while size >= SMALLEST_CHUNK:
        if remaining <= top:
            last = step_s(worker, float(remaining), remaining * (done + 0.5 * remaining), streams, kv + done)
            if last <= limit_s:
                return total_s + last, cap
        chunk = min(size, budget)
        alone = step_s(worker, float(chunk), 0.5 * chunk * chunk, streams, kv)
        growth = worker.c_kv_s + worker.c_attn_s * chunk  # a step's time per token done
        room = limit_s - alone - growth * done
        if chunk >= remaining or room < 0.0:
            size //= 2
        else:
            cap = chunk
            count = max(1, (remaining - top + chunk - 1) // chunk)
            if growth * chunk * (count - 1) > room:
                count = int(room / (growth * chunk)) + 1
            total_s += count * alone + growth * (count * float(done) + 0.5 * chunk * count * (count - 1.0))
            done += count * chunk
            remaining -= count * chunk
    return np.inf, 0


def printed_path_s(worker: Any, new: int, cached: int) -> float:
    """Kairos Eq. 1 and 2: fractional steps for the queue as one prompt, then the request's own chunks."""
    chunk = float(worker.max_batched_tokens)
    t = float(worker.prefill_tokens)
    queue = t / chunk * step_s(worker, chunk, chunk * (0.5 * t + 0.5 * chunk), 0.0, 0.0)
    own = chunked_s(worker, new, worker.max_batched_tokens, 0.0)
    return float(queue + own + prefill_attention_s(worker, float(new), float(cached)))


@rule(
    name="deflect",
    params={"alpha": 1.3, "beta": 1.0, "printed": 0.0, "handover_aware": 1.0, "prefix_aware": 1.0},
    needs=(
        "local_prefill",
        "chunk",
        "slo_ttft_s",
        "min_slo_tpot_s",
        "local_prefills",
        "prefill_requests",
        "prefill_tokens",
        "streams",
        "decode_tokens",
        "cached_tokens",
        "decode_requests",
    ),
    reasons=("remote", "deflected", "no worker can serve it", "no prefill worker"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Deflect to the decode worker of least TTFT_d if it may; else the best prefill worker."""
    n = len(view)
    prompt = request.prompt_tokens
    p_pool, d_pool = pools(view)
    aware = params.prefix_aware != 0.0

    dest, dest_hash, dest_s = -1, 0, np.inf
    home, home_hash, home_s, home_chunk = -1, 0, np.inf, 0
    fallback, fallback_hash, fallback_s = -1, 0, np.inf
    for j in range(n):
        d = view[j]
        if decode_rank(d) == d_pool:
            h = tie_hash(seed, request.id, d.id)
            step = joined_step_s(d, float(prompt))
            if better(step, h, dest_s, dest_hash):
                dest, dest_hash, dest_s = j, h, step
            if d.can_prefill != 0:
                score = ttft_local_s(d, prompt)
                if better(score, h, fallback_s, fallback_hash):
                    fallback, fallback_hash, fallback_s = j, h, score
                if d.local_prefills == 0:
                    cached = prompt - new_tokens(d, prompt) if aware else 0
                    score, chunk = largest_safe(d, prompt - cached, cached, params.beta * d.min_slo_tpot_s)
                    if better(score, h, home_s, home_hash):
                        home, home_hash, home_s, home_chunk = j, h, score, chunk
    if dest < 0:
        return reject(2)

    moved = float(max(0, prompt - view[dest].cached_tokens)) if aware else float(prompt)
    source, source_hash, source_s = -1, 0, np.inf
    for i in range(n):
        w = view[i]
        if i != dest and prefill_rank(w) == p_pool:
            cached = prompt - new_tokens(w, prompt) if aware else 0
            if params.printed != 0.0:
                score = printed_path_s(w, prompt - cached, cached)
            else:
                score = prefill_done_s(w, prompt - cached, cached)
            if params.handover_aware != 0.0:
                score += handover_time_s(w, view[dest], moved) + first_step_s(view[dest], float(prompt))
            h = tie_hash(seed, request.id, w.id)
            if better(score, h, source_s, source_hash):
                source, source_hash, source_s = i, h, score

    if home >= 0 and home_s <= params.alpha * source_s and home_s <= request.slo_ttft_s:
        return route(LOCAL, view[home].id, 0.0, home_chunk, 1)
    if source >= 0:
        return route(view[source].id, view[dest].id, 0.0, 0, 0)
    if fallback >= 0:
        return route(LOCAL, view[fallback].id, 0.0, 0, 3)
    return reject(2)
