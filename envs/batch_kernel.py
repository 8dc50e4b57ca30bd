"""Many runs a call: each goes to its next routing decision, collects its reward and writes its observation.

The kernel of ``envs.cluster`` enters as a first-class function, so that this module compiles in seconds and only
when an environment is used. Runs are independent: their order and number change no bit of any of them.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from typing import Any

import numba
from numba import types

from envs import reward as reward_module
from envs.cluster.engine_kernel import BIND_SIGNATURE, DECIDE_SIGNATURE, DONE, GROW, NEED_ROUTE
from envs.cluster.handle import state_at
from envs.cluster.jit import CACHE_DIR, cache_folder
from envs.cluster.state import LOG_FINISHED, LOG_REFUSED
from envs.observation import N_STATE
from policies import features, predict
from policies.contract import ROUTE, tie_hash
from policies.features import N_FEATURES, SLOTS

WAITING, START, ANSWERED, GROWN, OVER = range(5)
"""Phases of a run: a question is open; to be taken to its first question; the question is answered; its memory has
grown and it can go on; it has ended. The kernel moves START, ANSWERED and GROWN, and leaves the others alone."""

FINISHED, MET, REFUSED = range(3)
"""Columns of the tally."""

ADVANCE_SIGNATURE = types.int64(types.int64, types.FunctionType(DECIDE_SIGNATURE), types.FunctionType(BIND_SIGNATURE))


def _source_key() -> str:
    """The compiled code depends on the kernel's sources and on those of the features."""
    text = "".join(inspect.getsource(m) for m in (features, predict, reward_module))
    text += inspect.getsource(inspect.getmodule(_source_key))  # type: ignore[arg-type]
    return "batch-" + hashlib.sha256((CACHE_DIR + text).encode()).hexdigest()[:16]


def _compiled() -> dict[str, Any]:
    """The shared plain functions, compiled against each other; their modules stay free of numba."""
    done: dict[str, Any] = {}
    for module in (predict, features, reward_module):
        scope = dict(vars(module))
        scope["tie_hash"] = done.setdefault("tie_hash", numba.njit(tie_hash))
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                scope.update({k: v for k, v in done.items() if k in scope})
                copy = type(function)(function.__code__, scope, name, function.__defaults__)
                done[name] = scope[name] = numba.njit(copy, error_model="numpy")
    return done


_plain = _compiled()
_shortlist, _slot, _candidate_features = _plain["shortlist"], _plain["slot"], _plain["candidate_features"]
_queued_work_s, _request_reward = _plain["queued_work_s"], _plain["request_reward"]


@numba.njit(error_model="numpy")
def _collect(s: Any, e: int, since_ps: int, tau_s: float, rewards: Any, tally: Any) -> None:
    """Add the rewards of the requests that ended since the log was last read, and empty it."""
    sc = s.sc[0]
    for i in range(sc.n_log):
        event = s.log[i]
        if event.kind == LOG_FINISHED:
            r = event.request
            inp, out = s.inp[r], s.out[r]
            ttft_s = (out.first_token_ps - out.arrival_ps) / 1e12
            tpot_s = 0.0
            if inp.output_tokens > 1:
                tpot_s = (out.finish_ps - out.first_token_ps) / 1e12 / (inp.output_tokens - 1)
            met = ttft_s <= inp.slo_ttft_s and tpot_s <= inp.slo_tpot_s
            value = _request_reward(met, ttft_s / inp.slo_ttft_s, tpot_s / inp.slo_tpot_s)
            if tau_s > 0.0:
                value *= math.exp(-(event.time_ps - since_ps) / 1e12 / tau_s)
            rewards[e] += value
            tally[e, FINISHED] += 1
            tally[e, MET] += met
        elif event.kind == LOG_REFUSED:
            tally[e, REFUSED] += 1
    sc.n_log = 0


@numba.njit(error_model="numpy")
def _observe(s: Any, seed: int, observation: Any, choices: Any) -> None:
    """Write the observation and the routes that the candidates stand for."""
    request, view = s.reqv[0], s.board
    p1, p2, d1, d2, l1, l2, backlog_s = _shortlist(request, view, seed)
    at = 0
    for k in range(SLOTS):
        p, d = _slot(k, p1, p2, d1, d2, l1, l2)
        if d < 0:
            choices[k, 0] = choices[k, 1] = -1
            observation[SLOTS * N_FEATURES + k] = 0.0
            observation[at : at + N_FEATURES] = 0.0
        else:
            choices[k, 0], choices[k, 1] = view[p].id, view[d].id
            observation[SLOTS * N_FEATURES + k] = 1.0
            x = _candidate_features(request, view[p], view[d], p == d, backlog_s)
            for i in range(N_FEATURES):
                observation[at + i] = x[i]
        at += N_FEATURES
    queued_s, prefills, streams, coming, decodes, gap_s = 0.0, 0, 0, 0, 0, 0.0
    for i in range(len(view)):
        w = view[i]
        if w.can_prefill != 0:
            queued_s += _queued_work_s(w)
            prefills += 1
        if w.can_decode != 0:
            streams += w.streams
            coming += w.decode_requests - w.streams
            decodes += 1
            if w.last_tbt_s > gap_s:
                gap_s = w.last_tbt_s
    at = SLOTS * N_FEATURES + SLOTS
    observation[at] = min(20.0, queued_s / prefills / request.slo_ttft_s)
    observation[at + 1] = streams / decodes / 64.0
    observation[at + 2] = coming / decodes / 64.0
    observation[at + 3] = min(4.0, gap_s / request.slo_tpot_s)
    observation[at + 4] = math.log10(1.0 + request.prompt_tokens) / 4.0
    observation[at + 5] = math.log10(1.0 + 1e3 * request.slo_ttft_s) / 4.0
    assert N_STATE == 6


with cache_folder(_source_key()):

    @numba.njit(
        types.int64(
            types.int64[::1],
            types.FunctionType(ADVANCE_SIGNATURE),
            types.FunctionType(DECIDE_SIGNATURE),
            types.FunctionType(BIND_SIGNATURE),
            types.int64[::1],
            types.int64[::1],
            types.int64[::1],
            types.float32[:, ::1],
            types.int64[:, :, ::1],
            types.float64[::1],
            types.float64[::1],
            types.int64[:, ::1],
            types.int64[::1],
            types.int64[::1],
            types.float64,
        ),
        cache=True,
        error_model="numpy",
    )
    def step_batch(
        tables: Any,
        advance: Any,
        decide: Any,
        bind: Any,
        actions: Any,
        phase: Any,
        since_ps: Any,
        observations: Any,
        choices: Any,
        rewards: Any,
        dt_s: Any,
        tally: Any,
        asked: Any,
        status: Any,
        tau_s: float,
    ) -> int:
        """Take each run that can go on to its next decision or its end; returns how many stopped for another reason.

        Args:
            tables: (E,) addresses of the runs' address tables.
            advance: ``engine_kernel.advance_at``.
            decide: a compiled rule of the kernel's signature; never called.
            bind: likewise.
            actions: (E,) the candidate chosen in each run that is ANSWERED; must be a legal one.
            phase: (E,) phases; updated to WAITING, OVER, or GROWN where memory has to grow before the next call.
            since_ps: (E,) time of the last decision; updated.
            observations: (E, SIZE), written.
            choices: (E, SLOTS, 2) prefill and decode worker of each candidate, equal if local; -1: no candidate.
            rewards: (E,) rewards of what ended since the last decision, each times ``exp(-(t - then)/tau_s)``.
            dt_s: (E,) time since the last decision.
            tally: (E, 3) requests of the episode: finished, SLO met, refused; added to.
            asked: (E,) request of the open question, -1 if none.
            status: (E,) NEED_ROUTE, DONE, GROW (grow the memory and call again) or another of the kernel's.
            tau_s: time constant of the discount within a step; 0: none.
        """
        stopped = 0
        for e in range(len(tables)):
            if phase[e] == OVER or phase[e] == WAITING:
                continue
            s = state_at(tables[e])
            sc = s.sc[0]
            if phase[e] != GROWN:
                rewards[e] = 0.0
            if phase[e] == ANSWERED:
                k = actions[e]
                a = s.ans[0]
                a.kind = ROUTE
                a.prefill, a.decode = choices[e, k, 0], choices[e, k, 1]
                a.local_chunk_tokens = a.kv_source = a.reason = 0
                a.order_key = a.until_s = 0.0
            code = advance(tables[e], decide, bind)
            while code == GROW and sc.n_log > 0:
                _collect(s, e, since_ps[e], tau_s, rewards, tally)
                code = advance(tables[e], decide, bind)
            _collect(s, e, since_ps[e], tau_s, rewards, tally)
            status[e] = code
            asked[e] = sc.asked if code == NEED_ROUTE else -1
            if code == NEED_ROUTE:
                dt_s[e] = (sc.now_ps - since_ps[e]) / 1e12
                since_ps[e] = sc.now_ps
                _observe(s, sc.seed, observations[e], choices[e])
                phase[e] = WAITING
            elif code == DONE:
                dt_s[e] = (sc.now_ps - since_ps[e]) / 1e12
                since_ps[e] = sc.now_ps
                observations[e, :] = 0.0
                phase[e] = OVER
            else:
                phase[e] = GROWN
                stopped += 1
        return stopped
