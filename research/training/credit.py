"""Credit by completion: what a decision earned is what ended after it, discounted by simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def returns_by_completion(
    rewards: NDArray[Any], dt_s: NDArray[Any], ends: NDArray[np.bool_], last_values: NDArray[Any], tau_s: float
) -> NDArray[np.float64]:
    """``G_k = r_k + exp(-dt_k / tau) * G_{k+1}``, with ``G = last value`` after the last step and 0 after an end.

    Discounting by decision instead would weigh a busy second less than a quiet one; crediting a decision with its own
    request only would hide what it does to others.

    Args:
        rewards: (T, E) reward of everything that ended between decision k and the next one, each discounted from its
            own end back to decision k.
        dt_s: (T, E) simulated seconds from decision k to the next one.
        ends: (T, E) whether the episode ended with step k.
        last_values: (E,) value of the state after the last step.
        tau_s: time constant.

    Example: rewards 1, 0, 2 at dt 1, 2, 3 s, tau 2 s, then the end: G_2 = 2, G_1 = e^-1 * 2, G_0 = 1 + e^-0.5 * G_1.
    """
    following = np.asarray(last_values, np.float64).copy()
    out = np.empty(rewards.shape, np.float64)
    keep = np.exp(-np.asarray(dt_s, np.float64) / tau_s) * ~ends
    for k in range(len(rewards) - 1, -1, -1):
        following = out[k] = rewards[k] + keep[k] * following
    return out


def against_replicas(
    returns: NDArray[np.float64], episodes: NDArray[Any], requests: NDArray[Any], values: NDArray[Any], group: int
) -> NDArray[np.float64]:
    """Advantage of each decision over the other replicas' decisions for the same request of the same episode.

    Runs ``0..group-1`` serve the same traffic, so the mean return of the *other* replicas at the same request is a
    baseline that knows the future arrivals; it does not depend on this run's action, hence adds no bias. Where no other
    replica decided that request in these steps (closed replay), the value estimate stands in.

    Args:
        returns: (T, E).
        episodes: (T, E) number of the episode in its run.
        requests: (T, E) request decided.
        values: (T, E) value estimates.
        group: replicas; 1: always the value estimate.
    """
    if group == 1:
        return np.asarray(returns - values, np.float64)
    steps, size = returns.shape
    team = np.broadcast_to(np.arange(size) // group, (steps, size))
    keys = np.stack([team.ravel(), episodes.ravel(), requests.ravel()])
    order = np.lexsort(keys[::-1])
    ordered = keys[:, order]
    fresh = np.r_[True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)]
    member = np.cumsum(fresh) - 1
    total = np.bincount(member, returns.ravel()[order])[member]
    count = np.bincount(member)[member]
    own = returns.ravel()[order]
    others = np.where(count > 1, (total - own) / np.maximum(count - 1, 1), values.ravel()[order])
    out: NDArray[np.float64] = np.empty(returns.size)
    out[order] = own - others
    advantages: NDArray[np.float64] = out.reshape(returns.shape)
    return advantages
