"""Links of the reference simulator: flows that share the bandwidth of both their ends.

Written from ``docs/engine.md`` ("Links"), for clarity and not for speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Flow:
    """Bytes on their way from worker ``source`` to worker ``target``."""

    request: int
    source: int
    target: int
    remaining: float
    last_ps: int
    rate: float = 0.0  # bytes per picosecond


class Links:
    """One link in each direction at every worker."""

    def __init__(self, workers: int, bytes_per_ps: float) -> None:
        """Links without flows; every link carries ``bytes_per_ps``."""
        self.bytes_per_ps = bytes_per_ps
        self.leaving = [0] * workers
        self.entering = [0] * workers
        self.active: list[Flow] = []  # in order of start; a removed flow is replaced by the last one
        self.versions: dict[int, int] = {}
        self.connected: set[tuple[int, int]] = set()

    def first_use(self, source: int, target: int) -> bool:
        """Is this the first pull of this pair, ever?"""
        if (source, target) in self.connected:
            return False
        self.connected.add((source, target))
        return True

    def version(self, request: int) -> int:
        """Which of a flow's announced ends still holds."""
        return self.versions.get(request, 0)

    def start(self, request: int, source: int, target: int, size: float, now: int) -> list[tuple[int, int, int]]:
        """A flow starts; returns (request, end, version) of every flow whose end is announced anew."""
        self.active.append(Flow(request, source, target, size, now))
        self.leaving[source] += 1
        self.entering[target] += 1
        return self._update(source, target, now)

    def end(self, request: int, now: int) -> list[tuple[int, int, int]]:
        """A flow ends (a pull without bytes never was one); returns as :meth:`start` does."""
        place = next((k for k, flow in enumerate(self.active) if flow.request == request), None)
        if place is None:
            return []
        gone = self.active[place]
        self.active[place] = self.active[-1]
        self.active.pop()
        self.leaving[gone.source] -= 1
        self.entering[gone.target] -= 1
        return self._update(gone.source, gone.target, now)

    def _update(self, source: int, target: int, now: int) -> list[tuple[int, int, int]]:
        announced = []
        for flow in self.active:
            if flow.source != source and flow.target != target:
                continue
            flow.remaining -= flow.rate * float(now - flow.last_ps)
            flow.last_ps = now
            flow.rate = min(
                self.bytes_per_ps / self.leaving[flow.source], self.bytes_per_ps / self.entering[flow.target]
            )
            end = now + max(0, math.ceil(flow.remaining / flow.rate))
            self.versions[flow.request] = self.version(flow.request) + 1
            announced.append((flow.request, end, self.versions[flow.request]))
        return announced
