"""PPD: turn 1 over the handover, later turns on the session's decode worker when the weighted gain is positive.

Rule::

    turn 1: remote.   turn >= 2, d = the session's last decode worker:
    S = w_ttft * (TTFT_pd - TTFT_local) / TTFT_pd  -  w_tpot * (TPOT_local - TPOT_pd) / TPOT_pd
    local iff S > 0 (and always if the uncached tokens on d are fewer than bypass_tokens)

The paper measures the four numbers offline, on a grid (context class x workload type x rate), with all later turns
remote and all local, and looks the nearest cell up. No such table exists for a simulated cluster; we predict the
numbers at the decision::

    TTFT_pd    = predict.ttft_remote_s over the prefill worker done first
    TTFT_local = predict.ttft_local_s of d
    TPOT_pd    = predict.joined_step_s of d
    TPOT_local = TPOT_pd + predict.interference_s of d / output tokens

The last term is the paper's comparison (all turns local against all remote) in steady state: while one stream emits
its output, each of the others ends once and a successor's prefill rides in the same steps. So the decision sees the
present load, which the table sees only as a rate.

Parameters:
    w_ttft, w_tpot: weights (1). The paper's and its code's default is 1 and 1.
    bypass_tokens: below this many uncached tokens later turns stay local, untested (tokens); 0: off, as in the paper.
    balanced: placement of turn 1 and of the prefill: 1: least decode requests, prefill done first; 0: by hash of the
        session, no load term, as in its code.
    output_tokens: output length assumed while the router has seen none end and the trace has no hint (tokens).

Source: PPD, "Not All Prefills Are Equal" (2603.13358 v2), and ppd_decision_engine.py of its repository (vllm-ppd).
Where the code differs from the paper: it adds the bypass with 512 tokens, keeps a turn local if the remote arm failed
in the cell or the cell is missing, and its "current rate" is the mean since the start. Its new tokens are those of the
last message; ours those not cached on d.
"""

from __future__ import annotations

import math
from typing import Any

from policies.contract import LOCAL, Action, reject, route, rule, tie_hash
from policies.pools import (
    decode_pool,
    decode_rank,
    find,
    least_decode_requests,
    prefill_pool,
    prefill_rank,
    soonest_prefill,
)
from policies.predict import interference_s, joined_step_s, new_tokens, ttft_local_s, ttft_remote_s


def hashed_worker(request: Any, view: Any, prefill: bool, skip: int, seed: int) -> int:
    """Position of the session's worker in the prefill or decode pool by rendezvous hash, -1 if none."""
    key = request.session if request.session >= 0 else request.id
    pool = prefill_pool(view) if prefill else decode_pool(view)
    best, best_hash = -1, 0
    for i in range(len(view)):
        w = view[i]
        rank = prefill_rank(w) if prefill else decode_rank(w)
        h = tie_hash(seed, key, w.id)
        if i != skip and rank == pool and (best < 0 or h < best_hash):
            best, best_hash = i, h
    return best


def expected_output_tokens(request: Any, otherwise: float) -> float:
    """The trace's hint, else the mean length seen by this router, else ``otherwise``."""
    if request.output_hint_tokens > 0:
        return float(request.output_hint_tokens)
    if not math.isnan(request.mean_output_tokens):
        return max(1.0, float(request.mean_output_tokens))
    return otherwise


@rule(
    name="ppd",
    params={"w_ttft": 1.0, "w_tpot": 1.0, "bypass_tokens": 0.0, "balanced": 1.0, "output_tokens": 256.0},
    needs=(
        "local_prefill",
        "session",
        "turn",
        "last_decode",
        "output_hint_tokens",
        "mean_output_tokens",
        "prefill_requests",
        "prefill_tokens",
        "streams",
        "decode_tokens",
        "cached_tokens",
        "decode_requests",
    ),
    reasons=("remote: first turn", "local: gain", "no worker can serve it", "remote: no gain", "local: bypass"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Send turn 1 over the handover; weigh later turns."""
    prompt = request.prompt_tokens
    d = -1
    if request.turn >= 2 and request.last_decode >= 0:
        d = find(view, request.last_decode)
        if d >= 0 and view[d].can_decode == 0:
            d = -1
    if d < 0:
        if params.balanced != 0.0:
            d = least_decode_requests(request, view, seed)
        else:
            d = hashed_worker(request, view, False, -1, seed)
    if d < 0:
        return reject(2)
    home = view[d]
    if params.balanced != 0.0:
        p = soonest_prefill(request, view, d, seed)
    else:
        p = hashed_worker(request, view, True, d, seed)
    if p < 0:
        if home.can_prefill != 0:
            return route(LOCAL, home.id, 0.0, 0, 1)
        return reject(2)
    if request.turn < 2 or home.can_prefill == 0:
        return route(view[p].id, home.id, 0.0, 0, 0)
    if new_tokens(home, prompt) < params.bypass_tokens:
        return route(LOCAL, home.id, 0.0, 0, 4)

    ttft_pd = ttft_remote_s(view[p], home, prompt)
    ttft_gain = (ttft_pd - ttft_local_s(home, prompt)) / ttft_pd
    tpot_pd = joined_step_s(home, float(prompt))
    tpot_loss = interference_s(home, prompt) / expected_output_tokens(request, params.output_tokens) / tpot_pd
    if params.w_ttft * ttft_gain - params.w_tpot * tpot_loss > 0.0:
        return route(LOCAL, home.id, 0.0, 0, 1)
    return route(view[p].id, home.id, 0.0, 0, 3)
