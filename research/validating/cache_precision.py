"""The precision of a run's KV cache: what its launch script asks for, or what the engine takes where it asks for none.

Source: SemiAnalysisAI/InferenceX, benchmarks/single_node/*.sh from March to August 2026 (@ 12ba0ae0, e6554f8e,
843c6254): ``--kv-cache-dtype fp8`` (vLLM, SGLang) or ``kv_cache_config: dtype: fp8`` (TensorRT-LLM) in all of them but
those of :data:`SIXTEEN_BITS`, which name no precision, so that the engine keeps the model's own 16 bits (the nvfp4
checkpoints of NVIDIA name fp8 themselves). For other campaigns that is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.hardware.errors import ProfileError
from envs.hardware.gpu import load_gpu
from envs.hardware.sources.versions import at_least

HOPPER = 90


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Runs whose scripts name no precision of the cache.

    Attributes:
        model: what the model's name holds; empty: any.
        engines: which engines.
        precision: of the weights; empty: any.
        hopper: on Hopper GPUs only.
        before: versions older than this; empty: all.
        scripts: which say so.
    """

    model: str
    engines: tuple[str, ...]
    scripts: str
    precision: str = ""
    hopper: bool = True
    before: str = ""

    def holds(self, run: Mapping[str, Any], precision: str, sm: int) -> bool:
        """Whether a run is one of them."""
        return (
            self.model in str(run["model"])
            and str(run["engine"]) in self.engines
            and self.precision in ("", precision)
            and (not self.hopper or sm == HOPPER)
            and (not self.before or not at_least(run["engine_version"], self.before))
        )


SIXTEEN_BITS = (
    Unnamed("", ("vllm", "sglang"), "kimik2.5_int4_{b200,b300,h200}.sh", precision="int4", hopper=False),
    Unnamed("gpt-oss", ("vllm", "trtllm"), "gptoss_fp4_{h100,h200,h200_trt}.sh"),
    Unnamed("MiniMax", ("vllm",), "minimaxm2.5_fp8_{h100,h200}.sh"),
    Unnamed("MiniMax", ("vllm",), "minimaxm2.5_fp8_b200.sh until vLLM 0.18", hopper=False, before="0.19.0"),
    Unnamed("DeepSeek", ("sglang",), "dsr1_fp8_h200.sh"),
    Unnamed("GLM-5", ("sglang",), "glm5_fp8_h200.sh"),
)
"""Launches that leave the cache in 16 bits."""


def cache_precision(run: Mapping[str, Any], precision: str) -> str:
    """The precision of a run's KV cache: ``bf16`` or ``fp8``.

    Args:
        run: a measured run (columns of ``serving_runs``).
        precision: of the weights, in a profile's words.
    """
    if precision in ("bf16", "fp16"):
        return "bf16"
    try:
        sm = load_gpu(str(run["gpu"])).sm
    except ProfileError:
        sm = 0
    return "bf16" if any(rule.holds(run, precision, sm) for rule in SIXTEEN_BITS) else "fp8"
