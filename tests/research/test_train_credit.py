"""Credit by completion, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from research.training.credit import against_replicas, returns_by_completion


def column(*values):
    return np.array(values, float)[:, None]


def test_the_example_of_the_docstring():
    ends = np.array([[False], [False], [True]])
    got = returns_by_completion(column(1, 0, 2), column(1, 2, 3), ends, np.array([99.0]), 2.0)
    g1 = math.exp(-1.0) * 2.0
    assert got[:, 0] == pytest.approx([1 + math.exp(-0.5) * g1, g1, 2.0])


def test_a_run_that_goes_on_takes_the_value_of_its_state():
    got = returns_by_completion(column(1), column(3), np.array([[False]]), np.array([4.0]), 1.5)
    assert got[0, 0] == pytest.approx(1 + math.exp(-2.0) * 4.0)


def test_a_decision_is_credited_with_the_harm_to_requests_that_came_before_it():
    """Request 0 decodes when request 1 is routed at t = 1 s; routed badly, 1 delays 0 past its objective.

    Both choices earn the same for request 1 itself (it ends at t = 3 s, reward 1); request 0 ends at t = 2 s with
    reward 1 or 0. Credit by completion sees the difference at decision 1, at its age: e^-1. Credit by arrival would
    not.
    """
    tau_s, dt = 1.0, column(1.0, 2.0)
    ends = np.array([[False], [True]])

    def rewards(of_request_0):  # of the step of decision 1, both discounted back to t = 1 s
        return column(0.0, of_request_0 * math.exp(-1.0) + math.exp(-2.0))

    good = returns_by_completion(rewards(1.0), dt, ends, np.zeros(1), tau_s)
    bad = returns_by_completion(rewards(0.0), dt, ends, np.zeros(1), tau_s)
    assert (good - bad)[1, 0] == pytest.approx(math.exp(-1.0))
    assert (good - bad)[0, 0] == pytest.approx(math.exp(-2.0))


def test_time_counts_not_the_number_of_decisions():
    ends = np.array([[False]] * 4 + [[True]])
    busy = returns_by_completion(column(0, 0, 0, 0, 1), column(0.1, 0.1, 0.1, 0.1, 0), ends, np.zeros(1), 2.0)
    quiet = returns_by_completion(column(0, 1), column(0.4, 0), ends[-2:], np.zeros(1), 2.0)
    assert busy[0, 0] == pytest.approx(quiet[0, 0])


def test_advantage_is_over_the_other_replicas_at_the_same_request():
    returns = np.array([[1.0, 3.0, 8.0, 5.0], [2.0, 6.0, 4.0, 4.0]])
    requests = np.array([[0, 0, 0, 0], [1, 1, 1, 2]])
    episodes = np.zeros((2, 4), int)
    values = np.full((2, 4), 1.5)
    got = against_replicas(returns, episodes, requests, values, 2)
    # run 2 and run 3 decided different requests in the second step: the value estimate stands in
    assert got.tolist() == [[-2.0, 2.0, 3.0, -3.0], [-4.0, 4.0, 2.5, 2.5]]


def test_replicas_are_matched_across_steps_and_episodes():
    returns = np.array([[1.0, 5.0], [2.0, 7.0]])
    requests = np.array([[0, 1], [1, 0]])  # closed replay: another order
    assert against_replicas(returns, np.zeros((2, 2), int), requests, np.zeros((2, 2)), 2).tolist() == [
        [1.0 - 7.0, 5.0 - 2.0],
        [2.0 - 5.0, 7.0 - 1.0],
    ]
    later = np.array([[0, 0], [0, 1]])
    assert against_replicas(returns, later, np.zeros((2, 2), int), np.zeros((2, 2)), 2)[1, 1] == 7.0


def test_without_replicas_the_value_is_the_baseline():
    returns, values = np.array([[1.0, 2.0]]), np.array([[0.25, 0.5]])
    zeros = np.zeros((1, 2), int)
    assert against_replicas(returns, zeros, zeros, values, 1).tolist() == [[0.75, 1.5]]
