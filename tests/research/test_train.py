"""Training: the network is the rule, a run is repeatable and learns, the command leaves what it says."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from policies.features import N_FEATURES
from policies.learned import GUARD_LIKE, N_WEIGHTS, read_policy_file, score
from tests.envs.episodes import busy_pool, small_pool

torch = pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")


def settings(**changes):
    from research.training.learn import PPOSettings

    values = {"num_envs": 16, "group": 4, "steps": 64, "epochs": 2, "minibatch": 512, "learning_rate": 0.01}
    return PPOSettings(**{**values, "entropy": 0.0, "clip": 0.2, "tau_s": 5.0, **changes})


def train(start, decisions=2048, evaluate=lambda weights: 0.0, pool=None, **changes):
    from research.training.learn import train_ppo

    return train_ppo(
        pool or small_pool(),
        settings(**changes),
        start=start,
        seed=3,
        decisions=decisions,
        budget_s=600.0,
        evaluate_every=1024,
        evaluate=evaluate,
    )


def test_the_network_scores_as_the_rule_does():
    from research.training.network import Scorer, random_start

    scorer, weights = Scorer(), random_start(1)
    scorer.load(weights)
    assert scorer.weights() == pytest.approx(weights, rel=1e-6)
    x = np.random.default_rng(0).normal(size=(20, N_FEATURES))
    got = scorer(torch.tensor(x, dtype=torch.float32)).detach().numpy()
    assert got == pytest.approx([score(row, weights) for row in x], rel=1e-4, abs=1e-5)


def test_only_legal_candidates_are_sampled():
    from envs.sb3 import sb3_vec_env
    from research.training.network import CandidatePolicy, random_start

    env = sb3_vec_env(32, small_pool(clusters=("1p1d",)))
    env.seed(0)
    policy = CandidatePolicy(env.observation_space, env.action_space, lambda _: 1e-3, initial=random_start(0))
    observations = torch.as_tensor(env.reset())
    torch.manual_seed(0)
    chosen = set()
    for _ in range(30):
        with torch.no_grad():
            actions, values, log_p = policy(observations)
        chosen |= set(actions.tolist())
        assert values.shape == (32, 1)
    assert chosen == {0, 4}
    with torch.no_grad():
        again, told, entropy = policy.evaluate_actions(observations, actions)
    assert told.tolist() == pytest.approx(log_p.tolist())
    assert (again == values).all()
    assert float(entropy.max()) <= math.log(2) + 1e-6


def test_starts():
    from research.training.learn import start_weights

    assert start_weights("random", 0) == start_weights("random", 0) != start_weights("random", 1)
    hand = start_weights("guard_like", 0)
    assert hand[:32] == tuple(20.0 * x for x in GUARD_LIKE[:32])
    x = np.random.default_rng(0).uniform(0, 2, N_FEATURES)
    assert score(x, hand) == pytest.approx(20.0 * score(x, GUARD_LIKE))
    with pytest.raises(ValueError, match="init 'zero': expected one of random, guard_like"):
        start_weights("zero", 0)


def test_a_training_run_is_repeatable_and_keeps_the_best():
    from research.training.learn import start_weights

    def first_weight_is_good(weights):
        return weights[0]

    start = start_weights("random", 0)
    a, b = (train(start, evaluate=first_weight_is_good) for _ in range(2))
    assert a.weights == b.weights
    assert a.last == b.last != start
    assert a.decisions == 2048
    assert a.best_validation == a.weights[0] >= a.start_validation == start[0]
    assert a.weights[0] == max(v for p in a.curve if (v := p.validation_attainment) == v)
    assert a.curve[0].decisions == 0
    assert 0.0 < a.curve[1].train_attainment < 1.0


def test_learns_in_seconds():
    """From random weights, on the episodes that it trains on: the share of requests within their objectives."""
    from research.training.learn import start_weights

    start = start_weights("random", 0)
    sizes = {"num_envs": 64, "group": 8, "steps": 160, "epochs": 4, "minibatch": 2560, "learning_rate": 0.02}
    done = train(start, 8 * 64 * 160, pool=busy_pool(), **sizes)
    curve = [p.train_attainment for p in done.curve if p.train_attainment == p.train_attainment]
    assert len(curve) == 8
    assert np.mean(curve[-2:]) > curve[0] + 0.1


def test_the_command_leaves_policy_curve_and_an_honest_table(tmp_path):
    from research.cli import compose_config
    from research.train import train as command

    words = ["trace=default", "rate_per_s=1.0", f"out={tmp_path}", "decisions=2048", "episode_requests=40", "windows=2"]
    words += [
        "ppo.num_envs=16",
        "ppo.group=4",
        "ppo.steps=64",
        "ppo.minibatch=512",
        "validate.windows=1",
        "validate.every=1024",
    ]
    words += ["robustness=[]", "report=false", "requests=false", "tracking.enabled=false", "workers=1"]
    summary = command(compose_config("train", words))
    policy, start = (read_policy_file(tmp_path / name) for name in ("policy.json", "start.json"))
    assert len(policy["weights"]) == N_WEIGHTS
    assert (
        policy["training"]["attainment"]["learned"]["validation"]
        >= policy["training"]["attainment"]["start"]["validation"]
    )
    assert start["training"]["trace_sha256"] == policy["training"]["trace_sha256"]
    assert json.loads((tmp_path / "summary.json").read_text())["training"]["decisions"] == 2048
    assert {row["policy"] for row in summary["rows"]} == {"learned", "learned_start", "random", "round_robin", "guard"}
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["decisions"]) for row in rows] == [0, 1024, 2048, 2048]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algo=pppo", "algo=pppo: expected ppo"),
        ("init=zero", "init=zero: expected random, guard_like"),
        ("ppo.group=5", "ppo.group=5: expected a divisor of ppo.num_envs=128"),
        ("ppo.minibatch=5000", "ppo.minibatch=5000: expected a divisor of ppo.num_envs x ppo.steps = 65536"),
        ("decisions=0", "decisions=0: expected a whole number of at least 1"),
        ("ppo.tau_s=-1", "ppo.tau_s=-1: expected a number above 0"),
    ],
)
def test_wrong_settings_are_one_line(word, message, capsys):
    from research.train import main

    assert main([word, "trace=default", "tracking.enabled=false"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_throughput_tells_decisions_a_second():
    from research.training import throughput

    told = throughput(num_envs=4, decisions=400, repeats=1, trace="default", rate_per_s=1.0)
    assert told["decisions_per_s"] > 0
    assert told["decisions_per_cpu_s"] > 0
    assert (told["num_envs"], told["decisions"]) == (4, 400)
