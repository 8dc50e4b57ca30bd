"""DistServe's published constants: prompt and token times of OPT models on A100 GPUs, as laws that its authors fitted.

Milliseconds: a prompt step takes ``a + b * tokens + c * sum of squared lengths``, a decode step ``a + b * context
tokens + c * sequences``, with other constants from a number of sequences on. The runs behind them are not published. So
what a fit to them misses is the difference between two laws, not between a law and measurements.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError
from envs.hardware.model_shape import ModelShape
from envs.hardware.sources.files import Origin, read_bytes
from envs.hardware.steps import StepPoint, ordered

DISTSERVE = Origin(
    name="DistServe simulator constants",
    repository="LLMServe/DistServe",
    commit="82831f1604cc6b10bebd360f6c437a07790dde9f",
    licence="Apache-2.0",
    attribution="DistServe authors (OSDI 2024), fitted by them to their measurements on A100-80G",
)
FOLDER = "measurements/distserve"
PROMPTS = (16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
"""OPT's longest sequence is 2,048 tokens."""
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 94, 128, 192, 256)
CONTEXTS = (64, 256, 512, 1024, 2048)
LAWS = ("prefill", "decoding_smallbs", "decoding_largebs")
THRESHOLD = "decoding_large_small_bs_threshold"
METHOD = (
    "steps evaluated from constants that others fitted to whole measured steps, prompts of up to 2,048 tokens; errors "
    "are those of one law against the other, the measurements behind it are not published"
)


def distserve_steps(
    data_dir: Path, file: str, shape: ModelShape, tensor_parallel: int, most_kv_tokens: int
) -> tuple[list[StepPoint], tuple[str, str]]:
    """Prompt and decode steps by the published constants.

    Args:
        data_dir: the data folder.
        file: of the constants, such as ``profiler-a100-80g.distserve.json``.
        shape: a model that the file has, by one of its published names.
        tensor_parallel: GPUs of the run.
        most_kv_tokens: decodes over more are left out.

    Returns:
        Steps in order, and (path, sha256) of the file.

    Raises:
        MeasurementError: no such file, model or degree, constants that are none.
    """
    relative = f"{FOLDER}/{file}"
    table, digest = _read(data_dir, relative)
    name = next((name for name in (*shape.published, shape.name) if name in table), None)
    if name is None:
        raise MeasurementError(f"{relative}: no constants of {shape.name}: the file has {', '.join(table)}")
    degrees = table[name]
    if not isinstance(degrees, dict) or str(tensor_parallel) not in degrees:
        held = ", ".join(degrees) if isinstance(degrees, dict) else repr(degrees)
        raise MeasurementError(f"{relative}: {name} has no tensor_parallel {tensor_parallel}: the file has {held}")
    where = f"{relative}: {name}, tensor_parallel {tensor_parallel}"
    laws = {law: _constants(where, degrees[str(tensor_parallel)], law) for law in LAWS}
    threshold = degrees[str(tensor_parallel)].get(THRESHOLD)
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
        raise MeasurementError(f"{where}: {THRESHOLD} = {threshold!r}: expected a number of sequences of at least 1")
    points = []
    for n in PROMPTS:
        a, b, c = laws["prefill"]
        points.append(StepPoint("prefill", n, n * n / 2, 0, 0, (a + b * n + c * n * n) * 1e-3))
    for batch in SEQUENCES:
        a, b, c = laws["decoding_smallbs" if batch < threshold else "decoding_largebs"]
        for context in CONTEXTS:
            kv = batch * context
            if kv <= most_kv_tokens:
                points.append(StepPoint("decode", 0, 0.0, batch, kv, (a + b * kv + c * batch) * 1e-3))
    return ordered(points), (relative, digest)


def _read(data_dir: Path, relative: str) -> tuple[dict[str, Any], str]:
    data = read_bytes(data_dir, relative)
    try:
        table = json.loads(data)
    except ValueError as error:
        raise MeasurementError(f"{relative}: cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise MeasurementError(f"{relative}: holds {type(table).__name__}: expected constants by model")
    return table, hashlib.sha256(data).hexdigest()


def _constants(where: str, given: Any, law: str) -> tuple[float, float, float]:
    """Three constants in ms, none negative: a time that falls with the work is no law of a GPU's."""
    values = given.get(law) if isinstance(given, dict) else None
    if not isinstance(values, list) or len(values) != 3:
        raise MeasurementError(f"{where}: {law} = {values!r}: expected three constants in ms")
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise MeasurementError(f"{where}: {law}[{i}] = {value!r}: expected ms of at least 0")
    a, b, c = (float(value) for value in values)
    return a, b, c
