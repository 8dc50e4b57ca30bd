"""Pending prefill times batch size.

Rule::

    argmin over workers of  P_tok * BS
    P_tok = uncached tokens of the request + prefill_tokens;   BS = requests in flight there + 1
    a worker of the decode pool that can prefill serves alone; a prefill worker hands over to argmin decode_requests

Parameters: none.

Source: LMetric (2603.15202): P_tok x BS with P_tok = new prefill tokens after hits + prefill queued, BS = running +
waiting. It is a rule for colocated workers; that prefill workers compete by their own product, and where they hand over
to, is our extension to P/D. BS counts the request itself, so that an idle worker's product still sees P_tok. The
paper's two-phase hotspot filter is left out (it needs the popularity of request classes).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.contract import LOCAL, Action, better, reject, route, rule, tie_hash
from policies.pools import (
    decode_rank,
    least_decode_requests,
    pools,
    prefill_rank,
    requests_here,
)
from policies.predict import new_tokens


@rule(
    name="multiplicative",
    needs=(
        "local_prefill",
        "prefill_requests",
        "prefill_tokens",
        "decode_requests",
        "local_prefills",
        "cached_tokens",
    ),
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Prefill where the product is least."""
    p_pool, d_pool = pools(view)
    d = least_decode_requests(request, view, seed)
    best, best_hash, best_score, alone = -1, 0, np.inf, False
    for i in range(len(view)):
        w = view[i]
        local = decode_rank(w) == d_pool and w.can_prefill != 0
        if local or (prefill_rank(w) == p_pool and d >= 0):
            tokens = w.prefill_tokens + new_tokens(w, request.prompt_tokens)
            score = float(tokens) * (requests_here(w) + 1.0)
            h = tie_hash(seed, request.id, w.id)
            if better(score, h, best_score, best_hash):
                best, best_hash, best_score, alone = i, h, score, local
    if best < 0:
        return reject(2)
    if alone:
        return route(LOCAL, view[best].id, 0.0, 0, 1)
    return route(view[best].id, view[d].id, 0.0, 0, 0)
