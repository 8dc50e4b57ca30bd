"""One training run: stable-baselines3's PPO on replicas of train windows, the best policy on validation windows kept.

Import it inside functions: it loads torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from envs.episodes import EpisodePool
from envs.sb3 import sb3_vec_env
from policies.learned import GUARD_LIKE
from research.training.buffer import CompletionBuffer
from research.training.network import CandidatePolicy, random_start

STARTS = ("random", "guard_like")
SHARPNESS = 20.0
"""Factor on the hand-made start: its scores are in shares of the TTFT objective, and 0.05 of one should matter."""


@dataclass(frozen=True, slots=True)
class PPOSettings:
    """Settings of PPO; ``conf/train.yaml`` explains each."""

    num_envs: int
    group: int
    steps: int
    epochs: int
    minibatch: int
    learning_rate: float
    entropy: float
    clip: float
    tau_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """One entry of the learning curve."""

    seconds: float
    decisions: int
    train_attainment: float  # of the episodes that ended since the last point, actions sampled
    train_return: float  # mean sum of rewards of these episodes, over their requests
    entropy: float  # of the action distribution, nats
    validation_attainment: float  # NaN where it was not measured


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training run leaves.

    Attributes:
        weights: the best on validation.
        start: the weights it started from.
        last: the weights at the end.
        best_validation: attainment on validation of ``weights``.
        start_validation: of ``start``.
        best_at_s: seconds into the training at which ``weights`` were found.
        curve: the learning curve.
        decisions: decisions taken.
        seconds: duration.
        update_seconds: part of it spent in gradient steps.
    """

    weights: tuple[float, ...]
    start: tuple[float, ...]
    last: tuple[float, ...]
    best_validation: float
    start_validation: float
    best_at_s: float
    curve: tuple[Point, ...]
    decisions: int
    seconds: float
    update_seconds: float


def start_weights(init: str, seed: int) -> tuple[float, ...]:
    """Weights by name of the start (:data:`STARTS`)."""
    if init == "random":
        return random_start(seed)
    if init == "guard_like":
        rest = np.array(random_start(seed)) * (np.arange(len(GUARD_LIKE)) >= 24)  # hidden units start silent, not dead
        return tuple(float(x) for x in SHARPNESS * np.array(GUARD_LIKE) + rest)
    raise ValueError(f"init {init!r}: expected one of {', '.join(STARTS)}")


def train_ppo(
    pool: EpisodePool,
    settings: PPOSettings,
    *,
    start: tuple[float, ...],
    seed: int,
    decisions: int,
    budget_s: float,
    evaluate_every: int,
    evaluate: Callable[[tuple[float, ...]], float],
    report: Callable[[Point], None] = lambda point: None,
) -> Trained:
    """Train for ``decisions`` decisions, or until ``budget_s`` is over. The same seed gives the same bits unless it is.

    The learning rate falls linearly to a tenth.

    Args:
        pool: train episodes.
        settings: of PPO.
        start: weights to start from.
        seed: of the actions, the episodes and the minibatches.
        decisions: decisions to take.
        budget_s: most wall time; evaluations count.
        evaluate_every: decisions between two evaluations.
        evaluate: attainment of weights on the validation windows.
        report: called with every point of the curve.
    """
    torch.set_num_threads(1)
    env: Any = sb3_vec_env(settings.num_envs, pool, group=settings.group, discount_tau_s=settings.tau_s)
    pace = float(np.mean([w.rate_per_s * factor for w in pool.windows for _, factor in pool.scales]))
    model = PPO(
        CandidatePolicy,
        env,
        learning_rate=lambda remaining: settings.learning_rate * max(0.1, remaining),
        n_steps=settings.steps,
        batch_size=settings.minibatch,
        n_epochs=settings.epochs,
        clip_range=settings.clip,
        ent_coef=settings.entropy,
        rollout_buffer_class=CompletionBuffer,
        rollout_buffer_kwargs={
            "batch": env.batch, "tau_s": settings.tau_s, "scale": 1.0 / max(1.0, settings.tau_s * pace)
        },
        policy_kwargs={"initial": start},
        seed=seed,
        device="cpu",
    )  # fmt: skip
    model.set_logger(Logger(folder=None, output_formats=[]))
    keeper = _Keeper(start, budget_s, evaluate_every, evaluate, report)
    began_s = time.perf_counter()
    model.learn(total_timesteps=decisions, callback=keeper)
    return Trained(
        weights=keeper.best,
        start=start,
        last=model.policy.scorer.weights(),  # type: ignore[operator, union-attr]
        best_validation=keeper.best_value,
        start_validation=keeper.start_value,
        best_at_s=keeper.best_at_s,
        curve=tuple(keeper.curve),
        decisions=model.num_timesteps,
        seconds=time.perf_counter() - began_s,
        update_seconds=keeper.update_s,
    )


class _Keeper(BaseCallback):
    """Keeps the best weights, the curve and the time."""

    def __init__(
        self,
        start: tuple[float, ...],
        budget_s: float,
        every: int,
        evaluate: Callable[[tuple[float, ...]], float],
        report: Callable[[Point], None],
    ) -> None:
        super().__init__()
        self.best, self._start = start, start
        self.best_value = self.start_value = float("nan")
        self.best_at_s = 0.0
        self.update_s = 0.0
        self.curve: list[Point] = []
        self._budget_s, self._every = budget_s, every
        self._evaluate, self._report = evaluate, report
        self._ended: list[tuple[int, int, float]] = []  # (requests, SLO met, return)
        self._rollout_ended_s = 0.0
        self._evaluated_at = 0

    def _weights(self) -> tuple[float, ...]:
        return self.model.policy.scorer.weights()  # type: ignore[operator, union-attr, no-any-return]

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _on_training_start(self) -> None:
        self._began_s = time.perf_counter()
        self.best_value = self.start_value = self._evaluate(self._start)
        self._add(Point(self._now_s(), 0, float("nan"), float("nan"), float("nan"), self.start_value))

    def _on_rollout_start(self) -> None:
        if self._rollout_ended_s:
            self.update_s += self._now_s() - self._rollout_ended_s

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                requests = info["finished"] + info["refused"]
                self._ended.append((requests, info["slo_met"], info["return"]))
        return self._now_s() < self._budget_s

    def _on_rollout_end(self) -> None:
        validation = float("nan")
        if self.num_timesteps - self._evaluated_at >= self._every:
            validation = self._consider()
        requests, met, total = np.sum(self._ended, axis=0) if self._ended else (0, 0, 0.0)
        self._ended = []
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        entropy = -float(buffer.log_probs.mean())
        some = requests > 0
        self._add(
            Point(
                self._now_s(),
                self.num_timesteps,
                float(met / requests) if some else float("nan"),
                float(total / requests) if some else float("nan"),
                entropy,
                validation,
            )
        )
        self._rollout_ended_s = self._now_s()

    def _on_training_end(self) -> None:
        value = self._consider()
        self._add(Point(self._now_s(), self.num_timesteps, float("nan"), float("nan"), float("nan"), value))

    def _consider(self) -> float:
        weights = self._weights()
        value = self._evaluate(weights)
        self._evaluated_at = self.num_timesteps
        if value > self.best_value:
            self.best, self.best_value, self.best_at_s = weights, value, self._now_s()
        return value

    def _add(self, point: Point) -> None:
        self.curve.append(point)
        self._report(point)
