"""A backtest request by request: simulated against logged, log-log, one panel a time, by load level."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import polars as pl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from research.evidence.figures import COLOURS, MARKERS, save
from research.evidence.ticks import plain_ticks
from research.validating.backtest import LEVELS, TIMES
from research.validating.picture import BAND, FACTOR

TITLES = {"ttft": "TTFT", "tpot": "TPOT"}


def drawn(frame: pl.DataFrame, title: str, path: Path) -> list[str]:
    """Write the picture; the line that says where it is, none where no time can be drawn.

    Args:
        frame: from ``backtest.compared``.
        title: of the whole figure.
        path: PNG.
    """
    return [f"picture  {path}"] if save(lambda: _figure(frame, title), path) else []


def _figure(frame: pl.DataFrame, title: str) -> Figure | None:
    both = {n: frame.filter(pl.col(f"logged_{n}_s") > 0, pl.col(f"simulated_{n}_s") > 0) for n in TIMES}
    both = {name: own for name, own in both.items() if own.height}
    if not both:
        return None
    figure, panels = plt.subplots(1, len(both), figsize=(4.6 * len(both), 5.2), squeeze=False)
    for axes, (name, own) in zip(panels[0], both.items(), strict=True):
        for i, level in enumerate(LEVELS):
            x, y = (own.filter(level=level)[f"{side}_{name}_s"].to_numpy() * 1e3 for side in ("logged", "simulated"))
            axes.plot(
                x, y, MARKERS[i], color=COLOURS[i], ms=3.2, alpha=0.5, mew=0, ls="none", label=f"{level} load"
            )  # fmt: skip
        values = own.select(f"logged_{name}_s", f"simulated_{name}_s").to_numpy() * 1e3
        ends = np.array([values.min() / 1.3, values.max() * 1.3])
        axes.plot(ends, ends, "-", color="#444444", lw=0.9, label="simulated as logged")
        axes.fill_between(ends, ends / FACTOR, ends * FACTOR, color="#888888", alpha=0.18, lw=0, label=BAND)
        axes.set(
            xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal",
            xlabel="logged, ms", ylabel="simulated, ms", title=f"{TITLES[name]} of {own.height:,} requests",
        )  # fmt: skip
        plain_ticks(axes)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, markerscale=2
    )
    figure.suptitle(title, fontsize=11, parse_math=False)
    return figure
