"""Least predicted TTFT, guarded: a local prefill pays for the requests that it delays, a busy step is dear.

Rule::

    argmin over (p, d) and local d of
      TTFT + kappa * TTFT_local * decode_requests of d / 64    [the second term: local only]
           + mu * (decode step of d once the request has joined)

all in seconds; 64 only makes kappa a handy number. The estimates are those of ``policies.predict``, the argmin is exact
(``policies.joint``).

Parameters:
    kappa: weight of the harm of a local prefill (1); 0 with mu = 0 is ``least_ttft``.
    mu: weight of the decode step (1).

Source: this project, no publication. Least predicted TTFT alone herds prefills onto decode workers, since the delay
falls on others; kappa prices it. In a preliminary study the harm was the prefill's execution time times the streams,
and its best kappa 4 to 16. Here it includes the wait behind other local prefills and the requests on their way to d,
which was better in 18 regimes of training windows; kappa 3 to 6 were level there, larger is better for long prompts and
many prefill workers, smaller for short prompts under a tight objective.
"""

from __future__ import annotations

from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule
from policies.joint import best_route


@rule(
    name="guard",
    params={"kappa": 4.0, "mu": 3.0},
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
