"""No disaggregation: every worker that can do both phases prefills and decodes its own requests.

Rule::

    local on argmin over workers that can prefill and decode, whatever their role, of
      predicted TTFT (by_load = 0)  or  requests in flight (by_load = 1)

Where no worker can do both, it falls back to ``least_loaded``.

Parameters:
    by_load: 0: choose by ``predict.ttft_local_s``; 1: by requests in flight.

Source: colocated serving with chunked prefill, Sarathi-Serve (2403.02310), under the two usual balancers: least
requests, and least predicted TTFT as in Mooncake's Conductor (2407.00079) without its transfer term.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import LOCAL, Action, better, reject, route, rule, tie_hash
from policies.pools import least_decode_requests, least_pending_prefill, requests_here
from policies.predict import ttft_local_s


@rule(
    name="colocated",
    params={"by_load": 0.0},
    needs=(
        "local_prefill",
        "prefill_requests",
        "prefill_tokens",
        "streams",
        "decode_tokens",
        "cached_tokens",
        "decode_requests",
        "local_prefills",
    ),
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Serve the request on one worker."""
    best, best_hash, best_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if w.can_prefill != 0 and w.can_decode != 0:
            score = float(requests_here(w)) if params.by_load != 0.0 else ttft_local_s(w, request.prompt_tokens)
            h = tie_hash(seed, request.id, w.id)
            if better(score, h, best_score, best_hash):
                best, best_hash, best_score = i, h, score
    if best >= 0:
        return route(LOCAL, view[best].id, 0.0, 0, 1)
    p = least_pending_prefill(request, view, seed)
    d = least_decode_requests(request, view, seed)
    if p < 0 or d < 0:
        return reject(2)
    return route(view[p].id, view[d].id, 0.0, 0, 0)
