"""Predicted against measured, log-log, one panel a metric, by engine and layout."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import polars as pl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.evidence.figures import COLOURS, MARKERS, save
from research.evidence.ticks import plain_ticks
from research.validating.scores import METRICS, column

FACTOR = 1.1
BAND = f"grey band: within a factor of {FACTOR:g}"
RANGE = "whiskers: least to greatest over the rounds that a run may have had"
SCALE = {"ttft": (1e3, "ms"), "tpot": (1e3, "ms"), "tokens_per_gpu": (1.0, "tokens/s per GPU")}


def draw(frame: pl.DataFrame, title: str, path: Path) -> bool:
    """Write the picture; False where nothing is predicted.

    Args:
        frame: from ``scores.gathered``.
        title: of the whole figure.
        path: PNG.
    """
    return save(lambda: _figure(frame, title), path)


def _figure(frame: pl.DataFrame, title: str) -> Figure | None:
    known = frame.filter(pl.col("predicted_tpot_s").is_not_null())
    if known.is_empty():
        return None
    figure, axes = plt.subplots(1, len(METRICS), figsize=(12.5, 5.0))
    names = known.select("engine", "layout").unique().sort("engine", "layout").rows()
    for panel, metric in zip(axes, METRICS, strict=True):
        _panel(panel, known, metric, names)
    marks = {label: mark for panel in axes for mark, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    last = [label for label in (BAND, RANGE) if label in marks]
    labels = [label for label in marks if label not in last] + last
    # Outside, where it covers no point.
    figure.legend(
        [marks[label] for label in labels], labels, loc="outside lower center", ncols=3, fontsize=8, markerscale=2
    )
    figure.suptitle(title, fontsize=11)
    return figure


def _panel(axes: Axes, known: pl.DataFrame, metric: str, names: list[tuple[str, str]]) -> None:
    factor, unit = SCALE[metric]
    values: list[float] = []
    engines = sorted({engine for engine, _ in names})
    for engine, layout in names:
        own = known.filter((pl.col("engine") == engine) & (pl.col("layout") == layout))
        x = own[column("measured", metric)].to_numpy() * factor
        y = own[column("predicted", metric)].to_numpy() * factor
        colour, marker = COLOURS[engines.index(engine)], MARKERS[0 if layout == "colocated" else 2]
        axes.plot(x, y, marker, color=colour, ms=3.2, alpha=0.55, mew=0, label=f"{engine}, {layout}", ls="none")
        if metric != "tokens_per_gpu":
            low = own[column("low", metric)].to_numpy() * factor
            high = own[column("high", metric)].to_numpy() * factor
            several = high > low
            if several.any():
                axes.vlines(x[several], low[several], high[several], color=colour, alpha=0.25, lw=0.8, label=RANGE)
        values += [*x.tolist(), *y.tolist()]
    ends = np.array([min(values) / 1.3, max(values) * 1.3])
    axes.plot(ends, ends, "-", color="#444444", lw=0.9, label="predicted as measured")
    axes.fill_between(ends, ends / FACTOR, ends * FACTOR, color="#888888", alpha=0.18, lw=0, label=BAND)
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal",
        xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}", title=METRICS[metric],
    )  # fmt: skip
    plain_ticks(axes)
