"""The compiled simulator against the plain-Python one: every time, every count and every view equal.

A seed makes a problem and picks a rule; to look at one: ``first_difference(*run_both(seed))``.
"""

from __future__ import annotations

import numpy as np
import pytest

from policies.contract import RequestView, WorkerView
from tests.envs.cluster.cases import random_problem
from tests.envs.cluster.rules import RULES
from tests.envs.cluster.runners import compiled, reference

SEEDS = 500
CHUNK = 50


def run_both(seed):
    """(reference run, compiled run) of one seed; with views, so the compiled engine asks the rule's Python source."""
    problem, rule = random_problem(seed), RULES[seed % len(RULES)]
    return reference(problem, rule, record_views=True), compiled(problem, rule, record_views=True)


def run_native(seed):
    """The compiled run of one seed with the rule compiled too; no views."""
    return compiled(random_problem(seed), RULES[seed % len(RULES)])


def same(a, b):
    """Equal bits, NaN included."""
    return a == b or (a != a and b != b)


def first_difference(expected, got):
    """A sentence on the first difference of two runs, or None: views first, since they come first in time."""
    for k, ((request, workers), (request2, workers2)) in enumerate(zip(expected.views, got.views, strict=False)):
        for name in RequestView._fields:
            mine, theirs = getattr(request, name), getattr(request2, name)
            if not same(mine, theirs):
                return f"decision {k}: request.{name} {mine} != {theirs} ({request})"
        for w, (worker, worker2) in enumerate(zip(workers, workers2, strict=True)):
            for name in WorkerView._fields:
                if not same(getattr(worker, name), worker2[name]):
                    return (
                        f"decision {k} (request {request.id} at {request.now_s} s): view[{w}].{name} "
                        f"{getattr(worker, name)} != {worker2[name]}"
                    )
    for what in ("outcomes", "workers"):
        rows, rows2 = getattr(expected, what), getattr(got, what)
        wrong = [(i, n) for n in rows.dtype.names for i in np.flatnonzero(rows[n] != rows2[n])]
        if wrong:
            times = [rows[i]["finish_ps"] for i, _ in wrong] if what == "outcomes" else [0] * len(wrong)
            i, name = min(zip(times, wrong, strict=True))[1]
            return f"{what}[{i}].{name}: {rows[i][name]} != {rows2[i][name]}; {len(wrong)} fields differ"
    if not np.array_equal(expected.tbt_counts, got.tbt_counts):
        b = int(np.flatnonzero(expected.tbt_counts != got.tbt_counts)[0])
        return f"tbt_counts[{b}]: {expected.tbt_counts[b]} != {got.tbt_counts[b]}"
    if expected.decisions != got.decisions:
        return f"decisions {expected.decisions} != {got.decisions}"
    return None


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_compiled_equals_reference(start):
    different = {}
    for seed in range(start, start + CHUNK):
        expected, got = run_both(seed)
        native = run_native(seed)
        difference = first_difference(expected, got) or first_difference(expected, native)
        if difference:
            different[seed] = difference
    assert not different
