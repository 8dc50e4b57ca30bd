"""Step laws as tables in both simulators, by hand (times in microseconds), and from a profile to a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.presets import parse_cluster
from envs.cluster.problem import SERVED, TablePs
from envs.cluster.simulator import build_problem, run_problem, simulate
from envs.cluster.slo import LOOSE
from envs.cluster.tables import dense, table_ps
from envs.hardware.load import load_handover, load_profile
from envs.hardware.tables import StepTables
from policies import registry
from policies.contract import MIXED, SPLIT
from tests.envs.cluster.cases import US, law, problem, realistic_problem, requests, worker
from tests.envs.cluster.rules import RULES
from tests.envs.cluster.runners import both, compiled, reference
from tests.envs.cluster.test_differential import first_difference
from tests.envs.cluster.test_engine import local_by_tenant, local_first, us
from traces.generate import poisson_trace

TABLE = TablePs(
    tokens=(1, 4, 5, 9),
    w_ps=(2 * US, 2 * US, 4 * US, 8 * US),  # a floor, a tile's edge after four tokens, a slope of 1 us
    seqs=(1, 3),
    d0_ps=(US // 10, US // 5),
    kv_ps=(2000, 3000),  # 2,000 and 1,000 ps a KV token
    a0_ps=US // 2,
    h0_ps=10 * US,
    h1_ps=US,
    c_attn_ps=1000.0,
)
PROFILE = load_profile("llama-3.1-8b-bf16-h100-tp1")
TABLES = StepTables(
    tokens=(1, 64, 256, 257, 2048),
    w_s=(0.0066, 0.0067, 0.0081, 0.0104, 0.0452),
    seqs=(1, 16, 256),
    d0_s=(0.0002, 0.0002, 0.0004),
    d1_s=(9.0e-08, 5.0e-08, 4.4e-08),
    c_attn_s=8.3e-10,
    a0_s=0.0003,
    h0_s=0.002,
    h1_s=4.0e-05,
)


def tabled(*workers):
    """Workers of the first table."""
    for w in workers:
        w["table"] = 1
    return list(workers)


@both
def test_a_lone_request_takes_the_knots(run):
    trace = requests({"prompt_tokens": 4, "output_tokens": 3}, {"prompt_tokens": 7, "arrival_ps": 90 * US})
    result = run(problem(trace, tabled(worker()), tables=(TABLE,)), local_first)
    # W(4) = 2, host 10, 0.5 and 8 * 0.001 of attention
    assert us(result, "first_token_ps")[0] == 2 + 10 + 0.5 + 0.008
    # then W(1) = 2, host 10 + 1, 0.1, and 0.002 a token of 5 and 6
    assert us(result, "finish_ps")[0] == pytest.approx(12.508 + 2 * 13.1 + 0.002 * (5 + 6), abs=1e-9)
    # W(7) = 6 and half of 49 in attention: 24.5 * 0.001
    assert us(result, "first_token_ps")[1] == 90 + 6 + 10 + 0.5 + 0.0245


@both
def test_a_mixed_step_pays_its_tokens_together_and_decodes_between_knots(run):
    trace = requests(
        {"prompt_tokens": 2, "output_tokens": 9},
        {"prompt_tokens": 2, "output_tokens": 9},
        {"prompt_tokens": 3, "output_tokens": 1, "arrival_ps": 13 * US},
    )
    result = run(problem(trace, tabled(worker()), tables=(TABLE,)), local_first)
    # Two prompts of 2: W(4) = 2, host 10, 0.5, attention 4 * 0.001. Then two decodes over 6 tokens (one step, under way
    # at 13): W(2) = 2, host 10 + 2, D0(2) = 0.15, D1(2) = 2,500 / 2 = 1,250 ps a token.
    first = 12.504
    second = first + 2 + 12 + 0.15 + 6 * 0.00125
    # The third with both decodes over 8 tokens: W(5) = 4, prefill 0.5 and 4.5 * 0.001.
    third = second + 4 + 12 + 0.15 + 8 * 0.00125 + 0.5 + 0.0045
    assert us(result, "first_token_ps") == [first, first, pytest.approx(third, abs=1e-9)]
    assert result.workers["mixed_ps"].tolist() == [round((third - second) * US)]


@both
def test_beyond_the_knots_the_last_slopes_go_on(run):
    trace = requests(*[{"prompt_tokens": 3, "output_tokens": 2}] * 5)
    result = run(problem(trace, tabled(worker()), tables=(TABLE,)), local_first)
    # 15 tokens: 8 + 6; five decodes: D0 0.2 + 2 * 0.05, seqs*D1 = 3,000 + 2 * 500, so 800 ps a token of 20
    prefill = 14 + 10 + 0.5 + 5 * 4.5 * 0.001
    assert us(result, "first_token_ps") == [pytest.approx(prefill, abs=1e-9)] * 5
    assert us(result, "finish_ps") == [pytest.approx(prefill + 4 + 15 + 0.3 + 20 * 0.0008, abs=1e-9)] * 5


@both
def test_an_idle_rank_pays_the_pass_of_one_token_and_the_host(run):
    quick = worker(MIXED, 0, law=law(c0=US))
    trace = requests({"tenant": 0, "output_tokens": 1})
    result = run(problem(trace, [quick, *tabled(worker(MIXED, 0))], tables=(TABLE,)), local_by_tenant)
    assert us(result, "finish_ps") == [12.0]
    assert result.workers["idle_rank_ps"].tolist() == [0, 12 * US]


@both
@pytest.mark.parametrize("role", [MIXED, SPLIT])
def test_a_long_decode_is_the_exact_sum_of_its_steps(run, role):
    n = 400
    trace = requests({"prompt_tokens": 1, "output_tokens": n})
    result = run(problem(trace, tabled(worker(role, total_blocks=200)), tables=(TABLE,)), local_first)
    step = TABLE.w_ps[0] + TABLE.h0_ps + TABLE.h1_ps + TABLE.d0_ps[0]
    kv = sum(range(2, n + 1))
    assert result.workers["decode_ps"].tolist() == [(n - 1) * step + 2000 * kv]


LIMITS = {
    "fit_tokens": (4, 1),  # the mixed step of 6
    "fit_seqs": (1, 2),  # two decodes at once
    "fit_kv": (13, 4),  # both over 14 tokens, then the longer over 14, 15 and 16
    "fit_context": (2, 1),  # a prompt of 5 attends to 2.5 tokens on the mean
}


@both
@pytest.mark.parametrize("limit", LIMITS)
def test_steps_outside_the_fitted_range_are_counted(run, limit):
    # A prefill of 4; one of 5 beside a decode over 5; both decoded over 6 + 6 and 7 + 7; the second alone over 8 to 16.
    trace = requests({"prompt_tokens": 4}, {"prompt_tokens": 5, "output_tokens": 12, "arrival_ps": US // 2})
    at, count = LIMITS[limit]
    result = run(problem(trace, [worker(**{limit: at})]), local_first)
    assert result.outcomes["status"].tolist() == [SERVED] * 2
    assert result.workers["steps"].tolist() == [13]
    assert result.workers["extrapolated_steps"].tolist() == [count]


def test_dense_arrays_follow_the_tables_in_seconds():
    rng = np.random.default_rng(0)
    made = dense(table_ps(TABLES), 4096, 300)
    for new, seqs, mean in rng.integers((0, 0, 1), (3000, 300, 9000), (300, 3)).tolist():
        kv = seqs * mean
        ps = made.work[new + seqs] + made.base[seqs] + made.slope[seqs] * kv
        seconds = TABLES.seconds(float(new), 0.0, float(seqs), float(kv)) - (TABLES.a0_s if new else 0.0)
        assert ps / 1e12 == pytest.approx(seconds, abs=3e-12 + 0.5e-12 * kv)
    assert (np.diff(made.work) >= 0).all()


@pytest.fixture(scope="module")
def trace():
    return poisson_trace(4.0, 20.0, 700, 60, seed=3)


def tabled_cluster(name="2p2d", **options):
    profile = replace(PROFILE, tables=TABLES)
    return parse_cluster(name, profile=profile, handover=load_handover("rdma"), **options)


def test_policies_are_told_the_plane_and_the_engine_runs_the_tables(trace):
    with_tables = build_problem(trace, tabled_cluster(), LOOSE)
    plain = build_problem(trace, parse_cluster("2p2d", profile=PROFILE, handover=load_handover("rdma")), LOOSE)
    assert with_tables.predictor_rows.tobytes() == plain.predictor_rows.tobytes()
    assert with_tables.tables == (table_ps(TABLES),)
    assert with_tables.workers["table"].tolist() == [1] * 4
    assert with_tables.workers["fit_tokens"].tolist() == [2048] * 4  # the knots; the plane's were fitted to 8,192
    assert plain.workers["fit_tokens"].tolist() == [8192] * 4
    guard = registry.load("guard")
    assert run_problem(with_tables, guard).end_ps != run_problem(plain, guard).end_ps


def test_a_request_alone_takes_the_idle_cluster_s_time(trace):
    alone = poisson_trace(0.02, 200.0, 700, 60, seed=3)
    result = simulate(alone, tabled_cluster("colocated1"), registry.load("round_robin"), LOOSE)
    frame = result.requests
    assert frame.height > 1
    assert frame["ttft_s"].to_list() == pytest.approx(frame["idle_ttft_s"].to_list(), rel=1e-9)
    assert frame["tpot_s"].drop_nulls().to_list() == pytest.approx(
        frame.filter(frame["tpot_s"].is_not_null())["idle_tpot_s"].to_list(), rel=1e-3
    )
    assert result.extrapolated_share == 0.0


def test_the_result_says_which_share_of_steps_is_extrapolated(trace):
    narrow = replace(TABLES, seqs=(1, 2), d0_s=TABLES.d0_s[:2], d1_s=TABLES.d1_s[:2])
    cluster = tabled_cluster("colocated1")
    spec = replace(cluster.workers[0], profile=replace(PROFILE, tables=narrow))
    result = simulate(trace, replace(cluster, workers=(spec,)), registry.load("round_robin"), LOOSE)
    row = result.workers.row(0, named=True)
    assert 0.0 < result.extrapolated_share < 1.0
    assert result.extrapolated_share == row["extrapolated_steps"] / row["steps"]
    unknown = replace(cluster.workers[0], profile=replace(PROFILE, fit={}))
    result = simulate(trace, replace(cluster, workers=(unknown,)), registry.load("round_robin"), LOOSE)
    assert result.extrapolated_share is None
    assert result.workers["extrapolated_steps"].to_list() == [None]


def test_an_endless_budget_is_refused_where_there_are_tables(trace):
    cluster = tabled_cluster("colocated1")
    endless = replace(cluster.workers[0], max_batched_tokens=1 << 30)
    with pytest.raises(ValueError, match=r"max_batched_tokens .* at most 1,048,576"):
        build_problem(trace, replace(cluster, workers=(endless,)), LOOSE)


def test_both_simulators_agree_at_real_scales():
    case = realistic_problem(3, sessions=30)
    table = table_ps(TABLES)
    case.workers["table"] = 1
    case.workers["fit_tokens"], case.workers["fit_seqs"], case.workers["fit_kv"] = 1000, 8, 9000
    case = replace(case, tables=(table,))
    expected, got = (run(case, RULES[1], record_views=True) for run in (reference, compiled))
    assert first_difference(expected, got) is None
    assert 0 < got.workers["extrapolated_steps"].sum() < got.workers["steps"].sum()
    assert got.workers["mixed_ps"].any()
