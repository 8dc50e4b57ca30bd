"""The table law straight from composed ops: nothing but the ops decides it, and what it misses is told by region.

The law adds a function of the step's tokens (products, collectives, norms), one of its decodes and their KV tokens, and
prefill attention (:class:`envs.hardware.tables.StepTables`). Each part is taken from the ops that it stands for:

* W at every number of rows at which products were measured. Measured products scatter (some points take twice their
  neighbours' time, and one token past a tile up to 2.5 times the tile's), while more tokens never take less time: W is
  the rising curve of least absolute relative error.
* D0 and D1 at every measured number of decodes: the line over the context that errs least, relative to whole steps.
  Heads and sampling beyond the first sequence count here.
* c_attn and a0 from prompts alone and prompts over cached tokens, each kind weighing the same.

A mixed step is then the sum of its parts. Engines that launch prefill and decode attention apart (SGLang, TRT-LLM,
vLLM on Blackwell) do just that. One kernel for both, as vLLM runs it on older GPUs, can take longer; see
:mod:`envs.hardware.sources.profiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from envs.hardware.errors import OutsideError
from envs.hardware.fit import Errors, errors_by_region
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.grids import APPEND_CACHED, APPEND_NEW, PREFILL_TOKENS
from envs.hardware.steps import StepPoint, times_s
from envs.hardware.tables import StepTables

FloatArray = NDArray[np.float64]
LEAST_CONTEXT = 64
"""Decodes over shorter contexts are not fitted."""


@dataclass(frozen=True, slots=True)
class HostLaw:
    """Time of the host between steps, ``h0_s + h1_s * decodes``, and where it is from."""

    h0_s: float = 0.0
    h1_s: float = 0.0
    source: str = "not measured for this engine: 0"


def compose_tables(
    composer: Composer, max_tokens: int, max_seqs: int, max_kv: int, host: HostLaw | None = None
) -> StepTables:
    """The table law of a composer's steps.

    Args:
        composer: op tables and model.
        max_tokens: most tokens of a step.
        max_seqs: most decoding sequences of a step.
        max_kv: most KV tokens of a step, usually the capacity.
        host: time between steps; None: none.

    Raises:
        OutsideError: the tables do not hold this model's ops.
    """
    host = host or HostLaw()
    seqs, d0, d1 = _decodes(composer, max_seqs, max_kv)
    tokens, matrices = _tokens(composer, max_tokens)
    c_attn, a0 = _prefills(composer, max_tokens)
    return StepTables(
        tokens=tuple(tokens),
        w_s=tuple(_digits(matrices)),
        seqs=tuple(seqs),
        d0_s=tuple(_digits(d0)),
        d1_s=tuple(_digits(d1)),
        c_attn_s=c_attn,
        a0_s=a0,
        h0_s=host.h0_s,
        h1_s=host.h1_s,
    )


def misfit(tables: StepTables, points: Sequence[StepPoint]) -> dict[str, Errors]:
    """Relative errors of the law without host time on composed steps, by region and for all, in percent."""
    alone = tables.scaled(host=0.0)
    predicted = np.array([alone.seconds(p.new, p.attention, p.seqs, p.kv) for p in points])
    return errors_by_region(points, predicted, times_s(points))


def rising(values: Sequence[float]) -> FloatArray:
    """The never falling curve of least absolute relative error: neighbours that fall are pooled at their median."""
    blocks: list[list[float]] = []
    for value in np.log(np.asarray(values, dtype=np.float64)):
        blocks.append([float(value)])
        while len(blocks) > 1 and np.median(blocks[-2]) > np.median(blocks[-1]):
            last = blocks.pop()
            blocks[-1].extend(last)
    curve: FloatArray = np.exp(np.concatenate([np.full(len(block), np.median(block)) for block in blocks]))
    return curve


def _tokens(composer: Composer, max_tokens: int) -> tuple[list[int], FloatArray]:
    measured = [rows for rows in composer.ops.gemm_rows(composer.precision) if rows <= max_tokens]
    knots: list[int] = []
    times: list[float] = []
    for rows in sorted({1, *measured, composer.captured_tokens + 1, max_tokens}):
        if rows > max_tokens:
            continue
        try:
            times.append(composer.matrices_s(rows) + composer.head_s(1))
        except OutsideError:
            if not knots:
                raise
            break
        knots.append(rows)
    return knots, rising(times)


def _decodes(composer: Composer, max_seqs: int, max_kv: int) -> tuple[list[int], FloatArray, FloatArray]:
    """Knots, intercepts (s) and slopes (s a KV token)."""
    by_batch: dict[int, list[StepPoint]] = {}
    for batch, context in composer.ops.decode_grid(*composer.heads, composer.kv_precision):
        if batch <= max_seqs and context >= LEAST_CONTEXT and (batch * context <= max_kv or batch == 1):
            by_batch.setdefault(batch, []).append(composer.decode(batch, context))
    seqs = sorted(batch for batch, points in by_batch.items() if len(points) > 1)
    if not seqs or seqs[0] != 1:
        raise OutsideError(f"{composer.ops.gpu}, {composer.ops.engine}: no decodes of one sequence were measured")
    d0, whole = np.zeros(len(seqs)), np.zeros(len(seqs))
    for i, batch in enumerate(seqs):
        points = by_batch[batch]
        steps = times_s(points)
        base = composer.matrices_s(batch) + composer.head_s(1)
        contexts = np.array([point.kv / batch for point in points])
        attention = steps - base
        line, _ = nnls(np.column_stack([np.ones_like(steps), contexts]) / steps[:, None], attention / steps)
        whole[i] = max(line[1], whole[i - 1] if i else 0.0)
        # With the slope that may not fall, the intercept of least error; both together may not fall either.
        level = np.average(attention - whole[i] * contexts, weights=1.0 / steps**2)
        least = d0[i - 1] + whole[i - 1] - whole[i] if i else 0.0
        d0[i] = max(0.0, level, least)
    return seqs, d0, whole / np.array(seqs)


def _prefills(composer: Composer, max_tokens: int) -> tuple[float, float]:
    """(c_attn, a0) in seconds."""
    rows, targets = [], []
    kinds = (
        [(n, 0) for n in (*PREFILL_TOKENS, 2 * PREFILL_TOKENS[-1]) if n <= max_tokens],
        [(n, p) for n in APPEND_NEW if n <= max_tokens for p in APPEND_CACHED],
    )
    for pairs in kinds:
        points = []
        for new, cached in pairs:
            try:
                points.append(composer.append(new, cached))
            except OutsideError:
                continue
        for point in points:
            weight = 1.0 / (point.time_s * np.sqrt(len(points)))
            attention = point.time_s - composer.common_s(point.new, sampled=1)
            rows.append([point.attention * weight, weight])
            targets.append(attention * weight)
    if not rows:
        raise OutsideError(f"{composer.ops.gpu}, {composer.ops.engine}: no prompts of this model were measured")
    columns = np.array(rows)
    scale = np.linalg.norm(columns, axis=0)
    solution = nnls(columns / scale, np.array(targets))[0] / scale
    return tuple(_digits(solution))  # type: ignore[return-value]


def _digits(values: FloatArray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
