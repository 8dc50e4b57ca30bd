"""Run a policy on a cluster: ``simulate`` for traces, ``run_problem`` for prepared inputs, ``Run`` step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster import engine_kernel as engine
from envs.cluster.build import build_problem
from envs.cluster.problem import Problem
from envs.cluster.result import SimResult, make_result
from envs.cluster.rules import InterpretedRule, RuleCode, compile_rule
from envs.cluster.slo import SloSpec
from envs.cluster.spec import ClusterSpec
from envs.cluster.state import (
    LOG_DISPATCHED,
    LOG_FINISHED,
    LOG_FIRST_TOKEN,
    LOG_PREFILL_DONE,
    Memory,
)
from policies.contract import RequestView, WorkerView, rule_spec
from traces import Trace

__all__ = ["KernelRun", "PolicyAnswerError", "Run", "build_problem", "run_problem", "simulate"]


class PolicyAnswerError(ValueError):
    """A policy gave an answer that the cluster cannot carry out."""


_REASONS = {
    engine.BAD_KIND: "answer kind {v}: expected route, hold or reject",
    engine.BAD_WORKER: "worker {v} does not exist: expected 0 to {last}",
    engine.CANNOT_PREFILL: "worker {v} cannot prefill",
    engine.CANNOT_DECODE: "worker {v} cannot decode",
    engine.LOCAL_AND_LATE: "prefill=LOCAL with decode=LATE: a local prefill needs its decode worker",
    engine.HOLD_NOT_LATER: "hold until a time that is not later than now",
    engine.BAD_CHUNK: "local_chunk_tokens {v}: expected 0 or more",
    engine.BAD_KV_SOURCE: "kv_source {v} is not supported yet: expected 0 (KV_AUTO)",
    engine.BIND_TO_PREFILL: "bound to worker {v}, which prefilled the request: route it LOCAL instead",
}


class LazyView(Sequence[Any]):
    """The workers of a view as named tuples, made on first use (a policy that ignores them pays nothing)."""

    __slots__ = ("_board", "_rows")

    def __init__(self, board: NDArray[Any]) -> None:
        self._board = board
        self._rows: list[Any] | None = None

    def _made(self) -> list[Any]:
        if self._rows is None:
            self._rows = [WorkerView._make(row) for row in self._board.tolist()]
        return self._rows

    def __len__(self) -> int:
        return len(self._board)

    def __getitem__(self, i: Any) -> Any:
        return self._made()[i]

    def __iter__(self) -> Any:
        return iter(self._made())


class Run:
    """One run that the caller drives: ``status = run.advance()``, look, ``run.answer(...)``, again.

    With ``rule`` the decisions are made inside, and ``advance`` returns when every request has ended.
    """

    def __init__(self, problem: Problem, rule_code: RuleCode | None = None, *, log: bool = False) -> None:
        none = np.zeros(0, np.uint8)
        self.problem = problem
        self.memory = Memory(
            problem,
            param_bytes=rule_code.params if rule_code else none,
            memory_row=rule_code.memory if rule_code else none,
        )
        a = self.memory.arrays
        self._code = rule_code
        self._sc, self._ans, self._reqv, self._board = a["sc"][0], a["ans"], a["reqv"], a["board"]
        self._sc["use_rule"] = rule_code is not None
        self.share_changes = 0
        if log:
            self.memory.enable_log()

    def advance(self) -> int:
        """Run on; returns DONE, NEED_ROUTE, NEED_BIND or NEED_ADJUST (see engine_kernel)."""
        while True:
            if self._code is None:
                status = engine.advance_asking(self.memory.table)
            else:
                status = engine.advance_at(self.memory.table, self._code.decide, self._code.bind)
            if status == engine.GROW:
                self.memory.grow()
            elif status == engine.ERROR:
                raise PolicyAnswerError(self._error())
            else:
                return int(status)

    def _error(self) -> str:
        code, r, v = (int(self._sc[k]) for k in ("error", "error_request", "error_value"))
        if code == 0:
            return f"simulator fault: {v} requests open but nothing left to happen"
        text = _REASONS[code].format(v=v, last=len(self._board) - 1)
        return f"request {r} at {int(self._sc['now_ps']) / 1e12:.6f} s: {text}"

    @property
    def request(self) -> Any:
        """The question: the request as a named tuple."""
        return RequestView._make(self._reqv[0].item())

    @property
    def view(self) -> LazyView:
        """The question: the workers."""
        return LazyView(self._board)

    @property
    def now_s(self) -> float:
        """Simulated time."""
        return float(self._sc["now_ps"]) / 1e12

    @property
    def decisions(self) -> int:
        """Questions asked so far."""
        return int(self._sc["decisions"])

    def answer(self, action: Any) -> None:
        """Answer NEED_ROUTE with a ``policies.contract.Action``."""
        kind, prefill, decode, order_key, chunk, source, until, reason = action
        self._ans[0] = (kind, prefill, decode, chunk, source, reason, order_key, until)

    def answer_bind(self, decode: int) -> None:
        """Answer NEED_BIND with a decode worker id."""
        self._ans["decode"][0] = decode

    def set_share(self, worker: int, prefill_share: float) -> None:
        """Set a split worker's share of time for prefill."""
        if not 0.0 < prefill_share < 1.0:
            raise PolicyAnswerError(f"worker {worker}: prefill share {prefill_share}: expected between 0 and 1")
        shares, permille = self.memory.arrays["wk"]["share"], round(1000 * prefill_share)
        self.share_changes += int(shares[worker] != permille)
        shares[worker] = permille

    def drain_log(self) -> NDArray[Any]:
        """What happened on the router's streams since the last call (copy)."""
        n = int(self._sc["n_log"])
        events = self.memory.arrays["log"][:n].copy()
        self._sc["n_log"] = 0
        return events


@dataclass(frozen=True, slots=True)
class KernelRun:
    """What a finished run left behind."""

    outcomes: NDArray[Any]  # (n,) OUTCOME_DTYPE
    workers: NDArray[Any]  # (w,) WORKER_OUTCOME_DTYPE
    tbt_counts: NDArray[np.int64]  # (TBT_BINS,)
    decisions: int
    end_ps: int
    order_keys: NDArray[np.float64]  # (n,) as answered
    chunk_tokens: NDArray[np.int64]  # (n,) local_chunk_tokens, as answered
    share_changes: int  # prefill shares of split workers set to another value
    views: list[tuple[Any, NDArray[Any]]] = field(default_factory=list)  # (request tuple, worker records)


_HOOKS = {
    LOG_DISPATCHED: "on_dispatched",
    LOG_PREFILL_DONE: "on_prefill_done",
    LOG_FIRST_TOKEN: "on_first_token",
    LOG_FINISHED: "on_finished",
}


def _call_hooks(policy: Any, hooks: Mapping[int, Callable[..., Any]], events: NDArray[Any]) -> None:
    for time_ps, kind, request, worker, value in events.tolist():
        hook = hooks.get(kind)
        if hook is None:
            continue
        if kind in (LOG_DISPATCHED, LOG_FINISHED):
            hook(request, time_ps / 1e12, worker, value)
        else:
            hook(request, time_ps / 1e12, worker)


def _adjust(run: Run, policy: Any) -> None:
    """The policy's timer: it may set the prefill shares of split workers."""
    if hasattr(policy, "adjust"):
        for worker, share in (policy.adjust(run.view) or {}).items():
            run.set_share(worker, share)


def _drive(run: Run, policy: Any, adjuster: Any, views: list[Any] | None) -> None:
    """Let a Python policy answer every question of a run; ``adjuster`` is asked on the timer."""
    hooks = {kind: getattr(policy, name) for kind, name in _HOOKS.items() if hasattr(policy, name)}
    if hooks:
        run.memory.enable_log()
    while (status := run.advance()) != engine.DONE:
        if hooks:
            _call_hooks(policy, hooks, run.drain_log())
        if status == engine.NEED_ADJUST:
            _adjust(run, adjuster)
            continue
        request, view = run.request, run.view
        if views is not None:
            views.append((request, run.memory.arrays["board"].copy()))
        if status == engine.NEED_ROUTE:
            run.answer(policy.route(request, view))
        else:
            run.answer_bind(policy.bind_decode(request, view))
    if hooks:
        _call_hooks(policy, hooks, run.drain_log())


def _as_rule(policy: Any) -> tuple[Callable[..., Any], Mapping[str, Any]] | None:
    """(marked function, parameters) of a RulePolicy or of a marked function; None for other objects."""
    if (spec := rule_spec(policy)) is not None:
        return policy, spec.params
    decide = getattr(policy, "decide", None)
    if decide is not None and rule_spec(decide) is not None:
        return decide, policy.params
    return None


def run_problem(problem: Problem, policy: Any, *, record_views: bool = False, interpret: bool = False) -> KernelRun:
    """Run ``policy`` on prepared inputs.

    Args:
        problem: from ``build_problem``.
        policy: a RulePolicy or marked rule (compiled), or any object with ``route``.
        record_views: keep every question (slow; the rule is then interpreted).
        interpret: run a rule's plain Python source instead of compiling it.
    """
    found = _as_rule(policy)
    views: list[Any] | None = [] if record_views else None
    if found is not None and not (interpret or record_views):
        run = Run(problem, compile_rule(*found, len(problem.workers)))
        while run.advance() == engine.NEED_ADJUST:
            _adjust(run, policy)
    else:
        run = Run(problem)
        asked = policy
        if found is not None:
            asked = InterpretedRule(*found)
            asked.reset(len(problem.workers), problem.replicas, problem.seed)
        elif hasattr(policy, "reset"):
            policy.reset(len(problem.workers), problem.seed)
        _drive(run, asked, policy, views)
    a = run.memory.arrays
    return KernelRun(
        outcomes=a["out"],
        workers=a["wout"],
        tbt_counts=a["tbt"],
        decisions=int(a["sc"]["decisions"][0]),
        end_ps=int(a["sc"]["now_ps"][0]),
        order_keys=a["req"]["order_key"],
        chunk_tokens=a["req"]["chunk_cap"],
        share_changes=run.share_changes,
        views=views or [],
    )


def simulate(
    trace: Trace,
    cluster: ClusterSpec,
    policy: Any,
    slo: SloSpec,
    *,
    seed: int = 0,
    replay: str | None = None,
    interpret: bool = False,
    adjust_period_s: float = 0.0,
) -> SimResult:
    """Serve ``trace`` on ``cluster`` under ``policy``; see ``build_problem`` for the arguments.

    Clients that give up (``cancel_after_s``) are not simulated: their requests are served whole, and counted in
    ``SimResult.cancels_ignored``.
    """
    problem = build_problem(trace, cluster, slo, seed=seed, replay=replay, adjust_period_s=adjust_period_s)
    result = make_result(problem, cluster, run_problem(problem, policy, interpret=interpret))
    return replace(result, cancels_ignored=count_cancels(trace))


def count_cancels(trace: Trace) -> int:
    """Requests that their client would give up on, had it to wait too long."""
    if "cancel_after_s" not in trace.frame.columns:
        return 0
    return int(trace.frame["cancel_after_s"].count())
