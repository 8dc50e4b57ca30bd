"""The event heap: a binary heap over (time, kind, id), and the stream log."""

from __future__ import annotations

from typing import Any

from envs.cluster.jit import njit

STEP_END, FLOW_END, FLOW_START, DELIVER, ASK, ADJUST, SCHEDULE = range(7)
NEVER = 9_223_372_036_854_775_807


@njit
def _before(heap: Any, i: int, j: int) -> bool:
    a, b = heap[i], heap[j]
    if a.time_ps != b.time_ps:
        return a.time_ps < b.time_ps
    if a.kind != b.kind:
        return a.kind < b.kind
    return a.id < b.id


@njit
def _swap(heap: Any, i: int, j: int) -> None:
    a, b = heap[i], heap[j]
    t, k, d = a.time_ps, a.kind, a.id
    a.time_ps, a.kind, a.id = b.time_ps, b.kind, b.id
    b.time_ps, b.kind, b.id = t, k, d


@njit
def push(heap: Any, sc: Any, time_ps: int, kind: int, ident: int) -> None:
    """Add an event. The main loop keeps enough room (see engine_kernel.needs_room)."""
    i = sc.n_heap
    sc.n_heap = i + 1
    e = heap[i]
    e.time_ps, e.kind, e.id = time_ps, kind, ident
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(heap, i, parent):
            break
        _swap(heap, i, parent)
        i = parent


@njit
def pop(heap: Any, sc: Any) -> None:
    """Drop the first event (read it from heap[0] before)."""
    n = sc.n_heap - 1
    sc.n_heap = n
    if n == 0:
        return
    _swap(heap, 0, n)
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            return
        if child + 1 < n and _before(heap, child + 1, child):
            child += 1
        if not _before(heap, child, i):
            return
        _swap(heap, i, child)
        i = child


@njit
def note(s: Any, kind: int, request: int, worker: int, value: int) -> None:
    """Append to the stream log if somebody reads it."""
    sc = s.sc[0]
    if sc.logging == 1:
        e = s.log[sc.n_log]
        e.time_ps, e.kind, e.request, e.worker, e.value = sc.now_ps, kind, request, worker, value
        sc.n_log += 1
