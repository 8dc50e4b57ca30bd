"""What a router replica sees when it is asked: the request record and one record a worker."""

from __future__ import annotations

import math
from typing import Any

from envs.cluster.jit import njit
from envs.cluster.prefix_kernel import match, used
from envs.cluster.segment_kernel import catch_up

_PS = 1e12
VIEW_NONE, VIEW_EXACT, VIEW_APPROXIMATE = range(3)


@njit
def fill_request(s: Any, r: int) -> None:
    """Write the question about request ``r`` into ``reqv[0]``."""
    sc, inp, v = s.sc[0], s.inp[r], s.reqv[0]
    v.id = r
    v.now_s = sc.now_ps / _PS
    v.arrival_s = s.out[r].arrival_ps / _PS
    v.replica = inp.replica
    v.prompt_tokens = inp.view_prompt_tokens
    v.max_output_tokens = inp.max_output_tokens
    v.output_hint_tokens = inp.output_hint_tokens
    v.session = inp.session
    v.turn = inp.turn
    v.since_last_turn_s = math.nan
    v.last_prefill = v.last_decode = -1
    if inp.session >= 0:
        m = s.sess[inp.session]
        v.last_prefill, v.last_decode = m.last_prefill, m.last_decode
        if m.last_end_ps >= 0:
            v.since_last_turn_s = (sc.now_ps - m.last_end_ps) / _PS
    v.class_id = inp.class_id
    v.priority = inp.priority
    v.tenant = inp.tenant
    v.model = inp.model
    v.lora = inp.lora
    v.slo_ttft_s = inp.slo_ttft_s
    v.slo_tpot_s = inp.slo_tpot_s
    v.holds = s.out[r].holds
    rep = s.rep[inp.replica]
    v.mean_output_tokens = rep.output_tokens / rep.finished if rep.finished > 0 else math.nan


@njit
def _apply_kv_log(s: Any) -> None:
    """Bring the delayed prefix index up to now - delay."""
    sc = s.sc[0]
    until = sc.now_ps - sc.kv_delay_ps
    while sc.kv_applied < sc.n_kv_log and s.kv_log[sc.kv_applied].time_ps <= until:
        e = s.kv_log[sc.kv_applied]
        s.index[e.worker, e.id] = e.present
        sc.kv_applied += 1


@njit
def _cached(s: Any, r: int, w: int) -> int:
    """Leading prefix blocks of request ``r`` that the router believes to be on ``w``."""
    sc, inp = s.sc[0], s.inp[r]
    if sc.prefix_view == VIEW_NONE or s.win[w].prefix_cache == 0:
        return 0
    tokens = sc.prefix_tokens
    limit = min(inp.chain_len, inp.prompt_tokens // tokens, (inp.view_prompt_tokens - 1) // tokens)
    if sc.prefix_view == VIEW_EXACT and sc.kv_delay_ps == 0:
        return match(s, w, r, limit)
    k = 0
    if sc.prefix_view == VIEW_EXACT:
        while k < limit and s.index[w, s.chain[inp.chain_start + k]] == 1:
            k += 1
    else:
        since = sc.now_ps - sc.approximate_ttl_ps
        while k < limit:
            last = s.approx[inp.replica, w, s.chain[inp.chain_start + k]]
            if last < 0 or last < since:
                break
            k += 1
    return k


@njit
def fill_board(s: Any, r: int) -> None:
    """Write the view for request ``r`` into ``board``; brings every worker up to now."""
    sc, rep = s.sc[0], s.inp[r].replica
    if sc.kv_delay_ps > 0:
        _apply_kv_log(s)
    now_s = sc.now_ps / _PS
    live = sc.scrape_period_ps == 0
    for w in range(len(s.board)):
        catch_up(s, w)
        b, c, wk = s.board[w], s.ctr[rep, w], s.wk[w]
        b.age_s = now_s
        b.prefill_requests = c.prefill_requests
        b.prefill_tokens = c.prefill_tokens
        b.local_prefills = c.local_prefills
        b.decode_requests = c.decode_requests
        b.decode_tokens = c.decode_tokens
        b.streams = c.streams
        b.transfers = c.transfers
        b.finished = c.finished
        b.failures = c.failures
        b.last_tbt_s = c.last_tbt_ps / _PS if c.last_tbt_ps >= 0 else math.nan
        least = math.inf
        if c.streams > 0:
            for k in range(s.by_class.shape[2]):
                if s.by_class[rep, w, k] > 0:
                    least = min(least, s.class_tpot[k])
        b.min_slo_tpot_s = least
        total = s.win[w].total_blocks
        if live:
            b.scraped_running = wk.n_run
            b.scraped_waiting = wk.q_len + wk.pulling + wk.r_len
            b.scraped_kv_usage = used(s, w) / total
            b.scraped_pinned = wk.pinned_blocks / total
            b.scrape_age_s = 0.0
        else:
            b.scraped_running = wk.snap_running
            b.scraped_waiting = wk.snap_waiting
            b.scraped_kv_usage = wk.snap_used / total
            b.scraped_pinned = wk.snap_pinned / total
            b.scrape_age_s = (sc.now_ps - wk.snap_ps) / _PS
        b.cached_tokens = _cached(s, r, w) * sc.prefix_tokens


@njit
def remember_route(s: Any, r: int, w: int) -> None:
    """The router notes which prefix it sent to ``w`` (approximate prefix view)."""
    sc, inp = s.sc[0], s.inp[r]
    if sc.prefix_view == VIEW_APPROXIMATE:
        limit = min(inp.chain_len, inp.prompt_tokens // sc.prefix_tokens)
        for i in range(limit):
            s.approx[inp.replica, w, s.chain[inp.chain_start + i]] = sc.now_ps
