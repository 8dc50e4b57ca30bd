"""Front ends that do not know of each other, as a router: each sends its own requests to the workers in turn.

nginx hands every connection to one of the front ends; the benchmark opens one a request. Its workers each keep a turn
of their own and any of them accepts, so the front end of a request is taken as random, and where a front end's turns
stand when the measurement begins (after warm-up) as well. Inside a worker its data-parallel ranks take turns, or are
random where the engine makes them so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from policies.contract import Action, route, tie_hash

FRONT_END, PREFILL, DECODE, RANK = -11, -12, -13, -14
"""What a random number is for."""


class FrontEnds:
    """Routes to prefill and decode workers, each front end in its own turn.

    Args:
        frontends: their number.
        prefill: ids of the ranks of each prefill worker.
        decode: of each decode worker.
        random_rank: whether a request's prefill rank is random.
    """

    name = "front_ends"

    def __init__(
        self,
        frontends: int,
        prefill: Sequence[Sequence[int]],
        decode: Sequence[Sequence[int]],
        random_rank: bool = False,
    ) -> None:
        self.frontends, self.pools, self.random_rank = frontends, (prefill, decode), random_rank
        self.reset(1, 0)

    def reset(self, workers: int, seed: int) -> None:
        """Turns stand where they start."""
        self._seed = seed
        self._turns = [
            [tie_hash(seed, front, salt) if self.frontends > 1 else 0 for front in range(self.frontends)]
            for salt in (PREFILL, DECODE)
        ]
        self._ranks = [[0] * len(pool) for pool in self.pools]

    def route(self, request: Any, view: Sequence[Any]) -> Action:
        """The next workers of the request's front end, and the next rank of each."""
        front = tie_hash(self._seed, int(request.id), FRONT_END) % self.frontends
        prefill, decode = (self._next(phase, front, int(request.id)) for phase in (0, 1))
        return route(prefill, decode)

    def _next(self, phase: int, front: int, request: int) -> int:
        pool = self.pools[phase]
        worker = self._turns[phase][front] % len(pool)
        self._turns[phase][front] += 1
        ranks = pool[worker]
        if phase == 0 and self.random_rank:
            return ranks[tie_hash(self._seed, request, RANK) % len(ranks)]
        self._ranks[phase][worker] += 1
        return ranks[(self._ranks[phase][worker] - 1) % len(ranks)]
