"""Least predicted TTFT, guarded: a local prefill pays for the streams it delays, a busy step is dear.

Rule::

    argmin over (p, d) and local d of
      TTFT + kappa * (local prefill work of the request, s) * (streams of d) / 64   [local only]
           + mu * (decode step of d once the request has joined, s)

The estimates are those of ``policies.predict``, the argmin is exact (``policies.joint``).

Parameters:
    kappa: weight of the harm of a local prefill (1); 0 with mu = 0 is ``least_ttft``.
    mu: weight of the decode step (1).

Source: this project's preliminary study, no publication. Least predicted TTFT alone herds prefills onto decode
workers, since the delay falls on others; kappa prices it. The study's best single rule had kappa 16, its best
values in one regime 4 to 16 with mu 0 or 3.
"""

from __future__ import annotations

from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule
from policies.joint import best_route


@rule(
    name="guard",
    params={"kappa": 16.0, "mu": 3.0},
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
    """Route to the pair of least guarded score."""
    p, d = best_route(request, view, params.kappa, params.mu, seed)
    if d < 0:
        return reject(2)
    if p == LOCAL:
        return route(LOCAL, d, 0.0, 0, 1)
    return route(p, d, 0.0, 0, 0)
