"""Records what a policy is asked in simulation, with the answers of its compiled rule: the exporter's golden file.

Several clusters, loads, staleness and replicas are mixed, so that queues are empty and full, prefixes known and not.
Each (cluster, load) is a cell: one run, driven by the compiled rule's own answers.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.build import build_problem
from envs.cluster.engine_kernel import DONE, NEED_ADJUST, NEED_ROUTE
from envs.cluster.presets import parse_cluster
from envs.cluster.problem import Problem
from envs.cluster.rules import compile_rule, memory_record
from envs.cluster.simulator import Run
from envs.cluster.slo import SloSpec
from envs.cluster.spec import ClusterSpec, ViewSpec
from envs.hardware.profile import HandoverLaw, Profile
from policies.contract import PER_WORKER, ROLES, WORKER_DTYPE
from policies.export.runtime.golden import SCHEMA
from policies.export.runtime.values import encode
from policies.rulepolicy import RulePolicy
from traces import Trace

VIEWS = (
    ViewSpec(),
    ViewSpec(scrape_period_s=5.0, kv_event_delay_s=0.5),
    ViewSpec(replicas=2, prefix="approximate"),
)
ADJUST_PERIOD_S = 0.25
WARM_UP = 30
"""Questions a worker that come before the recorded ones: an empty cluster is not what routers see."""
LAW = ("floor_s", "c0_s", "c_tok_s", "c_attn_s", "c_seq_s", "c_kv_s")
PROFILE_FIELDS = (*LAW, "kv_bytes_per_token", "handover_s", "link_bytes_per_s", "kv_capacity_tokens")
ROLE_FIELDS = ("can_prefill", "can_decode", "prefix_cache", "max_batched_tokens", "max_num_seqs")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is recorded.

    Attributes:
        trace: requests; every cell takes another window of it.
        profile: hardware of the workers.
        handover: the links' law.
        slo: objectives.
        clusters: layouts.
        utilisations: offered work over what the cluster could do, by its profile and without prefix hits.
        views: questions, over all cells.
        seed: for ties and for the assignment to replicas.
    """

    trace: Trace
    profile: Profile
    handover: HandoverLaw
    slo: SloSpec
    clusters: tuple[str, ...]
    utilisations: tuple[float, ...]
    views: int
    seed: int = 0

    def cluster(self, name: str, view: ViewSpec) -> ClusterSpec:
        """One of the clusters."""
        return parse_cluster(name, profile=self.profile, handover=self.handover, view=view)


def record(policy: RulePolicy, plan: Plan) -> Iterator[str]:
    """The lines of a golden file (see ``policies.export.runtime.golden``)."""
    head = {"golden": SCHEMA, "policy": policy.name, "trace": plan.trace.name, "trace_sha256": plan.trace.sha256}
    yield json.dumps(head)
    cells = [(name, u) for name in plan.clusters for u in plan.utilisations]
    longest = max(len(plan.cluster(name, ViewSpec()).workers) for name in plan.clusters)
    windows = _windows(plan.trace, len(cells), -(-plan.views // len(cells)) + WARM_UP * longest)
    left = plan.views
    for i, (name, utilisation) in enumerate(cells):
        wanted = -(-left // (len(cells) - i))
        turn = i // len(plan.utilisations) + i % len(plan.utilisations)
        view = VIEWS[turn % len(VIEWS)]  # every load meets every view, over the clusters
        got = yield from _cell(policy, plan, name, utilisation, view, windows, i, wanted)
        left -= got


def _windows(trace: Trace, cells: int, requests: int) -> list[Trace]:
    """Windows of about as many requests as a cell needs."""
    n = max(1, min(cells, len(trace) // requests))
    return trace.windows(n) if n > 1 else [trace]


def _cell(
    policy: RulePolicy,
    plan: Plan,
    name: str,
    utilisation: float,
    view: ViewSpec,
    windows: Sequence[Trace],
    index: int,
    wanted: int,
) -> Generator[str, None, int]:
    """One cell's lines; returns the number of its questions (a generator's return value)."""
    cluster = plan.cluster(name, view)
    got = 0
    for turn in itertools.count():
        if got >= wanted or turn > len(windows):
            break
        window = windows[(index + turn) % len(windows)]
        rate = utilisation * full_rate_per_s(window, cluster, plan.slo)
        problem = build_problem(
            window.scale_rate(rate / window.rate_per_s),
            cluster,
            plan.slo,
            seed=plan.seed + index,
            adjust_period_s=ADJUST_PERIOD_S if hasattr(policy, "adjust") else 0.0,
        )
        got += yield from _run(policy, problem, f"{name} at {utilisation:g}", wanted - got)
    return got


def _run(policy: RulePolicy, problem: Problem, title: str, wanted: int) -> Generator[str, None, int]:
    """One run's lines, at most ``wanted`` questions; returns their number."""
    run = Run(problem)
    code = compile_rule(policy.decide, policy.params, len(problem.workers))
    arrays = run.memory.arrays
    request, board = arrays["reqv"], arrays["board"]
    memory = np.repeat(code.memory[None, :], problem.replicas, axis=0)
    columns: dict[str, Any] = {}
    got = -WARM_UP * len(board)
    while got < wanted and (status := run.advance()) != DONE:
        if got == 0:
            columns.clear()
            start = {"cell": title, "seed": problem.seed, "n_workers": len(board), "workers": _changed(board, columns)}
            yield json.dumps({**start, "memory": [_memory(policy, row, len(board)) for row in memory]})
        line: dict[str, Any] = {"ask": "", "workers": _changed(board, columns)}
        if status == NEED_ADJUST:
            shares: Mapping[int, float] = policy.adjust(run.view)  # type: ignore[attr-defined]
            for worker, share in shares.items():
                run.set_share(worker, share)
            line |= {"ask": "adjust", "answer": {str(k): encode(v) for k, v in shares.items()}}
        else:
            line["request"] = [_plain(v) for v in request[0].item()]
            own = memory[int(request["replica"][0])]
            if status == NEED_ROUTE:
                action = code.decide(request[0], board, code.params, own, problem.seed)
                run.answer(action)
                line |= {"ask": "route", "answer": [_plain(v) for v in action]}
            else:
                worker = code.bind(request[0], board, code.params, own, problem.seed)
                run.answer_bind(worker)
                line |= {"ask": "bind", "answer": int(worker)}
        if got >= 0:
            yield json.dumps(line, separators=(",", ":"))
        got += 1
    return max(0, got)


def _memory(policy: RulePolicy, row: NDArray[np.uint8], n_workers: int) -> dict[str, Any]:
    """What the rule of one replica remembers: fields as it declares them."""
    record = row.view(memory_record(policy.spec.memory, n_workers).dtype)[0]
    return {
        name: [encode(v) for v in record[name].tolist()] if start == PER_WORKER else encode(float(record[name]))
        for name, start in policy.spec.memory.items()
    }


def _changed(board: NDArray[Any], columns: dict[str, Any]) -> dict[str, Any]:
    """The worker columns that changed since they were put into ``columns``; one value if all workers have the same."""
    found: dict[str, Any] = {}
    for name in WORKER_DTYPE.names or ():
        values = board[name].tolist()
        said = [_plain(v) for v in values]
        made = said[0] if all(v == said[0] for v in said) else said
        if columns.get(name) != made:
            found[name] = columns[name] = made
    return found


def _plain(value: Any) -> Any:
    return encode(value) if isinstance(value, float) else int(value)


def full_rate_per_s(trace: Trace, cluster: ClusterSpec, slo: SloSpec) -> float:
    """Requests per second that would keep the busier pool busy all the time, without prefix hits.

    A prefill takes the law's time for the prompt alone; a decode its share of steps as full as the TPOT objective
    allows. A mixed or split worker does both in turn.
    """
    law = cluster.workers[0].profile.step
    prompts = trace.frame["prompt_tokens"].to_numpy().astype(np.float64)
    outputs = trace.frame["output_tokens"].to_numpy().astype(np.float64)
    prefill_s = float(np.mean([law.seconds(p, 0.5 * p * p, 0.0, 0.0) for p in prompts]))
    context = float(np.mean(prompts) + 0.5 * np.mean(outputs))
    room_s = slo.tpot_s - law.seconds(0.0, 0.0, 0.0, 0.0)
    batch = min(256.0, max(1.0, room_s / max(1e-9, law.c_seq_s + law.c_kv_s * context)))
    decode_s = float(np.mean(outputs)) * law.seconds(0.0, 0.0, batch, batch * context) / batch
    n_p = sum(w.role == "prefill" for w in cluster.workers)
    n_d = sum(w.role == "decode" for w in cluster.workers)
    n_both = len(cluster.workers) - n_p - n_d
    if n_p and n_d:
        return min(n_p / prefill_s, n_d / decode_s)
    return max(1, n_both) / (prefill_s + decode_s)


def carried_numbers(plan: Plan) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """(profiles, roles): what the router's workers are made of in production, as the simulator gave it to the rule."""
    profiles: dict[str, dict[str, float]] = {}
    roles: dict[str, dict[str, float]] = {}
    for layout in ("1p1d", "colocated1", "split1"):
        for row in build_problem(plan.trace, plan.cluster(layout, ViewSpec()), plan.slo).predictor_rows:
            profiles[plan.profile.name] = {name: _number(row[name]) for name in PROFILE_FIELDS}
            roles[ROLES[int(row["role"])]] = {name: int(row[name]) for name in ROLE_FIELDS}
    return profiles, roles


def _number(value: Any) -> float:
    number = value.item()
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{number}: expected a finite number in a profile")
    return number  # type: ignore[no-any-return]
