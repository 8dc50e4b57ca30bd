"""``PDRouting-v0``: one step is one routing decision. Core of all adapters, and the single-run adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envs import batch_kernel as batch
from envs.cluster.engine_kernel import DONE, GROW, advance_at
from envs.cluster.rules import compile_rule
from envs.cluster.state import Memory
from envs.episodes import Episode, EpisodePool, make_pool
from envs.observation import HIGH, MASK, SIZE, named
from policies.contract import reject, rule
from policies.features import SLOTS


@rule(name="outside")
def _outside(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Any:
    """Stands in for the rule, since actions come from outside; never called."""
    return reject(0)


class RoutingCore:
    """``size`` independent runs that step together; every adapter is a thin layer over it.

    Attributes:
        observations: (E, SIZE) float32, current.
        rewards: (E,) of the last step.
        dt_s: (E,) simulated seconds of the last step.
        done: (E,) bool, whether the run has ended; such a run must be :meth:`start`-ed.
        choices: (E, SLOTS, 2) workers of each candidate (prefill, decode), equal if local, -1 if there is none.
        tally: (E, 3) requests of the episode: finished, SLO met, refused.
        asked: (E,) request at hand, -1 if the run has ended.
    """

    def __init__(self, size: int, pool: EpisodePool, *, discount_tau_s: float = 0.0) -> None:
        if size < 1:
            raise ValueError(f"number of environments {size}: expected at least 1")
        if not discount_tau_s >= 0.0:
            raise ValueError(f"discount_tau_s {discount_tau_s}: expected seconds, 0 for none")
        self.pool = pool
        self.size = size
        self.observations = np.zeros((size, SIZE), np.float32)
        self.rewards = np.zeros(size)
        self.dt_s = np.zeros(size)
        self.choices = np.full((size, SLOTS, 2), -1, np.int64)
        self.tally = np.zeros((size, 3), np.int64)
        self.asked = np.full(size, -1, np.int64)
        self.episodes: list[Episode | None] = [None] * size
        self._tau_s = discount_tau_s
        self._memories: list[Memory | None] = [None] * size
        self._tables = np.zeros(size, np.int64)
        self._phase = np.full(size, batch.OVER, np.int64)
        self._since_ps = np.zeros(size, np.int64)
        self._status = np.full(size, DONE, np.int64)
        self._code = compile_rule(_outside, {}, 1)
        self._no_action = np.full(size, -1, np.int64)
        self._index = np.arange(size)

    @property
    def done(self) -> NDArray[np.bool_]:
        """(E,) runs that have ended."""
        ended: NDArray[np.bool_] = self._phase == batch.OVER
        return ended

    @property
    def masks(self) -> NDArray[np.bool_]:
        """(E, SLOTS) candidates that exist."""
        legal: NDArray[np.bool_] = self.observations[:, MASK] > 0.5
        return legal

    def start(self, which: Sequence[int], episodes: Sequence[Episode]) -> None:
        """Begin an episode on each of the runs ``which`` and go to its first decision; the others do not move."""
        for e, episode in zip(which, episodes, strict=True):
            memory = Memory(episode.problem, param_bytes=self._code.params, memory_row=self._code.memory)
            memory.enable_log()
            self._memories[e], self._tables[e] = memory, memory.table
            self.episodes[e] = episode
            self._since_ps[e] = 0
            self.tally[e] = 0
        self._phase[list(which)] = batch.START
        self._advance(self._no_action)

    def step(self, actions: NDArray[np.int64]) -> None:
        """Answer the question of every run that has not ended, and go on to the next.

        Actions of runs that have ended are ignored.

        Raises:
            ValueError: an action that is masked.
        """
        actions = np.ascontiguousarray(actions, dtype=np.int64)
        waiting = self._phase == batch.WAITING
        outside = (actions < 0) | (actions >= SLOTS)
        masked = waiting & (outside | (self.choices[self._index, np.where(outside, 0, actions), 1] < 0))
        if masked.any():
            e = int(np.flatnonzero(masked)[0])
            legal = ", ".join(map(str, np.flatnonzero(self.masks[e])))
            raise ValueError(f"environment {e}: action {actions[e]} is masked: expected one of {legal}")
        self._phase[waiting] = batch.ANSWERED
        self._advance(actions)

    def _advance(self, actions: NDArray[np.int64]) -> None:
        while batch.step_batch(
            self._tables, advance_at, self._code.decide, self._code.bind, actions, self._phase, self._since_ps,
            self.observations, self.choices, self.rewards, self.dt_s, self.tally, self.asked, self._status, self._tau_s,
        ):  # fmt: skip
            for e in np.flatnonzero(self._phase == batch.GROWN):
                if self._status[e] != GROW:
                    raise RuntimeError(f"environment {e}: the simulator stopped with status {self._status[e]}")
                self._memories[e].grow()  # type: ignore[union-attr]

    def info(self, e: int) -> dict[str, Any]:
        """What happened in run ``e``: seconds of the last step, and the episode so far."""
        episode = self.episodes[e]
        finished, met, refused = (int(x) for x in self.tally[e])
        return {
            "dt_s": float(self.dt_s[e]),
            "finished": finished,
            "slo_met": met,
            "refused": refused,
            "window": episode.window if episode else -1,
            "load": episode.load if episode else 0.0,
            "cluster": episode.cluster if episode else "",
        }


class PDRoutingEnv(gym.Env[NDArray[np.float32], np.int64]):
    """Route requests of a real trace in a simulated P/D cluster; see docs/environments.md.

    Args:
        pool: the episodes; None makes them from ``options`` (``envs.episodes.make_pool``).
        discount_tau_s: discount of rewards within a step; 0: none.
        render_mode: ``ansi`` or None.
        **options: arguments of ``make_pool``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (gymnasium's own attribute)

    def __init__(
        self,
        pool: EpisodePool | None = None,
        *,
        discount_tau_s: float = 0.0,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode {render_mode!r}: expected ansi or None")
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = gym.spaces.Discrete(SLOTS)
        self.core = RoutingCore(1, pool or make_pool(**options), discount_tau_s=discount_tau_s)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Draw an episode and go to its first decision."""
        super().reset(seed=seed)
        self.core.start([0], [self.core.pool.draw(self.np_random)])
        return self.core.observations[0].copy(), self._info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Route the request at hand to candidate ``action``.

        Raises:
            ValueError: the action is masked.
        """
        if self.core.done[0]:
            raise RuntimeError("the episode has ended: call reset()")
        core = self.core
        core.step(np.array([action]))
        return core.observations[0].copy(), float(core.rewards[0]), bool(core.done[0]), False, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """(SLOTS,) legal actions."""
        legal: NDArray[np.bool_] = self.core.masks[0].copy()
        return legal

    def _info(self) -> dict[str, Any]:
        return {**self.core.info(0), "action_mask": self.core.masks[0].astype(np.int8)}

    def render(self) -> str | None:
        """The question at hand as text."""
        if self.render_mode is None:
            return None
        core, seen = self.core, named(self.core.observations[0])
        finished, met, refused = core.tally[0]
        lines = [f"{core.info(0)['cluster']}: {finished} finished, {met} within SLO, {refused} refused"]
        for k in np.flatnonzero(core.masks[0]):
            p, d = core.choices[0, k]
            where = f"local on {d}" if p == d else f"{p} -> {d}"
            ttft, step = (seen["candidates"][name][k] for name in ("ttft", "step"))
            lines.append(f"  {k}: {where:<12} TTFT {ttft:.2f} and step {step:.2f} of the objectives")
        return "\n".join(lines)


def observation_space() -> Any:
    """A Box: flat float32 vector of ``envs.observation.LAYOUT``."""
    return gym.spaces.Box(0.0, HIGH, (SIZE,), np.float32)
