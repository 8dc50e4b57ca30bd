"""Engines that plan the next step while one runs (asynchronous or overlap scheduling), as a router that holds.

A prompt that comes in during a step finds the next one planned and waits for both. The simulator plans at the end of a
step; here a prompt for a worker that decodes is held for one gap between its tokens first. An idle worker takes it at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.contract import LOCAL, Action, hold, route


@dataclass(frozen=True, slots=True)
class Ahead:
    """The setting: the next step is planned while one runs."""


class AheadRouter:
    """Deals prompts to the workers in turn, each a step later."""

    name = "ahead"

    def __init__(self) -> None:
        self.reset(1, 0)

    def reset(self, workers: int, seed: int) -> None:
        """Nothing is held; the first worker is next."""
        self._held: dict[int, int] = {}
        self._turn = 0

    def route(self, request: Any, view: Sequence[Any]) -> Action:
        """Hold once if the worker decodes, then let go."""
        if request.id in self._held:
            return route(LOCAL, view[self._held.pop(request.id)].id)
        index = self._turn % len(view)
        self._turn += 1
        worker = view[index]
        if worker.streams == 0 or not worker.last_tbt_s > 0.0:
            return route(LOCAL, worker.id)
        self._held[request.id] = index
        return hold(float(request.now_s) + float(worker.last_tbt_s))
