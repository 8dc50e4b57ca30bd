"""The runtime's quicker primitives give what the contract's give, for any argument."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies import contract
from policies.export.runtime.ties import Ties, better

NUMBERS = st.integers(0, (1 << 48) - 1)
SCORES = st.one_of(
    st.floats(),
    st.floats(1e-6, 1e6),
    st.sampled_from([0.0, 1.0, 1.0 + 1e-9, 1.0 - 1e-9, 1.0 + 2e-9, 1.000001, 1.000002, 5e-324, float("inf")]),
)
HASHES = st.integers(0, (1 << 32) - 1)


@given(SCORES, HASHES, SCORES, HASHES)
def test_better_is_the_contracts(score: float, h: int, best: float, best_h: int) -> None:
    assert better(score, h, best, best_h) == contract.better(score, h, best, best_h)


@given(SCORES, st.floats(-3e-9, 3e-9), HASHES, HASHES)
def test_better_is_the_contracts_near_a_tie(score: float, off: float, h: int, best_h: int) -> None:
    assert better(score, h, score * (1.0 + off), best_h) == contract.better(score, h, score * (1.0 + off), best_h)


@given(st.integers(0, 1 << 40), NUMBERS, st.lists(NUMBERS, unique=True, max_size=40), NUMBERS)
def test_tie_hash_is_the_contracts(seed: int, request: int, workers: list[int], other: int) -> None:
    ties = Ties()
    ties.seat(workers)
    ties.prepare(seed, request)
    asked = [(seed, request, w) for w in (*workers, other, other * 65536)]
    asked += [(seed + 1, request, other), (seed, request + 1, other), (seed, -1, other)]
    asked += [(seed, request, w) for w in workers]
    for question in asked:
        assert ties.tie_hash(*question) == contract.tie_hash(*question)
