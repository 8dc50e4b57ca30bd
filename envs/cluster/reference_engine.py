"""The engines of the reference simulator: the event loop, and everything that happens on the workers.

Written from ``docs/engine.md``, for clarity and not for speed.
"""

from __future__ import annotations

import heapq
from bisect import insort

import numpy as np

from envs.cluster.problem import (
    CANCELLED,
    FAILED,
    OUTCOME_DTYPE,
    PENDING,
    SERVED,
    TBT_BINS,
    WORKER_OUTCOME_DTYPE,
    Problem,
    tbt_bin,
)
from envs.cluster.reference_law import Step, law_of
from envs.cluster.reference_links import Links
from envs.cluster.reference_memory import Holding, KvMemory
from envs.cluster.reference_scheduler import plan_worker
from envs.cluster.reference_state import Request, Worker
from envs.cluster.reference_view import Routers, seconds
from policies.contract import SPLIT

STEP_END, FLOW_END, FLOW_START, DELIVER, ASK, ADJUST, SCHEDULE = range(7)


class Engine:
    """State of one run: a heap of events (time, kind, id, version) and one handler a kind.

    A subclass answers ASK.
    """

    def __init__(self, problem: Problem) -> None:
        """Everything idle, nothing arrived."""
        self.problem = problem
        self.now = 0
        self.events: list[tuple[int, int, int, int]] = []
        self.sequence = 0  # numbers deliveries and preemptions
        self.outcomes = np.zeros(len(problem.requests), OUTCOME_DTYPE)
        for name in OUTCOME_DTYPE.names or ():
            if name.endswith(("_ps", "_worker")):
                self.outcomes[name] = -1
        self.worker_outcomes = np.zeros(len(problem.workers), WORKER_OUTCOME_DTYPE)
        self.tbt_counts = np.zeros(TBT_BINS, np.int64)
        self.requests = [self._request(i) for i in range(len(problem.requests))]
        self.workers = [self._worker(i) for i in range(len(problem.workers))]
        groups = 1 + max(w.group for w in self.workers)
        self.members = [[w for w in self.workers if w.group == g] for g in range(groups)]
        self.stepping = [False] * groups
        self.scheduled = [False] * groups
        self.links = Links(len(self.workers), problem.handover.bytes_per_ps)
        self.routers = Routers(problem, self.workers)

    def _request(self, i: int) -> Request:
        row = self.problem.requests[i]
        start = int(row["chain_start"])
        return Request(
            index=i,
            prompt=int(row["prompt_tokens"]),
            output=int(row["output_tokens"]),
            view_prompt=int(row["view_prompt_tokens"]),
            replica=int(row["replica"]),
            session=int(row["session"]),
            slo_tpot_s=float(row["slo_tpot_s"]),
            chain=self.problem.chain_ids[start : start + int(row["chain_len"])].tolist(),
            out=self.outcomes[i],
        )

    def _worker(self, i: int) -> Worker:
        row = self.problem.workers[i]
        return Worker(
            index=i,
            group=int(row["group"]),
            law=law_of(self.problem, row),
            memory=KvMemory(
                int(row["total_blocks"]),
                int(row["block_tokens"]),
                int(row["node_blocks"]),
                self.problem.prefix_block_tokens if row["prefix_cache"] else 0,
            ),
            split=int(row["role"]) == SPLIT,
            share=int(row["prefill_share_permille"]),
            max_batched_tokens=int(row["max_batched_tokens"]),
            max_num_seqs=int(row["max_num_seqs"]),
            kv_bytes_per_token=float(row["kv_bytes_per_token"]),
            out=self.worker_outcomes[i],
        )

    # -- the loop ------------------------------------------------------------------------------------

    def push(self, time: int, kind: int, which: int, version: int = 0) -> None:
        """An event to come; nothing happens in the past."""
        assert time >= self.now, "time ran back"
        heapq.heappush(self.events, (time, kind, which, version))

    def wake(self, group: int) -> None:
        """Something that could matter reached the group: if it is idle, it plans at this instant."""
        if not self.stepping[group] and not self.scheduled[group]:
            self.scheduled[group] = True
            self.push(self.now, SCHEDULE, group)

    def run(self) -> None:
        """Until no event is left; what then still waits, waits for ever, and has failed."""
        for i, arrival in enumerate(self.problem.requests["arrival_ps"].tolist()):
            if arrival >= 0:
                self.push(arrival, ASK, i)
        handlers = {
            STEP_END: self.on_step_end,
            FLOW_END: self.on_flow_end,
            FLOW_START: self.on_flow_start,
            DELIVER: self.on_deliver,
            ASK: self.on_ask,
            SCHEDULE: self.on_schedule,
        }
        while self.events:
            time, kind, which, version = heapq.heappop(self.events)
            if kind == FLOW_END and version != self.links.version(which):
                continue  # the flow's rate has changed since
            self.routers.scrape_before(time)
            self.now = time
            handlers[kind](which)
        for r in self.requests:
            if r.out["status"] == PENDING and r.arrival_ps >= 0:
                self.end(r, FAILED, 0)
        for w in self.workers:
            w.out["evictions"], w.out["peak_used_blocks"] = w.memory.evictions, w.memory.peak_used

    def on_ask(self, i: int) -> None:
        """Put a request to the router."""
        raise NotImplementedError

    def end(self, r: Request, status: int, reason: int) -> None:
        """A request ends, once; its session goes on only if it was served."""
        assert r.out["status"] == PENDING, "a request ended twice"
        r.out["status"], r.out["finish_ps"] = status, self.now
        if status != SERVED:
            r.out["reason"] = reason
        self.routers.ended(r, self.now)
        following = int(self.problem.requests[r.index]["next_turn"])
        if following >= 0 and status == SERVED:
            self.push(self.now + int(self.problem.requests[following]["think_ps"]), ASK, following)
        elif following >= 0:
            self.end(self.requests[following], CANCELLED, 0)

    # -- on its way ----------------------------------------------------------------------------------

    def on_deliver(self, i: int) -> None:
        """A request reaches the queue of the worker that is next on its route."""
        r = self.requests[i]
        w = self.workers[r.decode if r.remote_done else r.prefill]
        r.to_prefill = r.prompt
        self.sequence += 1
        insort(w.queue, ((1, r.order_key, self.sequence), r))
        self.wake(w.group)

    def preempt(self, w: Worker, r: Request) -> None:
        """Recompute later: out of *running*, to the very front of the queue."""
        w.running.remove(r)
        w.memory.release(r.here, r.chain)
        w.out["preemptions"] += 1
        r.out["preemptions"] += 1
        r.decoding, r.computed, r.to_prefill = False, 0, r.context
        self.sequence += 1
        insort(w.queue, ((0, 0.0, -self.sequence), r))

    def start_pull(self, w: Worker, r: Request, run: int) -> None:
        """The decode worker reserves its blocks; the fixed part of the handover begins."""
        handover, source = self.problem.handover, self.workers[r.prefill]
        r.here = w.memory.reserve(r.chain, run, r.prompt, self.now)
        w.pulling += 1
        tokens = r.prompt - run * w.memory.prefix_block_tokens
        r.out["pull_start_ps"], r.out["pulled_tokens"] = self.now, tokens
        r.out["pulled_bytes"] = source.kv_bytes_per_token * tokens
        connect = handover.connect_ps if self.links.first_use(r.prefill, r.decode) else 0
        fixed = handover.base_ps + connect + handover.per_block_ps * r.here.private
        self.push(self.now + max(fixed, 1), FLOW_START, r.index)

    def on_flow_start(self, i: int) -> None:
        """Bytes begin to flow, if there are any."""
        r = self.requests[i]
        size = float(r.out["pulled_bytes"])
        if size == 0.0:
            self.push(self.now, FLOW_END, i, self.links.version(i))
            return
        self._push_flow_ends(self.links.start(i, r.prefill, r.decode, size, self.now))

    def on_flow_end(self, i: int) -> None:
        """The last byte is here: the prefill worker lets go, the decode worker may begin."""
        r = self.requests[i]
        self._push_flow_ends(self.links.end(i, self.now))
        r.out["pull_end_ps"] = self.now
        self.unpin(r)
        w = self.workers[r.decode]
        w.memory.complete(r.here, r.chain, r.prompt, self.now)
        r.remote_done, r.pulled, r.decoding = False, True, True
        w.pulling -= 1
        w.ready.append(r)
        self.wake(w.group)

    def _push_flow_ends(self, changed: list[tuple[int, int, int]]) -> None:
        for flow, end, version in changed:
            self.push(end, FLOW_END, flow, version)

    def unpin(self, r: Request) -> None:
        """The blocks on the prefill worker are no longer needed."""
        source = self.workers[r.prefill]
        source.memory.release(r.pinned, r.chain)
        source.pinned_blocks -= source.memory.blocks(r.prompt)
        self.wake(source.group)

    # -- steps ---------------------------------------------------------------------------------------

    def on_schedule(self, group: int) -> None:
        """Plan the next step of every rank; the step lasts as long as the slowest."""
        self.scheduled[group] = False
        ranks = self.members[group]
        for w in ranks:
            plan_worker(self, w)
        if not any(w.chunks or w.decodes for w in ranks):
            return
        duration = max(self._duration(w) for w in ranks)
        for w in ranks:
            self._account(w, duration)
        self.stepping[group] = True
        self.push(self.now + duration, STEP_END, group)

    def _duration(self, w: Worker) -> int:
        if not (w.chunks or w.decodes):
            return w.law.idle()
        return w.law.duration(self._step(w))

    def _step(self, w: Worker) -> Step:
        return Step(
            new=sum(chunk for _, chunk in w.chunks),
            attn2=sum(chunk * (2 * r.computed + chunk) for r, chunk in w.chunks),
            decodes=len(w.decodes),
            kv=sum(r.context for r in w.decodes),
        )

    def _account(self, w: Worker, duration: int) -> None:
        kind = "mixed_ps" if w.chunks and w.decodes else "prefill_ps" if w.chunks else "decode_ps"
        if not (w.chunks or w.decodes):
            kind = "idle_rank_ps"
        else:
            w.out["steps"] += 1
            w.out["extrapolated_steps"] += w.law.fitted.lacks(self._step(w))
        w.out[kind] += duration
        for r, chunk in w.chunks:
            w.out["prefill_tokens"] += chunk
            r.out["prefill_tokens_computed"] += chunk
            if r.out["prefill_start_ps"] < 0:
                r.out["prefill_start_ps"] = self.now
        if w.contested:
            w.credit += w.share * duration if w.decodes else -(1000 - w.share) * duration

    def on_step_end(self, group: int) -> None:
        """What the step computed takes effect, rank by rank: first prefills, then decodes."""
        self.stepping[group] = False
        for w in self.members[group]:
            chunks, decodes = w.chunks, w.decodes
            w.chunks, w.decodes = [], []
            previous_emit = w.last_emit_ps
            for r, chunk in chunks:
                r.computed += chunk
                w.memory.complete(r.here, r.chain, r.computed, self.now)
                if r.computed == r.to_prefill:
                    self.prefill_over(w, r)
            for replica in {r.replica for r in decodes if r.emitted > 0}:
                self.routers.counters[replica][w.index].last_tbt_s = seconds(self.now - previous_emit)
            for r in decodes:
                w.out["decode_tokens"] += 1
                self.emit(w, r)
        self.wake(group)

    def prefill_over(self, w: Worker, r: Request) -> None:
        """The last token to prefill was computed."""
        if r.out["prefill_done_ps"] < 0:
            r.out["prefill_done_ps"] = self.now
        if not r.prefills_remotely:
            r.decoding = True
            self.emit(w, r)
            return
        w.running.remove(r)
        r.pinned, r.here = r.here, Holding()
        w.pinned_blocks += w.memory.blocks(r.prompt)
        r.remote_done = True
        self.routers.remote_prefill_done(r)
        if r.decode < 0:
            r.binding = True
            self.push(self.now, ASK, r.index)
        else:
            self.push(self.now + self.problem.handover.dispatch_ps, DELIVER, r.index)

    def emit(self, w: Worker, r: Request) -> None:
        """One token to the client; the last one ends the request."""
        r.emitted += 1
        r.out["emitted_tokens"] = r.emitted
        if r.emitted == 1:
            r.out["first_token_ps"] = self.now
        else:
            self.tbt_counts[tbt_bin(self.now - r.last_token_ps)] += 1
        r.last_token_ps = w.last_emit_ps = self.now
        self.routers.token(r)
        if r.emitted == r.output:
            w.running.remove(r)
            w.memory.complete(r.here, r.chain, r.prompt + r.output - 1, self.now)
            w.memory.release(r.here, r.chain)
            self.routers.served(r)
            self.end(r, SERVED, 0)
