"""The routers of the reference simulator: their counters, and what they see at a decision.

Written from ``docs/engine.md`` ("What the router's counters count"), for clarity and not for speed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envs.cluster.problem import PS, Problem
from policies.contract import RequestView, WorkerView

if TYPE_CHECKING:
    from envs.cluster.reference_state import Request, Worker

NO_PREFIX, EXACT, APPROXIMATE = range(3)


def seconds(ps: int) -> float:
    """Picoseconds as seconds: one division, so that every program gets the same bits."""
    return float(ps) / float(PS)


@dataclass(slots=True)
class Counters:
    """What one replica knows of one worker from its own streams."""

    prefill_requests: int = 0
    prefill_tokens: int = 0
    local_prefills: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    streams: int = 0
    transfers: int = 0
    finished: int = 0
    last_tbt_s: float = math.nan
    slo_tpot_s: Counter[float] = field(default_factory=Counter)  # of the streams


@dataclass(slots=True)
class Session:
    """What the router remembers of a session."""

    last_prefill: int = -1
    last_decode: int = -1
    ended_ps: int = -1


@dataclass(slots=True)
class Scrape:
    """One reading of a worker's exported metrics."""

    running: float
    waiting: float
    kv_usage: float
    pinned: float


class Routers:
    """All router replicas: counters are per replica, scraped metrics and the exact prefix index are shared."""

    def __init__(self, problem: Problem, workers: Sequence[Worker]) -> None:
        """Nothing seen yet; ``workers`` are read when metrics are scraped."""
        self.problem = problem
        self.workers = workers
        self.counters = [[Counters() for _ in workers] for _ in range(problem.replicas)]
        self.outputs = [[0, 0] for _ in range(problem.replicas)]  # finished requests, their output tokens
        self.sessions = [Session() for _ in range(problem.n_sessions)]
        self.scraped_ps = -1
        self.scrapes: list[Scrape] = []
        self.index: list[set[int]] = [set() for _ in workers]  # exact prefix index, one event delay late
        self.events_seen = [0 for _ in workers]
        self.sent: list[dict[tuple[int, int], int]] = [{} for _ in range(problem.replicas)]  # (worker, id) -> time
        names: tuple[str, ...] = WorkerView._fields
        self.static = [{name: row[name].item() for name in names} for row in problem.predictor_rows]

    # -- what moves the counters ---------------------------------------------------------------------

    def routed(self, r: Request, now: int, prefill_tokens: int) -> None:
        """ASK answered with a route."""
        at = self.counters[r.replica][r.prefill]
        r.predicted_prefill = prefill_tokens
        at.prefill_requests += 1
        at.prefill_tokens += prefill_tokens
        if r.local:
            at.local_prefills += 1
        if r.session >= 0:
            self.sessions[r.session].last_prefill = r.prefill
        self._note_sent(r, r.prefill, now)
        if r.decode >= 0:
            self.decode_chosen(r, now)

    def decode_chosen(self, r: Request, now: int) -> None:
        """The decode worker is known: at the ASK, or at the late binding."""
        self.counters[r.replica][r.decode].decode_requests += 1
        if r.session >= 0:
            self.sessions[r.session].last_decode = r.decode
        self._note_sent(r, r.decode, now)

    def remote_prefill_done(self, r: Request) -> None:
        """A remote prefill was seen to end."""
        self._prefill_over(r)
        if r.decode >= 0:
            self.transfer_expected(r)

    def transfer_expected(self, r: Request) -> None:
        """A finished remote prefill has its decode worker."""
        self.counters[r.replica][r.decode].transfers += 1

    def token(self, r: Request) -> None:
        """A token of ``r`` (``r.emitted`` counts it already) reached the client."""
        at = self.counters[r.replica][r.decode]
        if r.emitted > 1:
            at.decode_tokens += 1
            return
        if r.local:
            self._prefill_over(r)
            at.local_prefills -= 1
        else:
            at.transfers -= 1
        at.streams += 1
        at.decode_tokens += r.prompt + 1
        at.slo_tpot_s[r.slo_tpot_s] += 1

    def served(self, r: Request) -> None:
        """The last token was seen."""
        at = self.counters[r.replica][r.decode]
        at.decode_requests -= 1
        at.streams -= 1
        at.decode_tokens -= r.prompt + r.output
        at.slo_tpot_s -= Counter([r.slo_tpot_s])
        at.finished += 1
        self.outputs[r.replica][0] += 1
        self.outputs[r.replica][1] += r.output

    def ended(self, r: Request, now: int) -> None:
        """A turn ended, however."""
        if r.session >= 0:
            self.sessions[r.session].ended_ps = now

    def _prefill_over(self, r: Request) -> None:
        at = self.counters[r.replica][r.prefill]
        at.prefill_requests -= 1
        at.prefill_tokens -= r.predicted_prefill

    def _note_sent(self, r: Request, worker: int, now: int) -> None:
        for node in self._prompt_chain(r):
            self.sent[r.replica][worker, node] = now

    # -- scrapes -------------------------------------------------------------------------------------

    def scrape_before(self, time: int) -> None:
        """Called before the first event at ``time``: read the metrics if a scrape is due by then."""
        period = self.problem.scrape_period_ps
        if period > 0 and time // period * period > self.scraped_ps:
            self.scraped_ps = time // period * period
            self.scrapes = [self._scrape(w) for w in self.workers]

    def _scrape(self, w: Worker) -> Scrape:
        total = w.memory.total_blocks
        return Scrape(
            running=float(len(w.running)),
            waiting=float(len(w.queue) + w.pulling + len(w.ready)),
            kv_usage=(total - w.memory.free - w.memory.evictable) / total,
            pinned=w.pinned_blocks / total,
        )

    # -- the view ------------------------------------------------------------------------------------

    def view(self, r: Request, now: int) -> tuple[Any, list[Any]]:
        """What the replica of ``r`` sees now: (RequestView, list of WorkerView)."""
        if self.problem.scrape_period_ps == 0:
            self.scraped_ps = now
            self.scrapes = [self._scrape(w) for w in self.workers]
        return self._request(r, now), [self._worker(r, w, now) for w in self.workers]

    def _request(self, r: Request, now: int) -> Any:
        session = self.sessions[r.session] if r.session >= 0 else Session()
        finished, tokens = self.outputs[r.replica]
        row = self.problem.requests[r.index]
        copied = (
            "replica", "max_output_tokens", "output_hint_tokens", "session", "turn", "class_id", "priority",
            "tenant", "model", "lora", "slo_ttft_s", "slo_tpot_s",
        )  # fmt: skip
        fields = {name: row[name].item() for name in copied} | {
            "id": r.index,
            "now_s": seconds(now),
            "arrival_s": seconds(r.arrival_ps),
            "prompt_tokens": r.view_prompt,
            "since_last_turn_s": seconds(now - session.ended_ps) if session.ended_ps >= 0 else math.nan,
            "last_prefill": session.last_prefill,
            "last_decode": session.last_decode,
            "holds": r.holds,
            "mean_output_tokens": tokens / finished if finished else math.nan,
        }
        return RequestView(**fields)

    def _worker(self, r: Request, w: Worker, now: int) -> Any:
        at = self.counters[r.replica][w.index]
        scrape = self.scrapes[w.index]
        fields = self.static[w.index] | {
            "age_s": seconds(now),
            "prefill_requests": at.prefill_requests,
            "prefill_tokens": at.prefill_tokens,
            "local_prefills": at.local_prefills,
            "decode_requests": at.decode_requests,
            "decode_tokens": at.decode_tokens,
            "streams": at.streams,
            "transfers": at.transfers,
            "finished": at.finished,
            "failures": 0,
            "last_tbt_s": at.last_tbt_s,
            "min_slo_tpot_s": min(at.slo_tpot_s, default=math.inf),
            "scraped_running": scrape.running,
            "scraped_waiting": scrape.waiting,
            "scraped_kv_usage": scrape.kv_usage,
            "scraped_pinned": scrape.pinned,
            "scrape_age_s": seconds(now - self.scraped_ps),
            "cached_tokens": self.cached_tokens(r, w.index, now),
        }
        return WorkerView(**fields)

    # -- the prefix index ----------------------------------------------------------------------------

    def _prompt_chain(self, r: Request) -> list[int]:
        size = self.problem.prefix_block_tokens
        return r.chain[: r.prompt // size] if size > 0 else []

    def cached_tokens(self, r: Request, worker: int, now: int) -> int:
        """Leading prompt tokens of ``r`` that its replica believes to be cached on ``worker``."""
        mode, size = self.problem.prefix_view, self.problem.prefix_block_tokens
        if mode == NO_PREFIX or size == 0 or self.workers[worker].memory.prefix_block_tokens == 0:
            return 0
        if mode == EXACT:
            self._apply_events(worker, now)
        chain = self._prompt_chain(r)[: max(0, r.view_prompt - 1) // size]
        run = 0
        while run < len(chain) and self._believed(r.replica, worker, chain[run], now):
            run += 1
        return run * size

    def _believed(self, replica: int, worker: int, node: int, now: int) -> bool:
        if self.problem.prefix_view == EXACT:
            return node in self.index[worker]
        sent = self.sent[replica].get((worker, node))
        return sent is not None and now - sent <= self.problem.approximate_ttl_ps

    def _apply_events(self, worker: int, now: int) -> None:
        log = self.workers[worker].memory.log
        seen = self.events_seen[worker]
        while seen < len(log) and log[seen][0] <= now - self.problem.kv_event_delay_ps:
            _, node, inserted = log[seen]
            if inserted:
                self.index[worker].add(node)
            else:
                self.index[worker].remove(node)
            seen += 1
        self.events_seen[worker] = seen
