"""The simulators against queueing theory."""

from __future__ import annotations

import pytest

from tests.envs.cluster.runners import compiled, reference
from tests.envs.cluster.theory import little, md1_problem, md1_wait, the_only_worker


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("run", "n"), [(reference, 6_000), (compiled, 1_000_000)])
def test_md1_waiting_time(run, n, rho):
    mean, half, theory = md1_wait(run, rho, n, seed=11)
    assert abs(mean - theory) <= half, f"rho {rho}: {mean:.4f} +- {half:.4f} services, theory {theory:.4f}"
    assert half < (0.6 if run is reference else 0.08) * theory  # else the interval says nothing


def test_little_on_a_queue():
    out = compiled(md1_problem(0.8, 20_000, seed=3), the_only_worker).outcomes
    in_system, rate_times_time = little(out)
    assert in_system == pytest.approx(rate_times_time, rel=1e-12)
    assert in_system == pytest.approx(0.8 + 0.8**2 / (2 * 0.2), rel=0.1)  # M/D/1: L = rho + rho^2 / (2 (1 - rho))
