"""TensorRT-LLM's balancing of data-parallel attention (``attention_dp_config``), as a router that holds.

Ranks step together, so a prompt on one of them stops all. New prompts wait until every rank has one, or so many
iterations have passed since the first of them could have begun (``timeout_iters``). Source: ``PyExecutor`` of
NVIDIA/TensorRT-LLM (tensorrt_llm/_torch/pyexecutor/py_executor.py, ``_balance_adp_requests``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.contract import LOCAL, Action, hold, route
from research.validating.batch_wait import CLOCK_S


@dataclass(frozen=True, slots=True)
class Balance:
    """The setting: ``iterations`` that prompts wait for each other at most."""

    iterations: int


class BalancingRouter:
    """Deals prompts to the ranks in turn, in rounds of one for each.

    Args:
        setting: how long a round waits to be whole.
    """

    name = "balancing"

    def __init__(self, setting: Balance) -> None:
        self.setting = setting
        self.reset(1, 0)

    def reset(self, workers: int, seed: int) -> None:
        """Nothing waits; the first rank is next."""
        self._waiting: list[int] = []
        self._released: set[int] = set()
        self._turn, self._until_s = 0, math.inf

    def route(self, request: Any, view: Sequence[Any]) -> Action:
        """Let go with a whole round, or ask again."""
        now_s = float(request.now_s)
        if request.id in self._released:
            self._released.discard(request.id)
            return self._dealt(view)
        iteration_s = max((float(rank.last_tbt_s) for rank in view if rank.streams), default=0.0)
        idle = not iteration_s > 0.0 or all(rank.streams == 0 for rank in view)
        if not self._waiting:
            self._until_s = now_s + self.setting.iterations * iteration_s
        if request.id not in self._waiting:
            self._waiting.append(request.id)
        if idle or len(self._waiting) >= len(view) or now_s >= self._until_s - CLOCK_S:
            self._waiting.remove(request.id)
            self._released.update(self._waiting)
            self._waiting = []
            return self._dealt(view)
        return hold(min(self._until_s, now_s + iteration_s))

    def _dealt(self, view: Sequence[Any]) -> Action:
        rank = view[self._turn % len(view)]
        self._turn += 1
        return route(LOCAL, rank.id)
