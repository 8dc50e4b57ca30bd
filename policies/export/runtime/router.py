"""The router's side of a policy: ``decide``, and the hooks that keep its counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .hooks import AS_DECIDED, MOST_ASKED, Asked, Hooks
from .rulebook import ExportError
from .runner import Decision, IllegalAnswerError, Runner
from .values import NAN


def default_folder() -> Path:
    """The folder with ``policy.json``: this package where it was installed, else the one around it."""
    here = Path(__file__).resolve().parent
    return here if (here / "policy.json").is_file() else here.parent


class Router(Hooks):
    """One router replica of an exported policy. Thread-safe; ``decide`` does not block on anything but itself.

    Args:
        policy_dir: folder with ``policy.json`` and ``rule/``; None: the one this package belongs to.
        workers: one mapping a worker: ``id`` (anything hashable), ``role`` (prefill, decode, mixed, split), and
            optionally ``profile``, capabilities, sizes and law terms; see REPRESENTABILITY.md.
        seed: for ties; give all replicas the same or not, as in the simulator.
        replica: number of this replica.
        clock: seconds; used wherever ``now`` is not given. One clock for all calls.
        max_metric_age_s: scraped metrics older than this count as never scraped; None: as exported.
        flight_timeout_s: a request without an end after this long counts as failed, so that counters heal.

    Raises:
        ExportError: the folder or a worker's settings are not usable. Nothing raises after this.
    """

    def __init__(
        self,
        policy_dir: str | Path | None = None,
        workers: Iterable[Mapping[str, Any]] = (),
        seed: int = 0,
        *,
        replica: int = 0,
        clock: Callable[[], float] = time.monotonic,
        max_metric_age_s: float | None = None,
        flight_timeout_s: float = 3600.0,
    ) -> None:
        folder = default_folder() if policy_dir is None else policy_dir
        super().__init__(folder, replica, clock, max_metric_age_s, flight_timeout_s)
        self._runner = Runner(self.book, seed)
        self._seated = -1
        self._anonymous = 0
        for settings in workers:
            self._board.add(settings, clock())

    # -- decisions -----------------------------------------------------------------------------------

    def decide(
        self,
        request: Any,
        prefill: Any = None,
        decode: Any = None,
        now: float | None = None,
        *,
        cached: Mapping[Any, Any] | None = None,
    ) -> Decision:
        """Decide one request; never raises.

        Args:
            request: mapping (or object) with ``id`` and ``prompt_tokens`` (or ``prompt_bytes``), and what else of
                ``session, turn, max_tokens, priority, slo_ttft_s, slo_tpot_s, prefix_hashes, ...`` is known.
            prefill: workers that are up for prefill: ids, or mappings with ``id`` and metrics
                (``running, waiting, kv_usage, pinned, metrics_age_s, cached_tokens``). None: all known workers.
            decode: the same for decode; they may also prefill their own requests, if able to.
            now: the router's clock.
            cached: leading prompt tokens cached, by worker id (from KV events); else the router's own history, if
                the request has ``prefix_hashes``.

        Returns:
            The decision. Report it with ``on_dispatched`` in the same turn of an event loop, before any await.
        """
        started = time.perf_counter_ns()
        with self._lock:
            try:
                decision = self._decide(request, prefill, decode, self._time(now), cached)
            except Exception as error:
                decision = self._last_resort(error)
            self._metrics.decided(decision.kind, decision.reason, decision.fallback, time.perf_counter_ns() - started)
        return decision

    def _decide(self, request: Any, prefill: Any, decode: Any, now_s: float, cached: Any) -> Decision:
        board, runner = self._board, self._runner
        get: Any = request.get if isinstance(request, Mapping) else lambda name: getattr(request, name, None)
        key = get("id")
        if key is None:
            self._anonymous += 1
            key = f"anonymous {self._anonymous}"
        before = self._asked.pop(key, None)
        held = before.ask if before is not None and before.decision.kind == "hold" else None
        ask = self._asks.make(request, key, now_s, held, self._mean_output_tokens())
        hints: dict[Any, Any] = {}
        board.take_up(prefill, decode, now_s, hints)
        blocks = get("prefix_hashes")
        try:
            if cached is not None:
                hints.update(cached)
            elif blocks is not None and not hints:
                hints = self._prefix.match(blocks, ask.prompt_tokens, now_s)
        except Exception:
            self._metrics.fault("prefix match")
        self._seat()
        hits = board.refresh(now_s, ask.prompt_tokens, hints)
        try:
            decision = runner.judged(runner.ask(ask), now_s)
        except IllegalAnswerError as error:
            decision = runner.fallback(ask, str(error))
        except Exception as error:
            decision = runner.fallback(ask, type(error).__name__)
        if decision.kind == "reject":
            self._turn_over(ask, now_s)
        else:
            self._asked[key] = Asked(ask, blocks, hits, decision)
            if len(self._asked) > MOST_ASKED:
                self._asked.popitem(last=False)
        return decision

    def _last_resort(self, error: Exception) -> Decision:
        """The request could not even be read: decide as for an unknown one."""
        self._metrics.fault("unreadable request")
        try:
            self._seat()
            return self._runner.fallback(self._asks.make({}, "", 0.0, None, NAN), type(error).__name__)
        except Exception:
            return Decision("reject", reason="router fault", fallback=type(error).__name__)

    def bind_decode(self, request_id: Any, now: float | None = None) -> Any:
        """The decode worker of a request that was routed late, once its prefill ended; None if there is nobody.

        Report it with ``on_bound``.
        """
        with self._lock:
            try:
                flight = self._flights.open[request_id]
                now_s = self._time(now)
                flight.request.now_s = now_s
                self._seat()
                self._board.refresh(now_s, flight.prompt, {})
                try:
                    found = self._runner.judged_bind(self._runner.ask_bind(flight.request), flight.prefill)
                except Exception as error:
                    cause = str(error) if isinstance(error, IllegalAnswerError) else type(error).__name__
                    self._metrics.fallbacks[cause] = self._metrics.fallbacks.get(cause, 0) + 1
                    found = self._runner.fallback_bind(flight.request, flight.prefill)
                return None if found is None else found.key
            except Exception as error:
                self._metrics.fault(type(error).__name__)
                return None

    def adjust(self, now: float | None = None) -> dict[Any, float]:
        """Prefill shares of split workers by worker id, for policies that set them; call it on a timer."""
        with self._lock:
            try:
                self._seat()
                self._board.refresh(self._time(now), 1, {})
                by_number = self._runner.by_number
                return {by_number[k].key: share for k, share in self._runner.ask_shares().items() if 0.0 < share < 1.0}
            except Exception as error:
                self._metrics.fault(type(error).__name__)
                return {}

    # -- what it says of itself ----------------------------------------------------------------------

    def metrics_text(self) -> str:
        """Prometheus text: decisions, fallbacks, decision times, faults, requests in flight."""
        with self._lock:
            bad, self._board.bad = self._board.bad, 0
            for _ in range(bad):
                self._metrics.fault("candidate")
            return self._metrics.text(
                (
                    ("pdgym_requests_in_flight", "Requests dispatched and not ended.", len(self._flights.open)),
                    ("pdgym_workers", "Workers known.", len(self._board.workers)),
                )
            )

    def view(self, worker_id: Any) -> dict[str, Any]:
        """The record of one worker as the rule saw it last; empty for an unknown id."""
        with self._lock:
            w = self._board.by_key.get(worker_id)
            return {} if w is None else {name: getattr(w, name) for name in self.book.worker_fields}

    def _seat(self) -> None:
        if self._seated != self._board.version:
            self._runner.seat(self._board.workers)
            self._seated = self._board.version

    def _mean_output_tokens(self) -> float:
        flights = self._flights
        return flights.output_tokens / flights.finished if flights.finished else NAN


__all__ = ["AS_DECIDED", "Decision", "ExportError", "Router"]
