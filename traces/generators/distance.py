"""How far a drawn trace is from a held-out window of its source, beside how far the fitted window itself is.

The distance of a quantity is the two-sample Kolmogorov-Smirnov statistic: the largest gap between two cumulated
distributions, 0 to 1. ``real`` compares the fitted window with the held-out one: traffic drifts, and no generator that
does not know the future is closer than that, but by luck. ``generated`` compares a long drawn trace with the held-out
window; its bound is ``real`` + :data:`SLACK`: what the generator may add to the drift. Where the held-out window cuts
sessions at its end (open replay), both others are cut in the same way, a drawn trace by its nominal arrivals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.describe import ideal_hit_share
from traces.generators.burstiness import compare_dispersion
from traces.generators.draw import draw_trace
from traces.generators.spec import Generator
from traces.trace import Trace
from traces.transform import session_starts, subset

Floats = NDArray[np.float64]

SLACK = 0.03
"""Bound of a generated distance above the real one."""

_REQUESTS = 50_000  # of the drawn trace
_MOST_WINDOWS = 200  # held-out windows that it may be long
_WINDOWS = ("fitted", "held_out", "generated")
_HIT_TRACES = 5  # drawn traces of the held-out window's length


def starts(trace: Trace) -> Floats:
    """Sorted starts of sessions and of requests without one: what a generator's arrivals are of."""
    return np.sort(trace.frame.filter(pl.col("turn") == 1)["arrival_s"].to_numpy())


def quantities(trace: Trace) -> dict[str, Floats]:
    """Samples by name; those that a trace does not have are left out."""
    frame = trace.frame
    found = {
        "inter_arrival_s": np.diff(starts(trace)),
        "prompt_tokens": frame["prompt_tokens"].to_numpy(),
        "output_tokens": frame["output_tokens"].to_numpy(),
    }
    if (frame["turn"] > 1).any():
        inside = frame.filter(pl.col("session") >= 0)
        alone = np.ones(frame.height - inside.height)
        found["turns"] = np.r_[inside.group_by("session").len()["len"].to_numpy(), alone]
        found["think_s"] = frame["think_s"].drop_nulls().to_numpy()
    return {name: sample for name, sample in found.items() if sample.size}


def cut_alike(trace: Trace, held_out: Trace) -> Trace:
    """A trace without the turns that windows as long as the held-out one would not show."""
    if held_out.replay != "open" or not trace.n_sessions:
        return trace
    length = held_out.duration_s
    start = session_starts(trace)
    seen = np.isnan(start) | (trace.frame["arrival_s"].to_numpy() < (start // length + 1) * length)
    return subset(trace, seen, start_s=0.0, duration_s=trace.duration_s, name=trace.name, note="cut at windows")


def distances(made: Generator, fitted: Trace, held_out: Trace, *, seed: int = 0) -> dict[str, Any]:
    """The table of a fit.

    Args:
        made: the generator.
        fitted: the window that it is fitted on.
        held_out: another window of the same source.
        seed: of the drawn traces.

    Returns:
        ``ks``: quantity -> ``real``, ``generated``, ``bound`` (all KS), ``within``. Gaps between starts are stretched
        to the held-out mean: how they vary is compared, and the rate is a setting of its own.
        ``dispersion`` of starts, see :mod:`traces.generators.burstiness`; ``ideal_hit_share`` (of prompt blocks,
        endless cache, in stretches as long as the held-out window) and ``compacted_share`` (of later turns, those
        with a shorter prompt): fitted, held-out, generated.
    """
    from scipy import stats

    per_s = made.rate_per_s * held_out.duration_s
    windows = int(np.clip(_REQUESTS / per_s, 1, _MOST_WINDOWS))
    rate = made.requests_per_start * starts(held_out).size / held_out.duration_s
    drawn = draw_trace(made, duration_s=windows * held_out.duration_s, rate_per_s=rate, seed=seed)
    parts = {"real": cut_alike(fitted, held_out), "held": held_out, "generated": cut_alike(drawn, held_out)}
    samples = {key: quantities(trace) for key, trace in parts.items()}
    table = {}
    for name, held in samples["held"].items():
        row: dict[str, Any] = {}
        for key in ("real", "generated"):
            other = samples[key].get(name)
            if other is None:
                continue
            if name == "inter_arrival_s":
                other = other * (held.mean() / other.mean())
            row[key] = round(float(stats.ks_2samp(other, held, method="asymp").statistic), 4)
        if len(row) == 2:
            bound = round(row["real"] + SLACK, 4)
            table[name] = {**row, "bound": bound, "within": row["generated"] <= bound, "held_out": int(held.size)}
    spread = compare_dispersion(
        made.arrivals, (starts(fitted), fitted.duration_s), (starts(held_out), held_out.duration_s), seed=seed
    )
    result = {"slack": SLACK, "drawn_requests": len(drawn), "ks": table, "dispersion": spread}
    if made.sessions is not None and made.sessions.compaction is not None:
        shrunk = [_shrinking(trace) for trace in (fitted, held_out, drawn)]
        result["compacted_share"] = {key: round(value, 4) for key, value in zip(_WINDOWS, shrunk, strict=True)}
    if made.prefixes is not None:
        short = []
        for k in range(_HIT_TRACES):
            one = draw_trace(made, duration_s=held_out.duration_s, rate_per_s=rate, seed=seed + 1 + k)
            short.append(ideal_hit_share(cut_alike(one, held_out)))
        result["ideal_hit_share"] = {
            "fitted": round(float(np.mean([ideal_hit_share(part) for part in _stretches(fitted, held_out)])), 4),
            "held_out": round(ideal_hit_share(held_out), 4),
            "generated": round(float(np.mean(short)), 4),
        }
    return result


def _shrinking(trace: Trace) -> float:
    """Share of later turns whose prompt is shorter than the one before."""
    frame = trace.frame.sort("session", "turn").with_columns(before=pl.col("prompt_tokens").shift(1))
    later = frame.filter(pl.col("turn") > 1)
    return float((later["prompt_tokens"] < later["before"]).to_numpy().mean()) if later.height else 0.0


def _stretches(trace: Trace, held_out: Trace) -> list[Trace]:
    """Windows of a trace as long as the held-out one: ideal hits grow with the length of a trace."""
    length = held_out.duration_s
    whole = int(trace.duration_s / length + 1e-9)
    if whole < 1:
        return [trace]
    across = "drop" if trace.replay == "open" else "whole"
    return [trace.window(k * length, (k + 1) * length, across=across) for k in range(whole)]
