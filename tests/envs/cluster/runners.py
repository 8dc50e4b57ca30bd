"""The two simulators behind one signature: ``run(problem, rule, record_views=False)``."""

from __future__ import annotations

import pytest

from envs.cluster.reference import run_reference


def reference(problem, rule, record_views=False):
    """The plain-Python simulator."""
    return run_reference(problem, rule, record_views=record_views)


def compiled(problem, rule, record_views=False):
    """The compiled simulator."""
    from envs.cluster.simulator import run_problem

    return run_problem(problem, rule, record_views=record_views)


both = pytest.mark.parametrize("run", [reference, compiled])
