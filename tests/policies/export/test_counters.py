"""The router's counters are the simulator's: both see the same events, and every view must agree."""

from __future__ import annotations

import math
from typing import Any

import pytest

from envs.cluster import reference_engine
from envs.cluster.reference import run_reference
from envs.cluster.reference_view import Routers, seconds
from policies.contract import ROLES, RequestView
from policies.export.runtime.board import COUNTERS, FLAGS, LAW, SIZES
from policies.export.runtime.router import Router
from policies.registry import load
from tests.envs.cluster.cases import random_problem
from tests.envs.cluster.rules import all_local, chaos
from tests.policies.export.folders import folder_of

# Given to the router by the test, or not the router's to know.
REQUEST_FIELDS = sorted(set(RequestView._fields) - {"id", "arrival_s"})
WORKER_FIELDS = (*COUNTERS, "min_slo_tpot_s", "cached_tokens")


def same(a: Any, b: Any) -> bool:
    # The simulator subtracts whole picoseconds, a router seconds.
    return bool(a == b or (a != a and b != b) or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-9)))


class Mirror(Routers):
    """Tells an exported router of each replica what the simulated one sees, and compares at each decision."""

    compared = 0
    policy = "guard"
    agrees = False  # whether the simulated rule is the mirrors' own, so that decisions must agree too

    def __init__(self, problem: Any, workers: Any) -> None:
        super().__init__(problem, workers)
        settings = []
        for i, row in enumerate(problem.predictor_rows):
            own = {name: row[name].item() for name in (*FLAGS, *SIZES, *LAW)}
            settings.append({"id": i, "role": ROLES[row["role"]], **own})
        self.mirrors = [
            Router(folder_of(self.policy), settings, problem.seed, replica=k, clock=lambda: 0.0)
            for k in range(problem.replicas)
        ]
        self.asking = False

    def view(self, r: Any, now: int) -> tuple[Any, list[Any]]:
        request, workers = super().view(r, now)
        mirror, now_s = self.mirrors[r.replica], seconds(now)
        cached = {w.id: w.cached_tokens for w in workers}
        if r.binding:
            for w in workers:
                self.compare(w, mirror.view(w.id), [name for name in WORKER_FIELDS if name != "cached_tokens"])
            return request, workers
        given = ("prompt_tokens", "max_output_tokens", "output_hint_tokens", "session", "turn", "class_id", "priority",
                 "tenant", "model", "lora", "slo_ttft_s", "slo_tpot_s", "holds")  # fmt: skip
        asked = {"id": r.index, **{name: getattr(request, name) for name in given}}
        mirror.decide(asked, now=now_s, cached=cached)
        for w in workers:
            self.compare(w, mirror.view(w.id), WORKER_FIELDS)
        kept = mirror._asked.get(r.index)
        if kept is not None:  # a rejected request is forgotten
            self.compare(request, {name: getattr(kept.ask, name) for name in REQUEST_FIELDS}, REQUEST_FIELDS)
        return request, workers

    def compare(self, simulated: Any, found: dict[str, Any], names: Any) -> None:
        differs = {n: (getattr(simulated, n), found[n]) for n in names if not same(getattr(simulated, n), found[n])}
        assert differs == {}
        Mirror.compared += 1

    def routed(self, r: Any, now: int, prefill_tokens: int) -> None:
        self.asking = True
        super().routed(r, now, prefill_tokens)
        self.asking = False
        late = r.decode < 0
        if self.agrees:
            decided = self.mirrors[r.replica]._asked[r.index].decision
            assert decided.fallback == ""
            assert (decided.prefill, decided.decode) == (None if r.local else r.prefill, r.decode)
        self.mirrors[r.replica].on_dispatched(
            r.index, seconds(now), None if r.local else r.prefill, None if late else r.decode
        )

    def decode_chosen(self, r: Any, now: int) -> None:
        super().decode_chosen(r, now)
        if not self.asking:
            self.mirrors[r.replica].on_bound(r.index, r.decode, seconds(now))

    def remote_prefill_done(self, r: Any) -> None:
        super().remote_prefill_done(r)
        self.mirrors[r.replica].on_prefill_done(r.index)

    def token(self, r: Any) -> None:
        super().token(r)
        mirror = self.mirrors[r.replica]
        if r.emitted == 1:
            mirror.on_first_token(r.index, prompt_tokens=r.prompt)
        else:
            mirror.on_token(r.index)

    def served(self, r: Any) -> None:
        super().served(r)
        self.mirrors[r.replica].on_finished(r.index)

    def ended(self, r: Any, now: int) -> None:
        super().ended(r, now)
        mirror = self.mirrors[r.replica]
        if r.index in mirror._asked or r.index in mirror._flights.open:  # refused by the rule, or too large
            mirror.on_cancelled(r.index, seconds(now))
        elif r.session >= 0:
            mirror._asks.session(r.session).ended_s = seconds(now)  # ``served`` has no time

    def still_open(self) -> int:
        return sum(len(m._flights.open) for m in self.mirrors)


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> list[Mirror]:
    """Reference simulations get mirrored routers, which are listed here."""
    made: list[Mirror] = []

    def mirrored(*arguments: Any) -> Mirror:
        made.append(Mirror(*arguments))
        return made[-1]

    monkeypatch.setattr(reference_engine, "Routers", mirrored)
    monkeypatch.setattr(Mirror, "compared", 0)
    return made


@pytest.mark.parametrize("rule", [chaos, all_local], ids=lambda rule: rule.__name__)
def test_counters_move_as_the_simulator_says(rule: Any, mirrors: list[Mirror]) -> None:
    for seed in range(25):
        run_reference(random_problem(seed), rule)
    assert Mirror.compared > 500
    assert sum(mirror.still_open() for mirror in mirrors) == 0
    for mirror in mirrors:
        for router in mirror.mirrors:
            for i in range(len(mirror.workers)):
                left = router.view(i)
                assert {name: left[name] for name in COUNTERS[:-2]} == dict.fromkeys(COUNTERS[:-2], 0)


@pytest.mark.parametrize("policy", ["guard", "round_robin", "deflect", "ppd"])
def test_a_router_that_sees_the_same_decides_the_same(
    policy: str, mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mirror, "policy", policy)
    monkeypatch.setattr(Mirror, "agrees", True)
    for seed in range(8):
        run_reference(random_problem(seed), load(policy).decide)
    assert Mirror.compared > 200
