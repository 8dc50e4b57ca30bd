"""The stable-baselines3 adapter of ``PDRouting-v0``. SB3 and torch (extra ``rl``) are imported on the first call."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.episodes import EpisodePool, make_pool
from envs.routing import observation_space
from envs.vector import RoutingBatch
from policies.features import SLOTS

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def sb3_vec_env(
    num_envs: int, pool: EpisodePool | None = None, *, group: int = 1, discount_tau_s: float = 0.0, **options: Any
) -> VecEnv:
    """A batch of ``num_envs`` runs as a ``VecEnv``.

    ``env.batch.last_dt_s`` holds the seconds of the last step of every run (a dict a run and step would cost more than
    the simulation). At the end of an episode the info holds ``terminal_observation`` and ``episode`` as SB3 expects.
    ``env_method("action_masks")`` answers (E, SLOTS) at once, which is what MaskablePPO asks.

    Args:
        num_envs: number of runs.
        pool: the episodes; None makes them from ``options`` (``envs.episodes.make_pool``).
        group: runs that share their episodes.
        discount_tau_s: discount of rewards within a step; 0: none.
        **options: arguments of ``make_pool``.

    Raises:
        ImportError: stable-baselines3 is not installed.
    """
    batch = RoutingBatch(num_envs, pool or make_pool(**options), group=group, discount_tau_s=discount_tau_s)
    try:
        return _adapter()(batch)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed: pip install 'pdgym[rl]'") from error


@cache
def _adapter() -> Any:
    """The class; defined here, since its base comes from SB3."""
    import gymnasium as gym
    from stable_baselines3.common.vec_env import VecEnv

    class RoutingVecEnv(VecEnv):
        """A ``RoutingBatch`` as a ``VecEnv``."""

        def __init__(self, batch: RoutingBatch) -> None:
            self.batch = batch
            self.render_mode = None
            self._actions = np.zeros(batch.core.size, np.int64)
            self._began_s = time.time()
            super().__init__(batch.core.size, observation_space(), gym.spaces.Discrete(SLOTS))

        def reset(self) -> Any:
            """Start every run anew; uses the seeds of ``seed()`` once, as gymnasium does."""
            if any(s is not None for s in self._seeds):
                self.batch.seed(self.batch.seeds_from(int(self._seeds[0] or 0)))
            self._reset_seeds()
            self._reset_options()
            self.reset_infos = [{} for _ in range(self.num_envs)]
            return self.batch.reset()

        def step_async(self, actions: Any) -> None:
            """Note the actions."""
            self._actions = actions

        def step_wait(self) -> Any:
            """Take the step."""
            observations, rewards, done, ended = self.batch.step(self._actions)
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for e, info in ended.items():
                seconds = round(time.time() - self._began_s, 6)
                infos[e] = {
                    **info,
                    "terminal_observation": np.zeros_like(observations[e]),
                    "TimeLimit.truncated": False,
                    "episode": {"r": info["return"], "l": info["length"], "t": seconds},
                }
            return observations, rewards.astype(np.float32), done, infos

        def close(self) -> None:
            """Nothing to close."""

        def has_attr(self, attr_name: str) -> bool:
            """Attributes are those of the batch and of this adapter."""
            return attr_name == "action_masks" or hasattr(self, attr_name) or hasattr(self.batch, attr_name)

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            """One value for all runs, repeated."""
            value = getattr(self, attr_name) if hasattr(self, attr_name) else getattr(self.batch, attr_name)
            return [value for _ in self._get_indices(indices)]

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Runs have no attributes of their own."""
            raise AttributeError(f"{attr_name}: the runs of a batch have no attributes to set")

        def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> Any:
            """``action_masks`` only."""
            if method_name != "action_masks":
                raise AttributeError(f"{method_name}: expected action_masks")
            return self.batch.core.masks[list(self._get_indices(indices))]

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            """Never."""
            return [False for _ in self._get_indices(indices)]

    return RoutingVecEnv
