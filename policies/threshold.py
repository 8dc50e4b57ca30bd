"""Remote prefill for long uncached prompts, local for the rest.

Rule::

    d = argmin over the decode pool of  TTFT if d prefilled + decode step of d once the request has joined
    local on d   iff  prompt - cached(d) <= tokens
    else         prefill on the worker that would be done first, decode on d

The decode worker is chosen first, so a cached prefix can make a long prompt local.

Parameters:
    tokens: largest uncached length that stays on the decode worker (tokens).

Source: llm-d's PrefixBasedPDDecider (remote iff prompt >= N and prompt - cached >= N, decode pod chosen first;
its sample configuration has N = 16, its code default 0 = never) and the length half of NVIDIA Dynamo's conditional
disaggregation (its other half, a bound on the prefill queue, is left out). llm-d scores decode pods by prefix
match and queue; we use predicted times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import LOCAL, Action, better, reject, route, rule, tie_hash
from policies.pools import decode_pool, decode_rank, soonest_prefill
from policies.predict import joined_step_s, ttft_local_s


@rule(
    name="threshold",
    params={"tokens": 1024.0},
    needs=(
        "local_prefill",
        "prefill_requests",
        "prefill_tokens",
        "streams",
        "decode_tokens",
        "cached_tokens",
        "decode_requests",
    ),
    reasons=("remote", "local", "no worker can serve it", "no prefill worker"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Choose the decode worker, then local or remote by its uncached length."""
    pool = decode_pool(view)
    d, d_hash, d_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if decode_rank(w) == pool:
            score = ttft_local_s(w, request.prompt_tokens) + joined_step_s(w, float(request.prompt_tokens))
            h = tie_hash(seed, request.id, w.id)
            if better(score, h, d_score, d_hash):
                d, d_hash, d_score = i, h, score
    if d < 0:
        return reject(2)
    home = view[d]
    if home.can_prefill != 0 and request.prompt_tokens - home.cached_tokens <= params.tokens:
        return route(LOCAL, home.id, 0.0, 0, 1)
    p = soonest_prefill(request, view, d, seed)
    if p >= 0:
        return route(view[p].id, home.id, 0.0, 0, 0)
    if home.can_prefill != 0:
        return route(LOCAL, home.id, 0.0, 0, 3)
    return reject(2)
