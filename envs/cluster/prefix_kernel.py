"""KV blocks and the prefix cache of one worker: free blocks, nodes, LRU eviction (docs/engine.md)."""

from __future__ import annotations

from typing import Any

from envs.cluster.jit import njit


@njit
def blocks_for(tokens: int, block_tokens: int) -> int:
    """KV blocks that hold ``tokens``."""
    return (tokens + block_tokens - 1) // block_tokens


@njit
def _log_kv(s: Any, w: int, ident: int, present: int) -> None:
    sc = s.sc[0]
    if sc.kv_delay_ps > 0:
        e = s.kv_log[sc.n_kv_log]
        e.time_ps, e.worker, e.id, e.present = sc.now_ps, w, ident, present
        sc.n_kv_log += 1


@njit
def _lru_remove(s: Any, w: int, i: int) -> None:
    wk, node = s.wk[w], s.nodes[w, i]
    if node.prev >= 0:
        s.nodes[w, node.prev].next = node.next
    else:
        wk.lru_head = node.next
    if node.next >= 0:
        s.nodes[w, node.next].prev = node.prev
    else:
        wk.lru_tail = node.prev
    wk.lru_len -= 1


@njit
def _lru_append(s: Any, w: int, i: int) -> None:
    wk, node = s.wk[w], s.nodes[w, i]
    node.prev, node.next = wk.lru_tail, -1
    if wk.lru_tail >= 0:
        s.nodes[w, wk.lru_tail].next = i
    else:
        wk.lru_head = i
    wk.lru_tail = i
    wk.lru_len += 1


@njit
def _evict_oldest(s: Any, w: int) -> None:
    wk = s.wk[w]
    i = wk.lru_head
    _lru_remove(s, w, i)
    node = s.nodes[w, i]
    s.lookup[w, node.id] = 0
    _log_kv(s, w, node.id, 0)
    node.next = wk.node_free
    wk.node_free = i
    wk.free_blocks += s.win[w].node_blocks
    s.wout[w].evictions += 1


@njit
def available(s: Any, w: int) -> int:
    """Blocks that are free or can be made free by eviction."""
    return s.wk[w].free_blocks + s.wk[w].lru_len * s.win[w].node_blocks


@njit
def used(s: Any, w: int) -> int:
    """Blocks in use: neither free nor evictable."""
    return s.win[w].total_blocks - available(s, w)


@njit
def take(s: Any, w: int, blocks: int) -> None:
    """Take ``blocks`` blocks, evicting as needed; the caller checked ``available``."""
    wk = s.wk[w]
    while wk.free_blocks < blocks:
        _evict_oldest(s, w)
    wk.free_blocks -= blocks
    now_used = used(s, w)
    if now_used > s.wout[w].peak_used_blocks:
        s.wout[w].peak_used_blocks = now_used


@njit
def match(s: Any, w: int, r: int, limit: int) -> int:
    """Leading chain blocks of request ``r`` present on worker ``w``, at most ``limit``."""
    if s.win[w].prefix_cache == 0:
        return 0
    inp = s.inp[r]
    n = min(inp.chain_len, limit)
    start = inp.chain_start
    k = 0
    while k < n and s.lookup[w, s.chain[start + k]] != 0:
        k += 1
    return k


@njit
def evictable_in(s: Any, w: int, r: int, k: int) -> int:
    """How many of the first ``k`` chain blocks of ``r`` (all present) are evictable now."""
    start = s.inp[r].chain_start
    count = 0
    for i in range(k):
        if s.nodes[w, s.lookup[w, s.chain[start + i]] - 1].held == 0:
            count += 1
    return count


@njit
def hold_present(s: Any, w: int, r: int, k: int) -> None:
    """Hold the first ``k`` chain blocks, which are present (a cache hit at admission)."""
    start = s.inp[r].chain_start
    for i in range(k):
        at = s.lookup[w, s.chain[start + i]] - 1
        node = s.nodes[w, at]
        if node.held == 0:
            _lru_remove(s, w, at)
        node.held += 1
    s.req[r].held = k


@njit
def complete_blocks(s: Any, w: int, r: int, computed_tokens: int) -> None:
    """Turn private blocks that are complete now into nodes; a duplicate frees the private copy."""
    win = s.win[w]
    if win.prefix_cache == 0:
        return
    req, inp, wk = s.req[r], s.inp[r], s.wk[w]
    limit = min(inp.chain_len, computed_tokens // s.sc[0].prefix_tokens)
    start = inp.chain_start
    for i in range(req.held, limit):
        ident = s.chain[start + i]
        at = s.lookup[w, ident] - 1
        if at >= 0:
            node = s.nodes[w, at]
            if node.held == 0:
                _lru_remove(s, w, at)
            node.held += 1
            wk.free_blocks += win.node_blocks
        else:
            at = wk.node_free
            node = s.nodes[w, at]
            wk.node_free = node.next
            node.id = ident
            node.held = 1
            s.lookup[w, ident] = at + 1
            _log_kv(s, w, ident, 1)
    if limit > req.held:
        req.held = limit


@njit
def release(s: Any, w: int, r: int, blocks: int, held: int) -> None:
    """Give back ``blocks`` blocks that request ``r`` has on ``w``, its first ``held`` chain nodes included."""
    start = s.inp[r].chain_start
    s.wk[w].free_blocks += blocks - held * s.win[w].node_blocks
    for i in range(held - 1, -1, -1):
        at = s.lookup[w, s.chain[start + i]] - 1
        node = s.nodes[w, at]
        node.held -= 1
        if node.held == 0:
            _lru_append(s, w, at)
