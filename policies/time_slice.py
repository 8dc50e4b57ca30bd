"""Colocated workers whose two phases take turns on the GPU, with shares set from queue and decode load.

Rule (route)::

    local on argmin over split workers of  pending prefill work + own prefill work + decode step once joined  (s)

Where there is no split worker, over the workers that can do both; where there is none, ``least_loaded``.

Shares (:func:`shares`, on a timer), for each split worker::

    need_p = pending prefill work / horizon_s          share of time that clears the queue within the horizon
    need_d = decode step / (beta * tightest TPOT objective of its streams)     share that keeps their pace
    share  = max_share                                             if need_p + need_d <= 1
             min(max_share, max(min_share, need_p / (need_p + need_d)))     else

TPOT is a mean over a stream's life, so a burst of prefill that leaves the decodes their need over the horizon runs
first, and TTFT gains. Where both needs do not fit, each phase gets time in proportion to its need, so that neither is
starved in overload: to hold the decodes' bound there leaves the queue to grow without end, and TTFT is lost for all. A
share counts only while both phases have work (docs/engine.md), so a large one costs nothing while no prefill is
pending; a small one would delay whatever arrives before the next call of the timer.

Parameters:
    horizon_s: time in which pending prefills should be done, well below a stream's life (s).
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
    params={"horizon_s": 0.5, "beta": 0.9, "min_share": 0.2, "max_share": 0.8},
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
            need_d = decode_s / (beta * w.min_slo_tpot_s)
            need_p = queued_work_s(w) / horizon_s
            need = need_p + need_d
            answer[int(w.id)] = most if need <= 1.0 else min(most, max(least, need_p / need))
    return answer


def _scalar(value: Param) -> float:
    assert isinstance(value, float)
    return value
