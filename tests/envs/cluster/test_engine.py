"""The modelled engine on cases small enough to compute by hand, in both simulators (times in microseconds)."""

from __future__ import annotations

import numpy as np
import pytest

from envs.cluster.problem import CANCELLED, FAILED, REJECTED, SERVED, TOO_LARGE, HandoverPs, tbt_bin
from policies.contract import DECODE, LATE, LOCAL, MIXED, PREFILL, SPLIT, hold, reject, route, rule
from tests.envs.cluster.cases import US, law, problem, requests, worker
from tests.envs.cluster.runners import both


@rule(name="local_first")
def local_first(request, view, params, memory, seed):
    return route(LOCAL, 0, 0.0, 0, 0)


@rule(name="local_by_tenant", needs=("order_key",))
def local_by_tenant(request, view, params, memory, seed):
    return route(LOCAL, request.tenant, float(request.priority), 0, 0)


@rule(name="local_in_chunks", needs=("chunk",))
def local_in_chunks(request, view, params, memory, seed):
    return route(LOCAL, 0, 0.0, 3, 0)


@rule(name="first_to_tenant")
def first_to_tenant(request, view, params, memory, seed):
    return route(0, request.tenant, 0.0, 0, 0)


@rule(name="crossed")
def crossed(request, view, params, memory, seed):
    return route(request.tenant, 1 - request.tenant, 0.0, 0, 0)


@rule(name="as_told")
def as_told(request, view, params, memory, seed):
    return route(request.tenant, request.model, 0.0, 0, 0)


def bind_to_tenant(request, view, params, memory, seed):
    return request.tenant


@rule(name="late_to_tenant", needs=("late_binding",), bind=bind_to_tenant)
def late_to_tenant(request, view, params, memory, seed):
    return route(0, LATE, 0.0, 0, 0)


@rule(name="hold_once", needs=("hold",), reasons=("", "wait"))
def hold_once(request, view, params, memory, seed):
    if request.holds == 0:
        return hold(request.now_s + 3e-6, 1)
    return route(LOCAL, 0, 0.0, 0, 0)


@rule(name="refuse_first_turns", needs=("reject",), reasons=("", "no", "never"))
def refuse_first_turns(request, view, params, memory, seed):
    if request.turn == 1:
        return reject(2)
    return route(LOCAL, 0, 0.0, 0, 0)


def us(run, name):
    """Times of an outcome field, in microseconds."""
    return [t / US if t >= 0 else None for t in run.outcomes[name].tolist()]


def gaps(run):
    """The token gap histogram as {bin: count}."""
    return {int(b): int(run.tbt_counts[b]) for b in np.flatnonzero(run.tbt_counts)}


@both
def test_local_request_takes_one_prefill_step_and_a_decode_step_a_token(run):
    laws = law(c0=US, c_tok=US / 2, c_seq=100_000, c_kv=1000)
    result = run(problem(requests({"output_tokens": 4}), [worker(law=laws)]), local_first)
    out = result.outcomes[0]
    assert us(result, "first_token_ps") == us(result, "prefill_done_ps") == [5.0]  # 1 + 8 * 0.5
    assert us(result, "finish_ps") == [8.33]  # + 3 * 1.1 + (9 + 10 + 11) * 0.001
    assert (out["status"], out["local"], out["emitted_tokens"]) == (SERVED, 1, 4)
    assert (out["prefill_worker"], out["decode_worker"], out["pull_start_ps"]) == (0, 0, -1)
    totals = result.workers[0]
    assert (totals["steps"], totals["prefill_ps"], totals["decode_ps"]) == (4, 5 * US, 3_330_000)
    assert (totals["prefill_tokens"], totals["decode_tokens"], totals["peak_used_blocks"]) == (8, 3, 3)
    assert gaps(result) == {tbt_bin(1_109_000): 3}  # 1.109, 1.110 and 1.111 us share a bin


@both
def test_attention_of_chunks_is_counted_from_their_context(run):
    laws = law(c0=US, c_attn=1000.0)
    result = run(problem(requests({"output_tokens": 1}), [worker(law=laws, max_batched_tokens=6)]), local_first)
    assert us(result, "prefill_done_ps") == [2.032]  # 6 * 3, then 2 * (6 + 1): 32 in all, as in one chunk


@both
def test_local_chunk_limit_spreads_a_prefill_over_steps(run):
    result = run(problem(requests({"output_tokens": 1}), [worker()]), local_in_chunks)
    assert us(result, "prefill_done_ps") == [3.0]  # 3 + 3 + 2 tokens


@both
def test_floor_bounds_the_matrix_products_and_the_rest_comes_on_top(run):
    laws = law(floor=2 * US, c0=US, c_tok=US / 4, c_kv=100_000)
    result = run(problem(requests({"output_tokens": 4}, {"prompt_tokens": 2}), [worker(law=laws)]), local_first)
    assert us(result, "prefill_done_ps") == [3.5, 3.5]  # 1 + 10 / 4, above the floor
    # decodes of both: the floor and 0.1 a token of 9 + 3, 10 + 4 and 11 + 5
    assert us(result, "finish_ps") == [3.5 + 3.2 + 3.4 + 3.6] * 2


HANDOVER = HandoverPs(dispatch_ps=US, connect_ps=5 * US, base_ps=2 * US, per_block_ps=US // 10, bytes_per_ps=1e-4)


@both
def test_remote_request_pays_dispatch_connect_blocks_and_bytes(run):
    workers = [worker(PREFILL, 0, law=law(c0=US, c_tok=US / 2)), worker(DECODE, 1)]
    result = run(problem(requests({"output_tokens": 2, "tenant": 1}), workers, handover=HANDOVER), first_to_tenant)
    out = result.outcomes[0]
    assert us(result, "prefill_start_ps") == [1.0]
    assert us(result, "prefill_done_ps") == [6.0]
    assert us(result, "pull_start_ps") == [7.0]
    # base 2, connect 5, two blocks 0.2; then 800 bytes at 100 bytes/us
    assert us(result, "pull_end_ps") == [22.2]
    assert us(result, "first_token_ps") == [23.2]
    assert us(result, "finish_ps") == [24.2]
    assert (out["local"], out["pulled_tokens"], out["pulled_bytes"]) == (0, 8, 800.0)
    assert result.workers["decode_tokens"].tolist() == [0, 2]


@both
def test_late_binding_asks_again_when_the_prefill_ends(run):
    workers = [worker(PREFILL, 0), worker(DECODE, 1), worker(DECODE, 2)]
    trace = requests({"output_tokens": 1, "tenant": 2})
    result = run(problem(trace, workers, handover=HANDOVER), late_to_tenant, record_views=True)
    assert us(result, "prefill_done_ps") == [2.0]
    assert us(result, "pull_start_ps") == [3.0]
    assert result.outcomes["decode_worker"].tolist() == [2]
    assert result.decisions == len(result.views) == 2


@both
def test_two_flows_share_a_link_and_the_longer_one_speeds_up(run):
    handover = HandoverPs(0, 0, 2 * US, 0, 1e-4)
    trace = requests({"tenant": 1, "prompt_tokens": 8}, {"tenant": 2, "prompt_tokens": 4}, output_tokens=1)
    workers = [worker(PREFILL, 0), worker(DECODE, 1), worker(DECODE, 2)]
    result = run(problem(trace, workers, handover=handover), first_to_tenant)
    # both prefills end at 1; from 3 on 800 and 400 bytes at 50 bytes/us each; from 11 on the first has the link alone
    assert us(result, "pull_start_ps") == [1.0, 1.0]
    assert us(result, "pull_end_ps") == [15.0, 11.0]


@both
def test_blocks_stay_pinned_on_the_prefill_worker_until_the_pull_ends(run):
    handover = HandoverPs(0, 0, 10 * US, 0, 1e-1)
    trace = requests({"tenant": 1}, {"tenant": 1}, output_tokens=1)
    workers = [worker(PREFILL, 0, total_blocks=2, prefix_cache=0), worker(DECODE, 1)]
    result = run(problem(trace, workers, handover=handover), first_to_tenant)
    assert us(result, "prefill_done_ps") == [1.0, 12.008]  # the second waits for 10 us + 800 bytes at 1e5 bytes/us
    assert us(result, "pull_end_ps")[0] == 11.008


@both
def test_preemption_recomputes_the_last_admitted_request(run):
    trace = requests({}, {}, prompt_tokens=4, output_tokens=8)
    result = run(problem(trace, [worker(total_blocks=4, prefix_cache=0)]), local_first)
    # 2 * 2 blocks last for 8 tokens each; at 5 us both need a third: the second gives way until the first ends
    assert us(result, "finish_ps") == [8.0, 11.0]
    assert result.outcomes["preemptions"].tolist() == [0, 1]
    assert result.outcomes["prefill_tokens_computed"].tolist() == [4, 4 + 9]
    assert result.workers["preemptions"].tolist() == [1]
    assert gaps(result) == {tbt_bin(US): 13, tbt_bin(4 * US): 1}


@both
def test_cached_prefix_is_not_computed_again_but_for_one_token(run):
    trace = requests({}, {"arrival_ps": 5 * US}, output_tokens=1)
    result = run(problem(trace, [worker()], chains=[[0, 1], [0, 1]], prefix_block_tokens=4), local_first)
    assert result.outcomes["cached_tokens"].tolist() == [0, 4]
    assert result.outcomes["prefill_tokens_computed"].tolist() == [8, 4]


@both
def test_only_the_blocks_that_the_decode_worker_lacks_are_pulled(run):
    trace = requests({"tenant": 1}, {"tenant": 1, "arrival_ps": 90 * US}, output_tokens=1)
    workers = [worker(PREFILL, 0), worker(DECODE, 1)]
    chains = [[0, 1], [0, 1]]
    result = run(problem(trace, workers, chains=chains, prefix_block_tokens=4), first_to_tenant)
    assert result.outcomes["pulled_tokens"].tolist() == [8, 0]
    assert result.outcomes["pull_end_ps"][1] == result.outcomes["pull_start_ps"][1] + 1  # the least a pull takes


@both
def test_eviction_takes_the_tail_of_the_oldest_chain(run):
    chains = [[0, 1, 2], [3, 4], [0, 1, 2]]
    trace = requests(
        {"prompt_tokens": 12},
        {"prompt_tokens": 8, "arrival_ps": 5 * US},
        {"prompt_tokens": 13, "arrival_ps": 9 * US},
        output_tokens=1,
    )
    result = run(problem(trace, [worker(total_blocks=4)], chains=chains, prefix_block_tokens=4), local_first)
    assert result.outcomes["cached_tokens"].tolist() == [0, 0, 8]  # block 2 was evicted for the second request
    assert result.workers["evictions"].tolist() == [1 + 2]


@both
def test_next_turn_comes_after_the_think_time_and_finds_the_answer_cached(run):
    trace = requests(
        {"session": 0, "next_turn": 1, "prompt_tokens": 8, "output_tokens": 5},
        {"session": 0, "turn": 2, "arrival_ps": -1, "think_ps": 7 * US, "prompt_tokens": 16},
    )
    chains = [[0, 1, 2], [0, 1, 2, 3, 4]]
    result = run(problem(trace, [worker()], chains=chains, prefix_block_tokens=4), local_first, record_views=True)
    assert us(result, "finish_ps")[0] == 5.0
    assert us(result, "arrival_ps") == [0.0, 12.0]
    assert result.outcomes["cached_tokens"].tolist() == [0, 12]  # 8 + 5 - 1 tokens: three whole blocks
    request, workers = result.views[1]
    assert (request["since_last_turn_s"] if isinstance(request, np.void) else request.since_last_turn_s) == 7e-6
    assert (workers[0]["cached_tokens"] if isinstance(workers, np.ndarray) else workers[0].cached_tokens) == 12


@both
def test_queue_is_ordered_by_key_then_by_delivery(run):
    trace = requests(
        {"priority": 1}, {"priority": 1, "arrival_ps": 1}, {"priority": 0, "arrival_ps": 2}, output_tokens=1, tenant=0
    )
    result = run(problem(trace, [worker(max_num_seqs=1)]), local_by_tenant)
    assert us(result, "finish_ps") == [1.0, 3.0, 2.0]


@both
def test_simultaneous_arrivals_share_one_step(run):
    trace = requests({}, {}, {}, output_tokens=1, prompt_tokens=12)
    result = run(problem(trace, [worker()]), local_first)
    assert us(result, "prefill_done_ps") == [1.0, 1.0, 2.0]  # a budget of 32 tokens: 12 + 12 + 8, then 4


@both
def test_ranks_of_a_group_step_together(run):
    slow = worker(MIXED, 0, law=law(c0=5 * US))
    quick = worker(MIXED, 0, law=law(c0=US, floor=US // 2))
    trace = requests({"tenant": 0, "output_tokens": 2}, {"tenant": 1, "output_tokens": 1})
    result = run(problem(trace, [slow, quick]), local_by_tenant)
    assert us(result, "finish_ps") == [10.0, 5.0]
    assert result.workers["idle_rank_ps"].tolist() == [0, 5 * US]
    assert result.workers["steps"].tolist() == [2, 1]


@both
def test_split_worker_alternates_phases_by_its_share(run):
    trace = requests(
        {"prompt_tokens": 4, "output_tokens": 5},
        {"prompt_tokens": 12, "output_tokens": 1, "arrival_ps": US // 2},
    )
    result = run(problem(trace, [worker(SPLIT, max_batched_tokens=4, prefix_cache=0)]), local_first)
    assert us(result, "prefill_done_ps") == [1.0, 6.0]  # prefill in 1-2, 3-4 and 5-6; decode in between
    assert us(result, "finish_ps") == [8.0, 6.0]
    assert result.workers["mixed_ps"].tolist() == [0]


@both
def test_held_request_is_asked_again(run):
    result = run(problem(requests({}), [worker()]), hold_once)
    assert us(result, "routed_ps") == [3.0]
    assert result.outcomes["holds"].tolist() == [1]


@both
def test_rejected_turn_cancels_the_rest_of_its_session(run):
    trace = requests(
        {"session": 0, "next_turn": 1},
        {"session": 0, "turn": 2, "arrival_ps": -1, "next_turn": 2},
        {"session": 0, "turn": 3, "arrival_ps": -1},
    )
    result = run(problem(trace, [worker()]), refuse_first_turns)
    assert result.outcomes["status"].tolist() == [REJECTED, CANCELLED, CANCELLED]
    assert result.outcomes["reason"].tolist()[0] == 2
    assert us(result, "arrival_ps") == [0.0, None, None]


@both
@pytest.mark.parametrize(("prompt", "status"), [(60, SERVED), (61, REJECTED)])
def test_request_larger_than_the_memory_is_rejected(run, prompt, status):
    trace = requests({"prompt_tokens": prompt, "output_tokens": 4})
    result = run(problem(trace, [worker(total_blocks=16)]), local_first)
    assert result.outcomes["status"].tolist() == [status]
    assert result.outcomes["reason"].tolist() == [0 if status == SERVED else TOO_LARGE]


@both
def test_workers_that_wait_for_each_others_pins_fail_their_requests(run):
    trace = requests({"tenant": 0}, {"tenant": 1}, prompt_tokens=12, output_tokens=4)
    workers = [worker(MIXED, g, total_blocks=4, prefix_cache=0) for g in range(2)]
    result = run(problem(trace, workers), crossed)
    assert result.outcomes["status"].tolist() == [FAILED, FAILED]
    assert us(result, "finish_ps") == [1.0, 1.0]


@both
@pytest.mark.parametrize("source", [0, 1])
def test_pin_freed_by_a_pull_that_starts_at_a_boundary_counts_at_the_next(run, source):
    target = 1 - source
    trace = requests(
        {"tenant": source, "model": source, "prompt_tokens": 4, "output_tokens": 12},
        {"tenant": source, "model": target, "prompt_tokens": 8, "output_tokens": 1},
        {"tenant": target, "model": target, "prompt_tokens": 8, "output_tokens": 4},
        {"tenant": source, "model": source, "prompt_tokens": 8, "output_tokens": 1, "arrival_ps": 5 * US // 2},
    )
    workers = [worker(MIXED, g, total_blocks=3 if g == target else 5, prefix_cache=0) for g in range(2)]
    for w in workers:
        w["kv_bytes_per_token"] = 0.0
    result = run(problem(trace, workers), as_told)
    # At 4 us request 2 ends, the target plans and pulls request 1, which frees its pins on the source a picosecond
    # later, whichever of the two planned first: the step from 4 to 5 has begun without request 3.
    assert us(result, "pull_end_ps")[1] == 4.000001
    assert us(result, "prefill_start_ps")[3] == 5.0
