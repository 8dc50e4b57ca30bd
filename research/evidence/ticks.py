"""Tick labels of log axes: plain numbers, as many as stand beside one another."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

# Ticks in each decade, and the least distance between two of them in decades.
STEPS = (((1, 1.5, 2, 3, 4, 5, 7), 0.096), ((1, 2, 5), 0.3), ((1, 3), 0.47), ((1,), 1.0))
LETTER_POINTS = 7.0
NARROW = 3.0


def plain_ticks(axes: Axes) -> None:
    """Label the log axes of ``axes``, whose limits and size are set, with plain numbers that do not overlap."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            _label(axis, axes)


def _label(axis: Axis, axes: Axes) -> None:
    low, high = axis.get_view_interval()
    box, figure = axes.get_window_extent(), axes.figure
    length = min(box.width, box.height) if axes.get_aspect() != "auto" else box.width
    decade = length / figure.dpi * 72.0 / math.log10(high / low)
    needed = LETTER_POINTS * (1 + max(len(_text(float(f"{end:.1g}"))) for end in (low, high, min(high, 9e5))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _text(value)))
    axis.set_minor_formatter(NullFormatter())
    if high < NARROW * low:  # too little for the ticks of a decade
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.set_minor_locator(NullLocator())
        return
    each = next((each for each, least in STEPS if decade * least >= needed), (1,))
    axis.set_major_locator(LogLocator(subs=each))


def _text(value: float) -> str:
    return f"{value:,.10g}" if value < 1e6 else f"{value / 1e6:,.10g}M"
