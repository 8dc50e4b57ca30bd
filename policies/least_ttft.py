"""Least predicted TTFT over every pair of workers and every local prefill.

Rule::

    argmin over (p, d) and local d of predicted TTFT   (``predict.ttft_remote_s``, ``predict.ttft_local_s``)

The argmin is exact (``policies.joint``). The rule sees no delay to others: it herds prefills onto decode workers
when the token-interval objective is tight.

Parameters: none.

Source: Mooncake's Conductor (2407.00079) Algorithm 1: queue + prefill(length, prefix) + transfer, least wins. Mooncake
chooses among prefill instances only, picks the decode instance by load, and rejects when the SLO would be missed;
here local prefills compete too and nothing is rejected.
"""

from __future__ import annotations

from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule
from policies.joint import best_route


@rule(
    name="least_ttft",
    needs=(
        "local_prefill",
        "prefill_requests",
        "prefill_tokens",
        "streams",
        "decode_tokens",
        "cached_tokens",
        "decode_requests",
    ),
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Route to the pair of least predicted TTFT."""
    p, d = best_route(request, view, 0.0, 0.0, seed)
    if d < 0:
        return reject(2)
    if p == LOCAL:
        return route(LOCAL, d, 0.0, 0, 1)
    return route(p, d, 0.0, 0, 0)
