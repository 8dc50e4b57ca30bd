"""Queueing theory as an oracle that no simulator shares: M/D/1 waiting and Little's law."""

from __future__ import annotations

import numpy as np
from scipy import stats

from policies.contract import LOCAL, route, rule
from tests.envs.cluster.cases import US, law, problem, requests, worker

SERVICE_PS = 10 * US


@rule(name="the_only_worker")
def the_only_worker(request, view, params, memory, seed):
    """There is one worker."""
    return route(LOCAL, 0, 0.0, 0, 0)


def md1_problem(rho, n, seed):
    """Poisson arrivals at one worker that serves one request of a fixed prompt at a time."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(SERVICE_PS / rho, n)).astype(np.int64)
    trace = requests({})
    trace = np.repeat(trace, n)
    trace["arrival_ps"], trace["output_tokens"] = arrivals, 1
    one = worker(max_num_seqs=1, prefix_cache=0, law=law(c0=SERVICE_PS))
    return problem(trace, [one], prefix_view=0)


def md1_wait(run, rho, n, seed, batches=20, confidence=0.99):
    """Mean wait in services: (measured, half width of its confidence interval, rho / (2 (1 - rho))).

    The first tenth warms up; the interval is Student's over the means of consecutive batches.
    """
    out = run(md1_problem(rho, n, seed), the_only_worker).outcomes
    waits = (out["prefill_start_ps"] - out["arrival_ps"])[n // 10 :] / SERVICE_PS
    means = np.array([part.mean() for part in np.array_split(waits, batches)])
    half = stats.t.ppf(0.5 + confidence / 2, batches - 1) * means.std(ddof=1) / np.sqrt(batches)
    return waits.mean(), half, rho / (2 * (1 - rho))


def little(outcomes):
    """(time-average number in the system, arrival rate times mean time in the system).

    The number in the system is swept over the sorted arrival and end times, one event after the other, so a
    request that ends before it arrives, or never, breaks the equality.
    """
    rows = outcomes[outcomes["arrival_ps"] >= 0]
    arrivals, ends = np.sort(rows["arrival_ps"]), np.sort(rows["finish_ps"])
    times = np.union1d(arrivals, ends)
    inside = np.searchsorted(arrivals, times, "right") - np.searchsorted(ends, times, "right")
    assert (inside >= 0).all(), "more requests ended than arrived"
    assert inside[-1] == 0, "a request never ended"
    span = max(int(times[-1] - times[0]), 1)
    area = int((inside[:-1] * np.diff(times)).sum())
    mean_time = int((rows["finish_ps"] - rows["arrival_ps"]).sum()) / len(rows)
    return area / span, len(rows) / span * mean_time
