"""Whole steps of the model on one GPU: prompts, prompts over cached tokens, decodes, and both in one step.

For each mixed step there are, among the points, the same prompt alone, the same decodes alone, and steps of as many
tokens without attention (``attention`` false). With ``W`` the time of the latter, attention is super-additive by
``mixed - W(new + batch)`` over ``(prompt - W(new)) + (decodes - W(batch))``. Steps of up to CAPTURED_TOKENS tokens are
replayed from a CUDA graph, as engines do; larger ones are launched kernel by kernel.
"""

from __future__ import annotations

import polars as pl

from envs.hardware.measure.lab import Lab
from envs.hardware.measure.layers import Stack, Step, held_bytes, step_bytes, step_flop
from envs.hardware.measure.points import Key, Op, Point, Scope, unique
from envs.hardware.measure.timing import Timing, time_calls
from envs.hardware.model_shape import ModelShape

CAPTURED_TOKENS = 512
"""Largest step that is replayed from a CUDA graph (vLLM's largest captured size by default)."""
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PROMPTS_BETWEEN = (32, 96, 160, 192, 300, 384, 700, 1500, 3072, 6144)
APPENDS = ((64, 1024), (256, 1024), (512, 4096), (1024, 2048), (2016, 4096), (64, 8192), (512, 8192), (1500, 8192))
DECODES = ((1, 1024), (8, 1024), (32, 1024), (32, 4096), (64, 2048), (128, 1024), (128, 4096), (256, 1024))
DECODES_BETWEEN = (
    (1, 64), (1, 8192), (1, 32768), (2, 2048), (4, 4096), (8, 8192), (16, 1024), (16, 4096), (32, 16384), (64, 512),
    (64, 8192), (128, 256), (256, 256), (256, 2048),
)  # fmt: skip
MIXED_PROMPTS = ((128, 0), (512, 0), (512, 4096), (1024, 2048), (2016, 4096))
MIXED_PROMPTS_BETWEEN = ((300, 0), (700, 2048), (1024, 0), (1500, 8192), (2016, 0))
MIXED_DECODES = ((8, 1024), (32, 1024), (32, 4096), (128, 1024))
TOY = (((8, 0), (32, 0), (24, 16), (64, 0)), ((1, 16), (2, 16), (4, 16), (4, 64)))
KEYS: dict[str, type[pl.DataType]] = {
    "kind": pl.String, "new": pl.Int64, "cached": pl.Int64, "batch": pl.Int64, "context": pl.Int64,
    "attention": pl.Boolean,
}  # fmt: skip


def kind(step: Step) -> str:
    """As :data:`envs.hardware.steps.KINDS` has it."""
    if step.new and step.batch:
        return "mixed"
    if step.batch:
        return "decode"
    return "append" if step.cached else "prefill"


def step_point(op: str, shape: ModelShape, step: Step, priority: int, **more: str) -> Point:
    """A step as a point of a table."""
    key: Key = (
        ("kind", kind(step)),
        ("new", step.new),
        ("cached", step.cached),
        ("batch", step.batch),
        ("context", step.context),
        ("attention", step.attend),
        *more.items(),
    )
    return Point(op, key, priority, step_flop(shape, step), step_bytes(shape, step), held_bytes(shape, step))


def points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Every kind of step; the parts of a mixed step are as urgent as the step."""
    steps: list[tuple[int, Step]] = []
    if scope.device == "cpu":
        prompts, decodes = TOY
        mixed = [(0, Step(n, p, b, c)) for n, p in prompts[:3] for b, c in decodes[1:]]
        steps += [(0, Step(new=n, cached=p)) for n, p in prompts]
        steps += [(0, Step(batch=b, context=c)) for b, c in decodes]
    else:
        steps += [(0, Step(new=n)) for n in PROMPTS] + [(1, Step(new=n)) for n in PROMPTS_BETWEEN]
        steps += [(0, Step(new=n, cached=p)) for n, p in APPENDS]
        steps += [(0, Step(batch=b, context=c)) for b, c in DECODES]
        steps += [(1, Step(batch=b, context=c)) for b, c in DECODES_BETWEEN]
        mixed = [(0, Step(n, p, b, c)) for n, p in MIXED_PROMPTS for b, c in MIXED_DECODES]
        mixed += [(1, Step(n, p, b, c)) for n, p in MIXED_PROMPTS_BETWEEN for b, c in MIXED_DECODES[:3]]
    for priority, whole in mixed:
        steps.append((priority, whole))
        steps.append((priority, Step(new=whole.new, cached=whole.cached)))
        steps.append((priority, Step(batch=whole.batch, context=whole.context)))
        steps.append((priority, Step(new=whole.new, batch=whole.batch, attend=False)))
        steps.append((priority, Step(new=whole.new, attend=False)))
        steps.append((priority, Step(batch=whole.batch, attend=False)))
    return unique([step_point("steps", shape, step, priority) for priority, step in steps])


def measure(point: Point, lab: Lab) -> Timing:
    """Time one step."""
    at = point.at
    step = Step(int(at["new"]), int(at["cached"]), int(at["batch"]), int(at["context"]), bool(at["attention"]))
    return measure_step(lab, step, point.held_bytes)


def measure_step(lab: Lab, step: Step, needed_bytes: float) -> Timing:
    """Time of a step of the whole stack."""
    lab.need(needed_bytes)
    with lab.torch.inference_mode():
        call = Stack(lab).prepare(step)
    return time_calls(lab, [call], captured=step.tokens <= CAPTURED_TOKENS).named("torch layers")


STEPS = Op(
    file="steps.parquet",
    keys=KEYS,
    constants={"op_name": "step"},
    points=points,
    measure=measure,
    meaning="whole steps of all layers: prompts, appends, decodes, mixed, and the same without attention",
)
