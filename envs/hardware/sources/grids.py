"""Which steps are composed from op tables: the part of the plane that a serving engine works in.

Prompt lengths grow by a constant factor and so fall between the kernels' tile sizes as often as real prompts do:
at one token past a tile, FP8 products were measured up to 2.5 times slower than at the tile itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envs.hardware.errors import OutsideError
from envs.hardware.sources.compose import Composer
from envs.hardware.steps import StepPoint, ordered

PREFILL_TOKENS = tuple(round(16 * 2 ** (i / 3)) for i in range(28))  # 16 ... 8192
PREFILL_BATCHES = ((2, 512), (2, 1024), (4, 256), (4, 1024), (8, 256), (8, 512), (16, 128))
APPEND_NEW = tuple(round(16 * 2 ** (i * 0.75)) for i in range(13))  # 16 ... 8192
APPEND_CACHED = (512, 1024, 2048, 4096, 8192, 12288)
MIXED_CHUNKS = ((128, 0), (300, 0), (512, 4096), (700, 2048), (1024, 0), (1500, 8192), (2016, 0), (2016, 4096))
MIXED_DECODES = ((8, 1024), (32, 1024), (32, 4096), (64, 2048), (128, 1024))


def compose_steps(composer: Composer, max_new: int, max_seqs: int, max_kv: int) -> list[StepPoint]:
    """Steps of every kind inside the measurements.

    Args:
        composer: op tables and model.
        max_new: most new tokens of a step.
        max_seqs: most decoding sequences of a step.
        max_kv: most KV tokens of a step, usually the KV capacity.
    """
    heads = composer.heads
    points: list[StepPoint] = []
    points += _inside(composer.prefill, [(n, 1) for n in PREFILL_TOKENS if n <= max_new])
    points += _inside(composer.prefill, [(n, batch) for batch, n in PREFILL_BATCHES if n * batch <= max_new])
    points += _inside(composer.append, [(n, p) for n in APPEND_NEW if n <= max_new for p in APPEND_CACHED])
    decodes = [
        (batch, context)
        for batch, context in composer.ops.decode_grid(*heads, composer.kv_precision)
        if batch <= max_seqs and context >= 64 and batch * context <= max_kv
    ]
    points += _inside(composer.decode, decodes)
    points += _inside(
        composer.mixed,
        [
            (new, cached, batch, context)
            for new, cached in MIXED_CHUNKS
            for batch, context in MIXED_DECODES
            if new + batch <= max_new and batch <= max_seqs and batch * context <= max_kv
        ],
    )
    return ordered(points)


def _inside(make: Callable[..., StepPoint], arguments: Sequence[tuple[int, ...]]) -> list[StepPoint]:
    """The points that the tables cover; a table that ends earlier narrows the fit range, which is reported.

    Raises:
        OutsideError: the tables cover none of them: the first one's reason.
    """
    points, reasons = [], []
    for argument in arguments:
        try:
            points.append(make(*argument))
        except OutsideError as error:
            reasons.append(error)
    if reasons and not points:
        raise reasons[0]
    return points
