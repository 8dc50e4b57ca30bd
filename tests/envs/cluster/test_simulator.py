"""``simulate`` and what is around it: inputs from traces, results, policies as objects, errors in words."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numba.core import event

from envs.cluster.presets import parse_cluster
from envs.cluster.problem import REJECTED, TOO_LARGE
from envs.cluster.result import ideal_cached_tokens
from envs.cluster.simulator import PolicyAnswerError, build_problem, run_problem, simulate
from envs.cluster.slo import LOOSE, TIGHT, SloSpec
from envs.cluster.spec import ViewSpec
from envs.hardware.load import load_handover, load_profile
from policies import registry
from policies.contract import LATE, LOCAL, hold, reject, route
from traces import Trace
from traces.generate import poisson_trace, two_turn_sessions

PROFILE = load_profile("llama-3.1-8b-bf16-h100-tp1")
LINK = load_handover("rdma")


def cluster(name="2p2d", **options):
    return parse_cluster(name, profile=PROFILE, handover=LINK, **options)


@pytest.fixture(scope="module")
def trace():
    return poisson_trace(8.0, 20.0, 700, 60, seed=3)


class Recorder:
    """Routes every request to workers 0 and 2 and keeps what its hooks were told."""

    def __init__(self):
        self.told, self.seen = [], []

    def reset(self, workers, seed):
        self.workers = workers

    def route(self, request, view):
        self.seen.append((request, list(view)))
        return route(0, 2)

    def on_dispatched(self, request, time_s, prefill, decode):
        self.told.append(("dispatched", request, time_s))

    def on_prefill_done(self, request, time_s, worker):
        self.told.append(("prefilled", request, time_s))

    def on_first_token(self, request, time_s, worker):
        self.told.append(("token", request, time_s))

    def on_finished(self, request, time_s, worker, output_tokens):
        self.told.append(("finished", request, time_s))


def test_result_times_are_in_order_and_add_up(trace):
    result = simulate(trace, cluster(), registry.load("guard"), LOOSE)
    frame = result.requests
    assert frame["status"].unique().to_list() == ["served"]
    order = ["arrival_s", "routed_s", "prefill_start_s", "prefill_done_s", "first_token_s", "finish_s"]
    for earlier, later in itertools.pairwise(order):
        assert (frame[earlier] <= frame[later]).all()
    assert np.allclose(frame["ttft_s"], frame["first_token_s"] - frame["arrival_s"])
    gaps = (frame["finish_s"] - frame["first_token_s"]) / (frame["output_tokens"] - 1)
    assert np.allclose(frame["tpot_s"], gaps)
    assert (frame["ttft_s"] >= frame["idle_ttft_s"] * (1 - 1e-9)).all()  # no prefix hits here: idle is a bound
    assert result.tbt_counts.sum() == (frame["output_tokens"] - 1).sum()
    assert result.gpus == 4


def test_no_policy_beats_the_idle_cluster_with_a_perfect_cache():
    sessions = two_turn_sessions(1.0, 30.0, turn1=(900, 100), turn2=((64, 40), (512, 40)), think_s=2.0, seed=4)
    for name in ("guard", "always_local", "round_robin"):
        frame = simulate(sessions, cluster(), registry.load(name), LOOSE).requests
        assert (frame["ttft_s"] >= frame["idle_ttft_s"] * (1 - 1e-9)).all()
    problem = build_problem(sessions, cluster(), LOOSE)
    ideal = ideal_cached_tokens(problem)
    rows = problem.requests
    assert (ideal[rows["turn"] == 1] == 0).all()
    assert (ideal[rows["turn"] == 2] == (900 + 100) // 16 * 16).all()  # the whole first turn, answer included
    local = simulate(sessions, cluster(), registry.load("always_local"), LOOSE).requests
    best = (local["ttft_s"] / local["idle_ttft_s"]).to_numpy()
    assert best.min() == pytest.approx(1.0, abs=0.02)  # and the bound is met by a request that finds it all idle


def test_hooks_of_a_policy_object_come_in_order_of_time(trace):
    policy = Recorder()
    simulate(trace, cluster(), policy, LOOSE)
    times = [t for _, _, t in policy.told]
    assert times == sorted(times)
    for what in ("dispatched", "prefilled", "token", "finished"):
        assert sorted(r for kind, r, _ in policy.told if kind == what) == list(range(len(trace)))
    assert policy.workers == 4


def test_interpreted_and_compiled_rules_decide_alike(trace):
    problem = build_problem(trace.scale_rate(5.0), cluster("2p3d"), TIGHT)
    for name in ("guard", "deflect", "round_robin"):
        compiled, plain = (run_problem(problem, registry.load(name), interpret=i) for i in (False, True))
        assert (compiled.outcomes == plain.outcomes).all(), name


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (route(0, 9), "worker 9 does not exist: expected 0 to 3"),
        (route(2, 0), "worker 0 cannot decode"),
        (route(LOCAL, LATE), "a local prefill needs its decode worker"),
        (hold(0.0), "not later than now"),
        (hold(float("nan")), "not later than now"),
        (route(0, 2, 0.0, -5), "local_chunk_tokens -5"),
        (route(0, 2)._replace(kv_source=3), "kv_source 3 is not supported yet"),
        (route(0, 2)._replace(kind=7), "answer kind 7"),
    ],
)
def test_an_illegal_answer_is_told_with_request_and_reason(trace, answer, says):
    class Stubborn:
        def route(self, request, view):
            return answer

    with pytest.raises(PolicyAnswerError, match="request 0 at") as error:
        simulate(trace, cluster(), Stubborn(), LOOSE)
    assert says in str(error.value)


def test_a_request_larger_than_any_worker_is_a_counted_rejection():
    big = Trace.build("big", {"arrival_s": [0.0, 1.0], "prompt_tokens": [400_000, 100], "output_tokens": [60_000, 5]})
    small = cluster(kv_tokens=100_000)
    run = run_problem(build_problem(big, small, LOOSE), registry.load("guard"))
    assert run.outcomes["status"][0] == REJECTED
    assert run.outcomes["reason"][0] == TOO_LARGE
    frame = simulate(big, small, registry.load("guard"), LOOSE).requests
    assert frame["status"].to_list() == ["rejected", "served"]
    assert frame["idle_ttft_s"][0] == np.inf  # counted as infeasible


def test_rejecting_everything_serves_nothing_and_ends(trace):
    class Closed:
        def route(self, request, view):
            return reject(0)

    frame = simulate(trace, cluster(), Closed(), LOOSE).requests
    assert frame["status"].unique().to_list() == ["rejected"]
    assert not frame["slo_met"].any()


def test_replay_modes_differ_in_when_later_turns_come():
    sessions = two_turn_sessions(2.0, 10.0, turn1=(256, 64), turn2=((64, 64),), think_s=1.0, seed=1)
    closed = simulate(sessions, cluster(), registry.load("guard"), LOOSE).requests.filter(turn=2)
    first = simulate(sessions, cluster(), registry.load("guard"), LOOSE).requests.filter(turn=1).sort("session")
    assert np.allclose(closed.sort("session")["arrival_s"], first["finish_s"] + 1.0)
    opened = build_problem(sessions, cluster(), LOOSE, replay="open")
    assert (opened.requests["next_turn"] == -1).all()
    clients = build_problem(sessions, cluster(), LOOSE, replay="clients")
    assert (clients.requests["next_turn"] >= 0).any()
    assert (clients.requests["session"] == -1).all()  # the router cannot tell benchmark rounds from sessions
    with pytest.raises(ValueError, match="expected open, closed or clients"):
        build_problem(sessions, cluster(), LOOSE, replay="opne")


def test_objectives_by_class_and_by_prompt_length():
    two = Trace.build(
        "two",
        {"arrival_s": [0.0, 1.0], "prompt_tokens": [100, 2000], "output_tokens": [5, 5], "class": ["chat", "batch"]},
    )
    slo = SloSpec("own", 0.2, 0.001, 0.03, by_class={"batch": SloSpec("batch", 9.0, 0.0, 0.5)})
    rows = build_problem(two, cluster(), slo).requests
    assert rows["slo_ttft_s"].tolist() == [pytest.approx(0.3), 9.0]
    assert rows["slo_tpot_s"].tolist() == [0.03, 0.5]


@pytest.mark.parametrize("name", ["2p", "p2d", "2p2", "3d", "colocated", "two"])
def test_unknown_cluster_names_say_what_is_known(name):
    with pytest.raises(ValueError, match="<n>p<m>d"):
        cluster(name)


def test_the_view_prices_descriptors_and_follows_the_predicted_handover():
    link = replace(LINK, per_block_s=16e-6, bandwidth_bytes_per_s=1e11)
    two = parse_cluster("1p1d", profile=PROFILE, handover=link)
    few = poisson_trace(1.0, 5.0, 100, 5, seed=1)
    seen = build_problem(few, two, LOOSE).predictor_rows[0]
    a_token_s = PROFILE.kv.bytes_per_token / seen["link_bytes_per_s"]
    assert a_token_s == pytest.approx(PROFILE.kv.bytes_per_token / 1e11 + 1e-6)  # 16 us a block of 16 tokens
    off = replace(two, predicted_handover=replace(link, base_s=0.5))
    problem = build_problem(few, off, LOOSE)
    assert problem.predictor_rows[0]["handover_s"] == pytest.approx(link.dispatch_s + 0.5)
    assert problem.handover == build_problem(few, two, LOOSE).handover  # the world stays


def test_sessions_stay_on_one_replica_and_replicas_see_their_own_counters():
    sessions = two_turn_sessions(6.0, 10.0, seed=2)
    view = ViewSpec(replicas=4)
    rows = build_problem(sessions, cluster(view=view), LOOSE).requests
    for s in np.unique(rows["session"]):
        assert len(np.unique(rows["replica"][rows["session"] == s])) == 1
    assert len(np.unique(rows["replica"])) == 4
    policy = Recorder()
    simulate(sessions, cluster(view=view), policy, LOOSE)
    last = policy.seen[-1]
    assert sum(w.finished for w in last[1]) < len(policy.seen) - 1  # a replica sees only its share


def test_the_timer_sees_the_present_and_sets_shares(trace):
    seen = []

    class Slicer:
        def route(self, request, view):
            return route(LOCAL, request.id % 2)

        def adjust(self, view):
            seen.append([(w.finished, w.prefill_tokens, w.cached_tokens) for w in view])
            return {0: 0.7, 1: 0.3}

    simulate(trace, cluster("split2"), Slicer(), LOOSE, adjust_period_s=0.5)
    finished = [sum(f for f, _, _ in at) for at in seen]
    assert len(seen) >= 39  # every half second until the last request ends
    assert finished == sorted(finished)
    assert finished[-1] > 0.9 * len(trace)
    Slicer.adjust = lambda self, view: {0: 1.5}
    with pytest.raises(PolicyAnswerError, match=r"prefill share 1\.5"):
        simulate(trace, cluster("split2"), Slicer(), LOOSE, adjust_period_s=0.5)


def test_a_new_policy_compiles_no_kernel(trace):
    problem = build_problem(trace, cluster(), TIGHT)
    run_problem(problem, registry.load("round_robin"))
    with event.install_recorder("numba:compile") as recorder:
        run_problem(problem, registry.load("threshold", tokens=333.0))
        run_problem(problem, registry.load("multiplicative"))
    compiled = [e.data["dispatcher"].py_func.__module__ for _, e in recorder.buffer if e.is_start]
    assert not [m for m in compiled if m.endswith("_kernel")], compiled
