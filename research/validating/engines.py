"""How the measured engines plan a step: policy and token budget, with the source of each.

* vLLM V1 and TensorRT-LLM mix decodes and prompt chunks in one step: role ``mixed``.
* SGLang computes waiting prompts before it goes on with decodes (its default, without mixed chunks): role ``split``
  with all of the contested time for prefill. A share rounds to permille, so :data:`PREFILL_FIRST` is 1,000 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.hardware.gpu import load_gpu
from envs.hardware.sources.engine_memory import sglang_defaults
from envs.hardware.sources.host_time import AHEAD_FROM
from envs.hardware.sources.versions import at_least
from research.validating.ahead import Ahead
from research.validating.batch_wait import BatchWait
from research.validating.launches import Holds, launch_of
from research.validating.protocols import AICONFIGURATOR, INFERENCEX, Protocol

PREFILL_FIRST = 0.9999
"""Prefill share of a split worker that rounds to all of it."""

PREFILL_WORKER_TOKENS = 16384
"""Step budget of disaggregated prefill workers of which no recipe is known: an assumption."""


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """How one engine instance plans its steps.

    Attributes:
        role: of the worker that stands for it.
        budget_tokens: most tokens of a step.
        max_num_seqs: most requests that run at once.
        source: where the budget is written.
        wait: what new prompts wait for, None: nothing.
    """

    role: str
    budget_tokens: int
    max_num_seqs: int
    source: str
    wait: Holds | None = None


def step_policy(run: Mapping[str, Any], protocol: Protocol, budgets: Mapping[str, int | None]) -> StepPolicy:
    """The step policy of a colocated engine.

    Args:
        run: a measured run (columns of ``serving_runs``).
        protocol: of its campaign.
        budgets: step budgets by engine that replace the published ones, None where they do not.
    """
    engine, users = str(run["engine"]), int(run["users"])
    role = "split" if engine == "sglang" else "mixed"
    launch = launch_of(run) if protocol is INFERENCEX and run["layout"] == "colocated" else None
    budget, source = _budget(run, protocol)
    if launch and launch.budget_tokens:
        budget, source = launch.budget_tokens, f"InferenceX benchmarks/single_node/{launch.source}"
    own = budgets.get(engine)
    if own is not None:
        budget, source = own, "given on the command line"
    running = launch.running if launch and launch.running else max(users, _sequences(engine, protocol))
    wait = launch.holds if launch and launch.holds else _wait(run, protocol, budget)
    return StepPolicy(role, budget, running, source, wait)


def _wait(run: Mapping[str, Any], protocol: Protocol, budget: int) -> Holds | None:
    """TensorRT-LLM's batch waiting where it is switched on, else the step that was planned ahead.

    InferenceX benchmarks/70b_fp{4,8}_b200_trt_slurm.sh: 20 iterations or 0.9 of the budget, 1K/1K, TP below 8.
    """
    lengths = (int(run["prompt_tokens"]), int(run["output_tokens"]))
    asked = run["engine"] == "trtllm" and protocol is INFERENCEX and "Llama-3.1-70B" in str(run["model"])
    if asked and run["layout"] == "colocated" and lengths == (1024, 1024) and int(run["tp"]) < 8:
        return BatchWait(iterations=20, tokens=round(0.9 * budget))
    return Ahead() if _plans_ahead(run, protocol) else None


def _plans_ahead(run: Mapping[str, Any], protocol: Protocol) -> bool:
    """Whether the engine plans a step while the one before runs.

    vLLM: by default from 0.14.0; InferenceX's scripts for older ones set ``async-scheduling: true``. TensorRT-LLM: its
    overlap scheduler is the default, but off in aiconfigurator's settings before v0.5.0 (engines older than 1.2).
    SGLang: its overlap schedule is the default from 0.4.
    """
    first = {"vllm": AHEAD_FROM, "trtllm": "1.2.0rc0"}.get(str(run["engine"]))
    return protocol is INFERENCEX or first is None or at_least(run["engine_version"], first)


_GENERATED = {
    "trtllm": "aiconfigurator v0.1.0 to v0.6.0, cli/backends/trtllm.py and rule_plugin/trtllm.rule: agg max_num_tokens",
    "vllm": "aiconfigurator v0.5.0 and v0.6.0, generator/rule_plugin/vllm.rule: agg max_num_tokens",
}
"""Engines for which aiconfigurator wrote launch settings when the runs were made (SGLang's came later), and where."""
_ROOM_TOKENS = 1500
"""What those settings add to the largest batch and one prompt."""


def _generated(engine: str, prompt: int, users: int) -> int:
    """Step budget that aiconfigurator's generator writes for ``users`` and one prompt length.

    Its TensorRT-LLM settings do not split prompts (``enable_chunked_prefill: false``): what is left after the last
    whole one stays empty. With one length, that is a budget of whole prompts.
    """
    if engine == "trtllm":
        return users + (prompt + _ROOM_TOKENS) // prompt * prompt
    return users + prompt + _ROOM_TOKENS


def _sequences(engine: str, protocol: Protocol) -> int:
    """Least limit of running requests; InferenceX sets it to the number of users or above."""
    return {"vllm": 512 if protocol is INFERENCEX else 1024, "trtllm": 2048}.get(engine, 1)


def _budget(run: Mapping[str, Any], protocol: Protocol) -> tuple[int, str]:
    engine, gpu, model = str(run["engine"]), str(run["gpu"]), str(run["model"])
    prompt, output, users = int(run["prompt_tokens"]), int(run["output_tokens"]), int(run["users"])
    if protocol.name == AICONFIGURATOR.name and engine in _GENERATED:
        return _generated(engine, prompt, users), _GENERATED[engine]
    if engine == "vllm":
        if protocol is INFERENCEX:
            return 8192, "InferenceX benchmarks/70b_fp8_h100_slurm.sh, 70b_fp4_b200_docker.sh: max-num-batched-tokens"
        return 8192, "default of vLLM's API server on GPUs of 70 GiB or more (vllm/engine/arg_utils.py)"
    if engine == "sglang":
        chunk = sglang_defaults(load_gpu(gpu))[0]
        return chunk, "default by GPU memory (sglang/srt/server_args.py: chunked_prefill_size)"
    if protocol is not INFERENCEX:
        return 8192, "default of trtllm-serve: max_num_tokens"
    if "Llama-3.1-70B" in model:
        if run["precision"] == "fp4":
            whole = prompt + output + 200
            return (
                whole,
                "InferenceX benchmarks/70b_fp4_b200_trt_slurm.sh: --max_num_tokens MAX_MODEL_LEN (ISL+OSL+200)",
            )
        return 16384, "InferenceX benchmarks/70b_fp8_b200_trt_slurm.sh: --max_num_tokens"
    whole = (users + prompt + 64 + 63) // 64 * 64
    return whole, "InferenceX benchmarks/dsr1_fp8_b200_trt_slurm.sh: MAX_NUM_TOKENS = (CONC+ISL+64+63)/64*64"
