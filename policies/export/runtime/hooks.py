"""What a router reports: every event moves the counters that a rule reads, none can raise."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .asks import Asks
from .board import Board
from .flights import Flight, Flights
from .metrics import Metrics
from .prefix import PrefixHistory
from .rulebook import Rulebook
from .runner import Decision
from .scrape import read_metrics
from .values import number, whole

MOST_ASKED = 65_536
"""Decisions that wait for ``on_dispatched``; older ones are forgotten."""


class _AsDecided:
    def __repr__(self) -> str:
        return "AS_DECIDED"


class Asked(NamedTuple):
    """A decision that was not reported as dispatched yet, with what the rule saw."""

    ask: Any
    blocks: Any
    hits: dict[Any, int]
    decision: Decision


AS_DECIDED: Any = _AsDecided()
"""Default of ``on_dispatched``: the workers that ``decide`` chose."""


class Hooks:
    """One router replica's memory of what it decided and what became of it."""

    def __init__(
        self,
        policy_dir: str | Path,
        replica: int,
        clock: Callable[[], float],
        max_metric_age_s: float | None,
        flight_timeout_s: float,
    ) -> None:
        self.book = Rulebook(policy_dir)
        manifest = self.book.manifest
        self.name: str = manifest["policy"]
        self._clock = clock
        age_s = manifest["max_metric_age_s"] if max_metric_age_s is None else max_metric_age_s
        self._timeout_s = flight_timeout_s
        self._board = Board(self.book, float(age_s))
        self._asks = Asks(self.book, replica)
        self._flights = Flights()
        self._prefix = PrefixHistory(int(manifest["prefix_block_tokens"]), float(manifest["approximate_ttl_s"]))
        self._metrics = Metrics(self.name)
        self._asked: OrderedDict[Any, Asked] = OrderedDict()
        self._lock = threading.RLock()

    # -- workers -------------------------------------------------------------------------------------

    def add_worker(self, worker: Mapping[str, Any], now: float | None = None) -> None:
        """Take a worker in.

        Raises:
            ExportError: its settings are not usable (set-up, not routing: the one other call that may raise).
        """
        with self._lock:
            self._board.add(worker, self._time(now))

    def remove_worker(self, worker_id: Any) -> None:
        """Take a worker out; requests in flight there still end as usual."""
        self._hook(None, lambda _: self._board.remove(worker_id))

    def observe(self, worker_id: Any, metrics: Mapping[str, Any] | str, now: float | None = None) -> None:
        """Take a scrape in: ``{running, waiting, kv_usage, pinned, metrics_age_s}``, or an engine's metrics page."""

        def take(now_s: float) -> None:
            w = self._board.by_key[worker_id]
            self._board.observe(w, read_metrics(metrics) if isinstance(metrics, str) else metrics, now_s)

        self._hook(now, take)

    # -- requests ------------------------------------------------------------------------------------

    def on_dispatched(
        self, request_id: Any, now: float | None = None, prefill: Any = AS_DECIDED, decode: Any = AS_DECIDED
    ) -> None:
        """The request was sent on its way, to the workers decided or to others (``prefill=None``: local)."""

        def take(now_s: float) -> None:
            ask, blocks, hits, decision = self._asked.pop(request_id)
            p = decision.prefill if prefill is AS_DECIDED else prefill
            d = decision.decode if decode is AS_DECIDED else decode
            here: Any = None if d is None else self._board.by_key[d]
            there: Any = here if p is None else self._board.by_key[p]
            self._expire(now_s)
            if request_id in self._flights.open:  # sent again: the earlier try is over
                self._flights.failed(self._flights.open[request_id], None)
            flight = self._flights.dispatched(request_id, ask, there, here, hits.get(there.key, 0), now_s)
            if blocks is not None:
                self._prefix.note(blocks, ask.prompt_tokens, there.key, now_s)
            if ask.session >= 0:
                session = self._asks.session(ask.session)
                session.last_prefill, session.turns = there.id, ask.turn
            self._settle(flight, here, blocks, now_s)

        self._hook(now, take)

    def on_bound(self, request_id: Any, decode: Any, now: float | None = None) -> None:
        """A request routed late has its decode worker."""

        def take(now_s: float) -> None:
            flight, here = self._flights.open[request_id], self._board.by_key[decode]
            if flight.decode is None:
                self._flights.bound(flight, here)
                self._settle(flight, here, None, now_s)

        self._hook(now, take)

    def _settle(self, flight: Flight, here: Any, blocks: Any, now_s: float) -> None:
        """The decode worker is known."""
        if here is None:
            return
        if blocks is not None and not flight.local:
            self._prefix.note(blocks, flight.prompt, here.key, now_s)
        if flight.request.session >= 0:
            self._asks.session(flight.request.session).last_decode = here.id

    def on_prefill_done(self, request_id: Any, now: float | None = None, worker: Any = None) -> None:
        """A remote prefill ended."""
        self._hook(now, lambda _: self._flights.prefill_done(self._flights.open[request_id]))

    def on_first_token(
        self, request_id: Any, now: float | None = None, worker: Any = None, prompt_tokens: int | None = None
    ) -> None:
        """The first token reached the client; ``prompt_tokens`` where the engine says what was only estimated."""
        exact = whole(prompt_tokens, 0)
        self._hook(now, lambda now_s: self._flights.first_token(self._flights.open[request_id], now_s, exact))

    def on_token(self, request_id: Any, now: float | None = None, tokens: int = 1) -> None:
        """Further tokens reached the client."""
        count = whole(tokens, 0)
        self._hook(now, lambda now_s: self._flights.token(self._flights.open[request_id], now_s, count))

    def on_finished(
        self, request_id: Any, now: float | None = None, worker: Any = None, output_tokens: int | None = None
    ) -> None:
        """The last token reached the client; ``output_tokens`` where the router did not report every token."""

        def take(now_s: float) -> None:
            flight = self._flights.open[request_id]
            count = whole(output_tokens, -1)
            self._flights.ended(flight, count if count >= 0 else None)
            self._turn_over(flight.request, now_s)

        self._hook(now, take)

    def on_failed(self, request_id: Any, now: float | None = None, worker: Any = None) -> None:
        """The request failed on ``worker`` (default: where it was). Decided but never sent: nothing to undo."""

        def take(now_s: float) -> None:
            if request_id in self._flights.open:
                flight = self._flights.open[request_id]
                at = self._board.by_key.get(worker) if worker is not None else None
                if at is None:
                    at = flight.prefill if flight.stage == 0 else flight.decode
                self._flights.failed(flight, at)
                self._turn_over(flight.request, now_s)
            else:
                self._turn_over(self._asked.pop(request_id).ask, now_s)

        self._hook(now, take)

    def on_cancelled(self, request_id: Any, now: float | None = None) -> None:
        """The client went away; no worker is to blame."""

        def take(now_s: float) -> None:
            if request_id in self._flights.open:
                flight = self._flights.open[request_id]
                self._flights.failed(flight, None)
                self._turn_over(flight.request, now_s)
            else:
                self._turn_over(self._asked.pop(request_id).ask, now_s)

        self._hook(now, take)

    def _turn_over(self, request: Any, now_s: float) -> None:
        if request.session >= 0:
            self._asks.session(request.session).ended_s = now_s

    def _expire(self, now_s: float) -> None:
        """Requests whose end was never reported: the oldest are looked at whenever one is sent."""
        flights = self._flights
        for _ in range(2):
            if not flights.open:
                return
            oldest = next(iter(flights.open.values()))
            if now_s - oldest.dispatched_s <= self._timeout_s:
                return
            flights.failed(oldest, None)
            self._metrics.fault("request without an end")

    def _hook(self, now: float | None, take: Callable[[float], object]) -> None:
        """Run one hook; an event that cannot be used is counted, never raised."""
        with self._lock:
            try:
                take(self._time(now))
            except KeyError:
                self._metrics.fault("unknown request or worker")
            except Exception as error:
                self._metrics.fault(type(error).__name__)

    def _time(self, now: float | None) -> float:
        return self._clock() if now is None else number(now, self._clock(), -1e300)
