from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.readers.chains import cut, of_tokens, prefix_ids, with_outputs


def csr(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return offsets, np.array([i for one in lists for i in one], np.int64)


@given(st.lists(st.lists(st.integers(0, 3) | st.integers(2**62 - 2, 2**62), max_size=6), min_size=1, max_size=12))
def test_ids_are_equal_where_the_lists_up_to_them_are(lists: list[list[int]]) -> None:
    offsets, items = csr(lists)
    ids = prefix_ids(offsets, items)
    prefixes = [tuple(one[: k + 1]) for one in lists for k in range(len(one))]
    named: dict[tuple[int, ...], int] = {}
    for prefix, name in zip(prefixes, ids.tolist(), strict=True):
        assert named.setdefault(prefix, name) == name
    assert len(set(named.values())) == len(named)


def test_hashes_that_name_prefixes_already_stay() -> None:
    offsets, items = csr([[0, 1, 2], [0, 1, 3], [], [4]])
    assert prefix_ids(offsets, items) is items


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.integers(0, 4))
def test_cut(lists: list[list[int]], length: int) -> None:
    offsets, items = cut(*csr(lists), np.full(len(lists), length))
    assert [items[a:b].tolist() for a, b in pairwise(offsets)] == [one[:length] for one in lists]


@pytest.mark.parametrize(("whole_answer", "lengths"), [(False, [4, 4, 1]), (True, [2, 4, 1])])
def test_outputs_take_the_next_turns_ids(whole_answer: bool, lengths: list[int]) -> None:
    offsets, ids = csr([[0, 1], [0, 1, 2, 3], [9]])
    prompt, output = np.array([20, 45, 10]), np.array([26, 99, 99])  # 46 tokens do not fit into the prompt of 45
    child = np.array([1, 2, -1])  # the third request does not repeat the second
    offsets, ids, known = with_outputs(offsets, ids, prompt, output, child, 10, whole_answer=whole_answer)
    assert np.diff(offsets).tolist() == lengths
    assert ids[: lengths[0]].tolist() == [0, 1, 2, 3][: lengths[0]]
    assert known == int(not whole_answer)


def test_blocks_of_tokens_differ_by_order_and_place() -> None:
    blocks = of_tokens(np.array([1, 2, 3, 4, 1, 2, 4, 3, 1, 2, 3, 4, 5], np.int64), 4)
    assert blocks.size == 3
    assert blocks[0] == blocks[2] != blocks[1]
    assert (blocks >= 0).all()
