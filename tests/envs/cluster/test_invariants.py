"""What must hold in every run, whatever the cluster, the trace and the rule; in both simulators."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.cluster.problem import CANCELLED, FAILED, PENDING, REJECTED, SERVED, TOO_LARGE
from policies.contract import RequestView, WorkerView
from tests.envs.cluster.cases import random_problem
from tests.envs.cluster.rules import RULES
from tests.envs.cluster.runners import both, compiled, reference
from tests.envs.cluster.theory import little

ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(1000, 1_000_000)


def rule_of(seed):
    return RULES[seed % len(RULES)]


def value(record, name):
    """A field of a named tuple or of a numpy record."""
    return record[name].item() if isinstance(record, np.void) else getattr(record, name)


@both
@given(seed=seeds)
@ANY
def test_every_request_ends_once_and_tokens_are_conserved(run, seed):
    problem = random_problem(seed)
    result = run(problem, rule_of(seed))
    out, wanted = result.outcomes, problem.requests["output_tokens"]
    status, emitted = out["status"], out["emitted_tokens"]
    assert not (status == PENDING).any()
    assert (emitted[status == SERVED] == wanted[status == SERVED]).all()
    assert (emitted[np.isin(status, (REJECTED, CANCELLED))] == 0).all()
    assert (emitted[status == FAILED] < wanted[status == FAILED]).all()
    assert (out["finish_ps"] >= 0).all()
    assert result.tbt_counts.sum() == np.maximum(emitted - 1, 0).sum()
    computed = out["prefill_tokens_computed"]
    assert result.workers["prefill_tokens"].sum() == computed.sum()
    whole = (status == SERVED) & (out["preemptions"] == 0)
    prompt = problem.requests["prompt_tokens"]
    assert (computed[whole] == (prompt - out["cached_tokens"])[whole]).all()
    assert result.workers["preemptions"].sum() == out["preemptions"].sum()
    by_prefill = result.workers["decode_tokens"].sum() - emitted.sum()
    assert -(out["local"].sum() + out["preemptions"].sum()) <= by_prefill <= 0
    too_large = out["reason"] == TOO_LARGE
    assert (status[too_large] == REJECTED).all()


@both
@given(seed=seeds)
@ANY
def test_time_never_runs_back(run, seed):
    problem = random_problem(seed)
    out = run(problem, rule_of(seed)).outcomes
    served = out[out["status"] == SERVED]
    remote = served[served["local"] == 0]
    for rows, names in (
        (served, ("arrival", "routed", "prefill_start", "prefill_done", "first_token", "finish")),
        (remote, ("prefill_done", "pull_start", "pull_end", "first_token")),
    ):
        for earlier, later in itertools.pairwise(names):
            assert (rows[f"{earlier}_ps"] <= rows[f"{later}_ps"]).all(), (earlier, later)
    assert (remote["pull_start_ps"] >= 0).all()
    assert (served[served["local"] == 1]["pull_start_ps"] == -1).all()
    for i, following in enumerate(problem.requests["next_turn"].tolist()):
        if following >= 0 and out["status"][i] == SERVED:
            think = problem.requests["think_ps"][following]
            assert out["arrival_ps"][following] == out["finish_ps"][i] + think


@both
@given(seed=seeds)
@ANY
def test_capacity_is_never_exceeded(run, seed):
    problem = random_problem(seed)
    result = run(problem, rule_of(seed))
    assert (result.workers["peak_used_blocks"] <= problem.workers["total_blocks"]).all()
    busy = sum(result.workers[f"{kind}_ps"] for kind in ("prefill", "decode", "mixed", "idle_rank"))
    span = result.outcomes["finish_ps"].max() - max(0, problem.requests["arrival_ps"].min())
    # after the last request has ended nothing is planned, so no worker is busy longer than the run lasts
    assert (busy <= max(span, result.outcomes["finish_ps"].max())).all()


@both
@given(seed=seeds)
@ANY
def test_same_seed_same_bits(run, seed):
    first, second = (run(random_problem(seed), rule_of(seed)) for _ in range(2))
    assert first.outcomes.tobytes() == second.outcomes.tobytes()
    assert first.workers.tobytes() == second.workers.tobytes()
    assert np.array_equal(first.tbt_counts, second.tbt_counts)


@given(seed=seeds)
@ANY
def test_hidden_output_lengths_do_not_change_decisions(seed):
    """Lengthen what has not ended by some time: until then every view, hence every decision, is the same."""
    problem = random_problem(seed)
    before = reference(problem, rule_of(seed), record_views=True)
    cut = int(np.median(before.outcomes["finish_ps"]))
    requests = problem.requests.copy()
    # a request that fits nowhere any more would be refused, which a router does see
    room = (
        requests["prompt_tokens"] + requests["output_tokens"] + 5
        <= (problem.workers["total_blocks"] * problem.workers["block_tokens"]).min()
    )
    open_then = (before.outcomes["finish_ps"] > cut) & (before.outcomes["status"] != REJECTED) & room
    requests["output_tokens"][open_then] += 5
    after = compiled(replace(problem, requests=requests), rule_of(seed), record_views=True)
    seen = [view for view in before.views if view[0].now_s <= cut / 1e12]
    for (request, workers), (request2, workers2) in zip(seen, after.views, strict=False):
        for name in RequestView._fields:
            np.testing.assert_equal(value(request2, name), value(request, name))
        for w, worker in enumerate(workers):
            for name in WorkerView._fields:
                np.testing.assert_equal(value(workers2[w], name), value(worker, name))
    assert len(after.views) >= len(seen)


@both
@given(seed=seeds)
@ANY
def test_littles_law(run, seed):
    in_system, rate_times_time = little(run(random_problem(seed), rule_of(seed)).outcomes)
    np.testing.assert_allclose(in_system, rate_times_time, rtol=1e-12)


@both
@given(seed=seeds)
@ANY
def test_router_counters_agree_with_what_happened(run, seed):
    """At each decision: requests that wait for their prefill, and streams, counted from the outcomes."""
    problem = random_problem(seed)
    result = run(problem, rule_of(seed), record_views=True)
    out, replica = result.outcomes, problem.requests["replica"]
    routed = (out["routed_ps"] >= 0) & (out["prefill_worker"] >= 0)
    prefill_seen = np.where(out["local"] == 1, out["first_token_ps"], out["prefill_done_ps"])
    times = [round(value(request, "now_s") * 1e12) for request, _ in result.views]
    for (request, workers), now in zip(result.views, times, strict=True):
        if times.count(now) > 1:
            continue  # which decision of an instant came first, outcomes do not tell
        mine = routed & (replica == value(request, "replica")) & (out["routed_ps"] < now)
        waits = mine & ((prefill_seen < 0) | (prefill_seen > now))
        streams = mine & (out["first_token_ps"] >= 0) & (out["first_token_ps"] <= now) & (out["finish_ps"] > now)
        for w in range(len(problem.workers)):
            assert value(workers[w], "prefill_requests") == (waits & (out["prefill_worker"] == w)).sum()
            # a FAILED stream ends with the run, at the time of its last event
            failed = (out["status"] == FAILED) & (out["finish_ps"] == now) & mine & (out["first_token_ps"] >= 0)
            assert value(workers[w], "streams") == ((streams | failed) & (out["decode_worker"] == w)).sum()
