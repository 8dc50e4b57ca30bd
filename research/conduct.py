"""Conducts a study: finds the knee, runs every policy on every window at every load, gathers the cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from research.evidence.runs import RunStore, make_folder
from research.evidence.summary import Cell
from research.evidence.worlds import contenders, cost
from research.execute import Runner
from research.knee import Knee, find_knee, scales

if TYPE_CHECKING:
    from research.choices import PolicyChoice
    from research.study import Run, Study


@dataclass(frozen=True, slots=True)
class Conducted:
    """What a study found.

    Attributes:
        knee: None where rates were given.
        cells: the comparison, by load and policy.
        robustness: the same at one load with the policies' predictor off.
        worlds: the same at one load in drawn worlds, for the policies that are ranked.
        keys: runs of the comparison in the store, by policy and rate.
        runner: counts of runs made and reused.
    """

    knee: Knee | None
    cells: list[Cell]
    robustness: list[Cell]
    worlds: list[Cell]
    keys: dict[tuple[str, float], list[str]]
    runner: Runner


def conduct(study: Study, console: Console) -> Conducted:
    """Run a study, or what is missing of it."""
    make_folder(study.out)
    runner = Runner(RunStore.open(study.store), study.workers, console, study.out / "failures.txt")
    knee = None
    if not study.rates_per_s:
        knee = find_knee(study, runner)
        console.print(knee.sentence(study), highlight=False)
    at = scales(study, knee)
    near = at[len(at) // 2] if math.isnan(at[0][0]) else min(at, key=lambda a: abs(math.log(a[0])))
    wanted = [(load, rate, scale, 0.0, 0) for load, rate, scale in at]
    wanted += [(*near, off_by, 0) for off_by in study.robustness]
    if (told := cost(study)) is not None:
        console.print(told, highlight=False)
    ranked = contenders(study)
    wanted += [(*near, 0.0, world) for world in range(1, study.worlds + 1)]
    plan: list[tuple[PolicyChoice, float, float, float, int, list[Run]]] = []
    for load, rate, scale, off_by, world in wanted:
        for policy in ranked if world else study.entrants:
            requests = study.requests and not off_by and not world
            runs = [
                study.run(policy, window, scale, seed, off_by=off_by, world=world, requests=requests)
                for window in range(study.windows)
                for seed in (study.seed_list()[:1] if world else study.seed_list())
            ]
            plan.append((policy, load, rate, off_by, world, runs))
    # One batch, so that all cores are busy to the end.
    results = iter(runner.run(study, [run for *_, runs in plan for run in runs], "simulating"))
    cells = [
        Cell(policy.label, load, rate, off_by, tuple(r.window for r in runs), tuple(next(results) for _ in runs), world)
        for policy, load, rate, off_by, world, runs in plan
    ]
    keys = {
        (p.label, rate): runner.keys(study, runs) for p, _, rate, off_by, world, runs in plan if not (off_by or world)
    }
    plain = [c for c in cells if not (c.off_by or c.world)]
    return Conducted(knee, plain, [c for c in cells if c.off_by], [c for c in cells if c.world], keys, runner)
