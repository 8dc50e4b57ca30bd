"""SGLang's receive interval (``--scheduler-recv-interval``), as a router that holds.

The scheduler looks for new requests only once in so many decode steps; a step with prompts counts as a thousand, so
that it looks right after one, and an idle engine looks all the time. Source: ``SchedulerRecvSkipper`` of
sgl-project/sglang @ 0cc650fb (python/sglang/srt/managers/scheduler_recv_skipper.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.contract import LOCAL, Action, hold, route
from research.validating.batch_wait import CLOCK_S


@dataclass(frozen=True, slots=True)
class Interval:
    """The setting: decode steps between two looks."""

    steps: int


class ReceivingRouter:
    """Routes to the only worker, the next time that it looks."""

    name = "receiving"

    def __init__(self, setting: Interval) -> None:
        self.setting = setting
        self.reset(1, 0)

    def reset(self, workers: int, seed: int) -> None:
        """Nothing waits, and the engine has just looked."""
        self._looked_s, self._next_s = 0.0, math.inf

    def route(self, request: Any, view: Sequence[Any]) -> Action:
        """Let go, or ask again when the engine looks."""
        worker, now_s = view[0], float(request.now_s)
        step_s = float(worker.last_tbt_s)
        if worker.prefill_requests or worker.streams == 0 or not step_s > 0.0:
            self._looked_s, self._next_s = now_s, math.inf
            return route(LOCAL, worker.id)
        if now_s >= self._next_s - CLOCK_S:
            self._looked_s, self._next_s = now_s, math.inf
            return route(LOCAL, worker.id)
        if self._next_s == math.inf:
            period_s = self.setting.steps * step_s
            passed = math.floor((now_s - self._looked_s) / period_s)
            self._next_s = self._looked_s + (passed + 1) * period_s
        return hold(self._next_s)
