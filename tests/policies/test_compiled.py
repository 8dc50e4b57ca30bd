"""A compiled rule and its plain source decide alike, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.contract import DECODE, PREFILL
from policies.registry import load
from tests.policies.test_rule_contract import VARIANTS
from tests.policies.views import ask, memory_namespace, random_view, records

rules = pytest.importorskip("envs.cluster.rules")


def same(a, b):
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join([v[0], *v[1]]))
def test_compiled_equals_interpreted(variant):
    name, params = variant
    policy = load(name, **params)
    rng = np.random.default_rng(21)
    code = rules.compile_rule(policy.decide, policy.params, 8)
    compiled_memory, memory = code.memory.copy(), memory_namespace(policy, 8)
    for k in range(600):
        request, workers = random_view(rng, [PREFILL] * 4 + [DECODE] * 4 if k % 2 else None)
        if k % 5 == 0:
            workers = [workers[0]._replace(id=w.id, role=w.role) for w in workers]
        records_request, view = records(request, workers)
        expected = ask(policy, request, workers, memory, seed=k)
        got = code.decide(records_request[0], view, code.params, compiled_memory, k)
        assert same(got, expected), (k, got, expected)
