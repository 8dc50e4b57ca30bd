"""A run written as a log, read back and replayed gives the same times; a log's routes are checked before they run."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envs.cluster.build import build_problem
from envs.cluster.presets import parse_cluster
from envs.cluster.problem import OUTCOME_DTYPE, PS, SERVED, whole_ps
from envs.cluster.reference import run_reference
from envs.cluster.simulator import run_problem, simulate
from envs.cluster.slo import TIGHT
from envs.cluster.spec import ViewSpec
from envs.hardware.load import load_handover, load_profile
from envs.logged import LoggedRoutes, as_trace, has_routes, stamp_s
from policies import registry
from policies.contract import LATE, hold, reject, route
from traces import Trace, load_trace
from traces.check import LOGGED
from traces.errors import TraceError
from traces.generate import poisson_trace
from traces.readers import canonical
from traces.source import read_source

PROFILE = load_profile("llama-3.1-8b-bf16-h100-tp1")
LINK = load_handover("rdma")
SAME = [n for n in OUTCOME_DTYPE.names or () if n not in ("reason", "holds")]
"""Everything that happened. (A refused request's reason, and how often one was held, are no part of a route.)"""
CAME_NEVER = {"status", "arrival_ps", "routed_ps"}
"""Cancelled turns, replayed open: they come and are refused at once, where they had not come at all."""


def cluster(name="2p2d", kv_tokens=None, prefix_cache=True, max_num_seqs=256, **view):
    made = parse_cluster(name, profile=PROFILE, handover=LINK, view=ViewSpec(**view))
    own = {"kv_tokens": kv_tokens, "prefix_cache": prefix_cache, "max_num_seqs": max_num_seqs}
    workers = [dataclasses.replace(w, **own) for w in made.workers]
    return dataclasses.replace(made, workers=tuple(workers))


def sessions(seed, n=60, *, thinks=(0.0, 0.0, 0.5), rate=3.0, block=32):
    """Conversations whose prompts repeat what was said, with a system prompt that all share; many turns tie."""
    rng = np.random.default_rng(seed)
    rows, chains, fresh, clock = [], [], 1, 0.0
    for session in range(n):
        clock += float(rng.exponential(1 / rate)) if rng.random() < 0.8 else 0.0
        prompt, nominal, text = 64, clock, [0, 1]
        fresh += 1
        for turn in range(1, int(rng.integers(1, 5)) + 1):
            prompt += int(rng.choice([40, 40, 700]))
            output = int(rng.choice([1, 20, 20, 90]))
            while len(text) < (prompt + output) // block:
                fresh += 1
                text.append(fresh)
            chains.append(list(text))
            think = float(rng.choice(thinks)) if turn > 1 else None
            rows.append((nominal, session, turn, think, prompt, output))
            nominal += float(rng.random()) * 4
            prompt += output
    names = ("arrival_s", "session", "turn", "think_s", "prompt_tokens", "output_tokens")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    offsets = np.r_[0, np.cumsum([len(c) for c in chains])]
    ids = np.concatenate(chains)
    return Trace.build(
        "talk", columns, chain_offsets=offsets, chain_ids=ids, prefix_block_tokens=block, replay="closed"
    )


def differences(result, log, again):
    """What differs between a run and the run ``again`` of its log, and on how many requests."""
    place = np.argsort(result.requests["request"].to_numpy())
    ids = log.frame["logged_order"].to_numpy() if "logged_order" in log.frame.columns else np.arange(len(log))
    first, second = result.outcomes[place[ids]], again.outcomes
    return {name: int((first[name] != second[name]).sum()) for name in SAME if (first[name] != second[name]).any()}


def through_a_file(log, tmp_path):
    path = tmp_path / "run.parquet"
    canonical.write(log, path)
    back = canonical.read(read_source(path))
    assert back.sha256 == log.sha256
    return back


@pytest.mark.parametrize("mode", ["open", "closed", "clients"])
@pytest.mark.parametrize("layout", ["2p2d", "1p3d", "colocated2", "split2"])
@pytest.mark.parametrize("name", ["round_robin", "guard", "deflect", "ppd", "always_local"])
def test_a_run_read_back_and_replayed_gives_the_same_times(name, layout, mode, tmp_path):
    trace, where = sessions(1), cluster(layout)
    result = simulate(trace, where, registry.load(name), TIGHT, replay=mode)
    log = through_a_file(as_trace(result, trace), tmp_path)
    assert log.replay == mode
    for again in {mode, "open"}:
        assert differences(result, log, simulate(log, where, LoggedRoutes(log, where), TIGHT, replay=again)) == {}


@pytest.mark.parametrize("name", ["guard", "deflect"])
@pytest.mark.parametrize("crowded", [{"kv_tokens": 2500, "max_num_seqs": 8}, {"kv_tokens": 6000}])
def test_what_comes_first_within_one_instant_is_kept(name, crowded):
    """Full caches, preemptions, refused sessions, and turns that end in one step: their order is in the log."""
    trace, where = sessions(1, n=120, rate=60.0), cluster(**crowded)
    result = simulate(trace, where, registry.load(name), TIGHT)
    assert result.requests["preemptions"].sum() > 0
    log = as_trace(result, trace)
    for again in ("closed", "open"):
        replayed = simulate(log, where, LoggedRoutes(log, where), TIGHT, replay=again)
        assert set(differences(result, log, replayed)) <= CAME_NEVER
    bare = dataclasses.replace(log, frame=log.frame.drop("logged_order"))
    other = simulate(bare, where, LoggedRoutes(bare, where), TIGHT)
    assert sorted(other.outcomes["finish_ps"]) != sorted(result.outcomes["finish_ps"])


def test_the_policy_that_made_the_log_decides_the_same_on_it():
    trace, where = sessions(2, n=80, rate=40.0), cluster(replicas=3, prefix="approximate", kv_tokens=6000)
    result = simulate(trace, where, registry.load("guard"), TIGHT, seed=5)
    log = as_trace(result, trace)
    assert differences(result, log, simulate(log, where, registry.load("guard"), TIGHT, seed=5)) == {}


def test_both_simulators_read_the_logged_order():
    trace, where = sessions(6, n=25, rate=40.0), cluster(kv_tokens=6000)
    log = as_trace(simulate(trace, where, registry.load("guard"), TIGHT), trace)
    assert "logged_order" in log.frame.columns
    problem = build_problem(log, where, TIGHT)
    guard = registry.load("guard")
    slow = run_reference(problem, guard.decide, params=guard.params)
    assert (slow.outcomes == run_problem(problem, guard).outcomes).all()


def test_a_log_of_a_log_is_the_log():
    trace, where = sessions(3, n=80, rate=40.0), cluster(kv_tokens=6000)
    log = as_trace(simulate(trace, where, registry.load("deflect"), TIGHT), trace)
    again = as_trace(simulate(log, where, LoggedRoutes(log, where), TIGHT), log)
    assert again.sha256 == log.sha256


def test_sessions_of_an_open_run_may_be_replayed_closed():
    trace, where = sessions(4, n=40, rate=2.0), cluster()
    arrival = trace.frame["arrival_s"].to_numpy() + 30.0 * (trace.frame["turn"].to_numpy() - 1)
    trace = Trace.build("apart", trace.frame.with_columns(pl.Series("arrival_s", arrival)), replay="open")
    result = simulate(trace, where, registry.load("guard"), TIGHT)
    log = as_trace(result, trace)
    assert not any("no think time" in line for line in log.provenance)
    assert differences(result, log, simulate(log, where, LoggedRoutes(log, where), TIGHT, replay="closed")) == {}


class Everything:
    """Holds, refuses, binds late, orders and caps: by the request's id alone."""

    def __init__(self, salt):
        self.salt = salt

    def route(self, request, view):
        h = (request.id * 7919 + self.salt * 104729) % 1000
        if h % 7 == 0 and request.holds < 2:
            return hold(request.now_s + 1e-3 * (1 + h % 5) + 1e-12)
        if h % 41 == 1:
            return reject(0)
        if h % 5 == 2:
            return route(0, LATE, float(h % 3) - 1.0)
        d = 2 + h % 2
        return route(d if h % 3 == 0 else h % 2, d, float(h % 4 == 0), (0, 0, 64, 500)[h % 4])

    def bind_decode(self, request, view):
        return 2 + (request.id + self.salt) % 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 40),
    rate=st.sampled_from([2.0, 40.0, 1000.0]),
    kv_tokens=st.sampled_from([None, 9000, 3000]),
    mode=st.sampled_from(["open", "closed", "clients"]),
    cache=st.booleans(),
    policy=st.one_of(st.builds(Everything, st.integers(0, 99)), st.sampled_from(["random", "guard", "deflect"])),
)
def test_any_small_run_replays_to_the_picosecond(seed, n, rate, kv_tokens, mode, cache, policy):
    where = cluster(kv_tokens=kv_tokens, prefix_cache=cache)
    trace = sessions(seed, n, rate=rate)
    made = registry.load(policy) if isinstance(policy, str) else policy
    result = simulate(trace, where, made, TIGHT, replay=mode)
    log = as_trace(result, trace)
    half = (result.outcomes["prefill_worker"] >= 0) & (result.outcomes["decode_worker"] < 0)
    if half.any():  # bound late to a worker too small: known not to be replayed
        with pytest.raises(TraceError, match="between its prefill and the choice"):
            LoggedRoutes(log, where)
        return
    for again in {mode, "open"}:
        replayed = simulate(log, where, LoggedRoutes(log, where), TIGHT, replay=again)
        found = differences(result, log, replayed)
        assert set(found) <= (CAME_NEVER if again != mode else set())
        assert (replayed.outcomes["status"] == SERVED).sum() == (result.outcomes["status"] == SERVED).sum()


def test_a_csv_of_a_run_is_a_log_too(tmp_path):
    plain, where = poisson_trace(20.0, 10.0, 700, 40, seed=3), cluster()
    result = simulate(plain, where, registry.load("deflect"), TIGHT)
    as_trace(result, plain).frame.write_csv(tmp_path / "run.csv")
    log = load_trace(str(tmp_path / "run.csv"), "table")
    assert differences(result, log, simulate(log, where, LoggedRoutes(log, where), TIGHT)) == {}


def test_chunk_caps_holds_and_queue_keys_have_columns_only_where_they_were_used():
    trace, where = sessions(1, n=20), cluster()
    plain = as_trace(simulate(trace, where, registry.load("round_robin"), TIGHT), trace)
    used = as_trace(simulate(trace, where, Everything(1), TIGHT), trace)
    extra = {"routed_after_s", "order_key", "local_chunk_tokens"}
    assert extra & set(plain.frame.columns) == set()
    assert extra <= set(used.frame.columns)


def test_a_turn_that_never_came_is_kept_as_cancelled():
    class RefusesSecondTurns:
        def route(self, request, view):
            return reject() if request.turn == 2 else route(0, 2)

    trace, where = sessions(1, n=30), cluster()
    log = as_trace(simulate(trace, where, RefusesSecondTurns(), TIGHT), trace)
    turns = log.frame.group_by("turn").agg(pl.col("status").unique().sort()).sort("turn")
    assert dict(turns.iter_rows()) == {1: ["served"], 2: ["rejected"], 3: ["cancelled"], 4: ["cancelled"]}
    assert len(log) == len(trace)
    assert log.frame.filter(pl.col("turn") > 1)["prefill_worker"].null_count() == (trace.frame["turn"] > 1).sum()


def test_moved_prefill_shares_have_no_place_in_a_log():
    trace, where = sessions(1, n=60, rate=30.0), cluster("split2")
    result = simulate(trace, where, registry.load("time_slice"), TIGHT, adjust_period_s=0.5)
    assert result.share_changes > 0
    with pytest.raises(TraceError, match=r"\d+ changes by the policy's timer.*adjust_period_s=0"):
        as_trace(result, trace)
    as_trace(simulate(trace, where, registry.load("time_slice"), TIGHT), trace)


def test_cancels_are_kept_and_counted_but_not_acted_on(tmp_path):
    plain = poisson_trace(20.0, 5.0, 700, 40, seed=3)
    after = pl.Series("cancel_after_s", [0.001 if i % 3 == 0 else None for i in range(len(plain))])
    trace = dataclasses.replace(plain, frame=Trace.build("c", plain.frame.with_columns(after)).frame)
    result = simulate(trace, cluster(), registry.load("guard"), TIGHT)
    assert result.cancels_ignored == -(-len(plain) // 3)
    assert set(result.requests["status"]) == {"served"}
    log = through_a_file(as_trace(result, trace), tmp_path)
    assert log.frame["cancel_after_s"].to_list() == after.to_list()
    assert f"cancel_after_s of {result.cancels_ignored} requests was not acted on" in log.provenance


# -- times ---------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.integers(0, 2**13 * PS - 1))
@example(2**51 + 1)  # from here on one product would lose picoseconds
@example(2**52 + 1)
def test_seconds_tell_picoseconds_apart_up_to_two_hours(ps):
    assert whole_ps(np.array([ps / PS])).tolist() == [ps]


@settings(max_examples=300)
@given(st.integers(0, 2**52))
def test_a_hold_ends_at_its_picosecond(ps):
    assert round(stamp_s(ps) * 1e12) == ps


def test_a_run_of_many_hours_says_how_far_its_arrivals_are_off_and_replays_closed(tmp_path):
    trace, where = sessions(5, n=50, thinks=(9000.0, 20_000.0), rate=1e-3), cluster()
    result = simulate(trace, where, registry.load("guard"), TIGHT)
    log = as_trace(result, trace)
    assert any("arrivals rounded by up to" in line for line in log.provenance)
    assert differences(result, log, simulate(log, where, LoggedRoutes(log, where), TIGHT)) == {}


# -- nothing leaks ---------------------------------------------------------------------------------------


def test_what_was_logged_reaches_no_policy():
    trace, where = sessions(1, n=30), cluster()
    log = as_trace(simulate(trace, where, registry.load("guard"), TIGHT), trace)
    assert {"prefill_worker", "decode_worker", "ttft_s", "status"} <= set(LOGGED) & set(log.frame.columns)
    other = log.frame.with_columns(
        pl.lit(0, pl.Int64).alias("prefill_worker"),
        pl.lit(3, pl.Int64).alias("decode_worker"),
        pl.lit(9.0).alias("ttft_s"),
        pl.lit(9.0).alias("tpot_s"),
        pl.lit("error").alias("status"),
        pl.lit(5.0).alias("routed_after_s"),
        pl.lit(7.0).alias("order_key"),
        pl.lit(8, pl.Int64).alias("local_chunk_tokens"),
    )
    seen = []
    for frame in (log.frame, other, log.frame.drop(set(LOGGED) - {"logged_order"}, strict=False)):
        problem = build_problem(dataclasses.replace(log, frame=frame), where, TIGHT)
        run = run_problem(problem, registry.load("guard"), record_views=True)
        seen.append((problem.requests.tobytes(), repr(run.views), run.outcomes.tobytes()))
    assert seen[0] == seen[1] == seen[2]


# -- logs that cannot be replayed ------------------------------------------------------------------------------


def logged(**columns):
    rows = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [50] * 3, "output_tokens": [5] * 3}
    return Trace.build("mine", rows | {"prefill_worker": [0, 1, 0], "decode_worker": [2, 3, 2]} | columns)


@pytest.mark.parametrize(
    ("columns", "ids", "message"),
    [
        ({"decode_worker": [2, 7, 2]}, None, r"row 2, column 'decode_worker': found 7, .*nearest is 3.*worker_ids=\{7"),
        ({"prefill_worker": [2, 1, 0]}, None, r"row 1, column 'prefill_worker'.*can prefill \(0, 1\).*decode worker"),
        ({"decode_worker": [2, 3, 1]}, None, r"row 3, column 'decode_worker'.*can decode \(2, 3\)"),
        ({"prefill_worker": [0, None, 0]}, None, r"row 2, column 'prefill_worker'.*both workers or none"),
        ({"decode_worker": [2, None, 2]}, None, r"row 2, column 'decode_worker'.*between its prefill and"),
        (
            {"prefill_worker": [0, None, 0], "decode_worker": [2, None, 2]},
            None,
            r"row 2.*found 'nothing'.*a status that says why",
        ),
        (
            {"prefill_worker": [0, None, 0], "decode_worker": [2, None, 2], "status": ["ok", "200", "ok"]},
            None,
            r"row 2.*status '200' without a worker",
        ),
        ({}, {9: 0}, r"policy.worker_ids.*found 9.*a worker of the log, 0, 1, 2, 3 \(the nearest is 3\)"),
        ({}, {3: 9}, r"policy.worker_ids.*0 to 3 \(the nearest is 3\)"),
    ],
)
def test_a_route_that_cannot_be_taken_is_named(columns, ids, message):
    where = cluster()
    where = dataclasses.replace(where, workers=tuple(dataclasses.replace(w, **CAN[w.role]) for w in where.workers))
    with pytest.raises(TraceError, match=message):
        LoggedRoutes(logged(**columns), where, ids)


CAN = {"prefill": {"can_decode": False}, "decode": {"can_prefill": False}}


def test_a_trace_without_routes_is_told_what_is_missing():
    plain = poisson_trace(20.0, 1.0, 70, 4, seed=3)
    assert not has_routes(plain)
    with pytest.raises(TraceError, match=r"'prefill_worker and decode_worker'.*policy=logged replays"):
        LoggedRoutes(plain, cluster())


def test_ids_of_the_log_are_mapped_and_refused_requests_refused():
    log = logged(
        prefill_worker=[17, None, 18],
        decode_worker=[17, None, 19],
        status=["200", "503", None],
        cancel_after_s=[9.0] * 3,
    )
    where = cluster()
    policy = LoggedRoutes(log, where, {17: 3, 18: 0, 19: 2})
    assert policy.refused == 1
    frame = simulate(log, where, policy, TIGHT).requests
    assert frame["status"].to_list() == ["served", "rejected", "served"]
    assert frame["local"].to_list() == [True, False, False]
    assert frame["decode_worker"].to_list() == [3, -1, 2]


def test_minus_one_is_a_local_prefill_or_nothing():
    log = logged(prefill_worker=[-1, -1, 0], decode_worker=[2, -1, 2], status=["served", "rejected", "served"])
    frame = simulate(log, cluster(), LoggedRoutes(log, cluster()), TIGHT).requests
    assert frame["local"].to_list() == [True, False, False]
    assert frame["status"].to_list() == ["served", "rejected", "served"]
