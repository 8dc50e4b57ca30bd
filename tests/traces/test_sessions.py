from __future__ import annotations

import numpy as np

from traces.sessions import Links, link_by_prefix, think_times


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
