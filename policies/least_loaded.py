"""Static P to D, each to the least loaded: by pending prefill tokens, and by decode requests.

Rule::

    prefill = argmin prefill_tokens over the prefill pool; decode = argmin decode_requests over the decode pool

A worker that wins both (mixed, split) serves the request alone.

Parameters: none.

Source: DistServe (2401.09670): prefill instance with the shortest queue, least loaded decode instance;
Splitwise (2311.18677) counts tokens, as here (join the shortest queue by tokens).
"""

from __future__ import annotations

from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule
from policies.pools import least_decode_requests, least_pending_prefill


@rule(
    name="least_loaded",
    needs=(
        "prefill_tokens",
        "decode_requests",
    ),
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Route to the least loaded worker of each pool."""
    p = least_pending_prefill(request, view, seed)
    d = least_decode_requests(request, view, seed)
    if p < 0 or d < 0:
        return reject(2)
    if p == d:
        return route(LOCAL, view[d].id, 0.0, 0, 1)
    return route(view[p].id, view[d].id, 0.0, 0, 0)
