"""``python -m research.train``: train the learned policy, then compare it on the test zone like any other policy."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from research.cli import run_command
from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from research.choices import PolicyChoice
    from research.study import Study
    from research.training.learn import PPOSettings, Trained

SUMMARY = (
    "Train a small shared scorer on train windows, keep the best on validation windows, compare it on test windows."
)
EXAMPLES = (
    "algo=ppo trace=azure_conv cluster=2p2d slo=tight load=1.0 budget_s=600 seed=0 out=DIR",
    "algo=ppo trace=azure_code cluster=1p3d init=guard_like decisions=1000000",
)
ALGORITHMS = ("ppo",)


def run(config: DictConfig) -> int:
    """Train and compare."""
    train(config)
    return 0


def train(config: DictConfig) -> dict[str, Any]:
    """The whole command; returns the summary."""
    from research import compare
    from research.conduct import conduct
    from research.evidence import runs, table
    from research.evidence.runs import RunStore, make_folder
    from research.execute import Runner
    from research.knee import find_knee, scales
    from research.study import study_from

    start_s = time.perf_counter()
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    options = Options(plain)
    study = study_from(config, "train")
    console = table.make_console()
    console.print(compare.introduction(study), highlight=False)
    make_folder(study.out)
    runner = Runner(RunStore.open(study.store), study.workers, console, study.out / "failures.txt")
    knee = None if study.rates_per_s else find_knee(study, runner)
    if knee is not None:
        console.print(knee.sentence(study), highlight=False)
    at = scales(study, knee)
    trained, told = fit(study, options, [(load, rate) for load, rate, _ in at], console)
    learned, start = save(study, trained, told)
    study = replace(study, policies=(learned, start, *study.policies))
    done = conduct(study, console)
    summary = compare.summarise(study, done) | {"training": told}
    runs.write_json(study.out / "summary.json", summary)
    report, tracked = compare.show(study, summary, console)
    if tracked is not None:
        from research.training.record import log_training

        log_training(trained.curve, summary, study.out, uri=study.tracking["uri"], folder=study.store.parent,
                     experiment=study.tracking["experiment"])  # fmt: skip
    console.print()
    console.print(
        compare.ending(study, done, report, tracked, time.perf_counter() - start_s, summary),
        highlight=False,
        soft_wrap=True,
    )
    policy = study.out / "policy.json"
    console.print(f"policy   {policy}  (policy=learned policy.path={policy})", highlight=False, soft_wrap=True)
    return summary


class Options:
    """The settings that only training has, checked.

    Raises:
        ResearchError: a value that is no good.
    """

    def __init__(self, plain: dict[str, Any]) -> None:
        from research.settings import Settings

        number = Settings(plain)
        if plain["algo"] not in ALGORITHMS:
            hint = nearest(str(plain["algo"]), ALGORITHMS)
            raise ResearchError(f"algo={plain['algo']}: expected {', '.join(ALGORITHMS)}{hint}")
        starts = ("random", "guard_like")
        if plain["init"] not in starts:
            hint = nearest(str(plain["init"]), starts)
            raise ResearchError(f"init={plain['init']}: expected {', '.join(starts)}{hint}")
        self.algo, self.init = str(plain["algo"]), str(plain["init"])
        self.decisions = int(number("decisions", low=1, whole=True))
        self.budget_s = number("budget_s", above=0.0)
        self.episode_requests = int(number("episode_requests", low=8, whole=True))
        self.overlap = number("overlap", low=0.0, below=1.0)
        self.spread = number.many("spread")
        self.validation_windows = int(number("validate.windows", low=1, whole=True))
        self.validate_every = int(number("validate.every", low=1, whole=True))
        counts = ("num_envs", "group", "steps", "epochs", "minibatch")
        self.ppo: dict[str, Any] = {name: int(number(f"ppo.{name}", low=1, whole=True)) for name in counts}
        self.ppo |= {name: number(f"ppo.{name}", above=0.0) for name in ("learning_rate", "clip", "tau_s")}
        self.ppo["entropy"] = number("ppo.entropy", low=0.0)
        envs, steps = self.ppo["num_envs"], self.ppo["steps"]
        if envs % self.ppo["group"]:
            raise ResearchError(f"ppo.group={self.ppo['group']}: expected a divisor of ppo.num_envs={envs}")
        size = self.ppo["minibatch"]
        if envs * steps % size:
            raise ResearchError(
                f"ppo.minibatch={size}: expected a divisor of ppo.num_envs x ppo.steps = {envs * steps}"
            )

    def ppo_settings(self) -> PPOSettings:
        """Settings of PPO."""
        from research.training.learn import PPOSettings

        return PPOSettings(**self.ppo)


def fit(
    study: Study, options: Options, rates: list[tuple[float, float]], console: Console
) -> tuple[Trained, dict[str, Any]]:
    """Train; what came out, and what to tell about it."""
    try:
        from research.training.learn import Point, start_weights, train_ppo
    except ModuleNotFoundError as error:
        raise ResearchError(f"{error.name} is not installed, and training needs it: pip install 'pdgym[rl]'") from None
    from envs.episodes import EpisodePool, cut
    from research.choices import PolicyChoice
    from research.execute import simulate_run

    zones = ("train", "validation")
    windows = cut(study.trace.zone("train"), options.episode_requests, options.overlap)
    pace = study.trace.pace_per_s("train")
    pool = EpisodePool(
        windows,
        [study.cluster],
        study.slo,
        [(load * part, rate * part / pace) for load, rate in rates for part in options.spread],
        study.seed,
    )

    def attainment(policy: PolicyChoice, zone: str, n: int) -> float:
        own = study.trace.pace_per_s(zone)
        runs = [
            study.run(policy, i, rate / own, study.seed, zone=zone, windows=n, requests=False)
            for _, rate in rates
            for i in range(n)
        ]
        values = [simulate_run(run)[0]["attainment"] for run in runs]
        known = [v for v in values if v is not None]
        return sum(known) / len(known)

    def of_weights(weights: tuple[float, ...], zone: str = "validation") -> float:
        policy = PolicyChoice("learned", "learned", None, (("weights", weights),))
        return attainment(policy, zone, options.validation_windows)

    def tell(point: Point) -> None:
        value = point.validation_attainment
        if value == value:
            text = f"{point.seconds:5.0f} s {point.decisions:>11,} decisions  validation attainment {value:.3f}"
            console.print(text, highlight=False)

    console.print(
        f"training on {len(windows)} windows of {options.episode_requests} requests: {options.decisions:,} decisions, "
        f"at most {options.budget_s:g} s ({options.algo}, {options.init} start, seed {study.seed})",
        highlight=False,
    )
    trained = train_ppo(
        pool,
        options.ppo_settings(),
        start=start_weights(options.init, study.seed),
        seed=study.seed,
        decisions=options.decisions,
        budget_s=options.budget_s,
        evaluate_every=options.validate_every,
        evaluate=of_weights,
        report=tell,
    )
    others = {p.label: {z: attainment(p, z, options.validation_windows) for z in zones} for p in study.entrants}
    told = {
        "settings": {
            "algo": options.algo,
            "init": options.init,
            "seed": study.seed,
            "decisions": options.decisions,
            "budget_s": options.budget_s,
            "episode_requests": options.episode_requests,
            "train_windows": len(windows),
            "overlap": options.overlap,
            "spread": list(options.spread),
            "rates_per_s": [rate for _, rate in rates],
            "loads": [load for load, _ in rates],
            options.algo: asdict(options.ppo_settings()),
        },
        "seconds": trained.seconds,
        "update_seconds": trained.update_seconds,
        "best_at_s": trained.best_at_s,
        "decisions": trained.decisions,
        "decisions_per_s": trained.decisions / trained.seconds,
        "validation_windows": options.validation_windows,
        "attainment": {
            "learned": {z: of_weights(trained.weights, z) for z in zones},
            "start": {z: of_weights(trained.start, z) for z in zones},
            **others,
        },
    }
    return trained, told


def save(study: Study, trained: Trained, told: dict[str, Any]) -> tuple[PolicyChoice, PolicyChoice]:
    """Write the policy, its start and the curve; the two as policies of a study."""
    from research.choices import PolicyChoice
    from research.evidence.provenance import command_line
    from research.training.policyfile import write_policy_file
    from research.training.record import draw_curve, write_curve

    trace = study.trace.load()
    training = {
        "command": command_line("train"),
        "trace": study.trace.name,
        "trace_sha256": trace.sha256,
        "train_sha256": study.trace.zone("train").sha256,
        "cluster": study.cluster.name,
        "profile": study.hardware["profile"],
        "slo": study.slo.name,
        **told,
    }
    policy, start = study.out / "policy.json", study.out / "start.json"
    write_policy_file(policy, trained.weights, training)
    write_policy_file(start, trained.start, {**training, "decisions": 0})
    write_curve(study.out / "curve.csv", trained.curve)
    levels = {p.label: told["attainment"][p.label]["validation"] for p in study.entrants}
    draw_curve(study.out / "curve.png", trained.curve, levels)
    return (
        PolicyChoice("learned", "learned", None, (("path", str(policy)),)),
        PolicyChoice("learned_start", "learned", None, (("path", str(start)),)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` replaces the words of the command line."""
    return run_command("train", run, summary=SUMMARY, examples=EXAMPLES, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
