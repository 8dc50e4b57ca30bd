"""Benchmark runs on the simulator, for any profile: what a correction is fitted through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from envs.hardware.errors import MeasurementError

if TYPE_CHECKING:
    from envs.cluster.spec import ClusterSpec
    from envs.hardware.from_runs import Array, Predict
    from envs.hardware.profile import Profile
    from research.calibrating.runs_table import BenchmarkRun
    from research.validating.launches import Holds
    from traces import Trace


@dataclass(frozen=True, slots=True)
class Replay:
    """One run: the engine instance that stands for it, its requests, and how it is told.

    Attributes:
        cluster: one colocated instance; its profile and the time before it are replaced.
        trace: the clients' requests.
        words: for messages.
        wait: what new prompts wait for, None: nothing.
        seed: of ties.
    """

    cluster: ClusterSpec
    trace: Trace
    words: str
    wait: Holds | None = None
    seed: int = 0

    def means(self, profile: Profile, request_s: float) -> tuple[float, float]:
        """Mean TTFT and TPOT in seconds.

        Raises:
            MeasurementError: the instance does not serve every request.
        """
        from envs.cluster.simulator import simulate
        from envs.cluster.slo import LOOSE
        from research.validating.launches import router_of

        workers = tuple(replace(worker, profile=profile) for worker in self.cluster.workers)
        cluster = replace(self.cluster, workers=workers, handover=replace(self.cluster.handover, dispatch_s=request_s))
        requests = simulate(self.trace, cluster, router_of(self.wait), LOOSE, seed=self.seed).requests
        served = requests.filter(status="served")
        if served.height < requests.height:
            raise MeasurementError(
                f"{self.words}: profile {profile.name} serves {served.height} of {requests.height} requests: expected "
                f"all; its KV memory holds {profile.kv.capacity_tokens:,} tokens"
            )
        return float(served["ttft_s"].mean()), float(served["tpot_s"].mean())  # type: ignore[arg-type]


def predictor(replays: Sequence[Replay], tick: Callable[[], None] = lambda: None) -> Predict:
    """(profile, request_s) -> means of every run, (n, 2); ``tick`` is called after each simulation."""

    def predict(profile: Profile, request_s: float) -> Array:
        out = np.empty((len(replays), 2))
        for i, replay_ in enumerate(replays):
            out[i] = replay_.means(profile, request_s)
            tick()
        return out

    return predict


@dataclass(frozen=True, slots=True)
class Assumed:
    """What runs do not say of how they were made, tried the same for all of them.

    Attributes:
        rounds: requests of each user.
        start: ``together`` (all at one instant) or ``staggered``: one by one, :data:`APART_S` apart, as a client that
            opens one connection after the other does.
        budget_tokens: most tokens of an engine step; None: the engine's default.
        jitter: lengths are drawn evenly from mean * [1 - jitter, 1 + jitter].
    """

    rounds: int
    start: str
    budget_tokens: int | None
    jitter: float = 0.0

    def words(self) -> str:
        """For tables and messages."""
        said = f"{self.rounds} rounds a user, started {_start(self.start)}, {_budget(self.budget_tokens)}"
        return f"{said}, lengths {_lengths(self.jitter)}" if self.jitter else said

    def words_for(self, runs: Sequence[BenchmarkRun], budget_given: bool) -> str:
        """What the runs are replayed with, each part with where it comes from: given, or tried as this says.

        Args:
            runs: what they say goes before what is assumed.
            budget_given: ``budget_tokens`` is the user's word.
        """
        rounds = _given_or_tried([run.rounds for run in runs], f"{self.rounds}")
        start = _given_or_tried([run.start and _start(run.start) for run in runs], _start(self.start))
        budget = f"{_budget(self.budget_tokens)} ({'given by the command' if budget_given else 'tried'})"
        lengths = _given_or_tried(
            [None if run.jitter is None else _lengths(run.jitter) for run in runs], _lengths(self.jitter)
        )
        return f"rounds a user: {rounds}; started {start}; lengths {lengths}; {budget}"


def _start(start: str) -> str:
    return "all at once" if start == "together" else f"{APART_S * 1e3:g} ms apart"


def _lengths(jitter: float) -> str:
    return f"within {jitter:.0%} of the mean" if jitter else "all alike"


def _budget(tokens: int | None) -> str:
    return "the engine's default budget" if tokens is None else f"{tokens:,} tokens a step"


def _given_or_tried(said: Sequence[int | str | None], tried: str) -> str:
    named = sorted({str(value) for value in said if value is not None}, key=lambda word: (len(word), word))
    given = " and ".join(named)
    if None not in said:
        return f"{given} (given by the runs)"
    return f"{given} (given by some runs), {tried} (tried for the others)" if given else f"{tried} (tried)"


APART_S = 1e-3
"""Between users of a staggered start, given or tried."""
ROUNDS = (3, 5, 10)
JITTERS = (0.0, 1 / 9)
"""Tried where runs do not say: all alike, and from 0.8 of the longest on (``--random-range-ratio 0.8``)."""
BUDGETS = (None, 2048)
"""Tried where neither runs nor user say; 2,048 was the default of vLLM's engine before its servers raised it."""


def assumptions(
    rounds: Sequence[int] = ROUNDS,
    starts: Sequence[str] = ("together", "staggered"),
    budgets: Sequence[int | None] = BUDGETS,
    jitters: Sequence[float] = JITTERS[:1],
) -> list[Assumed]:
    """All combinations."""
    return [Assumed(r, s, b, j) for r in rounds for s in starts for b in budgets for j in jitters]


def replay_of(run: BenchmarkRun, profile: Profile, assumed: Assumed, seed: int = 0) -> Replay:
    """A user's run on one colocated instance that its clients call directly.

    Args:
        run: the run; what it does not say is taken from ``assumed``.
        profile: whose engine and GPU decide how steps are planned (:mod:`research.validating.engines`).
        assumed: what is not known.
        seed: of the lengths.
    """
    from envs.cluster.spec import ClusterSpec, WorkerSpec
    from envs.hardware.load import load_handover
    from research.validating.engines import PREFILL_FIRST, step_policy
    from research.validating.protocols import UNKNOWN
    from traces.clients import client_trace

    facts = {
        "engine": profile.engine, "engine_version": profile.engine_version, "gpu": profile.gpu,
        "model": profile.model, "precision": profile.precision, "tp": profile.tensor_parallel,
        "layout": "colocated", "users": run.users,
        "prompt_tokens": run.prompt_tokens, "output_tokens": run.output_tokens,
    }  # fmt: skip
    policy = step_policy(facts, UNKNOWN, {profile.engine: assumed.budget_tokens})
    worker = WorkerSpec(
        profile, policy.role, max_batched_tokens=policy.budget_tokens, max_num_seqs=policy.max_num_seqs,
        prefix_cache=False, prefill_share=PREFILL_FIRST,
    )  # fmt: skip
    handover = replace(load_handover("nvlink", gpus=profile.gpus), connect_s=0.0)
    trace = client_trace(
        run.users, run.rounds or assumed.rounds, run.prompt_tokens, run.output_tokens,
        assumed.jitter if run.jitter is None else run.jitter, run.start or assumed.start, seed, stagger_s=APART_S,
    )  # fmt: skip
    return Replay(ClusterSpec("colocated1", (worker,), handover), trace, f"line {run.line}", policy.wait, seed)
