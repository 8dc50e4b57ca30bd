"""What one prefill does to a batch of decodes: apart and together, prefixes distinct and shared.

PPD (arXiv 2603.13358) reports, for 200 decodes over one shared prefix of 2,048 tokens, a TPOT 48 % longer with a
prefill of 1,024 new tokens and 2 % longer when the same 1,024 tokens follow the shared prefix. Both compute as many
tokens; but a request without the prefix ends the batch's shared-prefix (cascade) attention for as long as it lives.
So every step is measured with distinct caches, with one cache that each sequence reads by itself, and with cascade
attention; :func:`tpot_rise` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from envs.hardware.errors import MeasurementError
from envs.hardware.measure.lab import Lab
from envs.hardware.measure.layers import OWN, Step
from envs.hardware.measure.points import Op, Point, Scope, unique
from envs.hardware.measure.steps import KEYS, measure_step, step_point
from envs.hardware.measure.timing import Timing
from envs.hardware.model_shape import ModelShape

PREFIX = 2048
BATCHES = (64, 200)
NEW = (1024, 256, 2048, 64)
OUTPUTS = 64
"""Output tokens of the published experiment: one step holds the prefill, the others follow while its request lives."""


def points(shape: ModelShape, scope: Scope) -> list[Point]:
    """Decodes alone, and with an append or a full prefill, in every arrangement of prefixes."""
    toy = scope.device == "cpu"
    prefix, batches, chunks = (32, (2,), (16,)) if toy else (PREFIX, BATCHES, NEW)
    found = []
    for i, batch in enumerate(batches):
        for j, new in enumerate(chunks):
            for step in _arms(batch, new, prefix):
                found.append(step_point("interference", shape, step, min(2, i + j), prefix=step.prefix))
    return unique(found)


def _arms(batch: int, new: int, prefix: int) -> list[Step]:
    context = prefix + OWN
    alone = [Step(batch=batch, context=context, prefix=p) for p in ("distinct", "shared", "cascade")]
    append = [Step(new, prefix, batch, context, prefix=p) for p in ("distinct", "shared", "cascade")]
    full = [Step(new, 0, batch, context, prefix=p) for p in ("distinct", "shared")]
    solo = [Step(new=new, cached=prefix), Step(new=new)]
    return alone + append + full + solo


def measure(point: Point, lab: Lab) -> Timing:
    """Time one step."""
    at = point.at
    step = Step(
        int(at["new"]), int(at["cached"]), int(at["batch"]), int(at["context"]), bool(at["attention"]),
        str(at["prefix"]),
    )  # fmt: skip
    return measure_step(lab, step, point.held_bytes)


@dataclass(frozen=True, slots=True)
class Rise:
    """How much longer TPOT gets by one prefill, as shares (0.48: 48 % longer).

    Attributes:
        batch: decodes.
        new: prompt tokens of the prefill.
        distinct_append: each sequence has its own prefix; new tokens over a cached prefix.
        distinct_full: the same; a prompt of its own.
        cascade_append: one shared prefix, read once; new tokens over it.
        cascade_lost: one shared prefix; a prompt of its own, after which each decode reads the prefix by itself.
    """

    batch: int
    new: int
    distinct_append: float
    distinct_full: float
    cascade_append: float
    cascade_lost: float


def tpot_rise(frame: pl.DataFrame, outputs: int = OUTPUTS) -> list[Rise]:
    """The four figures for every batch and chunk whose steps all were measured.

    ``(mixed + (outputs - 1) * after) / (outputs * before) - 1``: one step holds the prefill, the others of an answer of
    ``outputs`` tokens follow. That the new request then decodes too is left out.

    Args:
        frame: rows of the table, columns as :data:`INTERFERENCE` names them and ``latency``.
        outputs: tokens over which the one step is spread.

    Raises:
        MeasurementError: fewer than one output token.
    """
    if outputs < 1:
        raise MeasurementError(f"outputs = {outputs}: expected at least 1 token")
    times = {
        (row["batch"], row["new"], row["cached"] > 0, row["prefix"]): float(row["latency"])
        for row in frame.iter_rows(named=True)
        if row["batch"]
    }
    rises = []
    for batch, new in sorted({(batch, new) for batch, new, *_ in times if new}):

        def rise(mixed: tuple[bool, str], before: str, after: str, b: int = batch, n: int = new) -> float:
            alone, then = times[b, 0, False, before], times[b, 0, False, after]
            return (times[b, n, *mixed] + (outputs - 1) * then) / (outputs * alone) - 1.0

        try:
            rises.append(
                Rise(
                    batch,
                    new,
                    distinct_append=rise((True, "distinct"), "distinct", "distinct"),
                    distinct_full=rise((False, "distinct"), "distinct", "distinct"),
                    cascade_append=rise((True, "cascade"), "cascade", "cascade"),
                    cascade_lost=rise((False, "shared"), "cascade", "shared"),
                )
            )
        except KeyError:
            continue  # not all of them were measured in the time there was
    return rises


INTERFERENCE = Op(
    file="interference.parquet",
    keys={**KEYS, "prefix": pl.String},
    constants={"op_name": "interference"},
    points=points,
    measure=measure,
    meaning="decodes with one prefill, apart and together, prefixes distinct, shared, and shared with cascade",
)
