"""Static P to D at random.

Rule::

    prefill = a uniform draw from the prefill pool; decode = a uniform draw from the decode pool

The draw is the smallest ``tie_hash(seed, request, worker)``, so it needs no generator state and does not depend on
the order of the view. The same hash serves both pools: a worker that is in both and wins both serves the request
alone, so a cluster of mixed workers is used colocated.

Parameters: none.

Source: the usual null policy. It shows what balance alone is worth.
"""

from __future__ import annotations

from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule, tie_hash
from policies.pools import decode_rank, pools, prefill_rank


@rule(name="random", reasons=("remote", "local", "no worker can serve it"))
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Route to a random worker of each pool."""
    p_pool, d_pool = pools(view)
    p, d, p_hash, d_hash = -1, -1, 0, 0
    for i in range(len(view)):
        w = view[i]
        h = tie_hash(seed, request.id, w.id)
        if prefill_rank(w) == p_pool and (p < 0 or h < p_hash):
            p, p_hash = w.id, h
        if decode_rank(w) == d_pool and (d < 0 or h < d_hash):
            d, d_hash = w.id, h
    if p < 0 or d < 0:
        return reject(2)
    if p == d:
        return route(LOCAL, d, 0.0, 0, 1)
    return route(p, d, 0.0, 0, 0)
