"""The pictures of a study: PNG for papers and slides, SVG that takes on the colours of the page it is in.

Drawn from ``summary.json`` and the requests kept with the runs. Every mark with a line through it is a mean over
windows with its interval.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

if TYPE_CHECKING:
    import polars as pl

Draw = Callable[[], Figure | None]

# Okabe and Ito (2008): told apart with any kind of colour vision; black last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D3B", "#7F7F7F")
MARKERS = "osD^vPX*"
PAGE_INK = "#123456"  # stands for the text colour of the page that an SVG is in
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "pdgym",
    "figure.constrained_layout.use": True,
}


def palette(policies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(colour, marker) of each policy, the same in all figures of a study."""
    return {
        p: (COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]) for i, p in enumerate(policies)
    }


def goodput(summary: Mapping[str, Any]) -> Figure:
    """Goodput over load with intervals; with one load, a row a policy."""
    look = palette(summary["policies"])
    rows = [r for r in summary["rows"] if r["metric"] == "goodput_per_s" and r["estimate"] is not None]
    rates = sorted({r["rate_per_s"] for r in rows})
    if len(rates) == 1:
        return _one_load(summary, rows, look)
    figure, axes = plt.subplots(figsize=(7.2, 4.0))
    x_of, label = _x_axis(summary, rows)
    span = max(x_of.values()) - min(x_of.values())
    n = len(summary["policies"])
    for i, policy in enumerate(summary["policies"]):
        colour, marker = look[policy]
        own = sorted((r for r in rows if r["policy"] == policy), key=lambda r: r["rate_per_s"])
        x = [x_of[r["rate_per_s"]] + (i - (n - 1) / 2) * 0.008 * span for r in own]
        axes.errorbar(
            x, [r["estimate"] for r in own], yerr=_error(own), color=colour, marker=marker, **_MARK, label=policy
        )
    ticks = [x_of[r] for r in rates]
    axes.plot(
        ticks,
        [_offered(summary, r) for r in rates],
        color=_ink(),
        lw=0.9,
        ls=(0, (4, 3)),
        alpha=0.7,
        label="offered",
        zorder=1,
    )
    axes.set(xlabel=label, ylabel="goodput, requests/s", title="Requests that meet all their objectives")
    axes.set_ylim(bottom=0)
    axes.set_xticks(ticks)
    axes.set_xticklabels([f"{v:.4g}" for v in ticks])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return figure


def _one_load(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], look: Mapping[str, Any]) -> Figure:
    rows = sorted(rows, key=lambda r: r["estimate"])
    figure, axes = plt.subplots(figsize=(7.2, 0.9 + 0.36 * len(rows)))
    for y, row in enumerate(rows):
        colour, marker = look[row["policy"]]
        axes.errorbar([row["estimate"]], [y], xerr=_error([row]), color=colour, marker=marker, **_MARK)
    axes.axvline(_offered(summary, rows[0]["rate_per_s"]), color=_ink(), lw=0.9, ls=(0, (4, 3)), alpha=0.7)
    axes.set_yticks(range(len(rows)), [r["policy"] for r in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set(xlabel="goodput, requests/s (dashed: offered)", title="Requests that meet all their objectives")
    axes.set_xlim(left=0)
    return figure


def differences(summary: Mapping[str, Any]) -> Figure | None:
    """Paired difference in goodput from the reference, with Holm-adjusted intervals."""
    found = [d for d in summary["differences"] if d["metric"] == "goodput_per_s" and d["estimate"] is not None]
    if not found:
        return None
    look = palette(summary["policies"])
    rates = sorted({d["rate_per_s"] for d in found})
    policies = [p for p in summary["policies"] if p != summary["reference"]]
    height = 1.1 + 0.30 * len(policies)
    figure, panels = plt.subplots(
        1, len(rates), figsize=(max(4.2, 2.9 * len(rates)), height), sharey=True, squeeze=False, sharex=False
    )
    for axes, rate in zip(panels[0], rates, strict=True):
        for y, policy in enumerate(reversed(policies)):
            for d in found:
                if d["rate_per_s"] == rate and d["policy"] == policy:
                    colour, marker = look[policy]
                    style = {**_MARK, "markerfacecolor": colour if d["proven"] else "none"}
                    axes.errorbar([d["estimate"]], [y], xerr=_error([d]), color=colour, marker=marker, **style)
        axes.axvline(0.0, color=_ink(), lw=0.9)
        load = next(d["load"] for d in found if d["rate_per_s"] == rate)
        axes.set_title(f"{rate:.3g}/s" if load is None else f"load {load:g}")
        axes.set_yticks(range(len(policies)), list(reversed(policies)))
        axes.set_ylim(-0.6, len(policies) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.12)
    figure.supxlabel(f"goodput minus that of {summary['reference']}, requests/s (filled: proven)", fontsize=9.5)
    return figure


def distributions(summary: Mapping[str, Any], requests: Mapping[str, pl.DataFrame], where: str) -> Figure | None:
    """TTFT and TPOT of served requests at one load, pooled over windows."""
    drawn = {p: t for p, t in requests.items() if t.height}
    if not drawn:
        return None
    look = palette(summary["policies"])
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.6), sharey=True)
    shares = np.linspace(0.0, 1.0, 201)
    for axes, column, scale, label in ((panels[0], "ttft_s", 1.0, "TTFT, s"), (panels[1], "tpot_s", 1e3, "TPOT, ms")):
        for policy, table in drawn.items():
            values = table[column].drop_nulls().to_numpy()
            if values.size:
                axes.plot(np.quantile(values, shares) * scale, shares, color=look[policy][0], lw=1.5, label=policy)
        axes.set_xlabel(label)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
    panels[0].set(xscale="log", title=f"Latency of served requests, {where}")
    panels[0].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panels[0].xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    panels[0].xaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("share of requests at or below")
    tpot = _tpot_objective(summary)
    if tpot:
        panels[1].axvline(1e3 * tpot, color=_ink(), lw=0.9, ls=(0, (4, 3)), alpha=0.7)
        low, high = panels[1].get_xlim()
        left = 1e3 * tpot > (low + high) / 2  # the label goes where there is room
        at = {"xytext": (-4 if left else 4, 0), "textcoords": "offset points", "ha": "right" if left else "left"}
        panels[1].annotate("objective", (1e3 * tpot, 0.0), fontsize=8, **at)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def latencies(summary: Mapping[str, Any], rate: float, where: str) -> Figure:
    """p50, p95 and p99 of TTFT and TPOT by policy at one load."""
    cells = {(r["policy"], r["metric"]): r for r in summary["rows"] if r["rate_per_s"] == rate}
    policies = list(reversed(summary["policies"]))
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 1.3 + 0.42 * len(policies)), sharey=True)
    look = palette(summary["policies"])
    for axes, name, scale, label in ((panels[0], "ttft", 1.0, "TTFT, s"), (panels[1], "tpot", 1e3, "TPOT, ms")):
        for y, policy in enumerate(policies):
            for i, (quantile, alpha) in enumerate((("p50", 1.0), ("p95", 0.65), ("p99", 0.35))):
                row = cells.get((policy, f"{name}_{quantile}_s"))
                if row is None or row["estimate"] is None:
                    continue
                value = scale * row["estimate"]
                place = y + 0.26 - 0.26 * i
                axes.barh(place, value, height=0.24, color=look[policy][0], alpha=alpha, linewidth=0)
                axes.annotate(
                    f"{value:.3g}", (value, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
                )
        axes.set_yticks(range(len(policies)), policies)
        axes.set_xlabel(label)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.14)
    panels[0].set_title(f"p50, p95, p99 (top to bottom), {where}")
    return figure


def knee(summary: Mapping[str, Any]) -> Figure | None:
    """Attainment of the reference over rate on the validation windows, and where the knee is."""
    found = summary["knee"]
    points = [p for p in found["curve"] if p["feasible_attainment"] is not None] if found else []
    if len(points) < 2:
        return None
    figure, axes = plt.subplots(figsize=(7.2, 2.9))
    axes.plot(
        [p["rate_per_s"] for p in points],
        [p["feasible_attainment"] for p in points],
        color=COLOURS[0],
        marker="o",
        ms=4,
        lw=1.5,
    )
    axes.axhline(found["attainment"], color=_ink(), lw=0.9, ls=(0, (4, 3)), alpha=0.7)
    if found["rate_per_s"]:
        axes.axvline(found["rate_per_s"], color=COLOURS[1], lw=1.2)
        axes.set_xlim(left=found["rate_per_s"] / 40)
        axes.annotate(
            f"knee {found['rate_per_s']:.3g}/s",
            (found["rate_per_s"], 0.04),
            xytext=(-5, 0),
            textcoords="offset points",
            ha="right",
            color=COLOURS[1],
        )
    axes.set(
        xscale="log",
        xlabel=f"{summary['rate_unit']}/s",
        ylabel="share of feasible\nrequests served well",
        ylim=(0, 1.03),
        title=f"Capacity under {found['policy']}, validation windows",
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
    return figure


def save(draw: Draw, path: Path) -> bool:
    """PNG on white at print resolution; False if there is nothing to draw."""
    with plt.rc_context(_style("#1f2933")):
        figure = draw()
        if figure is None:
            return False
        figure.savefig(path, dpi=160, facecolor="white")
        plt.close(figure)
    return True


def svg(draw: Draw, prefix: str) -> str:
    """Inline SVG: transparent, text in the page's colour, ids that are unique on the page; empty without a figure."""
    buffer = io.StringIO()
    with plt.rc_context(_style(PAGE_INK)):
        figure = draw()
        if figure is None:
            return ""
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(PAGE_INK, "currentColor")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    size = re.search(r'width="([\d.]+)pt" height="[\d.]+pt"', text)
    assert size is not None
    # One scale for all pictures of a page, so that their letters have one size.
    return text.replace(size[0], f'role="img" style="max-width:{float(size[1]) * 1.45:.0f}px;width:100%"', 1)


_MARK: dict[str, Any] = {"ms": 5.5, "lw": 1.5, "elinewidth": 1.3, "capsize": 2.5, "zorder": 3}


def _style(ink: str) -> Any:
    colours = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color", "grid.color")
    return STYLE | dict.fromkeys(colours, ink)


def _ink() -> str:
    return str(plt.rcParams["text.color"])


def _error(rows: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """(2, rows) distances to the interval's ends; 0 where there is none."""

    def distance(row: Mapping[str, Any], end: str) -> float:
        return 0.0 if row[end] is None or math.isnan(row[end]) else abs(row[end] - row["estimate"])

    return [[distance(r, "low") for r in rows], [distance(r, "high") for r in rows]]


def _x_axis(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[dict[float, float], str]:
    if all(r["load"] is not None for r in rows):
        return {r["rate_per_s"]: r["load"] for r in rows}, "load, multiples of the knee"
    return {r["rate_per_s"]: r["rate_per_s"] for r in rows}, f"{summary['rate_unit']}/s"


def _offered(summary: Mapping[str, Any], rate: float) -> float:
    """Requests that arrived per second of the measured time, under the reference."""
    wanted = (summary["reference"], rate, "offered_per_s")
    found = next(r for r in summary["rows"] if (r["policy"], r["rate_per_s"], r["metric"]) == wanted)
    return float(found["estimate"] or 0.0)


def _tpot_objective(summary: Mapping[str, Any]) -> float | None:
    slo = summary["config"]["slo"]
    return None if slo["by_class"] else float(slo["tpot_s"])
