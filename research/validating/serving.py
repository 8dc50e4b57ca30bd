"""One measured run on the simulator: the cluster that stands for it, its clients, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.cluster.slo import LOOSE
from envs.cluster.spec import ClusterSpec, WorkerSpec
from envs.hardware.gpu import load_gpu
from envs.hardware.load import load_handover
from envs.hardware.model_shape import load_model
from envs.hardware.profile import HandoverLaw, KvLaw, Profile
from research.validating.engines import PREFILL_FIRST, PREFILL_WORKER_TOKENS, StepPolicy, step_policy
from research.validating.launches import router_of
from research.validating.profiles import Instance, engine_profile, instance_of
from research.validating.protocols import Protocol, protocol_of
from research.validating.recipes import Role, recipe_of
from research.validating.recipes_front_ends import FrontEnds
from research.validating.recipes_groups import busy_share, launched_profile
from research.validating.speculating import acceptance_of, steps_of, verifying

if TYPE_CHECKING:
    import polars as pl

    from traces import Trace

HANDED_TOKENS = 64
"""Blocks that vLLM's recipes set, and SGLang with the recipes' attention (``trtllm_mla``: pages of 64)."""
STREAMS_FIRST = ("sglang", "trtllm")
"""Engines whose decode worker streams the prefill worker's token when it takes a request in, before a step of its own.

SGLang: ``event_loop_*_disagg_decode`` streams a prebuilt batch; TensorRT-LLM: ``_handle_first_token_response``.
"""
PASSES = 4
"""How often a run is simulated at most until its groups are as full as its law assumes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a validation may set besides the runs.

    Attributes:
        link: between prefill and decode workers; None: NVLink within racks that it joins, RDMA elsewhere, each with
            the published work around a pull.
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
        ``protocol``, ``role``, ``budget_tokens``.

    Raises:
        NoProfileError: no step law for one of its instances.
    """
    protocol = setting.rounds_of(protocol_of(str(run["campaign"])))
    policy = step_policy(run, protocol, dict(setting.budgets))
    acceptance, output = acceptance_of(run), int(run["output_tokens"])
    steps = steps_of(output, acceptance) if acceptance else output
    cluster = cluster_of(run, policy, protocol, setting, data_dir)
    rows = []
    for rounds in protocol.rounds:
        trace = protocol.trace(int(run["users"]), rounds, int(run["prompt_tokens"]), steps, setting.seed)
        if run["layout"] == "colocated":
            served = _colocated(trace, cluster, policy, setting.seed)
        else:
            served = _disaggregated(run, trace, cluster, setting.seed, data_dir)
        if acceptance:  # a step emits several tokens, of which the client sees the mean time
            served["tpot_s"] *= (protocol.mean_tokens(steps) - 1) / (protocol.mean_tokens(output) - 1)
        rows.append({"rounds": rounds, "requests": len(trace), **served})
    return {
        "rounds": rows,
        "profile": " + ".join(dict.fromkeys(w.profile.name for w in cluster.workers)),
        "protocol": protocol.name,
        "role": policy.role,
        "budget_tokens": policy.budget_tokens,
    }


def _colocated(trace: Trace, cluster: ClusterSpec, policy: StepPolicy, seed: int) -> dict[str, Any]:
    from envs.cluster.simulator import simulate

    return _means(simulate(trace, cluster, router_of(policy.wait), LOOSE, seed=seed).requests)


def _disaggregated(
    run: Mapping[str, Any], trace: Trace, cluster: ClusterSpec, seed: int, data_dir: Path
) -> dict[str, Any]:
    """Simulated until the prefill groups are as full as their law takes them to be (:mod:`.recipes_groups`)."""
    from envs.cluster.simulator import simulate

    recipe, instance = recipe_of(run), _instance(run, "prefill")
    ranks = max(1, instance.data_parallel)
    prefill, decode = (_pools(cluster, role) for role in ("prefill", "decode"))
    router = FrontEnds(recipe.frontends if recipe else 1, prefill, decode, bool(recipe and recipe.prefill.random))
    ids, share = [i for worker in prefill for i in worker], 1.0
    result = simulate(trace, cluster, router, LOOSE, seed=seed)
    for _ in range(PASSES - 1):
        found = busy_share(result.workers, ids, 1.0 / ranks)
        if ranks == 1 or found == share:
            break
        share = found
        profile = launched_profile(instance, data_dir, recipe.prefill.deepep if recipe else None, share)
        workers = tuple(replace(w, profile=profile) if w.role == "prefill" else w for w in cluster.workers)
        result = simulate(trace, replace(cluster, workers=workers), router, LOOSE, seed=seed)
    means = _means(result.requests)
    if run["engine"] in STREAMS_FIRST:
        means["ttft_s"] -= means["tpot_s"]
    if recipe and recipe.decode.receive_steps > 1:
        means["ttft_s"] += recipe.decode.receive_steps / 2.0 * means["tpot_s"]
    return means


def _means(requests: pl.DataFrame) -> dict[str, Any]:
    served = requests.filter(status="served")
    return {
        "ttft_s": served["ttft_s"].mean(),
        "tpot_s": served["tpot_s"].mean(),
        "served": served.height,
        "preemptions": int(served["preemptions"].sum()),
    }


def cluster_of(
    run: Mapping[str, Any], policy: StepPolicy, protocol: Protocol, setting: Setting, data_dir: Path
) -> ClusterSpec:
    """The cluster that stands for a run.

    Colocated: one instance, whose data-parallel ranks step together. Its API server is a hop like any other (HTTP,
    tokenising): without it, the next prompt of a closed client would come at the very end of a step and join the one
    that an engine has begun by then. Disaggregated: the recorded numbers of workers and degrees; each hop and handover
    as the link's law says, but for connections, which a warm cluster has. A recipe's degrees and limits count where one
    is known. No prefix caches: the prompts share nothing.
    """
    if run["layout"] == "colocated":
        profile = engine_profile(instance_of(run), data_dir)
        if acceptance := acceptance_of(run):
            profile = verifying(profile, acceptance, load_model(str(run["model"])).layers)
        worker = WorkerSpec(
            profile, policy.role, max_batched_tokens=policy.budget_tokens, max_num_seqs=policy.max_num_seqs,
            prefix_cache=False, prefill_share=PREFILL_FIRST,
        )  # fmt: skip
        handover = replace(load_handover("nvlink", gpus=profile.gpus), connect_s=0.0)
        return ClusterSpec("colocated1", _ranks(worker, int(run["dp"] or 1), 0), handover)
    recipe = recipe_of(run)
    prefill, decode = (
        launched_profile(_instance(run, phase), data_dir, getattr(recipe, phase).deepep if recipe else None)
        for phase in ("prefill", "decode")
    )
    if run["engine"] != "trtllm":
        decode = replace(decode, kv=_in_blocks(decode.kv, HANDED_TOKENS))
    p = WorkerSpec(
        prefill, "prefill", max_batched_tokens=max(PREFILL_WORKER_TOKENS, int(run["prompt_tokens"])),
        max_num_seqs=policy.max_num_seqs, prefix_cache=False, can_decode=False,
    )  # fmt: skip
    d = WorkerSpec(
        decode, "decode", max_batched_tokens=policy.budget_tokens, max_num_seqs=policy.max_num_seqs, prefix_cache=False
    )  # fmt: skip
    if recipe:
        p, d = _limited(p, recipe.prefill, run), _limited(d, recipe.decode, run)
    n, m = int(run["prefill_workers"]), int(run["decode_workers"])
    ranks = [_instance(run, phase).data_parallel for phase in ("prefill", "decode")]
    workers = [w for i in range(n) for w in _ranks(p, ranks[0], i)]
    workers += [w for i in range(m) for w in _ranks(d, ranks[1], n + i)]
    return ClusterSpec(f"{n}p{m}d", tuple(workers), link_of(run, setting, (prefill, decode), protocol.warm))


def _instance(run: Mapping[str, Any], phase: str) -> Instance:
    """A run's prefill or decode instance, with the degrees of its recipe if it has one."""
    instance, recipe = instance_of(run, f"{phase}_"), recipe_of(run)
    if recipe is None:
        return instance
    role: Role = getattr(recipe, phase)
    return replace(instance, tensor_parallel=role.tp, data_parallel=role.dp, expert_parallel=role.ep)


def _limited(worker: WorkerSpec, role: Role, run: Mapping[str, Any]) -> WorkerSpec:
    """A worker with a recipe's limits.

    A prefill worker of SGLang keeps the place of a request until its cache is handed over, as the simulator keeps its
    blocks: so many places are KV memory for so many prompts.
    """
    kv = worker.profile.kv
    tokens = min(role.kv_tokens or kv.capacity_tokens, kv.capacity_tokens)
    if worker.role == "prefill" and run["engine"] == "sglang" and role.seqs:
        tokens = min(tokens, role.seqs * -(-int(run["prompt_tokens"]) // kv.block_tokens) * kv.block_tokens)
    budget = role.tokens if worker.role == "prefill" and role.tokens else worker.max_batched_tokens
    return replace(
        worker, max_batched_tokens=budget, max_num_seqs=role.seqs or worker.max_num_seqs,
        kv_tokens=tokens if tokens < kv.capacity_tokens else None,
    )  # fmt: skip


def _in_blocks(kv: KvLaw, tokens: int) -> KvLaw:
    return replace(kv, block_tokens=tokens, capacity_tokens=kv.capacity_tokens // tokens * tokens)


def _pools(cluster: ClusterSpec, role: str) -> list[list[int]]:
    """Ids of the ranks of each worker of a role."""
    pools: dict[int, list[int]] = {}
    for i, worker in enumerate(cluster.workers):
        if worker.role == role:
            pools.setdefault(worker.group if worker.group >= 0 else -1 - i, []).append(i)
    return list(pools.values())


def link_of(run: Mapping[str, Any], setting: Setting, profiles: tuple[Profile, ...], warm: bool) -> HandoverLaw:
    """The handover law between a run's workers.

    TensorRT-LLM gathers a prompt's blocks in one buffer (``cache_transceiver_config`` of its recipes), so that blocks
    cost nothing of their own there.
    """
    name = setting.link or ("nixl-nvlink" if load_gpu(str(run["gpu"])).joins_machines else "nixl-rdma")
    law = load_handover(name).for_gpus(min(profile.gpus for profile in profiles))
    if setting.link is None and run["engine"] == "trtllm":
        law = replace(law, per_block_s=0.0)
    return replace(law, connect_s=0.0) if warm else law


def _ranks(worker: WorkerSpec, ranks: int, group: int) -> tuple[WorkerSpec, ...]:
    return (worker,) if ranks == 1 else tuple(replace(worker, group=group) for _ in range(ranks))
