"""The contract's two primitives, faster: equal results for equal arguments, which a test holds for arbitrary ones.

A rule asks for a tie-breaking hash of every worker at every decision. For the request being decided they are computed
for all workers at once; and scores that are far apart need no margin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_MASK = 0xFFFFFFFF
_15, _16, _FIRST, _SECOND = np.uint32(15), np.uint32(16), np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_INF = float("inf")
_FEWEST = 16
"""From this many workers on the table pays."""


class Ties:
    """``tie_hash`` with a table for one (seed, request) at a time.

    Attributes:
        tie_hash: stands in for ``contract.tie_hash``.
        seat: takes the workers' numbers; called when the view's members change.
        prepare: takes the seed and request of the decision to come.
    """

    __slots__ = ("prepare", "seat", "tie_hash")

    def __init__(self) -> None:
        numbers: list[int] = []
        terms = np.zeros(0, np.uint32)
        table: dict[int, int] = {}
        key_seed, key_request, ready = 0, -1, True

        def tie_hash(seed: int, request_id: int, worker_id: int) -> int:
            if request_id == key_request and seed == key_seed:
                if not ready:
                    build()
                try:
                    return table[worker_id]
                except KeyError:
                    pass
            x = (seed * 2654435761 + request_id * 2246822519 + worker_id * 3266489917 + 374761393) & _MASK
            x ^= x >> 16
            x = (x * 0x7FEB352D) & _MASK
            x ^= x >> 15
            x = (x * 0x846CA68B) & _MASK
            x ^= x >> 16
            return x

        def build() -> None:
            nonlocal table, ready
            x = terms + np.uint32((key_seed * 2654435761 + key_request * 2246822519 + 374761393) & _MASK)
            x ^= x >> _16  # 32-bit arithmetic wraps: that is the mask
            x *= _FIRST
            x ^= x >> _15
            x *= _SECOND
            x ^= x >> _16
            table = dict(zip(numbers, x.tolist(), strict=True))
            ready = True

        def seat(given: Sequence[int]) -> None:
            nonlocal numbers, terms, table, key_request, ready
            numbers = list(given) if len(given) >= _FEWEST else []
            terms = np.array([number * 3266489917 & _MASK for number in numbers], np.uint32)
            table, key_request, ready = {}, -1, True

        def prepare(seed: int, request_id: int) -> None:
            nonlocal key_seed, key_request, ready
            if numbers:
                key_seed, key_request, ready = seed, request_id, False

        self.tie_hash: Callable[[int, int, int], int] = tie_hash
        self.seat: Callable[[Sequence[int]], None] = seat
        self.prepare: Callable[[int, int], None] = prepare


def better(score: float, worker_hash: int, best_score: float, best_hash: int) -> bool:
    """Stands in for ``contract.better``: positive scores more than a millionth apart need no margin."""
    if score > 0.0 < best_score:
        if score * 1.000001 < best_score:
            return True
        if best_score * 1.000001 < score:
            return False
    if not score < _INF:
        return False
    if best_score == _INF:
        return True
    margin = 1e-9 * max(abs(score), abs(best_score))
    if score < best_score - margin:
        return True
    if score > best_score + margin:
        return False
    return worker_hash < best_hash
