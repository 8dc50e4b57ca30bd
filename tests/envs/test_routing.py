"""PDRouting-v0: the contract of a Gymnasium environment, rewards by completion, and the same decisions as a rule."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.episodes import cut, make_pool
from envs.observation import CANDIDATES, LAYOUT, MASK, SIZE, named
from envs.reward import request_reward, slack
from envs.routing import PDRoutingEnv, RoutingCore
from policies.contract import better, tie_hash
from policies.features import FEATURES, N_FEATURES, SLOTS
from policies.learned import GUARD_LIKE, learned_policy, score
from tests.envs.episodes import small_pool
from traces import load_trace

ROOT = Path(__file__).parents[2]


def play(env: PDRoutingEnv, seed: int):
    """A whole episode of random legal actions: [(observation, reward, info)]."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    steps, done = [(observation, 0.0, info)], False
    while not done:
        action = rng.choice(np.flatnonzero(env.action_masks()))
        observation, reward, done, truncated, info = env.step(action)
        assert not truncated
        steps.append((observation, reward, info))
    return steps


def test_gymnasium_checker_passes():
    check_env(gym.make("PDRouting-v0", trace="default", episode_requests=40, rate_per_s=8.0).unwrapped)


def test_sb3_checker_passes():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_checker import check_env as check

    check(PDRoutingEnv(small_pool()))


def test_made_by_module_name_and_its_spec_is_json():
    env = gym.make("envs:PDRouting-v0", trace="default", clusters=["1p1d"], episode_requests=10)
    assert '"clusters"' in env.spec.to_json()
    assert env.reset(seed=0)[0].shape == (SIZE,)


@pytest.mark.parametrize("order", ["import envs, gymnasium", "import gymnasium, envs"])
def test_registered_whichever_is_imported_first_and_envs_alone_is_light(order):
    code = f"import sys; import envs; assert not {{'gymnasium', 'numba', 'polars'}} & set(sys.modules)\n{order}\n"
    code += "assert 'PDRouting-v0' in gymnasium.registry"
    if order.startswith("import gymnasium"):
        code = f"{order}\nassert 'PDRouting-v0' in gymnasium.registry"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_observations_have_named_parts_within_the_space():
    env = PDRoutingEnv(small_pool())
    assert [part.stop - part.start for part in LAYOUT.values()] == [SLOTS * N_FEATURES, SLOTS, 6]
    for observation, _, info in play(env, 3)[:-1]:
        assert env.observation_space.contains(observation)
        seen = named(observation)
        assert tuple(seen["candidates"]) == FEATURES
        assert (seen["mask"]["legal"] == info["action_mask"]).all()
        assert (seen["candidates"]["local"][4:] == 1).all()


def test_same_seed_same_bits_and_another_seed_another_episode():
    env = PDRoutingEnv(small_pool())
    first, again, other = play(env, 1), play(PDRoutingEnv(small_pool()), 1), play(env, 2)
    assert all((a[0] == b[0]).all() and a[1] == b[1] for a, b in zip(first, again, strict=True))
    assert len(first) != len(other) or any((a[0] != b[0]).any() for a, b in zip(first, other, strict=True))


def test_reward_of_a_request_by_hand():
    assert [slack(x) for x in (0.2, 1.0, 1.25, 2.0, 9.0)] == [1.0, 1.0, 0.75, 0.0, 0.0]
    assert request_reward(True, 0.5, 0.9) == pytest.approx(1.0)
    assert request_reward(False, 1.25, 0.8) == pytest.approx(0.2625)  # the example in the docstring
    assert request_reward(False, 3.0, 2.0) == 0.0


@pytest.mark.parametrize("tau_s", [0.0, 1.5])
def test_each_step_brings_the_rewards_of_what_ended_in_it(tau_s):
    pool = small_pool()
    core = RoutingCore(1, pool, discount_tau_s=tau_s)
    core.start([0], [pool.episode(2)])
    rng = np.random.default_rng(0)
    times, rewards = [core.dt_s[0]], []
    while not core.done[0]:
        core.step(np.array([rng.choice(np.flatnonzero(core.masks[0]))]))
        times.append(times[-1] + core.dt_s[0])
        rewards.append(core.rewards[0])
    out, asked = core._memories[0].arrays["out"], pool.episode(2).problem.requests
    assert (out["status"] == 1).all()
    assert core.tally[0, 0] == len(out)
    expected = np.zeros(len(rewards))
    for o, r in zip(out, asked, strict=True):
        ttft, end = (o["first_token_ps"] - o["arrival_ps"]) / 1e12, o["finish_ps"] / 1e12
        n = r["output_tokens"]
        tpot = (o["finish_ps"] - o["first_token_ps"]) / 1e12 / (n - 1) if n > 1 else 0.0
        met = ttft <= r["slo_ttft_s"] and tpot <= r["slo_tpot_s"]
        k = min(int(np.searchsorted(times, end - 1e-9)) - 1, len(rewards) - 1)
        value = request_reward(met, ttft / r["slo_ttft_s"], tpot / r["slo_tpot_s"])
        expected[k] += value * (math.exp(-(end - times[k]) / tau_s) if tau_s else 1.0)
    assert rewards == pytest.approx(expected)
    assert 0 < core.tally[0, 1] < len(out)  # some meet their objectives, some do not


def test_a_masked_action_is_refused_by_name():
    env = PDRoutingEnv(small_pool(clusters=("1p1d",)))
    env.reset(seed=0)
    assert env.action_masks().tolist() == [True, False, False, False, True, False]
    with pytest.raises(ValueError, match="action 1 is masked: expected one of 0, 4"):
        env.step(1)
    with pytest.raises(ValueError, match="action 6 is masked"):
        env.step(6)
    env.step(4)


def test_clusters_of_any_size_share_one_space():
    pool = small_pool(clusters=("1p1d", "3p5d", "colocated4"))
    core = RoutingCore(3, pool)
    core.start(range(3), [pool.episode(0, cluster=c) for c in range(3)])
    assert core.masks.sum(axis=1).tolist() == [2, 6, 4]  # colocated: a pair is two different workers
    for _ in range(20):
        core.step(core.masks.argmax(axis=1))
    assert [core.info(e)["cluster"] for e in range(3)] == ["1p1d", "3p5d", "colocated4"]


def test_rewards_of_the_rest_are_in_the_last_step_and_then_it_is_over():
    env = PDRoutingEnv(small_pool())
    steps = play(env, 5)
    assert steps[-1][2]["finished"] + steps[-1][2]["refused"] == len(env.core.episodes[0].problem.requests)
    assert (steps[-1][0] == 0).all()
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)


def test_following_a_scorer_equals_the_compiled_rule_with_its_weights():
    """One source: what the environment shows and what the rule computes are the same candidates and features."""
    from envs.cluster.simulator import run_problem

    rng = np.random.default_rng(4)
    weights = tuple(float(x) for x in np.array(GUARD_LIKE) + rng.normal(0, 0.2, len(GUARD_LIKE)))
    pool = small_pool()
    problem = pool.episode(1).problem
    core = RoutingCore(1, pool)
    core.start([0], [pool.episode(1)])
    while not core.done[0]:
        best, best_hash, best_score = -1, 0, math.inf
        for k in np.flatnonzero(core.observations[0, MASK]):
            x = core.observations[0, CANDIDATES].reshape(SLOTS, N_FEATURES)[k].astype(float)
            p, d = (int(w) for w in core.choices[0, k])
            h = tie_hash(problem.seed, int(core.asked[0]), p * 65536 + d)
            if better(value := score(x, weights), h, best_score, best_hash):
                best, best_hash, best_score = int(k), h, value
        core.step(np.array([best]))
    by_rule = run_problem(problem, learned_policy(weights=weights)).outcomes
    by_env = core._memories[0].arrays["out"]
    for name in ("prefill_worker", "decode_worker", "finish_ps", "first_token_ps"):
        assert (by_rule[name] == by_env[name]).all()


def test_windows_hold_the_requests_asked_for():
    from traces import Trace

    arrivals = np.arange(100) * 0.5
    open_trace = Trace.build("t", {"arrival_s": arrivals, "prompt_tokens": [10] * 100, "output_tokens": [5] * 100})
    windows = cut(open_trace, 20)
    assert {len(w) for w in windows} == {20}
    assert len(windows) == 9
    assert len(cut(open_trace, 500)) == 1
    closed = cut(load_trace("default"), 100)
    assert 50 < np.mean([len(w) for w in closed]) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zone": "all"}, "zone 'all': expected one of train"),
        ({"slo": "strict"}, "slo 'strict': expected tight"),
        ({"loads": []}, "expected positive numbers"),
        ({"clusters": ()}, "clusters: expected at least one"),
        ({"rate_per_s": -1.0}, "expected positive numbers"),
    ],
)
def test_wrong_options_say_what_was_expected(options, message):
    with pytest.raises(ValueError, match=message):
        make_pool(**{"trace": "default", **options})


def test_render_shows_the_question():
    env = PDRoutingEnv(small_pool(), render_mode="ansi")
    env.reset(seed=0)
    lines = env.render().splitlines()
    assert lines[0].startswith("2p2d: 0 finished")
    assert len(lines) == 7
    assert "local on" in lines[-1]
