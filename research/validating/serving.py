"""One measured run on the simulator: the cluster that stands for it, its clients, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envs.cluster.slo import LOOSE
from envs.cluster.spec import ClusterSpec, WorkerSpec
from envs.hardware.load import load_handover
from envs.hardware.profile import HandoverLaw, Profile
from research.validating.batch_wait import WaitingRouter
from research.validating.engines import PREFILL_FIRST, PREFILL_WORKER_TOKENS, StepPolicy, step_policy
from research.validating.profiles import engine_profile, instance_of
from research.validating.protocols import Protocol, protocol_of

ROUTER = "round_robin"
"""Router of every run: requests to prefill and decode workers in turn, as the simplest front ends do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a validation may set besides the runs.

    Attributes:
        link: between prefill and decode workers; None: NVLink within GB200 racks, RDMA elsewhere.
        budgets: step budgets by engine that replace the published ones.
        rounds: rounds of every protocol that was not published, instead of its own.
        seed: of the lengths.
    """

    link: str | None = None
    budgets: tuple[tuple[str, int | None], ...] = ()
    rounds: tuple[int, ...] = ()
    seed: int = 0

    def rounds_of(self, protocol: Protocol) -> Protocol:
        """The protocol with the rounds that are run."""
        if len(protocol.rounds) > 1 and self.rounds:
            return replace(protocol, rounds=tuple(sorted(self.rounds)))
        return protocol


def serve(run: Mapping[str, Any], setting: Setting, data_dir: Path) -> dict[str, Any]:
    """Predicted mean TTFT and TPOT of a run, by rounds.

    Args:
        run: a row of ``serving_runs``.
        setting: what is not in it.
        data_dir: the data folder, for the op tables.

    Returns:
        ``rounds``: a row for each number of rounds with ``rounds, ttft_s, tpot_s, requests, preemptions``; ``profile``,
        ``protocol``, ``budget_tokens``.

    Raises:
        NoProfileError: no step law for one of its instances.
    """
    from envs.cluster.simulator import simulate
    from policies.registry import load as load_policy

    protocol = setting.rounds_of(protocol_of(str(run["campaign"])))
    policy = step_policy(run, protocol, dict(setting.budgets))
    cluster = cluster_of(run, policy, protocol, setting, data_dir)
    rows = []
    for rounds in protocol.rounds:
        trace = protocol.trace(
            int(run["users"]), rounds, int(run["prompt_tokens"]), int(run["output_tokens"]), setting.seed
        )
        router = load_policy(ROUTER) if policy.wait is None else WaitingRouter(policy.wait)
        served = simulate(trace, cluster, router, LOOSE, seed=setting.seed).requests.filter(status="served")
        rows.append(
            {
                "rounds": rounds,
                "ttft_s": served["ttft_s"].mean(),
                "tpot_s": served["tpot_s"].mean(),
                "requests": len(trace),
                "served": served.height,
                "preemptions": int(served["preemptions"].sum()),
            }
        )
    return {
        "rounds": rows,
        "profile": " + ".join(dict.fromkeys(w.profile.name for w in cluster.workers)),
        "protocol": protocol.name,
        "role": policy.role,
        "budget_tokens": policy.budget_tokens,
    }


def cluster_of(
    run: Mapping[str, Any], policy: StepPolicy, protocol: Protocol, setting: Setting, data_dir: Path
) -> ClusterSpec:
    """The cluster that stands for a run.

    Colocated: one instance, whose data-parallel ranks step together. Its API server is a hop like any other (HTTP,
    tokenising): without it, the next prompt of a closed client would come at the very end of a step and join the one
    that an engine has begun by then. Disaggregated: the recorded numbers of workers and degrees; each hop and handover
    as the link's law says, but for connections, which a warm cluster has. No prefix caches: the prompts share nothing.
    """
    if run["layout"] == "colocated":
        profile = engine_profile(instance_of(run), data_dir)
        worker = WorkerSpec(
            profile, policy.role, max_batched_tokens=policy.budget_tokens, max_num_seqs=policy.max_num_seqs,
            prefix_cache=False, prefill_share=PREFILL_FIRST,
        )  # fmt: skip
        handover = replace(load_handover("nvlink", gpus=profile.gpus), connect_s=0.0)
        return ClusterSpec("colocated1", _ranks(worker, int(run["dp"] or 1), 0), handover)
    prefill = engine_profile(instance_of(run, "prefill_"), data_dir)
    decode = engine_profile(instance_of(run, "decode_"), data_dir)
    n, m = int(run["prefill_workers"]), int(run["decode_workers"])
    p = WorkerSpec(
        prefill, "prefill", max_batched_tokens=max(PREFILL_WORKER_TOKENS, int(run["prompt_tokens"])),
        max_num_seqs=policy.max_num_seqs, prefix_cache=False, can_decode=False,
    )  # fmt: skip
    d = WorkerSpec(
        decode, "decode", max_batched_tokens=policy.budget_tokens, max_num_seqs=policy.max_num_seqs, prefix_cache=False
    )  # fmt: skip
    workers = [w for i in range(n) for w in _ranks(p, int(run["prefill_dp"] or 1), i)]
    workers += [w for i in range(m) for w in _ranks(d, int(run["decode_dp"] or 1), n + i)]
    return ClusterSpec(f"{n}p{m}d", tuple(workers), link_of(run, setting, (prefill, decode), protocol.warm))


def link_of(run: Mapping[str, Any], setting: Setting, profiles: tuple[Profile, ...], warm: bool) -> HandoverLaw:
    """The handover law between a run's workers."""
    name = setting.link or ("nvlink" if run["gpu"] == "gb200" else "rdma")
    law = load_handover(name).for_gpus(min(profile.gpus for profile in profiles))
    return replace(law, connect_s=0.0) if warm else law


def _ranks(worker: WorkerSpec, ranks: int, group: int) -> tuple[WorkerSpec, ...]:
    return (worker,) if ranks == 1 else tuple(replace(worker, group=group) for _ in range(ranks))
