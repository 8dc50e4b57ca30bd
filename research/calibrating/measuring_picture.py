"""The picture of ``action=measure``: products, prompt attention, decode attention, and what a prefill does to TPOT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import polars as pl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.hardware.measure.kernels import CUDNN
from envs.hardware.model_shape import ModelShape
from research.evidence.figures import COLOURS, MARKERS, save
from research.evidence.ticks import plain_ticks

FIGURES = {
    "distinct_append": "distinct prefixes, append",
    "distinct_full": "distinct prefixes, full",
    "cascade_append": "one shared prefix read once, append",
    "cascade_lost": "one shared prefix, full: shared no more",
}
BYTES = 2


def draw(
    shape: ModelShape, frames: Mapping[str, pl.DataFrame], rises: Sequence[Mapping[str, Any]], title: str, path: Path
) -> bool:
    """Write the picture; False where nothing was measured.

    Args:
        shape: the model.
        frames: tables by name, as :data:`envs.hardware.measure.ops.OPS` has them; some may be missing.
        rises: rows of ``tpot_rise`` as in ``summary.json``.
        title: machine and model.
        path: PNG.
    """
    return save(lambda: _figure(shape, frames, rises, title), path)


def _figure(
    shape: ModelShape, frames: Mapping[str, pl.DataFrame], rises: Sequence[Mapping[str, Any]], title: str
) -> Figure | None:
    if not frames:
        return None
    figure, axes = plt.subplots(2, 2, figsize=(11.0, 7.6))
    _products(axes[0, 0], frames.get("gemm"), shape)
    _prompts(axes[0, 1], frames, shape)
    _decodes(axes[1, 0], frames.get("generation_attention"), shape)
    _rises(axes[1, 1], rises)
    figure.suptitle(title, fontsize=11)
    return figure


def _products(axes: Axes, frame: pl.DataFrame | None, shape: ModelShape) -> None:
    """Rate of the gate-up product by tokens; what is bound by memory rises."""
    axes.set(
        xscale="log", yscale="log", xlabel="tokens", ylabel="TFLOP/s", title="Gate-up product, no tensor parallelism"
    )
    n, k = 2 * shape.intermediate, shape.hidden
    rows = None if frame is None else frame.filter((pl.col("n") == n) & (pl.col("k") == k)).sort("m")
    for i, dtype in enumerate([] if rows is None else rows["gemm_dtype"].unique(maintain_order=True).sort()):
        own = rows.filter(pl.col("gemm_dtype") == dtype) if rows is not None else pl.DataFrame()
        rate = 2.0 * own["m"].to_numpy() * n * k / (own["latency"].to_numpy() * 1e9)
        axes.plot(own["m"], rate, color=COLOURS[i], marker=MARKERS[i], ms=4, label=str(dtype))
    _finish(axes)


def _prompts(axes: Axes, frames: Mapping[str, pl.DataFrame], shape: ModelShape) -> None:
    """Attention of one layer by new tokens, for some numbers of cached ones."""
    axes.set(xscale="log", yscale="log", xlabel="new tokens", ylabel="ms a layer", title="Attention of prompts")
    curves: list[tuple[str, pl.DataFrame]] = []
    if (frame := frames.get("context_attention")) is not None:
        flash = frame.filter(pl.col("kernel_source") != CUDNN)
        curves.append(("nothing cached", _whole(flash.filter(pl.col("batch_size") == 1), shape).sort("isl")))
    if (frame := frames.get("append_attention")) is not None:
        for cached in frame["step"].unique().sort()[::2]:
            curves.append((f"{cached:,} cached", _whole(frame.filter(pl.col("step") == cached), shape).sort("isl")))
    for i, (label, own) in enumerate(curves):
        axes.plot(own["isl"], own["latency"], color=COLOURS[i % 8], marker=MARKERS[i % 8], ms=4, label=label)
    _finish(axes)


def _decodes(axes: Axes, frame: pl.DataFrame | None, shape: ModelShape) -> None:
    """Rate at which decodes read their cache."""
    axes.set(xscale="log", yscale="log", xlabel="KV tokens", ylabel="GB/s of KV read", title="Attention of decodes")
    rows = None if frame is None else _whole(frame, shape)
    for i, batch in enumerate([] if rows is None else rows["batch_size"].unique().sort()[::2]):
        own = rows.filter(pl.col("batch_size") == batch).sort("step") if rows is not None else pl.DataFrame()
        tokens = (own["step"].to_numpy() + 1) * int(batch)
        size = 2.0 * BYTES * shape.kv_heads * shape.head_dim * tokens
        rate = size / (own["latency"].to_numpy() * 1e6)
        axes.plot(tokens, rate, color=COLOURS[i % 8], marker=MARKERS[i % 8], ms=4, label=_decode_words(batch))
    _finish(axes)


def _rises(axes: Axes, rises: Sequence[Mapping[str, Any]]) -> None:
    """How much longer TPOT gets by one prefill, by how prefixes are shared."""
    axes.set(title="One prefill beside decodes", ylabel="TPOT longer by, %")
    for i, (figure, label) in enumerate(FIGURES.items()):
        at = [x + (i - 1.5) * 0.2 for x in range(len(rises))]
        axes.bar(at, [row[figure] * 100 for row in rises], width=0.18, color=COLOURS[i], label=label)
    axes.axhline(0.0, color="#444444", lw=0.9)
    axes.set_xticks(
        range(len(rises)), [f"{_decode_words(row['batch'])},\n{row['new']} new" for row in rises], fontsize=7
    )
    _finish(axes)


def _whole(frame: pl.DataFrame, shape: ModelShape) -> pl.DataFrame:
    """Rows of all heads, as without tensor parallelism."""
    return frame.filter(pl.col("num_heads") == shape.heads)


def _decode_words(batch: int) -> str:
    return "1 decode" if batch == 1 else f"{batch} decodes"


def _finish(axes: Axes) -> None:
    plain_ticks(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    else:
        axes.text(0.5, 0.5, "not measured yet", transform=axes.transAxes, ha="center", va="center")
