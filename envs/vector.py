"""Batches of ``PDRouting-v0``: runs that restart as they end, and the gymnasium ``VectorEnv`` over them.

``envs.sb3`` has the stable-baselines3 ``VecEnv``. Both reset an ended run in the same step. Run ``i`` of a batch seeded
with ``s`` draws the same episodes as a single environment seeded with ``s + i``. With ``group`` g, runs ``0..g-1``
share the seed ``s``, the next g share ``s + 1``, and so on: replicas of one episode, which differ in actions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envs.episodes import EpisodePool, make_pool
from envs.routing import RoutingCore, observation_space
from policies.features import SLOTS


class RoutingBatch:
    """A core that restarts runs as they end, each from its own stream of episodes.

    Attributes:
        core: the runs.
        returns: (E,) sum of rewards of the episodes under way.
        lengths: (E,) their decisions.
        last_dt_s: (E,) seconds of the last step.
        last_request: (E,) request that the last step routed.
        last_episode: (E,) number of the episode it belonged to, from 0, in order of this run's resets.
    """

    def __init__(self, size: int, pool: EpisodePool, *, group: int = 1, discount_tau_s: float = 0.0) -> None:
        if group < 1 or size % group:
            raise ValueError(f"group {group}: expected a divisor of the number of environments, {size}")
        self.core = RoutingCore(size, pool, discount_tau_s=discount_tau_s)
        self.group = group
        self.returns = np.zeros(size)
        self.lengths = np.zeros(size, np.int64)
        self.last_dt_s = np.zeros(size)
        self.last_request = np.zeros(size, np.int64)
        self.last_episode = np.zeros(size, np.int64)
        self._episode = np.full(size, -1, np.int64)
        self._streams: list[np.random.Generator] = []

    def seed(self, seeds: Sequence[int]) -> None:
        """One seed a run."""
        self._streams = [np.random.default_rng(s) for s in seeds]

    def seeds_from(self, seed: int) -> list[int]:
        """The seeds of the runs of a batch seeded with ``seed``."""
        return [seed + e // self.group for e in range(self.core.size)]

    def reset(self) -> NDArray[np.float32]:
        """Start every run anew; returns a copy of the observations."""
        if not self._streams:
            self.seed(self.seeds_from(int(np.random.SeedSequence().generate_state(1)[0])))
        self._start(range(self.core.size))
        return self.core.observations.copy()

    def _start(self, which: Sequence[int]) -> None:
        self.core.start(which, [self.core.pool.draw(self._streams[e]) for e in which])
        self.returns[list(which)] = 0.0
        self.lengths[list(which)] = 0
        self._episode[list(which)] += 1

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], dict[int, dict[str, Any]]]:
        """(observations, rewards, done, what ended), all copies; ended runs are at their next episode's first decision.

        What ended: by run, its last ``info`` with ``return`` and ``length`` of the episode.
        """
        core = self.core
        self.last_request[:], self.last_episode[:] = core.asked, self._episode
        core.step(actions)
        rewards, done = core.rewards.copy(), core.done
        self.returns += rewards
        self.lengths += 1
        self.last_dt_s[:] = core.dt_s
        ended = {}
        if done.any():
            which = np.flatnonzero(done).tolist()
            ended = {
                e: {**core.info(e), "return": float(self.returns[e]), "length": int(self.lengths[e])} for e in which
            }
            self._start(which)
        return core.observations.copy(), rewards, done, ended


class PDRoutingVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """``gymnasium.make_vec("PDRouting-v0", num_envs=64, ...)``.

    Args:
        num_envs: number of runs.
        pool: the episodes; None makes them from ``options`` (``envs.episodes.make_pool``).
        group: runs that share their episodes.
        discount_tau_s: discount of rewards within a step; 0: none.
        render_mode: None only.
        **options: arguments of ``make_pool``.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        pool: EpisodePool | None = None,
        *,
        group: int = 1,
        discount_tau_s: float = 0.0,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if render_mode is not None:
            raise ValueError(f"render_mode {render_mode!r}: a batch renders nothing, use a single environment")
        self.num_envs = num_envs
        self.render_mode = None
        self.single_observation_space = observation_space()
        self.single_action_space = gym.spaces.Discrete(SLOTS)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.batch = RoutingBatch(num_envs, pool or make_pool(**options), group=group, discount_tau_s=discount_tau_s)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start every run anew. A list holds one seed a run."""
        if isinstance(seed, int):
            self.batch.seed(self.batch.seeds_from(seed))
        elif seed is not None:
            if len(seed) != self.num_envs or any(s is None for s in seed):
                raise ValueError(f"seed: expected one number, or {self.num_envs} of them")
            self.batch.seed([s for s in seed if s is not None])
        return self.batch.reset(), {"action_mask": self.batch.core.masks.astype(np.int8)}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One decision in every run."""
        observations, rewards, done, ended = self.batch.step(actions)
        infos: dict[str, Any] = {
            "dt_s": self.batch.last_dt_s.copy(),
            "action_mask": self.batch.core.masks.astype(np.int8),
        }
        if ended:
            final = np.full(self.num_envs, None, dtype=object)
            last: dict[str, Any] = {}
            for e, info in ended.items():
                final[e] = np.zeros_like(observations[e])
                last = self._add_info(last, info, e)
            infos |= {"final_obs": final, "_final_obs": done.copy(), "final_info": last, "_final_info": done.copy()}
        return observations, rewards, done, np.zeros_like(done), infos

    def action_masks(self) -> NDArray[np.bool_]:
        """(E, SLOTS) legal actions."""
        return self.batch.core.masks.copy()
