"""The three adapters are one environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from envs.routing import PDRoutingEnv
from envs.vector import PDRoutingVectorEnv, RoutingBatch
from tests.envs.episodes import small_pool

N = 3
STEPS = 150


@pytest.fixture(scope="module")
def pool():
    return small_pool(loads=(0.5, 1.0), clusters=("2p2d", "1p3d"))


def pick(masks, rng):
    """A random legal action in each row."""
    return np.array([rng.choice(np.flatnonzero(row)) for row in masks])


def from_single(pool):
    envs, rng, out = [PDRoutingEnv(pool) for _ in range(N)], np.random.default_rng(9), []
    observations = [env.reset(seed=7 + i)[0] for i, env in enumerate(envs)]
    for _ in range(STEPS):
        actions = pick([env.action_masks() for env in envs], rng)
        observations, rewards, dones = [], [], []
        for env, action in zip(envs, actions, strict=True):
            observation, reward, done, _, _ = env.step(action)
            if done:
                observation = env.reset()[0]
            observations.append(observation)
            rewards.append(reward)
            dones.append(done)
        out.append((np.stack(observations), np.array(rewards), np.array(dones)))
    return out


def from_gym_vector(pool):
    env, rng, out = PDRoutingVectorEnv(N, pool), np.random.default_rng(9), []
    _, info = env.reset(seed=7)
    for _ in range(STEPS):
        observations, rewards, done, truncated, info = env.step(pick(info["action_mask"], rng))
        assert not truncated.any()
        out.append((observations, rewards, done))
    return out


def from_sb3(pool):
    pytest.importorskip("stable_baselines3")
    from envs.sb3 import sb3_vec_env

    env, rng, out = sb3_vec_env(N, pool), np.random.default_rng(9), []
    env.seed(7)
    env.reset()
    for _ in range(STEPS):
        observations, rewards, done, infos = env.step(pick(env.env_method("action_masks"), rng))
        for e in np.flatnonzero(done):
            assert infos[e]["episode"]["l"] > 0
            assert (infos[e]["terminal_observation"] == 0).all()
        out.append((observations, rewards, done))
    return out


def test_three_adapters_one_trajectory(pool):
    single, vector, sb3 = from_single(pool), from_gym_vector(pool), from_sb3(pool)
    ended = 0
    for a, b, c in zip(single, vector, sb3, strict=True):
        for other in (b, c):
            assert (a[0] == other[0]).all()
            assert a[1].astype(np.float32) == pytest.approx(other[1].astype(np.float32), abs=0)
            assert (a[2] == other[2]).all()
        ended += int(a[2].sum())
    assert ended >= N  # restarts were compared too


def test_a_run_does_not_depend_on_its_neighbours(pool):
    def first_run(size):
        batch = RoutingBatch(size, pool)
        batch.seed([1, 2, 3, 4][:size])
        seen = [batch.reset()[0]]
        for _ in range(60):
            seen.append(batch.step(batch.core.masks.argmax(axis=1))[0][0])
        return np.stack(seen)

    assert (first_run(1) == first_run(4)).all()


def test_replicas_serve_the_same_traffic(pool):
    batch = RoutingBatch(4, pool, group=2)
    batch.seed(batch.seeds_from(5))
    batch.reset()
    for _ in range(80):
        a, b, c, d = batch.core.episodes
        assert (a, c) == (b, d)
        batch.step(batch.core.masks.argmax(axis=1))
        assert (batch.last_request[::2] == batch.last_request[1::2]).all()
    with pytest.raises(ValueError, match="group 3: expected a divisor"):
        RoutingBatch(4, pool, group=3)


def test_make_vec_and_what_it_tells_at_the_end_of_an_episode():
    env = gym.make_vec("PDRouting-v0", num_envs=2, trace="default", episode_requests=10, rate_per_s=4.0)
    _, info = env.reset(seed=[3, 3])
    for _ in range(200):
        observations, _, done, _, info = env.step(info["action_mask"].argmax(axis=1))
        assert (observations[0] == observations[1]).all()
        if done.any():
            assert (info["final_info"]["finished"] > 0).all()
            assert info["final_info"]["length"][0] > 0
            assert info["_final_obs"].all()
            break
    else:
        pytest.fail("no episode ended")
