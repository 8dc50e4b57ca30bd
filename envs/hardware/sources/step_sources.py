"""Sources that hold step times themselves, by the word that a recipe has for each (``adapter``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envs.hardware.errors import MeasurementError
from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import ModelShape
from envs.hardware.sources import distserve, profiled, splitwise
from envs.hardware.sources.files import Origin
from envs.hardware.sources.llmservingsim import LLMSERVINGSIM
from envs.hardware.steps import StepPoint


@dataclass(frozen=True, slots=True)
class Asked:
    """What a recipe asks a source for.

    Attributes:
        data_dir: the data folder.
        tables: the recipe's word for the part of the source: a machine, a file, a folder.
        shape: the model.
        gpu: data sheet of the GPU.
        engine_version: as the recipe states it.
        tensor_parallel: GPUs of a worker.
        precision: of the weights.
        kv_precision: of the cache.
        most_kv_tokens: what a worker's cache holds.
    """

    data_dir: Path
    tables: str
    shape: ModelShape
    gpu: Gpu
    engine_version: str
    tensor_parallel: int
    precision: str
    kv_precision: str
    most_kv_tokens: int

    def expect(self, tensor_parallel: tuple[int, ...], precision: str, why: str) -> None:
        """Refuse what the source does not hold.

        Args:
            tensor_parallel: degrees that it has; empty: any.
            precision: of weights and cache.
            why: in words, for the message.

        Raises:
            MeasurementError: names the key of the recipe.
        """
        if tensor_parallel and self.tensor_parallel not in tensor_parallel:
            raise MeasurementError(
                f"tensor_parallel = {self.tensor_parallel}: expected {', '.join(map(str, tensor_parallel))}: {why}"
            )
        for name, value in (("precision", self.precision), ("kv_precision", self.kv_precision)):
            if value != precision:
                raise MeasurementError(f"{name} = {value}: expected {precision}: {why}")


@dataclass(frozen=True, slots=True)
class StepSource:
    """Step times and where they are from.

    Attributes:
        points: in order.
        origin: where they were published.
        files: (path, sha256) of every file read.
        kind: ``measured`` or ``estimated``.
        method: in words, for the profile.
        more: further words of the profile's source.
    """

    points: list[StepPoint]
    origin: Origin
    files: list[tuple[str, str]]
    kind: str
    method: str
    more: Mapping[str, str] = field(default_factory=dict)


def _splitwise(asked: Asked) -> StepSource:
    points, table = splitwise.splitwise_steps(asked.data_dir, asked.tables, asked.tensor_parallel)
    method = "whole prompt and token steps measured on the machine"
    return StepSource(points, splitwise.SPLITWISE, [(table.relative, table.sha256)], "measured", method)


def _distserve(asked: Asked) -> StepSource:
    asked.expect((), "fp16", "the published constants are of fp16")
    points, file = distserve.distserve_steps(
        asked.data_dir, asked.tables, asked.shape, asked.tensor_parallel, asked.most_kv_tokens
    )
    return StepSource(points, distserve.DISTSERVE, [file], "estimated", distserve.METHOD)


def _llmservingsim(asked: Asked) -> StepSource:
    asked.expect((1,), "bf16", "the profiles are of bf16 and hold no all-reduce")
    points, profile, files = profiled.profiled_steps(
        asked.data_dir, asked.tables, asked.engine_version, asked.shape, asked.gpu, asked.most_kv_tokens
    )
    more = {"mixed_attention": profiled.mixed_words(profile)}
    return StepSource(points, LLMSERVINGSIM, files, "estimated", profiled.METHOD, more)


STEP_SOURCES: dict[str, Callable[[Asked], StepSource]] = {
    "splitwise": _splitwise,
    "distserve": _distserve,
    "llmservingsim": _llmservingsim,
}
