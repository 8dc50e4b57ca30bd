"""How InferenceX launched the engines of models with experts, on one machine: what its scripts set, as a table.

Source: SemiAnalysisAI/InferenceX, benchmarks/single_node/*.sh (before 2026: benchmarks/*_docker.sh, *_slurm.sh), the
same from October 2025 to April 2026 but where a row says so (@ 12ba0ae0, 0ee5ff34, e6554f8e). What a script does not
set is the engine's default and stays for :mod:`research.validating.engines` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.hardware.sources.versions import at_least, version_key
from research.validating.ahead import Ahead, AheadRouter
from research.validating.balancing import Balance, BalancingRouter
from research.validating.batch_wait import BatchWait, WaitingRouter
from research.validating.receiving import Interval, ReceivingRouter
from research.validating.speculating import acceptance_of

Holds = BatchWait | Balance | Interval | Ahead
"""What new prompts wait for: each other (one instance, or the ranks of one), a look for them, or the planned step."""

MANY_USERS = 16
"""From here on, scripts that set SGLang's receive interval raise it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a script sets.

    Attributes:
        source: the script.
        budget_tokens: most tokens of a step; 0: the engine's default.
        running: most requests that run at once; 0: as many as there are users, or more.
        holds: what new prompts wait for; None: nothing.
    """

    source: str
    budget_tokens: int = 0
    running: int = 0
    holds: Holds | None = None


def launch_of(run: Mapping[str, Any]) -> Launch | None:
    """What the script of a colocated InferenceX run sets; None: no such script is known.

    Args:
        run: a measured run (columns of ``serving_runs``), its degrees counted once.
    """
    family = next((name for name in FAMILIES if name in str(run["model"])), "")
    made = FAMILIES.get(family, {}).get(str(run["engine"]))
    return made(run, str(run["gpu"]).split("_")[0]) if made else None


def router_of(holds: Holds | None) -> Any:
    """The router that holds new prompts so, or deals them out in turn; made for one run."""
    from policies.registry import load

    match holds:
        case None:
            return load("round_robin")
        case Balance():
            return BalancingRouter(holds)
        case Interval():
            return ReceivingRouter(holds)
        case BatchWait():
            return WaitingRouter(holds)
        case Ahead():
            return AheadRouter()


def _known_from(run: Mapping[str, Any], first: str) -> bool:
    """Whether a run's engine is known to be of this version or a later one."""
    version = str(run["engine_version"] or "")
    return version_key(version) is not None and at_least(version, first)


def _interval(run: Mapping[str, Any]) -> Interval:
    return Interval(30 if int(run["users"]) >= MANY_USERS else 10)


def _deepseek_sglang(run: Mapping[str, Any], gpu: str) -> Launch | None:
    if gpu == "h200":
        short = int(run["prompt_tokens"]) == int(run["output_tokens"]) == 1024
        return Launch("dsr1_fp8_h200.sh", 32768, 512 if short else 256)
    if gpu not in ("b200", "b300"):
        return None
    if run["precision"] == "fp4":
        return Launch(f"dsr1_fp4_{gpu}.sh", 16384, 256, _interval(run))
    if acceptance_of(run):
        return Launch(f"dsr1_fp8_{gpu}_mtp.sh", 16384, 512, _interval(run))
    if int(run["tp"]) == 4:
        return Launch(f"dsr1_fp8_{gpu}.sh, TP 4", 8192, 32, Interval(10))
    return Launch(f"dsr1_fp8_{gpu}.sh", 32768, 128, _interval(run))


def _qwen_sglang(run: Mapping[str, Any], gpu: str) -> Launch | None:
    if gpu in ("h100", "h200"):
        return Launch(f"qwen3.5_fp8_{gpu}.sh", 16384, 256 if gpu == "h100" else 128)
    if gpu == "b300" and run["precision"] == "fp8":
        return Launch("qwen3.5_fp8_b300.sh", 16384, 0, Interval(10))
    if gpu not in ("b200", "b300"):
        return None
    if acceptance_of(run):
        return Launch(f"qwen3.5_fp8_{gpu}_mtp.sh", 32768, 0, _interval(run))
    return Launch(f"qwen3.5_{run['precision']}_{gpu}.sh", 32768, 128, _interval(run))


def _glm_sglang(run: Mapping[str, Any], gpu: str) -> Launch | None:
    if gpu not in ("b200", "b300"):
        return None
    fp4 = run["precision"] == "fp4"
    return Launch(f"glm5_{'fp4' if fp4 else 'fp8'}_{gpu}.sh", 32768, 0, Interval(10) if fp4 else None)


def _deepseek_trtllm(run: Mapping[str, Any], gpu: str) -> Launch | None:
    """From the end of January 2026, when B200 came to version 1.2, steps hold 8,192 tokens or more and prompts wait."""
    users, prompt = int(run["users"]), int(run["prompt_tokens"])
    budget = (users + prompt + 64 + 63) // 64 * 64
    recent = gpu != "b200" or _known_from(run, "1.2.0.dev0")
    if recent:
        budget = max(8192, budget)
    short = prompt == int(run["output_tokens"]) == 1024
    waits = recent and run["precision"] == "fp8" and gpu == "b200" and short and users >= 64
    holds: Holds | None = BatchWait(iterations=40, tokens=round(0.8 * budget)) if waits else None
    if int(run["dp"] or 1) > 1:
        holds = Balance(60)
    return Launch(f"dsr1_{run['precision']}_{gpu}_trt.sh", budget, 0, holds)


def _gptoss_trtllm(run: Mapping[str, Any], gpu: str) -> Launch:
    """Where ranks are balanced, for TensorRT-LLM's default of iterations (llmapi/llm_args.py: AttentionDpConfig)."""
    return Launch(f"gptoss_fp4_{gpu}_trt.sh", 20000, 0, Balance(50) if int(run["dp"] or 1) > 1 else None)


def _gptoss_vllm(run: Mapping[str, Any], gpu: str) -> Launch:
    return Launch(f"gptoss_fp4_{gpu}.sh", 8192, 512 if gpu == "b200" else int(run["users"]))


def _kimi_vllm(run: Mapping[str, Any], gpu: str) -> Launch:
    return Launch(f"kimik2.5_{run['precision']}_{gpu}.sh", 0, int(run["users"]))


def _minimax_vllm(run: Mapping[str, Any], gpu: str) -> Launch | None:
    """On Blackwell with vLLM 0.19 (from April 2026) a step holds two prompts."""
    if gpu == "h100":
        return Launch("minimaxm2.5_fp8_h100.sh", 0, 256)
    if gpu in ("b200", "b300") and _known_from(run, "0.19"):
        return Launch(f"minimaxm2.5_{run['precision']}_{gpu}.sh", 2 * int(run["prompt_tokens"]))
    return None


FAMILIES: dict[str, dict[str, Callable[[Mapping[str, Any], str], Launch | None]]] = {
    "DeepSeek": {"sglang": _deepseek_sglang, "trtllm": _deepseek_trtllm},
    "Qwen3.5": {"sglang": _qwen_sglang},
    "GLM-5": {"sglang": _glm_sglang},
    "gpt-oss": {"trtllm": _gptoss_trtllm, "vllm": _gptoss_vllm},
    "Kimi-K2.5": {"vllm": _kimi_vllm},
    "MiniMax": {"vllm": _minimax_vllm},
}
"""What a model's name holds -> engine -> what its script sets."""
