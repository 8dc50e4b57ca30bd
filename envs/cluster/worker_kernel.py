"""A worker's requests: queue, running list, decoding, preemption, and what the router sees of it."""

from __future__ import annotations

from typing import Any

from envs.cluster.event_kernel import ASK, DELIVER, SCHEDULE, STEP_END, note, push
from envs.cluster.jit import njit
from envs.cluster.prefix_kernel import blocks_for, complete_blocks, release
from envs.cluster.problem import SERVED
from envs.cluster.segment_kernel import boundary
from envs.cluster.state import (
    LOG_FINISHED,
    LOG_FIRST_TOKEN,
    LOG_PREFILL_DONE,
)
from policies.contract import LATE


@njit
def poke(s: Any, w: int) -> None:
    """Something reached ``w``: an idle group plans now, a run of decode steps ends at the next boundary."""
    sc = s.sc[0]
    g = s.win[w].group
    group = s.grp[g]
    if group.busy == 0:
        if group.flagged == 0:
            group.flagged = 1
            push(s.heap, sc, sc.now_ps, SCHEDULE, g)
        return
    wk = s.wk[w]
    if wk.seg_k > 1:
        j = max(wk.seg_e, 1)
        while boundary(wk, j) < sc.now_ps:
            j += 1
        if j < wk.seg_k:
            wk.seg_k = j
            group.end_ps = boundary(wk, j)
            push(s.heap, sc, group.end_ps, STEP_END, g)


@njit
def enqueue(s: Any, w: int, r: int) -> None:
    """Queue ``r`` by (order key, order of delivery)."""
    wk, q = s.wk[w], s.req[r]
    after = wk.q_tail
    while after >= 0 and s.req[after].front == 0 and s.req[after].order_key > q.order_key:
        after = s.req[after].q_prev
    q.q_prev = after
    if after >= 0:
        q.q_next = s.req[after].q_next
        s.req[after].q_next = r
    else:
        q.q_next = wk.q_head
        wk.q_head = r
    if q.q_next >= 0:
        s.req[q.q_next].q_prev = r
    else:
        wk.q_tail = r
    wk.q_len += 1


@njit
def dequeue(s: Any, w: int) -> None:
    """Take the head off the queue."""
    wk = s.wk[w]
    r = wk.q_head
    s.req[r].front = 0
    wk.q_head = s.req[r].q_next
    if wk.q_head >= 0:
        s.req[wk.q_head].q_prev = -1
    else:
        wk.q_tail = -1
    wk.q_len -= 1


@njit
def append_ready(s: Any, w: int, r: int) -> None:
    """A pulled request waits for the next step boundary."""
    wk, q = s.wk[w], s.req[r]
    q.q_next = -1
    if wk.r_tail >= 0:
        s.req[wk.r_tail].q_next = r
    else:
        wk.r_head = r
    wk.r_tail = r
    wk.r_len += 1


@njit
def start_decoding(s: Any, w: int, r: int, slot: int) -> None:
    """Request ``r`` in ``slot`` of the running list decodes from the next decode step on."""
    wk, q, inp = s.wk[w], s.req[r], s.inp[r]
    block = s.win[w].block_tokens
    context = inp.prompt_tokens + q.emitted
    q.step_base = wk.steps_done - q.emitted
    s.run[w, slot] = r
    s.fin[w, slot] = q.step_base + inp.output_tokens
    s.grow[w, (wk.steps_done - context + 1) % block] += 1
    wk.n_decoding += 1
    wk.kv_sum += context
    if q.emitted == 0:
        wk.n_first += 1
        if (context - 1) % block == 0:  # the pull has reserved this block already
            wk.grow_skip += 1


@njit
def _stop_decoding(s: Any, w: int, r: int) -> None:
    wk, q = s.wk[w], s.req[r]
    q.emitted = wk.steps_done - q.step_base
    context = s.inp[r].prompt_tokens + q.emitted
    s.grow[w, (wk.steps_done - context + 1) % s.win[w].block_tokens] -= 1
    wk.n_decoding -= 1
    wk.kv_sum -= context


@njit
def preempt_last(s: Any, w: int) -> None:
    """Send the last running request back to the front of the queue; it will be computed again."""
    wk, win = s.wk[w], s.win[w]
    slot = wk.n_run - 1
    r = s.run[w, slot]
    q, inp = s.req[r], s.inp[r]
    wk.n_run = slot
    if s.fin[w, slot] >= 0:
        _stop_decoding(s, w, r)
        if q.emitted == 0:
            wk.n_first -= 1
            if (inp.prompt_tokens - 1) % win.block_tokens == 0:
                wk.grow_skip -= 1
        else:
            s.ctr[inp.replica, w].active -= 1
            q.token_ps = max(q.token_ps, wk.last_decode_ps)
        blocks = blocks_for(inp.prompt_tokens + max(q.emitted - 1, 0), win.block_tokens)
    else:
        wk.n_prefilling -= 1
        blocks = blocks_for(q.target, win.block_tokens)
    release(s, w, r, blocks, q.held)
    q.held = 0
    q.wants = 0
    q.front = 1
    q.q_prev = -1
    q.q_next = wk.q_head
    if wk.q_head >= 0:
        s.req[wk.q_head].q_prev = r
    else:
        wk.q_tail = r
    wk.q_head = r
    wk.q_len += 1
    s.out[r].preemptions += 1
    s.wout[w].preemptions += 1


@njit
def _end_turn(s: Any, r: int) -> None:
    sc, inp = s.sc[0], s.inp[r]
    s.out[r].status = SERVED
    s.out[r].finish_ps = sc.now_ps
    s.out[r].emitted_tokens = inp.output_tokens
    sc.n_done += 1
    if inp.session >= 0:
        s.sess[inp.session].last_end_ps = sc.now_ps
    if inp.next_turn >= 0:
        push(s.heap, sc, sc.now_ps + s.inp[inp.next_turn].think_ps, ASK, inp.next_turn)


@njit
def finish_request(s: Any, w: int, r: int) -> None:
    """The last token of ``r`` was emitted: its answer stays in the cache, its blocks go."""
    q, inp = s.req[r], s.inp[r]
    computed = inp.prompt_tokens + inp.output_tokens - 1
    complete_blocks(s, w, r, computed)
    release(s, w, r, blocks_for(computed, s.win[w].block_tokens), q.held)
    q.held = 0
    c = s.ctr[inp.replica, w]
    c.streams -= 1
    c.active -= 1
    c.decode_requests -= 1
    c.decode_tokens -= inp.prompt_tokens + inp.output_tokens
    c.finished += 1
    s.by_class[inp.replica, w, inp.class_id] -= 1
    s.rep[inp.replica].finished += 1
    s.rep[inp.replica].output_tokens += inp.output_tokens
    note(s, LOG_FINISHED, r, w, inp.output_tokens)
    _end_turn(s, r)


@njit
def finish_decoding(s: Any, w: int, r: int) -> None:
    """A decoding request has all its tokens."""
    _stop_decoding(s, w, r)
    finish_request(s, w, r)


@njit
def token_one(s: Any, w: int, r: int) -> None:
    """The client sees its first token, from ``w``."""
    q, inp = s.req[r], s.inp[r]
    c = s.ctr[inp.replica, w]
    s.out[r].first_token_ps = s.sc[0].now_ps
    if q.local == 1:
        c.prefill_requests -= 1
        c.prefill_tokens -= q.predicted_new
        c.local_prefills -= 1
    else:
        c.transfers -= 1
    c.streams += 1
    c.active += 1
    c.decode_tokens += inp.prompt_tokens + 1
    s.by_class[inp.replica, w, inp.class_id] += 1
    note(s, LOG_FIRST_TOKEN, r, w, 1)


@njit
def send_to_decode(s: Any, r: int) -> None:
    """The prompt is computed and the decode worker known: off to its queue."""
    sc, q, inp = s.sc[0], s.req[r], s.inp[r]
    s.ctr[inp.replica, q.decode_worker].transfers += 1
    q.leg, q.wants = 1, 1
    push(s.heap, sc, sc.now_ps + sc.dispatch_ps, DELIVER, r)


@njit
def remote_prefill_done(s: Any, w: int, r: int) -> None:
    """A remote prefill ended on ``w``: its blocks stay pinned until they are pulled."""
    sc, q, inp = s.sc[0], s.req[r], s.inp[r]
    q.held_pinned, q.held = q.held, 0
    s.wk[w].pinned_blocks += blocks_for(inp.prompt_tokens, s.win[w].block_tokens)
    s.ctr[inp.replica, w].prefill_requests -= 1
    s.ctr[inp.replica, w].prefill_tokens -= q.predicted_new
    note(s, LOG_PREFILL_DONE, r, w, 0)
    if q.decode_worker == LATE:
        q.binding = 1
        push(s.heap, sc, sc.now_ps, ASK, r)
    else:
        send_to_decode(s, r)


@njit
def unpin(s: Any, r: int) -> None:
    """The pinned blocks of ``r`` on its prefill worker are free to go (the worker is up to date)."""
    q = s.req[r]
    w = q.prefill_worker
    blocks = blocks_for(s.inp[r].prompt_tokens, s.win[w].block_tokens)
    s.wk[w].pinned_blocks -= blocks
    release(s, w, r, blocks, q.held_pinned)
    q.held_pinned = 0
    poke(s, w)
