"""Attention of one layer: prompts, prompts over cached tokens, decodes, on the heads of each tensor-parallel degree."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from envs.hardware.measure import kernels
from envs.hardware.measure.lab import Lab
from envs.hardware.measure.points import Key, Op, Point, Scope, degrees, unique
from envs.hardware.measure.timing import Timing, time_calls
from envs.hardware.model_shape import ModelShape

PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PROMPTS_BETWEEN = (1, 32, 96, 192, 384, 768, 1536, 3072, 6144, 12288, 20480)
PROMPT_BATCHES = (2, 4, 8, 16)
NEW = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192)
CACHED = (512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
TOY_LENGTHS = (16, 32, 64)
"""Cached tokens and contexts on a CPU."""
MOST_KV_TOKENS = 2**20
"""Most KV tokens of one layer's decode: 4 GB for the 8B."""
CALLS = 8
BYTES = 2
HEADS: dict[str, type[pl.DataType]] = {"num_heads": pl.Int64, "num_key_value_heads": pl.Int64, "head_dim": pl.Int64}
DTYPES: dict[str, str | int | float | bool] = {
    "attn_dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "window_size": 0,
    "beam_width": 1,
}


def context_points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Prompts from token 0; with cuDNN too, on one GPU, to see what the choice of kernel makes."""
    found = []
    most = 4 * scope.max_tokens
    for tp in degrees(shape, scope):
        late = 0 if tp == 1 else 2
        for isl in scope.upto(PROMPTS, most):
            found.append(_context(shape, tp, 1, isl, kernels.BACKENDS[scope.device], late))
            if tp == 1 and scope.device == "cuda" and isl >= 64:
                found.append(_context(shape, tp, 1, isl, kernels.CUDNN, 4))
        found += [
            _context(shape, tp, 1, isl, kernels.BACKENDS[scope.device], late + 1)
            for isl in scope.upto(PROMPTS_BETWEEN, most)
        ]
        found += [
            _context(shape, tp, b, isl, kernels.BACKENDS[scope.device], late + 1)
            for b in scope.upto(PROMPT_BATCHES, scope.max_seqs)
            for isl in scope.upto(PROMPTS, scope.max_tokens // b)
        ]
    return unique(found)


def _heads(shape: ModelShape, tp: int) -> tuple[tuple[str, int], ...]:
    return (
        ("num_heads", shape.heads // tp),
        ("num_key_value_heads", shape.kv_heads // tp),
        ("head_dim", shape.head_dim),
    )


def _context(shape: ModelShape, tp: int, batch: int, isl: int, source: str, priority: int) -> Point:
    flop = 4.0 * shape.heads // tp * shape.head_dim * batch * isl * isl / 2
    moved = 2.0 * batch * isl * (shape.heads + shape.kv_heads) // tp * shape.head_dim * BYTES
    key: Key = (("batch_size", batch), ("isl", isl), *_heads(shape, tp), ("kernel_source", source))
    return Point("context_attention", key, priority, flop, moved, 2 * moved)


def append_points(shape: ModelShape, scope: Scope) -> list[Point]:
    """New tokens over cached ones."""
    found = []
    lengths = TOY_LENGTHS if scope.device == "cpu" else CACHED
    for tp in degrees(shape, scope)[:1]:
        for new in scope.upto(NEW, scope.max_tokens):
            for cached in lengths:
                work = new * (cached + new / 2)
                moved = 2.0 * (cached + new) * shape.kv_heads // tp * shape.head_dim * BYTES
                key = (("batch_size", 1), ("isl", new), ("step", cached), *_heads(shape, tp))
                core = new in NEW[1::2] and cached in CACHED[1::2]
                flop = 4.0 * shape.heads // tp * shape.head_dim * work
                found.append(Point("append_attention", key, 0 if core else 1, flop, moved, 4 * moved))
    return unique(found)


def generation_points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Decodes; ``step`` is the cached length, one less than the context that is attended to."""
    found = []
    lengths = TOY_LENGTHS if scope.device == "cpu" else CONTEXTS
    for tp in degrees(shape, scope):
        for batch in scope.upto(BATCHES, scope.max_seqs):
            for context in lengths:
                if batch * context > MOST_KV_TOKENS:
                    continue
                moved = 2.0 * batch * context * shape.kv_heads // tp * shape.head_dim * BYTES
                flop = 4.0 * shape.heads // tp * shape.head_dim * batch * context
                key = (("batch_size", batch), ("isl", 1), ("step", context - 1), *_heads(shape, tp))
                core = batch in BATCHES[::2] and context in CONTEXTS[1::2]
                priority = (0 if core else 1) + (0 if tp == 1 else 2)
                found.append(Point("generation_attention", key, priority, flop, moved, moved))
    return unique(found)


def measure_context(point: Point, lab: Lab) -> Timing:
    """Time prompts from token 0."""
    source = str(point.at["kernel_source"])
    return _prompt(point, lab, 0, source == kernels.CUDNN).named(source)


def measure_append(point: Point, lab: Lab) -> Timing:
    """Time new tokens over cached ones."""
    return _prompt(point, lab, int(point.at["step"]), False).named(kernels.backend_name(lab))


def _sizes(point: Point) -> tuple[int, int, int, int]:
    at = point.at
    return int(at["batch_size"]), int(at["num_heads"]), int(at["num_key_value_heads"]), int(at["head_dim"])


def _prompt(point: Point, lab: Lab, cached: int, cudnn: bool) -> Timing:
    b, heads, kv_heads, d = _sizes(point)
    new = int(point.at["isl"])
    copies = lab.copies(point.moved_bytes)
    lab.need(point.held_bytes + copies * point.moved_bytes)
    # As products leave them: (batch, tokens, heads, d), turned.
    q = lab.random(b, new, heads, d).transpose(1, 2)
    kv = [[lab.random(b, cached + new, kv_heads, d).transpose(1, 2) for _ in range(2)] for _ in range(copies)]
    number = max(copies, CALLS if lab.cuda else 1)
    calls = [partial(_causal, lab, q, kv[i % copies], cudnn) for i in range(number)]
    return time_calls(lab, calls)


def _causal(lab: Lab, q: Any, kv: list[Any], cudnn: bool) -> Any:
    return kernels.causal(lab, q, kv[0], kv[1], cudnn)


def measure_generation(point: Point, lab: Lab) -> Timing:
    """Time decodes."""
    b, heads, kv_heads, d = _sizes(point)
    context = int(point.at["step"]) + 1
    copies = lab.copies(point.moved_bytes)
    lab.need(copies * point.moved_bytes)
    q = lab.random(b, heads, d)
    kv = [[lab.random(b, kv_heads, context, d) for _ in range(2)] for _ in range(copies)]
    number = max(copies, CALLS if lab.cuda else 1)
    calls = [partial(kernels.decode, lab, q, *kv[i % copies]) for i in range(number)]
    return time_calls(lab, calls).named(kernels.backend_name(lab))


CONTEXT = Op(
    file="context_attention_perf.parquet",
    keys={"batch_size": pl.Int64, "isl": pl.Int64, **HEADS, "kernel_source": pl.String},
    constants={"op_name": "context_attention", "step": 0, **DTYPES},
    points=context_points,
    measure=measure_context,
    meaning="attention of prompts, nothing cached",
)
APPEND = Op(
    file="append_attention_perf.parquet",
    keys={"batch_size": pl.Int64, "isl": pl.Int64, "step": pl.Int64, **HEADS},
    constants={"op_name": "append_attention", **DTYPES},
    points=append_points,
    measure=measure_append,
    meaning="attention of new prompt tokens over cached ones",
)
GENERATION = Op(
    file="generation_attention_perf.parquet",
    keys={"batch_size": pl.Int64, "isl": pl.Int64, "step": pl.Int64, **HEADS},
    constants={"op_name": "generation_attention", **DTYPES},
    points=generation_points,
    measure=measure_generation,
    meaning="attention of decodes, batch x context",
)
