"""TensorRT-LLM's batch waiting (``batch_wait_timeout_iters``, ``batch_wait_max_tokens_ratio``), as a router that holds.

While something decodes, new prompts wait until they and the decodes of a step come to so many tokens, or so many
iterations have passed since the first of them came; then all are let go. An iteration is the worker's last gap between
tokens. Source: ``PyExecutor._waiting_requests`` of NVIDIA/TensorRT-LLM (tensorrt_llm/_torch/pyexecutor).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.contract import LOCAL, Action, hold, route

CLOCK_S = 1e-9
"""Times closer than this are one."""


@dataclass(frozen=True, slots=True)
class BatchWait:
    """The setting: ``iterations`` at most, or ``tokens`` in one step."""

    iterations: int
    tokens: int


class WaitingRouter:
    """Routes to the only worker, after the wait."""

    name = "batch_wait"

    def __init__(self, setting: BatchWait) -> None:
        self.setting = setting
        self.reset(1, 0)

    def reset(self, workers: int, seed: int) -> None:
        """Nothing waits."""
        self._waiting: dict[int, int] = {}
        self._released: set[int] = set()
        self._passed, self._next_s = 0, math.inf

    def route(self, request: Any, view: Sequence[Any]) -> Action:
        """Let go, or ask again after an iteration."""
        worker, now_s = view[0], float(request.now_s)
        if request.id in self._released:
            self._released.discard(request.id)
            return route(LOCAL, worker.id)
        iteration_s = float(worker.last_tbt_s)
        if not self._waiting:
            self._passed, self._next_s = 0, now_s + iteration_s
        elif now_s >= self._next_s - CLOCK_S:
            self._passed, self._next_s = self._passed + 1, now_s + iteration_s
        self._waiting[request.id] = int(request.prompt_tokens)
        idle = worker.streams == 0 or not iteration_s > 0.0
        full = sum(self._waiting.values()) + worker.streams >= self.setting.tokens
        if idle or full or self._passed >= self.setting.iterations:
            del self._waiting[request.id]
            self._released |= self._waiting.keys()
            self._waiting = {}
            return route(LOCAL, worker.id)
        return hold(self._next_s)
