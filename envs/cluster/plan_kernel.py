"""Planning a worker's next step at a boundary (docs/engine.md, Scheduling a worker)."""

from __future__ import annotations

from typing import Any

from envs.cluster.event_kernel import FLOW_START, STEP_END, push
from envs.cluster.jit import njit
from envs.cluster.prefix_kernel import (
    available,
    blocks_for,
    evictable_in,
    hold_present,
    match,
    take,
)
from envs.cluster.problem import step_ps
from envs.cluster.segment_kernel import catch_up, growth
from envs.cluster.tables import table_step_ps
from envs.cluster.worker_kernel import (
    dequeue,
    preempt_last,
    start_decoding,
)
from policies.contract import SPLIT

_step_ps = njit(step_ps)
_table_step_ps = njit(table_step_ps)


@njit
def _duration(s: Any, w: int) -> int:
    """How long the step lasts that ``w`` has planned, by its law."""
    wk, win = s.wk[w], s.win[w]
    n, k = wk.step_decodes, win.table
    kv = wk.kv_sum if n > 0 else 0
    if k == 0:
        return _step_ps(win.law, wk.step_new, wk.step_attn2, n, kv)
    tab = s.tab[k]
    return _table_step_ps(
        s.work[k, wk.step_new + n], s.base[k, n], s.slope[k, n], tab.a0_ps, tab.c_attn_ps,
        wk.step_new, wk.step_attn2, kv,
    )  # fmt: skip


@njit
def _increment(s: Any, w: int) -> int:
    """How much longer each decode step of ``w`` is than the one before it."""
    wk, win = s.wk[w], s.win[w]
    n = wk.step_decodes
    return (win.law.c_kv_ps if win.table == 0 else s.slope[win.table, n]) * n


@njit
def _idle_ps(s: Any, w: int) -> int:
    """What ``w`` pays in a step of its group in which it has nothing to compute."""
    win = s.win[w]
    return win.law.floor_ps if win.table == 0 else s.work[win.table, 0]


@njit
def _join_ready(s: Any, w: int) -> None:
    wk, win = s.wk[w], s.win[w]
    while wk.r_head >= 0 and wk.n_run < win.max_num_seqs:
        r = wk.r_head
        wk.r_head = s.req[r].q_next
        if wk.r_head < 0:
            wk.r_tail = -1
        wk.r_len -= 1
        start_decoding(s, w, r, wk.n_run)
        wk.n_run += 1


@njit
def _grow(s: Any, w: int) -> bool:
    """Take the blocks that the decodes lack, preempting the last running request if short; True if it did."""
    wk = s.wk[w]
    before = wk.n_run
    while True:
        lacking = s.grow[w, wk.steps_done % s.win[w].block_tokens] - wk.grow_skip
        if lacking <= available(s, w):
            break
        preempt_last(s, w)
    if lacking > 0:
        take(s, w, lacking)
    return wk.n_run < before


@njit
def _chunk(s: Any, w: int, r: int, budget: int) -> int:
    """Give ``r`` its prefill tokens of this step; returns them."""
    wk, q = s.wk[w], s.req[r]
    n = min(q.target - q.done, budget)
    if q.chunk_cap > 0 and q.local == 1:
        n = min(n, q.chunk_cap)
    q.chunk = n
    wk.step_new += n
    wk.step_attn2 += n * (2 * q.done + n)
    return n


@njit
def _chunks(s: Any, w: int, budget: int) -> int:
    """Chunks for the running prefills, in order of admission; returns what is left of the budget."""
    wk = s.wk[w]
    if wk.n_prefilling > 0:
        for slot in range(wk.n_run):
            if budget <= 0:
                break
            if s.fin[w, slot] < 0:
                budget -= _chunk(s, w, s.run[w, slot], budget)
    return budget


@njit
def _target(s: Any, r: int) -> int:
    """Tokens that ``r`` has to prefill: the prompt, and after a preemption what it had emitted."""
    return s.inp[r].prompt_tokens + s.req[r].emitted


@njit
def _fits(s: Any, w: int, r: int, tokens: int, hits: int) -> bool:
    need = blocks_for(tokens, s.win[w].block_tokens) - hits * s.win[w].node_blocks
    free = available(s, w)
    if need > free:
        return False
    return need <= free - evictable_in(s, w, r, hits) * s.win[w].node_blocks


@njit
def _prefill_hits(s: Any, w: int, r: int, tokens: int) -> int:
    return match(s, w, r, (tokens - 1) // s.sc[0].prefix_tokens)


@njit
def _start_pull(s: Any, w: int, r: int) -> bool:
    """Reserve the prompt of queue head ``r`` on ``w`` and start its pull, if it fits."""
    sc, q, inp = s.sc[0], s.req[r], s.inp[r]
    prompt = inp.prompt_tokens
    hits = match(s, w, r, prompt // sc.prefix_tokens)
    if not _fits(s, w, r, prompt, hits):
        return False
    dequeue(s, w)
    hold_present(s, w, r, hits)
    private = blocks_for(prompt, s.win[w].block_tokens) - hits * s.win[w].node_blocks
    take(s, w, private)
    s.wk[w].pulling += 1
    p = q.prefill_worker
    pulled = prompt - hits * sc.prefix_tokens
    q.flow_from, q.flow_to = p, w
    q.flow_bytes = s.win[p].kv_bytes_per_token * pulled
    s.out[r].pull_start_ps = sc.now_ps
    s.out[r].pulled_tokens = pulled
    s.out[r].pulled_bytes = q.flow_bytes
    fixed = sc.base_ps + sc.per_block_ps * private
    if s.pairs[p, w] == 0:
        s.pairs[p, w] = 1
        fixed += sc.connect_ps
    push(s.heap, sc, sc.now_ps + max(fixed, 1), FLOW_START, r)
    return True


@njit
def _start_prefill(s: Any, w: int, r: int, budget: int) -> int:
    """Admit queue head ``r`` on ``w`` if it fits; returns its chunk, 0 if it does not."""
    sc, wk, q = s.sc[0], s.wk[w], s.req[r]
    tokens = _target(s, r)
    hits = _prefill_hits(s, w, r, tokens)
    if not _fits(s, w, r, tokens, hits):
        return 0
    dequeue(s, w)
    hold_present(s, w, r, hits)
    take(s, w, blocks_for(tokens, s.win[w].block_tokens) - hits * s.win[w].node_blocks)
    q.target = tokens
    q.done = hits * sc.prefix_tokens
    if s.out[r].prefill_start_ps < 0:
        s.out[r].prefill_start_ps = sc.now_ps
        s.out[r].cached_tokens = q.done
    s.run[w, wk.n_run] = r
    s.fin[w, wk.n_run] = -1
    wk.n_run += 1
    wk.n_prefilling += 1
    return _chunk(s, w, r, budget)


@njit
def _admit(s: Any, w: int, budget: int) -> None:
    wk, win = s.wk[w], s.win[w]
    while wk.q_head >= 0 and budget > 0 and wk.n_run < win.max_num_seqs:
        r = wk.q_head
        if s.req[r].wants == 1:
            if not _start_pull(s, w, r):
                return
        else:
            n = _start_prefill(s, w, r, budget)
            if n == 0:
                return
            budget -= n


@njit
def _plan_split(s: Any, w: int) -> None:
    """Time slices: pulls, then one phase (docs/engine.md, Split workers)."""
    wk, win = s.wk[w], s.win[w]
    while wk.q_head >= 0 and s.req[wk.q_head].wants == 1:
        if not _start_pull(s, w, wk.q_head):
            break
    prefill = wk.n_prefilling > 0
    if not prefill and wk.q_head >= 0 and wk.n_run < win.max_num_seqs and s.req[wk.q_head].wants == 0:
        r = wk.q_head
        tokens = _target(s, r)
        prefill = _fits(s, w, r, tokens, _prefill_hits(s, w, r, tokens))
    decode = wk.n_decoding > 0
    wk.contested = 1 if prefill and decode else 0
    if wk.contested == 0:
        wk.credit = 0
    if decode and not (prefill and wk.credit >= 0):
        _grow(s, w)
        wk.step_decodes = wk.n_decoding
        if wk.n_decoding > 0:
            return
        wk.contested = 0
        wk.credit = 0
    _admit(s, w, _chunks(s, w, win.max_batched_tokens))


@njit
def _plan_once(s: Any, w: int) -> bool:
    """Fill the next step of ``w``; True if nothing is in it but a second look may find something."""
    wk, win = s.wk[w], s.win[w]
    wk.preempted = 0
    wk.step_new = wk.step_attn2 = wk.step_decodes = 0
    _join_ready(s, w)
    if win.role == SPLIT:
        _plan_split(s, w)
    else:
        if _grow(s, w):
            wk.preempted = 1
        wk.step_decodes = wk.n_decoding
        budget = _chunks(s, w, win.max_batched_tokens - wk.n_decoding)
        if wk.preempted == 0:
            _admit(s, w, budget)
    if wk.step_new > 0 or wk.step_decodes > 0:
        return False
    return wk.preempted == 1 or (wk.r_head >= 0 and wk.n_run < win.max_num_seqs)


@njit
def _plan(s: Any, w: int) -> int:
    """Plan the next step of ``w``; returns its duration, 0 if there is nothing to compute."""
    catch_up(s, w)
    wk = s.wk[w]
    wk.seg_k = 0
    if _plan_once(s, w):  # growth preempted all that ran: whoever is ready or fits now takes the place
        _plan_once(s, w)
    if wk.step_new == 0 and wk.step_decodes == 0:
        return 0
    return _duration(s, w)


@njit
def _undisturbed_steps(s: Any, w: int) -> int:
    """How many decode steps from now on are alike: until one finishes or memory runs short."""
    wk, win = s.wk[w], s.win[w]
    if wk.step_new > 0 or wk.n_first > 0 or wk.n_prefilling > 0 or wk.contested == 1:
        return 1
    if wk.preempted == 1 or (wk.r_head >= 0 and wk.n_run < win.max_num_seqs):  # the next boundary has more to do
        return 1
    if win.role == SPLIT and (wk.last_decode_ps != s.sc[0].now_ps or wk.q_head >= 0):
        return 1  # decodes have waited, so the first gap is longer; or the phase may change
    if s.sc[0].kv_delay_ps > 0 and win.prefix_cache == 1:  # cache events carry their time: one by one
        return 1
    least = s.fin[w, 0]
    for slot in range(1, wk.n_run):
        least = min(least, s.fin[w, slot])
    k = least - wk.steps_done
    free = available(s, w)
    if (k // win.block_tokens + 1) * wk.n_decoding > free:
        while k > 1 and growth(s, w, wk.steps_done + 1, wk.steps_done + k - 1) > free:
            k = k // 2 if growth(s, w, wk.steps_done + 1, wk.steps_done + k // 2 - 1) > free else k - 1
    return k


@njit
def schedule(s: Any, g: int) -> None:
    """Plan the next step of every rank of group ``g``."""
    sc, group = s.sc[0], s.grp[g]
    group.flagged = 0
    if group.busy == 1:
        return
    longest = 0
    for i in range(group.first, group.first + group.count):
        w = s.members[i]
        s.wk[w].seg_d1 = _plan(s, w)
        longest = max(longest, s.wk[w].seg_d1)
    if longest == 0:
        return
    for i in range(group.first, group.first + group.count):
        w = s.members[i]
        if s.wk[w].seg_d1 == 0:
            longest = max(longest, _idle_ps(s, w))
    group.busy = 1
    group.end_ps = sc.now_ps + longest
    for i in range(group.first, group.first + group.count):
        w = s.members[i]
        wk = s.wk[w]
        wk.seg_t0 = sc.now_ps
        wk.seg_inc = wk.seg_e = 0
        wk.seg_g = 1
        if wk.seg_d1 > 0:
            wk.seg_k = 1
            if group.count == 1:
                wk.seg_k = _undisturbed_steps(s, w)
                if wk.seg_k > 1:
                    wk.seg_inc = _increment(s, w)
                    k = wk.seg_k
                    group.end_ps = sc.now_ps + k * longest + wk.seg_inc * (k * (k - 1) // 2)
        wk.seg_d1 = longest
    push(s.heap, sc, group.end_ps, STEP_END, g)
