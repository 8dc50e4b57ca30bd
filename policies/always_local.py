"""Never use the prefill workers: the decode worker prefills every prompt, whatever the turn or the load.

Rule::

    local on the session's last decode worker (sticky = 1, if it may)
    else on argmin decode_requests over the decode workers that can prefill

Where no decode worker can prefill, prefill workers that can decode serve alone; where none can, it falls back to
``least_loaded``.

Parameters:
    sticky: 1: later turns go to the worker that decoded the last one, where their prefix is cached; 0: every
        turn goes to the least loaded.

Source: the corner x = 1 of PPD (2603.13358), there for turns from 2 on; here for turn 1 too, as the corner of every
deflection rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import LOCAL, Action, better, reject, route, rule, tie_hash
from policies.pools import least_decode_requests, least_pending_prefill, local_pool, local_rank


@rule(
    name="always_local",
    params={"sticky": 0.0},
    needs=(
        "local_prefill",
        "decode_requests",
        "prefill_tokens",
        "last_decode",
    ),
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Serve the request on a decode worker."""
    pool = local_pool(view)
    best, best_hash, best_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if local_rank(w) == pool:
            score = float(w.decode_requests)
            if params.sticky != 0.0 and w.id == request.last_decode:
                score = -1.0
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
