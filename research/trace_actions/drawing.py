"""Pictures of a trace, in the style of those of a study. Imports matplotlib: load it where something is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from research.evidence.figures import COLOURS, save
from traces import Trace

WIDE = (9.6, 3.5)


def draw_all(trace: Trace, stats: Mapping[str, Any], out: Path) -> list[Path]:
    """Draw what the trace has into ``out``; the files written."""
    pictures = {
        "arrivals": lambda: arrivals(trace, stats),
        "lengths": lambda: lengths(trace),
        "sessions": lambda: sessions(trace),
        "prefix_cache": lambda: prefix_cache(stats),
    }
    return [out / f"{name}.png" for name, draw in pictures.items() if save(draw, out / f"{name}.png")]


def arrivals(trace: Trace, stats: Mapping[str, Any]) -> Figure | None:
    """Rate over time, and the index of dispersion against the length of the counting interval."""
    rate, curve = stats.get("arrival_rate"), stats["arrival_dispersion_curve"]
    if rate is None:
        return None
    what = "requests" if trace.replay == "open" else "session starts"
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE, width_ratios=(3, 2))
    left.stairs(rate["per_s"], [*rate["start_s"], rate["end_s"][-1]], color=COLOURS[0], fill=True, alpha=0.25)
    left.stairs(rate["per_s"], [*rate["start_s"], rate["end_s"][-1]], color=COLOURS[0], lw=1.1)
    width = rate["end_s"][0] - rate["start_s"][0]
    left.set(xlabel="time, s", ylabel=f"{what}/s", title=f"{what.capitalize()}, {width:.3g} s intervals")
    left.set_ylim(bottom=0)
    left.set_xlim(0, rate["end_s"][-1])
    if curve["scale_s"]:
        from scipy.stats import chi2

        free = np.array([trace.duration_s // scale_s - 1 for scale_s in curve["scale_s"]])
        low, high = chi2.ppf(0.025, free) / free, chi2.ppf(0.975, free) / free
        right.fill_between(curve["scale_s"], low, high, color="#7F7F7F", alpha=0.25, lw=0, label="Poisson, 95 %")
        right.plot(curve["scale_s"], curve["index"], color=COLOURS[1], marker="o", ms=4, lw=1.5, label="this trace")
        right.set(xscale="log", yscale="log", xlabel="counting interval, s", title="Index of dispersion of counts")
        bottom, top = right.get_ylim()
        right.set_ylim(min(bottom, 0.4), max(top, 2.5))
        right.legend(loc="upper left")
        _plain(right, x=True, y=True)
        right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        right.yaxis.set_minor_locator(NullLocator())
    else:
        _empty(right, "too short to count in intervals")
    return figure


def lengths(trace: Trace) -> Figure:
    """CDFs of prompt and output lengths, and the two together."""
    prompt, output = (trace.frame[c].to_numpy() for c in ("prompt_tokens", "output_tokens"))
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    for i, (values, label) in enumerate(((prompt, "prompt"), (output, "output"))):
        _cdf(left, values, label, i)
    left.set(xscale="log", xlabel="tokens", ylabel="share of requests at or below", title="Lengths")
    left.legend(loc="best")
    bins = [np.unique(np.geomspace(max(1, v.min()), v.max() + 1, 60).round()) - 0.5 for v in (prompt, output)]
    if min(map(len, bins)) > 1:
        *_, image = right.hist2d(prompt, output, bins=bins, norm=LogNorm(), cmap="viridis", rasterized=True)
        figure.colorbar(image, ax=right, label="requests")
    else:
        right.plot(prompt, output, "o", color=COLOURS[0], ms=4)
    right.set(xscale="log", yscale="log", xlabel="prompt tokens", ylabel="output tokens", title="Prompt with output")
    right.grid(visible=False)
    _plain(left, x=True, share=True)
    _plain(right, x=True, y=True)
    return figure


def sessions(trace: Trace) -> Figure | None:
    """Turns of a session, and think times."""
    session = trace.frame["session"].to_numpy()
    if not trace.n_sessions:
        return None
    turns = np.bincount(session[session >= 0])
    think = trace.frame["think_s"].drop_nulls().to_numpy()
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    many = np.arange(1, turns.max() + 1)
    left.step(many, [(turns >= k).mean() for k in many], where="mid", color=COLOURS[0], lw=1.5)
    left.set(xscale="log", yscale="log", xlabel="turns", ylabel="share of sessions with so many or more", title="Turns")
    _plain(left, x=True, share=True)
    if think.size:
        low = 0.1
        _cdf(right, np.maximum(think, low), "think time", 2)
        right.set(
            xscale="log",
            xlabel=f"think time, s (below {low:g} drawn at {low:g})",
            ylabel="share of later turns at or below",
        )
        right.set_title("End of a turn to the next one's start")
        _plain(right, x=True, share=True)
    else:
        _empty(right, "no think times in this trace")
    return figure


def prefix_cache(stats: Mapping[str, Any]) -> Figure | None:
    """Ideal hits against the size of one shared cache."""
    if "hit_curve" not in stats:
        return None
    figure, axes = plt.subplots(figsize=(6.6, 3.6))
    for i, (key, label) in enumerate(
        (("hit_curve", "prompts and outputs cached"), ("hit_curve_prompts_alone", "prompts cached"))
    ):
        curve = stats[key]
        axes.plot(curve["cache_tokens"][1:], curve["hit_share"][1:], color=COLOURS[i], lw=1.5, label=label)
        axes.axhline(curve["hit_share"][-1], color=COLOURS[i], lw=0.9, ls=(0, (4, 3)), alpha=0.7)
    axes.set(
        xscale="log",
        xlabel="size of one shared cache, tokens (dashed: endless)",
        ylabel="share of full prompt blocks hit",
        title="Ideal prefix hits, least recently used out first",
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="center left")
    _plain(axes, x=True, share=True)
    return figure


def _cdf(axes: Axes, values: NDArray[Any], label: str, colour: int) -> None:
    shares = np.linspace(0.0, 1.0, 1001)
    axes.plot(np.quantile(values, shares), shares, color=COLOURS[colour], lw=1.5, label=label)


def _empty(axes: Axes, why: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", transform=axes.transAxes)


def _plain(axes: Axes, *, x: bool = False, y: bool = False, share: bool = False) -> None:
    """Numbers as they are said, not as powers of ten."""
    if x:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _short(v)))
    if y:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _short(v)))
    if share:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.3g} %"))


def _short(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
