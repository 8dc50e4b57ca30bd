"""Colocated workers whose two phases take turns on the GPU, with shares set from queue and decode load.

Rule (route)::

    local on argmin over split workers of  pending prefill work + own prefill work + decode step once joined  (s)

Where there is no split worker, over the workers that can do both; where there is none, ``least_loaded``.

Shares (:func:`shares`, on a timer), for each split worker::

    spare = 1 - decode step / (beta * tightest TPOT objective of its streams)     share of time decodes can spare
    share = max_share                                  if pending prefill work <= spare * horizon_s
            min(max_share, max(min_share, spare))      else

TPOT is a mean over a stream's life, so a burst of prefill that fits in what the decodes can spare over the horizon
runs first, and TTFT gains; a longer one gets no more than they can spare for good. A share counts only while both
phases have work (docs/engine.md), so a large one costs nothing while no prefill is pending.

Parameters:
    horizon_s: time over which a stream's delay is made good again, at most its life (s).
    beta: share of the tightest TPOT objective that a decode step may take, its slices of prefill included (1).
    min_share, max_share: bounds of the share (1), so that neither phase starves.

Source: this project's. The idea of moving a share between the phases by their objectives is Semi-PD's (2504.19867,
Algorithm 1), which moves SM shares stepwise on measured percentiles and refits its latency laws; Nexus (2507.06608)
shares SMs by a cost model. Here the share is of time and follows from the step law at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.contract import LOCAL, SPLIT, Action, Param, better, reject, route, rule, tie_hash
from policies.pools import least_decode_requests, least_pending_prefill
from policies.predict import joined_step_s, new_tokens, prefill_work_s, queued_work_s, step_s


@rule(
    name="time_slice",
    params={"horizon_s": 1.0, "beta": 0.9, "min_share": 0.1, "max_share": 0.9},
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
    """Serve the request on the least loaded split worker."""
    any_split = False
    for i in range(len(view)):
        w = view[i]
        if w.role == SPLIT and w.can_prefill != 0 and w.can_decode != 0:
            any_split = True
    best, best_hash, best_score = -1, 0, np.inf
    for i in range(len(view)):
        w = view[i]
        if w.can_prefill != 0 and w.can_decode != 0 and (w.role == SPLIT or not any_split):
            own = prefill_work_s(w, float(new_tokens(w, request.prompt_tokens)), float(w.cached_tokens))
            score = queued_work_s(w) + own + joined_step_s(w, float(request.prompt_tokens))
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


def shares(view: Any, params: Mapping[str, Param]) -> dict[int, float]:
    """The prefill share of every split worker in the view, by worker id."""
    horizon_s, beta = _scalar(params["horizon_s"]), _scalar(params["beta"])
    least, most = _scalar(params["min_share"]), _scalar(params["max_share"])
    answer: dict[int, float] = {}
    for i in range(len(view)):
        w = view[i]
        if w.role == SPLIT:
            decode_s = step_s(w, 0.0, 0.0, float(w.streams), float(w.decode_tokens)) if w.streams > 0 else 0.0
            spare = 1.0 - decode_s / (beta * w.min_slo_tpot_s)
            absorbed = queued_work_s(w) <= spare * horizon_s
            answer[int(w.id)] = most if absorbed else min(most, max(least, spare))
    return answer


def _scalar(value: Param) -> float:
    assert isinstance(value, float)
    return value
