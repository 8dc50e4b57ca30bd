"""The rollout buffer of stable-baselines3 with credit by completion. Import it inside functions: it loads torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer

from envs.vector import RoutingBatch
from research.training.credit import against_replicas, returns_by_completion


class CompletionBuffer(RolloutBuffer):
    """Returns discounted by simulated time, advantages over the replicas' mean (``research.training.credit``).

    ``gamma`` and ``gae_lambda`` are not used.

    Args:
        batch: the runs that fill the buffer; tells the seconds, the request and the episode of each step.
        tau_s: time constant of the discount.
        scale: factor on rewards that brings returns to order one, for the value head.
        *args: as for ``RolloutBuffer``.
        **kwargs: as for ``RolloutBuffer``.
    """

    def __init__(self, *args: Any, batch: RoutingBatch, tau_s: float, scale: float, **kwargs: Any) -> None:
        self._batch, self._tau_s, self._scale = batch, tau_s, scale
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        shape = (self.buffer_size, self.n_envs)
        self.dt_s = np.zeros(shape)
        self.requests = np.zeros(shape, np.int64)
        self.episodes = np.zeros(shape, np.int64)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Note the step that the batch has just taken."""
        self.dt_s[self.pos] = self._batch.last_dt_s
        self.requests[self.pos] = self._batch.last_request
        self.episodes[self.pos] = self._batch.last_episode
        super().add(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        """Fill ``returns`` and ``advantages``."""
        ends = np.concatenate([self.episode_starts[1:] > 0.5, np.asarray(dones, bool)[None]])
        values = last_values.clone().cpu().numpy().flatten()
        returns = returns_by_completion(self.rewards * self._scale, self.dt_s, ends, values, self._tau_s)
        advantages = against_replicas(returns, self.episodes, self.requests, self.values, self._batch.group)
        self.returns = returns.astype(np.float32)
        self.advantages = advantages.astype(np.float32)
