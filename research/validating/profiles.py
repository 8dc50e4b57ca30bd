"""The profile of a measured engine instance, from op tables alone: nothing in it is fitted to the runs it predicts.

The one place where validation asks for a profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError, ProfileError
from envs.hardware.model_shape import load_model
from envs.hardware.profile import Profile
from research.validating.cache_precision import cache_precision
from research.validating.protocols import INFERENCEX, protocol_of

PRECISIONS = {"fp4": "nvfp4"}
"""Precision of a run -> that of a profile."""
CHECKPOINTS = {
    ("deepseek-ai/", "fp8"): "fp8_block",
    ("Qwen/Qwen3-235B-A22B", "fp8"): "fp8_block",
    ("Qwen/Qwen3-32B", "fp8"): "fp8_block",
    ("MiniMaxAI/", "fp8"): "fp8_block",
    ("Qwen/Qwen3.5", "fp8"): "fp8_block",
    ("openai/gpt-oss", "fp4"): "mxfp4",
}
"""(start of a model's name, precision of a run) -> precision of the published weights, by their ``config.json``.

The table's own column calls Qwen3-32B's products ``fp8``. The weights that Qwen published in FP8 are scaled by blocks,
and so is aiconfigurator's default for dense models (v0.1.0, ``dense_default.yaml``); measured times agree with that.
"""


@cache
def is_dense(model: str) -> bool:
    """Whether a model has no experts, by its shape; runs of dense ones carry degrees of experts all the same."""
    try:
        return load_model(model).experts is None
    except ProfileError:  # nobody can predict it
        return False


class NoProfileError(Exception):
    """No op tables, model shape or GPU for a run; the message says which."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine instance, or one data-parallel rank of it.

    Attributes:
        model: as in the table of runs.
        gpu: as in the table of runs.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        engine_version: as recorded, may be empty.
        tensor_parallel: GPUs that share attention heads.
        pipeline_parallel: stages.
        data_parallel: ranks that share the experts.
        expert_parallel: groups of GPUs among which the experts are dealt out.
        dense: whether the model has no experts.
        precision: of the weights.
        kv_precision: of the KV cache.
        sampling: how its requests have their tokens chosen, ``greedy`` or the engine's ``default``.
    """

    model: str
    gpu: str
    engine: str
    engine_version: str
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: int
    dense: bool
    precision: str
    kv_precision: str
    sampling: str


def instance_of(run: Mapping[str, Any], phase: str = "") -> Instance:
    """The instance that a run was made with; ``phase`` is ``prefill_`` or ``decode_`` where they differ.

    The cache's precision: :func:`research.validating.cache_precision.cache_precision`.
    InferenceX's clients ask for temperature 0
    (``utils/bench_serving/backend_request_func.py``); aiconfigurator's name none (``genai_perf_runner.py``).
    """
    named = str(run["precision"] or "bf16")
    published = [p for (start, said), p in CHECKPOINTS.items() if str(run["model"]).startswith(start) and said == named]
    precision = published[0] if published else PRECISIONS.get(named, named)
    return Instance(
        model=str(run["model"]),
        gpu=str(run["gpu"]),
        engine=str(run["engine"]),
        engine_version=str(run["engine_version"] or ""),
        tensor_parallel=int(run[f"{phase}tp"]),
        pipeline_parallel=int(run[f"{phase}pp"] or 1),
        data_parallel=int(run[f"{phase}dp"] or 1),
        expert_parallel=int(run[f"{phase}moe_ep"] or 1),
        dense=is_dense(str(run["model"])),
        precision=precision,
        kv_precision=cache_precision(run, precision),
        sampling="greedy" if protocol_of(str(run["campaign"])) is INFERENCEX else "default",
    )


@cache
def engine_profile(instance: Instance, data_dir: Path) -> Profile:
    """The profile of an instance; made once a process.

    Raises:
        NoProfileError: nothing to make it from.
    """
    from envs.hardware.estimate import profile_for
    from envs.hardware.estimate_moe import expert_profile_for
    from envs.hardware.layout import Layout

    if instance.pipeline_parallel > 1:
        raise NoProfileError(f"no step law for pipeline parallelism (pp {instance.pipeline_parallel})")
    version = instance.engine_version or None
    names = (instance.model, instance.gpu, instance.engine, version)
    precisions = (instance.precision, instance.kv_precision)
    try:
        if instance.dense:
            if instance.data_parallel > 1:
                raise NoProfileError("no step law for data-parallel ranks of a dense model")
            return profile_for(*names, instance.tensor_parallel, *precisions, data_dir, sampling=instance.sampling)
        layout = Layout(instance.tensor_parallel, instance.data_parallel, instance.expert_parallel)
        return expert_profile_for(*names, layout, *precisions, data_dir)
    except (MeasurementError, ProfileError) as error:
        raise NoProfileError(str(error)) from error
