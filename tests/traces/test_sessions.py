from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from traces.sessions import Growth, Links, growing_chains, link_by_prefix, think_times


def link(
    chains: list[list[int]], prompts: list[int], outputs: list[int], stamps: list[float], min_blocks: int = 1
) -> Links:
    return link_by_prefix(
        chains, prompts, outputs, stamps, min_blocks=min_blocks, tolerance_tokens=10, max_gap_s=1000.0
    )


def test_two_questions_about_one_document_are_not_one_session() -> None:
    # The second prompt holds all full blocks of the first, but not its answer.
    links = link([[1, 2], [1, 2]], [1100, 1120], [400, 10], [0.0, 50.0])
    assert links.parent.tolist() == [-1, -1]
    assert links.linked_share == 0.0


def test_a_second_branch_starts_a_session_of_its_own() -> None:
    links = link([[1], [1, 2], [1, 3]], [600, 1300, 1300], [100, 50, 50], [0.0, 10.0, 20.0])
    assert links.parent.tolist() == [-1, 0, -1]
    assert links.session.tolist() == [0, 0, 2]
    assert links.turn.tolist() == [1, 2, 1]
    assert links.in_sessions_share == 2 / 3


def test_the_longest_shared_prompt_wins_then_the_latest() -> None:
    chains = [[1], [1, 2], [1, 2], [1, 2, 3]]
    links = link(chains, [600, 1100, 1100, 1700], [1, 1, 1, 1], [0.0, 1.0, 2.0, 3.0])
    assert links.parent.tolist() == [-1, 0, -1, 2]


def test_nothing_follows_a_request_of_the_same_stamp() -> None:
    assert link([[1], [1, 2]], [600, 1300], [10, 10], [5.0, 5.0]).parent.tolist() == [-1, -1]


def test_think_times_below_zero_become_zero_and_are_counted() -> None:
    think, negative = think_times(np.array([0.0, 5.0, 100.0]), [100, 100, 1], np.array([-1, 0, 1]), 1.0, 0.1)
    assert np.isnan(think[0])
    assert think[1:].tolist() == [0.0, 84.0]
    assert negative == 0.5


def test_a_logged_end_counts_before_an_assumed_one() -> None:
    end = np.array([4.0, np.nan, np.nan])
    think, negative = think_times(np.array([0.0, 5.0, 100.0]), [100, 100, 1], np.array([-1, 0, 1]), 1.0, 0.1, end_s=end)
    assert think[1:].tolist() == [1.0, 84.0]
    assert negative == 0.0


def test_a_candidate_too_old_is_none() -> None:
    chains, prompts = [[1], [1, 2], [1, 2, 3]], [600, 1300, 1900]
    assert link(chains, prompts, [10] * 3, [0.0, 1000.0, 2000.5]).parent.tolist() == [-1, 0, -1]


def test_many_questions_about_one_document_are_no_sessions() -> None:
    """None continues another; looking at all that wait for each would take minutes (20,000 once took 10 s)."""
    n = 60_000
    links = link([list(range(10))] * n, [5200 + k % 7 for k in range(n)], [400] * n, np.arange(n) * 0.01)  # type: ignore[arg-type]
    assert links.linked_share == 0.0


def grow(prompts: list[int], outputs: list[int], reappears: float | NDArray[np.int64] = 1.0) -> Growth:
    n = len(prompts)
    return growing_chains(
        np.zeros(n, np.int64), np.arange(1, n + 1), np.array(prompts), np.array(outputs), 10, reappears=reappears
    )


def chains(growth: Growth) -> list[list[int]]:
    return [growth.ids[a:b].tolist() for a, b in pairwise(growth.offsets)]


def test_a_turn_that_grew_by_less_than_the_output_keeps_the_prompt_only() -> None:
    growth = grow([100, 120, 200], [50, 30, 5])
    one, two, three = chains(growth)
    assert (len(one), len(two), len(three)) == (10, 15, 20)  # turn 1's output is of no use, turn 2's is in turn 3
    assert two[:10] == one
    assert three[:15] == two
    assert (growth.grown, growth.prompt_only, growth.short, growth.cut) == (1, 1, 1, 0)
    assert "1 grew by less than the output before, so that some of it (thinking) was dropped" in growth.note


def test_output_that_is_known_to_be_dropped_leaves_no_blocks() -> None:
    prompts, outputs = [100, 200, 300], [50, 50, 5]
    assert [len(c) for c in chains(grow(prompts, outputs))] == [15, 25, 30]
    assert [len(c) for c in chains(grow(prompts, outputs, 0.4))] == [10, 20, 30]
    some = grow(prompts, outputs, np.array([50, 10, 5]))  # turn 2's reasoning is not in turn 3's prompt
    assert [len(c) for c in chains(some)] == [15, 20, 30]
    assert (some.grown, some.prompt_only, some.short) == (1, 1, 0)
    assert chains(some)[2][:20] == chains(some)[1]


def test_a_prompt_that_shrank_shares_nothing_and_sessions_neither() -> None:
    growth = growing_chains(
        np.array([0, 0, 1, -1, -1]), np.array([1, 2, 1, 1, 1]), np.array([90, 50, 90, 90, 95]), np.full(5, 5), 10
    )
    flat = [set(chain) for chain in chains(growth)]
    assert growth.cut == 1
    assert sum(map(len, flat)) == len(set().union(*flat))


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_names_whole_prefixes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 200
    growth = growing_chains(
        rng.integers(-1, 9, n), np.arange(n), rng.integers(1, 400, n), rng.integers(1, 90, n), 16, reappears=0.9
    )
    parent: dict[int, int] = {}
    for chain in chains(growth):
        for before, after in pairwise([-1, *chain]):
            assert parent.setdefault(after, before) == before
