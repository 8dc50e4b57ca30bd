"""The learned policy as a stable-baselines3 policy class: the scorer of ``policies.learned`` and a value head.

Import it inside functions: it loads torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from envs.observation import CANDIDATES, MASK, N_STATE, STATE_SLICE
from policies.features import N_FEATURES, SLOTS
from policies.learned import HIDDEN, N_WEIGHTS

MASKED = -1e9


class Scorer(nn.Module):
    """``w . x + v . tanh(b + U x)``, shared by all candidates; the logit of a candidate is minus its score."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Parameter(torch.zeros(N_FEATURES))
        self.inner = nn.Linear(N_FEATURES, HIDDEN)
        self.outer = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (..., SLOTS) of features (..., SLOTS, N_FEATURES)."""
        return x @ self.linear + torch.tanh(self.inner(x)) @ self.outer

    def weights(self) -> tuple[float, ...]:
        """As ``policies.learned`` reads them."""
        parts = (self.linear, self.outer, self.inner.bias, self.inner.weight)
        return tuple(float(x) for part in parts for x in part.detach().double().flatten())

    def load(self, weights: tuple[float, ...]) -> None:
        """The inverse of :meth:`weights`."""
        if len(weights) != N_WEIGHTS:
            raise ValueError(f"{len(weights)} weights: expected {N_WEIGHTS}")
        flat = torch.tensor(weights, dtype=torch.float32)
        with torch.no_grad():
            self.linear.copy_(flat[:N_FEATURES])
            self.outer.copy_(flat[N_FEATURES : N_FEATURES + HIDDEN])
            self.inner.bias.copy_(flat[N_FEATURES + HIDDEN : N_FEATURES + 2 * HIDDEN])
            self.inner.weight.copy_(flat[N_FEATURES + 2 * HIDDEN :].reshape(HIDDEN, N_FEATURES))


class CandidatePolicy(ActorCriticPolicy):
    """Actor: softmax over the legal candidates' scores. Critic: a small network on pooled features and cluster state.

    Args:
        initial: start weights of the scorer.
        *args: as for ``ActorCriticPolicy``.
        **kwargs: as for ``ActorCriticPolicy``.
    """

    def __init__(self, *args: Any, initial: tuple[float, ...], **kwargs: Any) -> None:
        self._initial = initial
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        self.scorer = Scorer()
        self.scorer.load(self._initial)
        self.critic = nn.Sequential(nn.Linear(2 * N_FEATURES + N_STATE, 32), nn.Tanh(), nn.Linear(32, 1))
        make_optimizer: Any = self.optimizer_class
        self.optimizer = make_optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def logits(self, obs: torch.Tensor) -> torch.Tensor:
        """(B, SLOTS), illegal candidates at MASKED."""
        scores = self.scorer(obs[:, CANDIDATES].reshape(-1, SLOTS, N_FEATURES))
        return torch.where(obs[:, MASK] > 0.5, -scores, torch.full_like(scores, MASKED))

    def forward(
        self, obs: torch.Tensor, deterministic: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, values and log-probabilities."""
        log_p = torch.log_softmax(self.logits(obs), dim=1)
        if deterministic:
            actions = log_p.argmax(dim=1)
        else:  # Gumbel: one draw a candidate, no cumulative sums
            noise = -torch.log(-torch.log(torch.rand_like(log_p).clamp_(1e-12, 1.0 - 1e-7)))
            actions = (log_p + noise).argmax(dim=1)
        return actions, self.predict_values(obs), log_p.gather(1, actions[:, None])[:, 0]

    def evaluate_actions(
        self, obs: Any, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Values, log-probabilities and entropy."""
        log_p = torch.log_softmax(self.logits(obs), dim=1)
        entropy = -(log_p.exp() * log_p.clamp_min(-1e3)).sum(dim=1)
        return self.predict_values(obs), log_p.gather(1, actions.long()[:, None])[:, 0], entropy

    def predict_values(self, obs: Any) -> torch.Tensor:
        """Values (B, 1)."""
        x = obs[:, CANDIDATES].reshape(-1, SLOTS, N_FEATURES)
        legal = (obs[:, MASK] > 0.5)[:, :, None]
        mean = (x * legal).sum(dim=1) / legal.sum(dim=1).clamp_min(1)
        least = torch.where(legal, x, torch.full_like(x, 20.0)).amin(dim=1)
        out: torch.Tensor = self.critic(torch.cat([mean, least, obs[:, STATE_SLICE]], dim=1))
        return out

    def _predict(self, observation: Any, deterministic: bool = False) -> torch.Tensor:
        return self.forward(observation, deterministic)[0]


def random_start(seed: int) -> tuple[float, ...]:
    """Small random weights: a policy that knows nothing, close to choosing at random among the candidates."""
    rng = np.random.default_rng([seed, 17])
    linear = rng.normal(0.0, 0.1, N_FEATURES)
    outer = rng.normal(0.0, 0.1, HIDDEN)
    inner = rng.normal(0.0, 1.0 / np.sqrt(N_FEATURES), HIDDEN * N_FEATURES)
    return tuple(float(x) for x in (*linear, *outer, *np.zeros(HIDDEN), *inner))
