"""Links: flows share the bandwidth of both ends (docs/engine.md, Links)."""

from __future__ import annotations

import math
from typing import Any

from envs.cluster.event_kernel import NEVER
from envs.cluster.jit import njit


@njit
def _touches(req: Any, p: int, d: int) -> bool:
    return req.flow_from == p or req.flow_to == d


@njit
def _bring_up_to_date(s: Any, p: int, d: int) -> None:
    sc = s.sc[0]
    for i in range(sc.n_flows):
        q = s.req[s.flows[i]]
        if _touches(q, p, d):
            q.flow_bytes -= q.flow_rate * (sc.now_ps - q.flow_last_ps)
            q.flow_last_ps = sc.now_ps


@njit
def _share(s: Any, p: int, d: int) -> None:
    """New rates and ends for the flows at p and d, and the next end over all flows."""
    sc = s.sc[0]
    best_ps, best_id = NEVER, -1
    for i in range(sc.n_flows):
        f = s.flows[i]
        q = s.req[f]
        if _touches(q, p, d):
            q.flow_rate = min(sc.bytes_per_ps / s.wk[q.flow_from].flows_out, sc.bytes_per_ps / s.wk[q.flow_to].flows_in)
            end = sc.now_ps + int(math.ceil(q.flow_bytes / q.flow_rate))
            q.flow_end_ps = max(end, sc.now_ps)
        if q.flow_end_ps < best_ps or (q.flow_end_ps == best_ps and f < best_id):
            best_ps, best_id = q.flow_end_ps, f
    sc.flow_next_ps, sc.flow_next_id = (best_ps, best_id) if best_id >= 0 else (-1, -1)


@njit
def start_flow(s: Any, r: int) -> None:
    """Bytes of request ``r`` start to flow; flow_from, flow_to and flow_bytes are set."""
    sc, q = s.sc[0], s.req[r]
    p, d = q.flow_from, q.flow_to
    _bring_up_to_date(s, p, d)
    s.wk[p].flows_out += 1
    s.wk[d].flows_in += 1
    q.flow_last_ps = sc.now_ps
    s.flows[sc.n_flows] = r
    sc.n_flows += 1
    _share(s, p, d)


@njit
def end_flow(s: Any, r: int) -> None:
    """Take the finished flow of ``r`` off its links."""
    sc, q = s.sc[0], s.req[r]
    p, d = q.flow_from, q.flow_to
    _bring_up_to_date(s, p, d)
    for i in range(sc.n_flows):
        if s.flows[i] == r:
            sc.n_flows -= 1
            s.flows[i] = s.flows[sc.n_flows]
            break
    s.wk[p].flows_out -= 1
    s.wk[d].flows_in -= 1
    _share(s, p, d)
