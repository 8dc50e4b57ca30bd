"""The engine scheduler of the reference simulator: what a worker puts into its next step.

Written from ``docs/engine.md`` ("Scheduling a worker"), for clarity and not for speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envs.cluster.reference_engine import Engine
    from envs.cluster.reference_state import Request, Worker


def plan_worker(sim: Engine, w: Worker) -> None:
    """Fill ``w.chunks`` and ``w.decodes`` for the step that starts now; both empty: nothing to compute."""
    while True:
        _join_ready(w)
        preempted = False
        if w.split:
            _plan_split(sim, w)
        else:
            preempted = _grow(sim, w)
            _prefills(sim, w, len(w.decodes), admit=not preempted)
        # Growth may have preempted everything: whoever is ready or fits now takes the place.
        if w.chunks or w.decodes or not (preempted or w.ready):
            return


def _join_ready(w: Worker) -> None:
    while w.ready and len(w.running) < w.max_num_seqs:
        w.running.append(w.ready.pop(0))


def _decoding(w: Worker) -> list[Request]:
    return [r for r in w.running if r.decoding]


def _grow(sim: Engine, w: Worker) -> bool:
    """Give every decoding request the blocks its context needs, preempting the last of *running* if short.

    Returns True if it preempted.
    """
    before = len(w.running)

    def lack(r: Request) -> int:
        return max(0, w.memory.blocks(r.context) - w.memory.owned(r.here))

    while sum(lack(r) for r in _decoding(w)) > w.memory.free + w.memory.evictable:
        sim.preempt(w, w.running[-1])
    w.decodes = _decoding(w)
    for r in w.decodes:
        w.memory.take(r.here, lack(r), sim.now)
    return len(w.running) < before


def _chunk(w: Worker, r: Request, budget: int) -> int:
    """Give ``r`` its chunk of the step; returns what is left of the budget."""
    chunk = min(r.to_prefill - r.computed, budget)
    if r.chunk_cap > 0:
        chunk = min(chunk, r.chunk_cap)
    if chunk > 0:
        w.chunks.append((r, chunk))
    return budget - max(0, chunk)


def _prefills(sim: Engine, w: Worker, decodes: int, admit: bool = True) -> None:
    """Chunks of running prefills, then admission."""
    budget = w.max_batched_tokens - decodes
    for r in w.running:
        if not r.decoding:
            budget = _chunk(w, r, budget)
    while admit and w.queue and budget > 0 and len(w.running) < w.max_num_seqs:
        r = w.queue[0][1]
        run, fits = _fit(w, r)
        if not fits:
            return
        w.queue.pop(0)
        if r.remote_done:
            sim.start_pull(w, r, run)
            continue
        if r.out["prefill_start_ps"] < 0:
            r.out["cached_tokens"] = run * w.memory.prefix_block_tokens
        r.here = w.memory.reserve(r.chain, run, r.to_prefill, sim.now)
        r.computed = run * w.memory.prefix_block_tokens
        w.running.append(r)
        budget = _chunk(w, r, budget)


def _fit(w: Worker, r: Request) -> tuple[int, bool]:
    """(cached nodes, do the blocks fit) of a queue head."""
    tokens = r.prompt if r.remote_done else r.to_prefill
    run = w.memory.lookup(r.chain, tokens if r.remote_done else tokens - 1)
    return run, w.memory.fits(r.chain, run, tokens)


def _plan_split(sim: Engine, w: Worker) -> None:
    """One phase a step: prefill while the credit is not negative, else decode."""
    while w.queue and w.queue[0][1].remote_done:
        run, fits = _fit(w, w.queue[0][1])
        if not fits:
            break
        sim.start_pull(w, w.queue.pop(0)[1], run)
    head = w.queue[0][1] if w.queue else None
    head_fits = head is not None and not head.remote_done and len(w.running) < w.max_num_seqs and _fit(w, head)[1]
    decode = bool(_decoding(w))
    prefill = len(_decoding(w)) < len(w.running) or head_fits
    w.contested = decode and prefill
    if not w.contested:
        w.credit = 0
    if decode and not (prefill and w.credit >= 0):
        _grow(sim, w)
        if w.decodes:
            return
        w.contested, w.credit = False, 0  # growth has preempted every decode: prefill, if that can
    _prefills(sim, w, 0)
