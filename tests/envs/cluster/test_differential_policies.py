"""The shipped policies at real scales: long decode runs, where the compiled simulator takes its short cuts."""

from __future__ import annotations

import pytest

from envs.cluster.reference import run_reference
from policies.contract import DECODE, MIXED, PREFILL, SPLIT
from policies.registry import load, names
from tests.envs.cluster.cases import realistic_problem
from tests.envs.cluster.runners import compiled
from tests.envs.cluster.test_differential import first_difference

PLAIN = [name for name in names() if not hasattr(load(name), "adjust")]
LAYOUTS = {
    "1p1d": (PREFILL, DECODE),
    "2p2d": (PREFILL, PREFILL, DECODE, DECODE),
    "mixed3": (MIXED, MIXED, MIXED),
    "split2": (SPLIT, SPLIT),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_equals_reference(name, layout):
    policy = load(name)
    for seed, kv_tokens in ((1, 40_000), (2, 12_000)):  # the second memory is short: eviction, preemption, waiting
        problem = realistic_problem(seed, LAYOUTS[layout], kv_tokens=kv_tokens)
        expected = run_reference(problem, policy.decide, params=policy.params, record_views=True)
        for record_views in (True, False):
            assert first_difference(expected, compiled(problem, policy, record_views)) is None
