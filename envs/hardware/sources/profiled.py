"""Step times from LLMServingSim's op profiles: matrices interpolated by tokens, attention only where it was measured.

Attention was profiled in one kernel over a chunk of a prompt, decodes, or both, so mixed steps are here what the kernel
took, not a sum of two. That costs more than both apart (:func:`mixed_by_region`): the step law has no term for it, and
the errors of the region ``mixed`` say so. Several GPUs are refused: the profiles hold no all-reduce.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml  # type: ignore[import-untyped, unused-ignore]

from envs.hardware.errors import MeasurementError, OutsideError
from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import ModelShape
from envs.hardware.sources.files import Table, read_bytes
from envs.hardware.sources.llmservingsim import EACH_LAYER, ONCE, ROOT, SAMPLED, OpProfile, read_profile
from envs.hardware.sources.plausible import check_profile
from envs.hardware.steps import StepPoint, ordered

QK_NORM = "qk_norm"
LEAST_APPEND, APPENDED = 64, (512, 2048, 8192, 16384)
"""Tokens of a chunk, and tokens cached before it. Shorter ones are bound by reading the cache, which no term counts."""
CONTEXTS = (64, 512, 2048, 8192, 16384)
MIXED_CHUNKS, MIXED_BEFORE, MIXED_DECODES, MIXED_CONTEXTS = (128, 512, 1024), (0, 2048), (4, 16, 64, 128), (512, 2048)
REGIONS = ((1, 8), (16, 16), (32, 32), (64, 64), (128, 128))
"""Decodes beside a chunk, for which the factor of mixed attention is told apart."""
LEAST_CHUNK = 128
METHOD = (
    "engine steps summed of op times profiled inside vLLM on the GPU; prompts, decodes and both in one attention "
    "kernel; nothing of the host's own work"
)


@dataclass(frozen=True, slots=True)
class Factor:
    """Mixed attention over the sum of both kernels alone, at points of one profile.

    Attributes:
        decodes: fewest and most decodes beside the chunk.
        heavy: whether decodes are more than half of the sum.
        median: of the ratio.
        p10: tenth percentile.
        p90: ninetieth.
        points: how many.
    """

    decodes: tuple[int, int]
    heavy: bool
    median: float
    p10: float
    p90: float
    points: int


def profiled_steps(
    data_dir: Path, folder: str, version: str, shape: ModelShape, gpu: Gpu, most_kv_tokens: int
) -> tuple[list[StepPoint], OpProfile, list[tuple[str, str]]]:
    """Prefill, append, decode and mixed steps of a dense model on one GPU in bf16.

    Args:
        data_dir: the data folder.
        folder: GPU and model below the profiles, such as ``RTXPRO6000/meta-llama/Llama-3.1-8B``.
        version: the engine's, which the profile must be of.
        shape: the model, which the profile must be of.
        gpu: data sheet of the GPU.
        most_kv_tokens: decodes over more are left out.

    Returns:
        Steps in order, the profile, and (path, sha256) of every file read.

    Raises:
        MeasurementError: missing or impossible measurements, another model's or version's.
    """
    card, _, model = folder.partition("/")
    if not model:
        raise MeasurementError(f"tables = {folder!r}: expected GPU/MODEL, such as RTXPRO6000/meta-llama/Llama-3.1-8B")
    meta = _check_meta(data_dir, folder, version, shape)
    profile = read_profile(data_dir, card, model)
    check_profile(profile, shape, gpu)
    steps = _Steps(profile, shape)
    rows = profile.attention.frame.iter_rows()
    points = [
        steps.point(chunk, before, decodes, context, us)
        for chunk, before, decodes, context, us in rows
        if decodes * context <= most_kv_tokens and _taken(chunk, before, decodes, context)
    ]
    tables = (profile.dense, profile.sequences, profile.attention)
    return ordered(points), profile, [meta, *((table.relative, table.sha256) for table in tables)]


def _taken(chunk: int, before: int, decodes: int, context: int) -> bool:
    """A part of the grid: so many points that no axis drowns another."""
    if decodes == 0:
        return before == 0 or (chunk >= LEAST_APPEND and before in APPENDED)
    if chunk == 0:
        return context in CONTEXTS
    beside = chunk in MIXED_CHUNKS and before in MIXED_BEFORE
    return beside and decodes in MIXED_DECODES and context in MIXED_CONTEXTS


class _Steps:
    """Sums ops to steps."""

    def __init__(self, profile: OpProfile, shape: ModelShape) -> None:
        self.shape = shape
        held = set(profile.dense.frame["layer"].unique())
        each = (*EACH_LAYER, QK_NORM) if QK_NORM in held else EACH_LAYER
        self.each = [_curve(profile.dense, name, "tokens") for name in each]
        self.once = [_curve(profile.dense, name, "tokens") for name in ONCE]
        self.sampled = [_curve(profile.sequences, name, "sequences") for name in SAMPLED]

    def point(self, chunk: int, before: int, decodes: int, context: int, attention_us: float) -> StepPoint:
        tokens, sampled = chunk + decodes, decodes + (1 if chunk else 0)
        us = self.shape.layers * (attention_us + _sum(self.each, tokens))
        us += _sum(self.once, tokens) + _sum(self.sampled, sampled)
        kind = "mixed" if chunk and decodes else "decode" if decodes else "append" if before else "prefill"
        return StepPoint(kind, chunk, chunk * (before + chunk / 2), decodes, decodes * context, us * 1e-6)


def _curve(table: Table, layer: str, axis: str) -> tuple[Any, Any]:
    frame = table.frame.filter(pl.col("layer") == layer).sort(axis)
    if frame.is_empty():
        raise table.error(f"no rows of layer {layer!r}")
    return frame[axis].to_numpy(), frame["time_us"].to_numpy()


def _sum(curves: list[tuple[Any, Any]], at: int) -> float:
    return float(sum(np.interp(at, x, y) for x, y in curves))


def _check_meta(data_dir: Path, folder: str, version: str, shape: ModelShape) -> tuple[str, str]:
    """The profile is of this version and model; returns (path, sha256) of the file that says so."""
    relative = f"{ROOT}/profiler/perf/{folder}/bf16/meta.yaml.gz"
    data = read_bytes(data_dir, relative)
    try:
        meta = yaml.safe_load(gzip.decompress(data))
    except (OSError, EOFError, ValueError, yaml.YAMLError) as error:
        raise MeasurementError(f"{relative}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(meta, dict):
        raise MeasurementError(f"{relative}: holds {type(meta).__name__}: expected a mapping")
    for key, wanted in (("vllm_version", (version,)), ("model", (*shape.published, shape.name))):
        if str(meta.get(key)) not in wanted:
            raise MeasurementError(f"{relative}: {key} = {meta.get(key)!r}: expected {' or '.join(wanted)}")
    return relative, hashlib.sha256(data).hexdigest()


def mixed_ratios(profile: OpProfile, least_chunk: int = LEAST_CHUNK) -> pl.DataFrame:
    """Every point at which a chunk, decodes and both were measured.

    Args:
        profile: one with chunks, decodes and both.
        least_chunk: shorter chunks are left out.

    Returns:
        Columns of the attention table, ``alone_us`` (both kernels), ``decode_share`` of that, and ``ratio``.

    Raises:
        OutsideError: no mixed attention was measured.
    """
    frame = profile.attention.frame
    chunks = frame.filter(pl.col("n_decode") == 0).select("prefill_chunk", "kv_prefill", alone=pl.col("time_us"))
    decodes = frame.filter(pl.col("prefill_chunk") == 0).select("n_decode", "kv_decode", other=pl.col("time_us"))
    mixed = frame.filter((pl.col("n_decode") > 0) & (pl.col("prefill_chunk") >= least_chunk))
    joined = mixed.join(chunks, on=["prefill_chunk", "kv_prefill"]).join(decodes, on=["n_decode", "kv_decode"])
    if joined.is_empty():
        raise OutsideError(f"{profile.attention.relative}: no chunk of {least_chunk} tokens or more beside decodes")
    both = pl.col("alone") + pl.col("other")
    return joined.with_columns(alone_us=both, decode_share=pl.col("other") / both, ratio=pl.col("time_us") / both).drop(
        "alone", "other"
    )


def mixed_by_region(ratios: pl.DataFrame) -> list[Factor]:
    """Medians by number of decodes, apart for chunks that outweigh them and decodes that outweigh the chunk."""
    found = []
    for low, high in REGIONS:
        for heavy in (False, True):
            inside = ratios.filter(
                pl.col("n_decode").is_between(low, high) & ((pl.col("decode_share") > 0.5) == heavy)
            )["ratio"].to_numpy()
            if inside.size:
                p10, median, p90 = (float(v) for v in np.percentile(inside, [10, 50, 90]))
                found.append(Factor((low, high), heavy, median, p10, p90, int(inside.size)))
    return found


def mixed_words(profile: OpProfile) -> str:
    """The factor in one line, for a profile."""
    by_decodes = mixed_ratios(profile).group_by("n_decode").agg(pl.col("ratio").median()).sort("n_decode")
    told = ", ".join(f"{ratio:.2f} at {n}" for n, ratio in by_decodes.iter_rows() if n >= REGIONS[0][1])
    return f"attention of a chunk and decodes in one kernel over the sum of both, medians by decodes: {told}"
