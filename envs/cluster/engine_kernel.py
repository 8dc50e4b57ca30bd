"""The simulation loop: one resumable function, ``advance``.

It runs until the policy must be asked (ROUTE, BIND, ADJUST), memory must grow (GROW), an answer was illegal (ERROR)
or every request has ended (DONE). A compiled rule is called inside; any other policy answers from outside
and calls ``advance`` again.
"""

from __future__ import annotations

import math
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

from envs.cluster.event_kernel import (
    ADJUST,
    ASK,
    DELIVER,
    FLOW_END,
    FLOW_START,
    NEVER,
    SCHEDULE,
    STEP_END,
    note,
    pop,
    push,
)
from envs.cluster.handle import state_at
from envs.cluster.jit import njit
from envs.cluster.link_kernel import end_flow, start_flow
from envs.cluster.plan_kernel import schedule
from envs.cluster.prefix_kernel import blocks_for, complete_blocks
from envs.cluster.problem import CANCELLED, FAILED, PENDING, REJECTED, TOO_LARGE
from envs.cluster.segment_kernel import catch_up
from envs.cluster.state import (
    LOG_DISPATCHED,
    LOG_REFUSED,
)
from envs.cluster.step_kernel import step_end
from envs.cluster.view_kernel import fill_board, fill_request, remember_route
from envs.cluster.worker_kernel import append_ready, enqueue, poke, send_to_decode, unpin
from policies.contract import HOLD, LATE, LOCAL, REJECT, REQUEST_DTYPE, ROUTE, WORKER_DTYPE, Action

DONE, NEED_ROUTE, NEED_BIND, NEED_ADJUST, GROW, ERROR = range(6)

# What was wrong with an answer (scalars.error; error_value is the offending number).
(
    BAD_KIND,
    BAD_WORKER,
    CANNOT_PREFILL,
    CANNOT_DECODE,
    LOCAL_AND_LATE,
    HOLD_NOT_LATER,
    BAD_CHUNK,
    BAD_KV_SOURCE,
    BIND_TO_PREFILL,
) = range(1, 10)

REQUEST_RECORD = numba.from_dtype(REQUEST_DTYPE)
WORKER_RECORD = numba.from_dtype(WORKER_DTYPE)
_BYTES = types.Array(types.uint8, 1, "C")
_BOARD = types.Array(WORKER_RECORD, 1, "C")
_i8, _f8 = types.int64, types.float64
ACTION = types.NamedTuple((_i8, _i8, _i8, _f8, _i8, _i8, _f8, _i8), Action)  # type: ignore[no-untyped-call]
DECIDE_SIGNATURE = ACTION(REQUEST_RECORD, _BOARD, _BYTES, _BYTES, _i8)
BIND_SIGNATURE = _i8(REQUEST_RECORD, _BOARD, _BYTES, _BYTES, _i8)


@njit
def _fail(s: Any, code: int, r: int, value: int) -> int:
    sc = s.sc[0]
    sc.error, sc.error_request, sc.error_value = code, r, value
    return ERROR


@njit
def _end_badly(s: Any, r: int, status: int, reason: int) -> None:
    """Request ``r`` ends REJECTED or FAILED, and the rest of its session CANCELLED."""
    sc = s.sc[0]
    s.out[r].status = status
    s.out[r].reason = reason
    s.out[r].finish_ps = sc.now_ps
    sc.n_done += 1
    if s.inp[r].session >= 0:
        s.sess[s.inp[r].session].last_end_ps = sc.now_ps
    note(s, LOG_REFUSED, r, -1, reason)
    nxt = s.inp[r].next_turn
    while nxt >= 0:
        s.out[nxt].status = CANCELLED
        s.out[nxt].finish_ps = sc.now_ps
        sc.n_done += 1
        sc.n_seen += 1
        nxt = s.inp[nxt].next_turn


@njit
def _refuse(s: Any, r: int, reason: int) -> None:
    if s.out[r].routed_ps < 0:
        s.out[r].routed_ps = s.sc[0].now_ps
    _end_badly(s, r, REJECTED, reason)


@njit
def _fail_the_stuck(s: Any) -> None:
    """No event is left: mixed workers wait for each other's pinned blocks. What is open FAILED."""
    for r in range(len(s.req)):
        if s.out[r].status == PENDING and s.out[r].arrival_ps >= 0:
            s.out[r].emitted_tokens = s.req[r].emitted
            _end_badly(s, r, FAILED, 0)


@njit
def _too_large(s: Any, w: int, tokens: int) -> bool:
    return blocks_for(tokens, s.win[w].block_tokens) > s.win[w].total_blocks


@njit
def _remember_session(s: Any, r: int, prefill: int, decode: int) -> None:
    session = s.inp[r].session
    if session >= 0:
        if prefill >= 0:
            s.sess[session].last_prefill = prefill
        if decode >= 0:
            s.sess[session].last_decode = decode


@njit
def _apply_bind(s: Any, r: int, decode: int) -> int:
    """The late-binding answer; returns 0 or ERROR."""
    q, inp = s.req[r], s.inp[r]
    if decode < 0 or decode >= len(s.wk):
        return _fail(s, BAD_WORKER, r, decode)
    if s.win[decode].can_decode == 0:
        return _fail(s, CANNOT_DECODE, r, decode)
    if decode == q.prefill_worker:
        return _fail(s, BIND_TO_PREFILL, r, decode)
    q.binding = 0
    if _too_large(s, decode, inp.prompt_tokens + inp.output_tokens):
        catch_up(s, q.prefill_worker)
        unpin(s, r)
        _refuse(s, r, TOO_LARGE)
        return 0
    q.decode_worker = decode
    s.out[r].decode_worker = decode
    s.ctr[inp.replica, decode].decode_requests += 1
    remember_route(s, r, decode)
    _remember_session(s, r, -1, decode)
    send_to_decode(s, r)
    note(s, LOG_DISPATCHED, r, q.prefill_worker, decode)
    return 0


@njit
def _apply_route(s: Any, r: int, a: Action) -> int:
    """The answer to a routing question; returns 0 or ERROR."""
    sc, q, inp = s.sc[0], s.req[r], s.inp[r]
    if a.kind == HOLD:
        until = round(a.until_s * 1e12)
        if not (math.isfinite(a.until_s) and until > sc.now_ps):
            return _fail(s, HOLD_NOT_LATER, r, 0)
        s.out[r].holds += 1
        push(s.heap, sc, int(until), ASK, r)
        return 0
    if a.kind == REJECT:
        _refuse(s, r, a.reason)
        return 0
    if a.kind != ROUTE:
        return _fail(s, BAD_KIND, r, a.kind)
    n = len(s.wk)
    p, d = a.prefill, a.decode
    if a.kv_source != 0:
        return _fail(s, BAD_KV_SOURCE, r, a.kv_source)
    if a.local_chunk_tokens < 0:
        return _fail(s, BAD_CHUNK, r, a.local_chunk_tokens)
    if p == d and p >= 0:
        p = LOCAL
    if d != LATE and (d < 0 or d >= n):
        return _fail(s, BAD_WORKER, r, d)
    if p != LOCAL and (p < 0 or p >= n):
        return _fail(s, BAD_WORKER, r, p)
    if p == LOCAL and d == LATE:
        return _fail(s, LOCAL_AND_LATE, r, d)
    first = d if p == LOCAL else p
    if s.win[first].can_prefill == 0:
        return _fail(s, CANNOT_PREFILL, r, first)
    if d != LATE and s.win[d].can_decode == 0:
        return _fail(s, CANNOT_DECODE, r, d)
    whole = inp.prompt_tokens + inp.output_tokens
    if (d != LATE and _too_large(s, d, whole)) or (p != LOCAL and _too_large(s, p, inp.prompt_tokens)):
        _refuse(s, r, TOO_LARGE)
        return 0
    out = s.out[r]
    q.local = 1 if p == LOCAL else 0
    out.local = q.local
    out.reason = a.reason
    out.prefill_worker = first
    out.decode_worker = d if d != LATE else -1
    out.routed_ps = sc.now_ps
    q.prefill_worker = first
    q.decode_worker = d
    q.leg = q.local
    q.wants = 0
    q.order_key = a.order_key
    q.chunk_cap = a.local_chunk_tokens
    q.predicted_new = max(1, inp.view_prompt_tokens - s.board[first].cached_tokens)
    c = s.ctr[inp.replica, first]
    c.prefill_requests += 1
    c.prefill_tokens += q.predicted_new
    c.local_prefills += q.local
    remember_route(s, r, first)
    if d != LATE:
        s.ctr[inp.replica, d].decode_requests += 1
        if q.local == 0:
            remember_route(s, r, d)
        _remember_session(s, r, first, d)
    else:
        _remember_session(s, r, first, -1)
    push(s.heap, sc, sc.now_ps + sc.dispatch_ps, DELIVER, r)
    note(s, LOG_DISPATCHED, r, first, d)
    return 0


@njit
def _end_pull(s: Any, r: int) -> None:
    """All bytes of ``r`` are on its decode worker."""
    q = s.req[r]
    p, d = q.prefill_worker, q.decode_worker
    catch_up(s, p)
    catch_up(s, d)
    s.out[r].pull_end_ps = s.sc[0].now_ps
    unpin(s, r)
    s.wk[d].pulling -= 1
    complete_blocks(s, d, r, s.inp[r].prompt_tokens)
    append_ready(s, d, r)
    poke(s, d)


@njit
def _deliver(s: Any, r: int) -> None:
    q = s.req[r]
    w = q.decode_worker if q.leg == 1 else q.prefill_worker
    catch_up(s, w)
    enqueue(s, w, r)
    # Behind a blocked head nothing changes at the next boundary, so a run of decode steps may go on.
    if s.wk[w].q_head == r or s.grp[s.win[w].group].busy == 0:
        poke(s, w)


@njit
def _needs_room(s: Any) -> bool:
    sc = s.sc[0]
    if sc.n_heap + (sc.n_seen - sc.n_done) + 2 * len(s.grp) + 8 > len(s.heap):
        return True
    if sc.logging == 1 and sc.n_log + 4 * s.run.size + 64 > len(s.log):
        return True
    return sc.kv_delay_ps > 0 and sc.n_kv_log + 4 * s.nodes.size > len(s.kv_log)


@njit
def advance(s: Any, decide: Any, bind: Any) -> int:
    """Run until something is needed; see the module docstring. Returns one of DONE .. ERROR."""
    sc = s.sc[0]
    n = len(s.req)
    if sc.waiting_for == NEED_ROUTE:
        a = s.ans[0]
        r = sc.asked
        sc.waiting_for = 0
        act = Action(a.kind, a.prefill, a.decode, a.order_key, a.local_chunk_tokens, a.kv_source, a.until_s, a.reason)
        if _apply_route(s, r, act) == ERROR:
            return ERROR
    elif sc.waiting_for == NEED_BIND:
        sc.waiting_for = 0
        if _apply_bind(s, sc.asked, s.ans[0].decode) == ERROR:
            return ERROR
    elif sc.waiting_for == NEED_ADJUST:
        sc.waiting_for = 0
    elif sc.now_ps == 0 and sc.adjust_period_ps > 0 and sc.n_seen == 0 and sc.n_heap == 0:
        push(s.heap, sc, sc.adjust_period_ps, ADJUST, 0)
    while sc.n_done < n:
        if _needs_room(s):
            return GROW
        # The next event: the heap, the next arrival (an ASK) or the next end of a flow.
        time_ps, kind, r = NEVER, SCHEDULE, -1
        source = 0
        if sc.n_heap > 0:
            e = s.heap[0]
            time_ps, kind, r = e.time_ps, e.kind, e.id
        if sc.flow_next_ps >= 0 and (
            sc.flow_next_ps < time_ps
            or (sc.flow_next_ps == time_ps and (kind > FLOW_END or (kind == FLOW_END and r > sc.flow_next_id)))
        ):
            time_ps, kind, r, source = sc.flow_next_ps, FLOW_END, sc.flow_next_id, 1
        if sc.next_root < sc.n_roots:
            q = s.roots[sc.next_root]
            t = s.inp[q].arrival_ps
            if t < time_ps or (t == time_ps and (kind > ASK or (kind == ASK and r > q))):
                time_ps, kind, r, source = t, ASK, q, 2
        if source == 0:
            only_timer = sc.n_heap == 1 and kind == ADJUST and sc.next_root == sc.n_roots and sc.flow_next_ps < 0
            if sc.n_heap == 0 or only_timer:
                _fail_the_stuck(s)
                if sc.n_done < n:
                    return _fail(s, 0, -1, n - sc.n_done)
                return DONE
            pop(s.heap, sc)
        elif source == 2:
            sc.next_root += 1
        if kind == STEP_END and s.grp[r].end_ps != time_ps:  # the step was cut short, this event is stale
            continue
        sc.now_ps = time_ps
        if kind == STEP_END:
            step_end(s, r)
        elif kind == FLOW_END:
            if source == 1:
                end_flow(s, r)
            _end_pull(s, r)
        elif kind == FLOW_START:
            if s.req[r].flow_bytes > 0.0:
                start_flow(s, r)
            else:
                push(s.heap, sc, time_ps, FLOW_END, r)
        elif kind == DELIVER:
            _deliver(s, r)
        elif kind == SCHEDULE:
            schedule(s, r)
        elif kind == ADJUST:
            push(s.heap, sc, time_ps + sc.adjust_period_ps, ADJUST, 0)
            fill_board(s, sc.asked)
            for w in range(len(s.board)):
                s.board[w].cached_tokens = 0  # the timer asks about no request
            sc.waiting_for = NEED_ADJUST
            return NEED_ADJUST
        else:
            if s.out[r].arrival_ps < 0:
                s.out[r].arrival_ps = time_ps
                sc.n_seen += 1
            sc.decisions += 1
            sc.asked = r
            fill_request(s, r)
            fill_board(s, r)
            binding = s.req[r].binding == 1
            if sc.use_rule == 0:
                sc.waiting_for = NEED_BIND if binding else NEED_ROUTE
                return sc.waiting_for
            memory = s.memory[s.inp[r].replica]
            if binding:
                d = bind(s.reqv[0], s.board, s.params, memory, sc.seed)
                if _apply_bind(s, r, d) == ERROR:
                    return ERROR
            else:
                act = decide(s.reqv[0], s.board, s.params, memory, sc.seed)
                if _apply_route(s, r, act) == ERROR:
                    return ERROR
    return DONE


_DECIDE, _BIND = types.FunctionType(DECIDE_SIGNATURE), types.FunctionType(BIND_SIGNATURE)


@numba.njit(types.int64(types.int64, _DECIDE, _BIND), cache=True, error_model="numpy")
def advance_at(table: int, decide: Any, bind: Any) -> int:
    """``advance`` with a compiled rule, on the state whose address table lies at ``table`` (state.Memory.table)."""
    return advance(state_at(table), decide, bind)


@intrinsic
def _no_decide(typingctx: Any) -> Any:
    return _DECIDE(), lambda context, builder, signature, args: context.get_constant_null(_DECIDE)


@intrinsic
def _no_bind(typingctx: Any) -> Any:
    return _BIND(), lambda context, builder, signature, args: context.get_constant_null(_BIND)


@numba.njit(types.int64(types.int64), cache=True, error_model="numpy")
def advance_asking(table: int) -> int:
    """``advance`` for policies that answer from outside (scalars.use_rule is 0, so no function is called)."""
    return advance(state_at(table), _no_decide(), _no_bind())  # type: ignore[call-arg]
