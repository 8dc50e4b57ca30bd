"""Matrix products of the model, as each tensor-parallel degree slices them: (m, k) x (k, n), m tokens of a step.

bf16 and fp16 by ``torch.nn.functional.linear``, fp8 (e4m3, one scale a matrix, bf16 out) by ``torch._scaled_mm``;
quantising the activations is not part of an fp8 product here. Weights come cold, activations warm, as in an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import polars as pl

from envs.hardware.measure.lab import Lab
from envs.hardware.measure.points import Op, Point, Scope, degrees, unique
from envs.hardware.measure.timing import Timing, time_calls
from envs.hardware.model_shape import ModelShape

CORE = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BETWEEN = (2, 4, 24, 48, 96, 160, 192, 257, 320, 384, 768, 1536, 3072, 6144)
"""Between the powers of two lie the kernels' tiles: the bend from memory to arithmetic, and one token past 256."""
SAMPLED = 512
"""Most rows of the output head: only sampled tokens pass it."""
FLOOR = (256, 256)
"""A product that is all launch."""
SIZES = {"bfloat16": 2, "float16": 2, "fp8": 1}
CALLS = 16


def products(shape: ModelShape, tp: int) -> dict[str, tuple[int, int]]:
    """(n, k) of a layer's products and of the output head on one of ``tp`` GPUs."""
    heads, kv_heads, width = shape.heads // tp, shape.kv_heads // tp, shape.intermediate // tp
    return {
        "qkv": ((heads + 2 * kv_heads) * shape.head_dim, shape.hidden),
        "output": (shape.hidden, heads * shape.head_dim),
        "gate_up": (2 * width, shape.hidden),
        "down": (shape.hidden, width),
        "head": (shape.vocabulary // tp, shape.hidden),
    }


def points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Every product at every number of tokens; the whole model on one GPU first."""
    found = [_point("bfloat16", m, *FLOOR, priority=0) for m in (1, 8)]
    for tp in degrees(shape, scope):
        for name, (n, k) in products(shape, tp).items():
            most = min(scope.max_tokens, SAMPLED) if name == "head" else scope.max_tokens
            found += _family(scope.upto(CORE, most), scope.upto(BETWEEN, most), n, k, tp, name != "head", scope)
    return unique(found)


def _family(
    core: list[int], between: list[int], n: int, k: int, tp: int, quantised: bool, scope: Scope
) -> Iterator[Point]:
    later = 0 if tp == 1 else 2
    yield from (_point("bfloat16", m, n, k, priority=later) for m in core)
    yield from (_point("bfloat16", m, n, k, priority=later + 1) for m in between)
    if scope.fp8 and quantised and n % 16 == 0 and k % 16 == 0:
        yield from (_point("fp8", m, n, k, priority=later + 1) for m in core)
        yield from (_point("fp8", m, n, k, priority=later + 2) for m in between)
    if tp == 1:
        yield from (_point("float16", m, n, k, priority=4) for m in core[::3])


def _point(dtype: str, m: int, n: int, k: int, priority: int) -> Point:
    size = SIZES[dtype]
    moved = (m * k + n * k) * size + m * n * 2
    return Point(
        "gemm", (("gemm_dtype", dtype), ("m", m), ("n", n), ("k", k)), priority, 2.0 * m * n * k, moved, 2.0 * moved
    )


def measure(point: Point, lab: Lab) -> Timing:
    """Time one product."""
    at = point.at
    dtype, m, n, k = str(at["gemm_dtype"]), int(at["m"]), int(at["n"]), int(at["k"])
    torch = lab.torch
    copies = lab.copies(n * k * SIZES[dtype])
    lab.need(point.held_bytes + copies * n * k * SIZES[dtype])
    x = lab.random(m, k, dtype=dtype)
    weights = [lab.random(n, k, dtype=dtype) for _ in range(copies)]
    number = max(copies, CALLS if lab.cuda else 1)
    if dtype == "fp8":
        one = torch.ones((), device=lab.device, dtype=torch.float32)

        def product(w: Any) -> Any:
            return torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        source = "torch._scaled_mm"
    else:

        def product(w: Any) -> Any:
            return torch.nn.functional.linear(x, w)

        source = "torch.nn.functional.linear"
    calls = [partial(product, weights[i % copies]) for i in range(number)]
    return time_calls(lab, calls).named(source)


GEMM = Op(
    file="gemm_perf.parquet",
    keys={"gemm_dtype": pl.String, "m": pl.Int64, "n": pl.Int64, "k": pl.Int64},
    constants={"op_name": "gemm"},
    points=points,
    measure=measure,
    meaning="matrix products of the model at each tensor-parallel degree",
)
