"""Ending a step: chunks and tokens take effect, rank by rank (docs/engine.md, End of a step)."""

from __future__ import annotations

from typing import Any

from envs.cluster.event_kernel import SCHEDULE, push
from envs.cluster.jit import njit
from envs.cluster.prefix_kernel import complete_blocks
from envs.cluster.segment_kernel import catch_up, count_beyond, count_gaps, streams_advance
from envs.cluster.worker_kernel import (
    finish_decoding,
    finish_request,
    remote_prefill_done,
    start_decoding,
    token_one,
)
from policies.contract import SPLIT


@njit
def _end_prefills(s: Any, w: int) -> bool:
    """Advance the chunks of the step that ends; returns True if one of them sent a token to a client."""
    sc, wk = s.sc[0], s.wk[w]
    emitted = False
    kept = 0
    for slot in range(wk.n_run):
        r = s.run[w, slot]
        keep = True
        if s.fin[w, slot] < 0:
            q, inp = s.req[r], s.inp[r]
            q.done += q.chunk
            s.out[r].prefill_tokens_computed += q.chunk
            if q.chunk > 0:
                complete_blocks(s, w, r, q.done)
            q.chunk = 0
            if q.done == q.target:
                wk.n_prefilling -= 1
                if s.out[r].prefill_done_ps < 0:
                    s.out[r].prefill_done_ps = sc.now_ps
                if q.leg == 0:
                    remote_prefill_done(s, w, r)
                    keep = False
                else:
                    emitted = True
                    if q.emitted == 0:
                        token_one(s, w, r)
                    else:
                        count_gaps(s, sc.now_ps - q.token_ps, 1)
                        s.ctr[inp.replica, w].decode_tokens += 1
                        s.ctr[inp.replica, w].active += 1
                    q.emitted += 1
                    q.token_ps = sc.now_ps
                    if q.emitted == inp.output_tokens:
                        finish_request(s, w, r)
                        keep = False
                    else:
                        start_decoding(s, w, r, slot)
        if keep:
            if kept != slot:
                s.run[w, kept] = s.run[w, slot]
                s.fin[w, kept] = s.fin[w, slot]
            kept += 1
    wk.n_run = kept
    return emitted


@njit
def _end_decodes(s: Any, w: int, first_steps: int) -> None:
    """First tokens and finishes of the decode step that ends, in running order."""
    wk = s.wk[w]
    kept = 0
    for slot in range(wk.n_run):
        r = s.run[w, slot]
        keep = True
        if s.fin[w, slot] >= 0:
            if first_steps > 0 and s.out[r].first_token_ps < 0:
                token_one(s, w, r)
                s.req[r].token_ps = s.sc[0].now_ps
            if s.fin[w, slot] == wk.steps_done:
                finish_decoding(s, w, r)
                keep = False
        if keep:
            if kept != slot:
                s.run[w, kept] = s.run[w, slot]
                s.fin[w, kept] = s.fin[w, slot]
            kept += 1
    wk.n_run = kept


@njit
def _count_decode_gaps(s: Any, w: int) -> None:
    """TBT samples of the decode step that ends; the step is not yet in steps_done."""
    sc, wk = s.sc[0], s.wk[w]
    if s.win[w].role != SPLIT:
        count_gaps(s, wk.seg_d1 + wk.seg_inc * (wk.seg_k - 1), wk.step_decodes - wk.n_first)
        return
    for slot in range(wk.n_run):
        if s.fin[w, slot] >= 0:
            q = s.req[s.run[w, slot]]
            if wk.steps_done - q.step_base > 0:
                count_gaps(s, sc.now_ps - max(q.token_ps, wk.last_decode_ps), 1)


@njit
def _end_rank(s: Any, w: int) -> None:
    sc, wk, wout = s.sc[0], s.wk[w], s.wout[w]
    if wk.seg_k == 0:
        wout.idle_rank_ps += wk.seg_d1
        catch_up(s, w)
        return
    catch_up(s, w)
    if wk.seg_e == wk.seg_k:  # cut short at this very boundary, after its last step had been accounted for
        wk.seg_k = 0
        return
    last = wk.seg_d1 + wk.seg_inc * (wk.seg_k - 1)
    decodes = wk.step_decodes
    wout.steps += 1
    count_beyond(s, w, 1)
    wout.prefill_tokens += wk.step_new
    if wk.step_new == 0:
        wout.decode_ps += last
    elif decodes == 0:
        wout.prefill_ps += last
    else:
        wout.mixed_ps += last
    if wk.contested == 1:
        wk.credit += wk.share * last if decodes > 0 else (wk.share - 1000) * last
    first_steps = wk.n_first if decodes > 0 else 0
    was_decoding = decodes > 0
    if was_decoding:
        _count_decode_gaps(s, w)
        streams_advance(s, w, 1, sc.now_ps - wk.last_emit_ps)
        wout.decode_tokens += decodes
        wk.steps_done += 1
        wk.kv_sum += decodes
        wk.n_first = 0
        wk.grow_skip = 0
    emitted = False
    if wk.step_new > 0:
        emitted = _end_prefills(s, w)
    if was_decoding:
        _end_decodes(s, w, first_steps)
        wk.last_decode_ps = sc.now_ps
        emitted = True
    if emitted:
        wk.last_emit_ps = sc.now_ps
    wk.seg_k = 0


@njit
def step_end(s: Any, g: int) -> None:
    """A step of group ``g`` ends on all its ranks; the next is planned at this instant."""
    sc, group = s.sc[0], s.grp[g]
    group.end_ps = -1
    for i in range(group.first, group.first + group.count):
        _end_rank(s, s.members[i])
    group.busy = 0
    if group.flagged == 0:
        group.flagged = 1
        push(s.heap, sc, sc.now_ps, SCHEDULE, g)
