"""Static P to D in turn: the next prefill worker, the next decode worker.

Rule::

    prefill = smallest id above the last one used in the prefill pool, else the smallest id; decode likewise

The order is by worker id, so it does not depend on how the view lists the workers. A worker that is in both
pools (mixed, split) and comes up for both prefills its own request. Pools: see ``policies.pools``.

Parameters: none.

Source: the static split of DistServe (2401.09670) and the default of most proxies. DistServe itself sends to
the shortest queue; that is ``least_loaded``.
"""

from __future__ import annotations

from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule
from policies.pools import decode_rank, pools, prefill_rank


@rule(
    name="round_robin",
    memory={"last_prefill": -1.0, "last_decode": -1.0},
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Route to the next worker of each pool."""
    p_pool, d_pool = pools(view)
    p_first, p_next, d_first, d_next = -1, -1, -1, -1
    for i in range(len(view)):
        w = view[i]
        if prefill_rank(w) == p_pool:
            if p_first < 0 or w.id < p_first:
                p_first = w.id
            if w.id > memory.last_prefill and (p_next < 0 or w.id < p_next):
                p_next = w.id
        if decode_rank(w) == d_pool:
            if d_first < 0 or w.id < d_first:
                d_first = w.id
            if w.id > memory.last_decode and (d_next < 0 or w.id < d_next):
                d_next = w.id
    p = p_next if p_next >= 0 else p_first
    d = d_next if d_next >= 0 else d_first
    if p < 0 or d < 0:
        return reject(2)
    memory.last_prefill = float(p)
    memory.last_decode = float(d)
    if p == d:
        return route(LOCAL, d, 0.0, 0, 1)
    return route(p, d, 0.0, 0, 0)
