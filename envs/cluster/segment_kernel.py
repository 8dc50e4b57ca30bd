"""Steps under way on a worker, k at a time: decode steps that nothing disturbs are summed in closed form.

A segment of k steps starts at ``seg_t0``; step 1 takes ``seg_d1``, each later one ``seg_inc`` more (every
decoding request's context grows by one token a step). ``seg_e`` steps have been accounted for as emitted, the
blocks of the first ``seg_g`` have been taken. Durations are whole picoseconds, so this is exact.
"""

from __future__ import annotations

import math
from typing import Any

from envs.cluster.jit import njit
from envs.cluster.prefix_kernel import take, used
from envs.cluster.problem import tbt_bin

_tbt_bin = njit(tbt_bin)


@njit
def boundary(wk: Any, j: int) -> int:
    """Time at which step ``j`` of the segment ends (0: its start)."""
    return wk.seg_t0 + j * wk.seg_d1 + wk.seg_inc * (j * (j - 1) // 2)


@njit
def steps_before(wk: Any, time_ps: int) -> int:
    """Steps of the segment that end before ``time_ps``."""
    k = wk.seg_k
    span = time_ps - wk.seg_t0
    if span <= wk.seg_d1:
        return 0
    if wk.seg_inc == 0:
        j = min(k, (span - 1) // wk.seg_d1)
    else:
        half = wk.seg_d1 - 0.5 * wk.seg_inc
        j = int((math.sqrt(half * half + 2.0 * wk.seg_inc * float(span)) - half) / wk.seg_inc)
        j = min(max(j, 0), k)
    while j < k and boundary(wk, j + 1) < time_ps:
        j += 1
    while j > 0 and boundary(wk, j) >= time_ps:
        j -= 1
    return j


@njit
def growth(s: Any, w: int, first: int, last: int) -> int:
    """Blocks that decode steps number ``first`` .. ``last`` (counted like steps_done) need."""
    block = s.win[w].block_tokens
    steps = last - first + 1
    if steps <= 0:
        return 0
    total = (steps // block) * s.wk[w].n_decoding
    for i in range(steps % block):
        total += s.grow[w, (first + i) % block]
    return total


@njit
def _grow_until(s: Any, w: int, time_ps: int) -> None:
    """Take the blocks of all steps of the segment that start before ``time_ps``."""
    wk = s.wk[w]
    if wk.seg_g < wk.seg_k:
        g = min(wk.seg_k, 1 + steps_before(wk, time_ps))
        if g > wk.seg_g:
            base = wk.steps_done - wk.seg_e
            blocks = growth(s, w, base + wk.seg_g, base + g - 1)
            wk.seg_g = g
            if blocks > 0:
                take(s, w, blocks)


@njit
def count_gaps(s: Any, gap_ps: int, samples: int) -> None:
    """``samples`` tokens came ``gap_ps`` after the token before them."""
    if samples > 0:
        s.tbt[_tbt_bin(gap_ps)] += samples


@njit
def streams_advance(s: Any, w: int, steps: int, gap_ps: int) -> None:
    """Every active stream of ``w`` got ``steps`` tokens, the last one ``gap_ps`` after the one before."""
    for i in range(s.ctr.shape[0]):
        c = s.ctr[i, w]
        if c.active > 0:
            c.decode_tokens += steps * c.active
            c.last_tbt_ps = gap_ps


@njit
def is_beyond(win: Any, new_tokens: int, attn2: int, decodes: int) -> bool:
    """Does a step lie outside the range in which the law was fitted, its KV tokens apart?"""
    return (
        0 < win.fit_tokens < new_tokens + decodes
        or 0 < win.fit_seqs < decodes
        or (new_tokens > 0 and win.fit_context > 0 and attn2 > 2 * new_tokens * win.fit_context)
    )


@njit
def count_beyond(s: Any, w: int, steps: int) -> None:
    """Count those of the next ``steps`` steps of the kind under way that lie outside the fitted range."""
    wk, win = s.wk[w], s.win[w]
    batch = wk.step_decodes
    within = steps
    if is_beyond(win, wk.step_new, wk.step_attn2, batch):
        within = 0
    elif win.fit_kv > 0 and batch > 0:  # each step adds a KV token a decode
        within = 0 if wk.kv_sum > win.fit_kv else min(steps, 1 + (win.fit_kv - wk.kv_sum) // batch)
    s.wout[w].extrapolated_steps += steps - within


@njit
def _emit_until(s: Any, w: int, time_ps: int) -> None:
    """Account for the steps of a longer segment that have ended by ``time_ps``, but for its last."""
    wk = s.wk[w]
    e = min(steps_before(wk, time_ps + 1), wk.seg_k - 1)
    m = e - wk.seg_e
    if m <= 0:
        return
    batch = wk.n_decoding
    first_gap = wk.seg_d1 + wk.seg_inc * wk.seg_e
    last_gap = wk.seg_d1 + wk.seg_inc * (e - 1)
    if _tbt_bin(first_gap) == _tbt_bin(last_gap):
        count_gaps(s, first_gap, m * batch)
    else:
        for i in range(m):
            count_gaps(s, first_gap + i * wk.seg_inc, batch)
    end = boundary(wk, e)
    wout = s.wout[w]
    wout.steps += m
    count_beyond(s, w, m)
    wout.decode_ps += end - boundary(wk, wk.seg_e)
    wout.decode_tokens += m * batch
    wk.steps_done += m
    wk.kv_sum += m * batch
    wk.last_emit_ps = end
    wk.last_decode_ps = end
    wk.seg_e = e
    streams_advance(s, w, m, last_gap)


@njit
def catch_up(s: Any, w: int) -> None:
    """Bring ``w`` up to now; must come before every change to it and every look at it."""
    sc, wk = s.sc[0], s.wk[w]
    if sc.scrape_period_ps > 0:
        scrape = sc.now_ps // sc.scrape_period_ps * sc.scrape_period_ps
        if scrape > wk.snap_ps:
            _grow_until(s, w, scrape)
            wk.snap_ps = scrape
            wk.snap_running = wk.n_run
            wk.snap_waiting = wk.q_len + wk.pulling + wk.r_len
            wk.snap_used = used(s, w)
            wk.snap_pinned = wk.pinned_blocks
    if wk.seg_k > 1:
        _grow_until(s, w, sc.now_ps)
        _emit_until(s, w, sc.now_ps)
