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
from research.validating.scores import METRICS, column

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
    figure, axes = plt.subplots(1, len(METRICS), figsize=(12.5, 4.4))
    names = known.select("engine", "layout").unique().sort("engine", "layout").rows()
    for panel, metric in zip(axes, METRICS, strict=True):
        _panel(panel, known, metric, names)
    axes[0].legend(loc="upper left", fontsize=8)
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
            axes.vlines(x, low, high, color=colour, alpha=0.25, lw=0.8)
        values += [*x.tolist(), *y.tolist()]
    ends = np.array([min(values) / 1.3, max(values) * 1.3])
    axes.plot(ends, ends, "-", color="#444444", lw=0.9)
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color="#888888", alpha=0.18, lw=0)
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal",
        xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}", title=METRICS[metric],
    )  # fmt: skip
