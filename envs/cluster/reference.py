"""The reference simulator: plain Python, one event at a time, no shortcuts.

It is written from ``docs/engine.md`` alone and shares nothing with the compiled kernel but the inputs
(:class:`~envs.cluster.problem.Problem`), the step law and the policy contract, so that it can be the kernel's
oracle: both must agree on every time and every count. It is slow and has no options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.problem import PS, REJECTED, TOO_LARGE, Problem
from envs.cluster.reference_engine import ASK, DELIVER, Engine
from envs.cluster.reference_state import Request
from envs.cluster.reference_view import seconds
from policies.contract import HOLD, LATE, LOCAL, PER_WORKER, REJECT, ROUTE, Action, rule_spec


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What a run yields; the arrays are those of the compiled simulator."""

    outcomes: NDArray[Any]  # (requests,) OUTCOME_DTYPE
    workers: NDArray[Any]  # (workers,) WORKER_OUTCOME_DTYPE
    tbt_counts: NDArray[np.int64]  # (TBT_BINS,)
    decisions: int
    views: list[tuple[Any, list[Any]]]  # what the router saw at each decision, if recorded


class _Simulation(Engine):
    """The engines, with a policy that answers."""

    def __init__(
        self,
        problem: Problem,
        decide: Callable[..., Action],
        bind: Callable[..., int] | None,
        params: Any,
        memories: list[Any],
        record_views: bool,
    ) -> None:
        super().__init__(problem)
        self.decide, self.bind, self.params, self.memories = decide, bind, params, memories
        self.record_views = record_views
        self.decisions = 0
        self.views: list[tuple[Any, list[Any]]] = []

    def on_ask(self, i: int) -> None:
        """Put a request to the router."""
        r = self.requests[i]
        if r.arrival_ps < 0:
            r.arrival_ps = r.out["arrival_ps"] = self.now
        view = self.routers.view(r, self.now)
        if self.record_views:
            self.views.append(view)
        self.decisions += 1
        memory, seed = self.memories[r.replica], self.problem.seed
        if r.binding:
            if self.bind is None:
                raise ValueError("the policy answered LATE but has no bind")
            self.bound(r, int(self.bind(*view, self.params, memory, seed)))
            return
        action = self.decide(*view, self.params, memory, seed)
        if action.kind != HOLD:
            r.out["routed_ps"] = self.now
        if action.kind == ROUTE:
            self.routed(r, action, view[1])
        elif action.kind == HOLD:
            until = round(action.until_s * PS)
            if until <= self.now:
                raise ValueError(f"hold until {action.until_s} s is not later than now ({seconds(self.now)} s)")
            r.holds += 1
            r.out["holds"] = r.holds
            self.push(until, ASK, i)
        elif action.kind == REJECT:
            self.end(r, REJECTED, int(action.reason))
        else:
            raise ValueError(f"action kind {action.kind}")

    def routed(self, r: Request, action: Action, seen: list[Any]) -> None:
        """A route: check it, count it, send the request off."""
        prefill, decode = int(action.prefill), int(action.decode)
        r.local = prefill in (LOCAL, decode)
        if r.local:
            if decode == LATE:
                raise ValueError("LOCAL with LATE")
            prefill = decode
        self._check(prefill, "can_prefill")
        if decode != LATE:
            self._check(decode, "can_decode")
        if (decode != LATE and not self._holds(decode, r.prompt + r.output)) or (
            not r.local and not self._holds(prefill, r.prompt)
        ):
            r.local = False
            self.end(r, REJECTED, TOO_LARGE)
            return
        r.prefill, r.decode = prefill, decode if decode != LATE else -1
        r.order_key = float(action.order_key)
        r.chunk_cap = int(action.local_chunk_tokens) if r.local else 0
        r.out["prefill_worker"], r.out["decode_worker"], r.out["local"] = r.prefill, r.decode, int(r.local)
        r.out["reason"] = int(action.reason)
        self.routers.routed(r, self.now, max(1, r.view_prompt - seen[prefill].cached_tokens))
        self.push(self.now + self.problem.handover.dispatch_ps, DELIVER, r.index)

    def bound(self, r: Request, decode: int) -> None:
        """The late answer: the decode worker of a finished prefill."""
        r.binding = False
        self._check(decode, "can_decode")
        if decode == r.prefill:
            raise ValueError(f"bind chose the prefill worker {decode} itself")
        if not self._holds(decode, r.prompt + r.output):
            self.unpin(r)
            self.end(r, REJECTED, TOO_LARGE)
            return
        r.decode = r.out["decode_worker"] = decode
        self.routers.decode_chosen(r, self.now)
        self.routers.transfer_expected(r)
        self.push(self.now + self.problem.handover.dispatch_ps, DELIVER, r.index)

    def _check(self, worker: int, capability: str) -> None:
        if not 0 <= worker < len(self.workers) or not self.problem.workers[worker][capability]:
            raise ValueError(f"illegal answer: worker {worker} has no {capability}")

    def _holds(self, worker: int, tokens: int) -> bool:
        memory = self.workers[worker].memory
        return memory.blocks(tokens) <= memory.total_blocks


def new_memory(fields: Mapping[str, float | str], workers: int) -> SimpleNamespace:
    """Memory of one replica as a rule declares it: numbers, or one number a worker."""
    return SimpleNamespace(**{k: [0.0] * workers if v == PER_WORKER else v for k, v in fields.items()})


def run_reference(
    problem: Problem,
    decide: Callable[..., Action],
    bind: Callable[..., int] | None = None,
    params: Mapping[str, Any] | None = None,
    memory_factory: Callable[[], Any] | None = None,
    *,
    record_views: bool = False,
) -> ReferenceRun:
    """Simulate ``problem`` under a rule, in plain Python.

    Args:
        problem: the inputs.
        decide: ``decide(request, view, params, memory, seed) -> Action``, marked as a rule or not.
        bind: answers LATE; default: what the rule declares.
        params: values that replace the rule's declared defaults.
        memory_factory: makes the memory of one replica; default: what the rule declares.
        record_views: keep every (request, workers) that the policy saw.

    Raises:
        ValueError: an illegal answer of the policy.
    """
    spec = rule_spec(decide)
    values = dict(spec.params if spec else {}) | dict(params or {})
    fields = spec.memory if spec else {}
    make = memory_factory or (lambda: new_memory(fields, len(problem.workers)))
    late = bind or (spec.bind if spec else None)
    memories = [make() for _ in range(problem.replicas)]
    simulation = _Simulation(problem, decide, late, SimpleNamespace(**values), memories, record_views)
    simulation.run()
    return ReferenceRun(
        simulation.outcomes,
        simulation.worker_outcomes,
        simulation.tbt_counts,
        simulation.decisions,
        simulation.views,
    )
