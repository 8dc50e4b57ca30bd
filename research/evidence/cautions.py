"""How long the replayed windows are, and what a reader should be warned of: facts of a study beside its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from research.evidence.table import look_up
from research.evidence.words import load_words

if TYPE_CHECKING:
    from research.conduct import Conducted
    from research.study import Study

LEAST_EXTRAPOLATED = 0.001
"""Fewer steps than this share outside the fitted range are not worth a warning."""

LIVES_PER_WINDOW = 10.0
"""A window shorter than so many mean end-to-end times is still filling up, or draining, for much of its length."""


def spans(study: Study, done: Conducted) -> list[dict[str, float]]:
    """Length of a replayed window at each load, in seconds, and of the shortest lead-in before one.

    A load compresses the trace's time, so the higher it is the shorter both are.
    """
    own = study.trace.pace_per_s("test")
    windows = [study.trace.window("test", study.windows, i, study.lead_in) for i in range(study.windows)]
    lead_s, length_s = min(w.lead_s for w in windows), windows[0].length_s
    return [
        {"load": load, "rate_per_s": rate, "window_s": length_s * own / rate, "lead_in_s": lead_s * own / rate}
        for rate, load in sorted({c.rate_per_s: c.load for c in done.cells}.items())
    ]


def lengths(summary: Mapping[str, Any]) -> str:
    """``A window lasts 17 s at load 1 (34 s of lead-in before it).``, for every load."""
    parts = []
    for i, span in enumerate(summary["spans"]):
        where = _where(summary, span)
        # The first windows have less before them where the trace starts, or training ends, within their lead-in.
        cut = span["lead_in_s"] < 0.99 * summary["lead_in"] * span["window_s"]
        least = "at least " if cut else ""
        lead = f"{least}{_seconds(span['lead_in_s'])}{'' if i else ' of lead-in before it'}"
        parts.append(f"{_seconds(span['window_s'])} at {where}" + (f" ({lead})" if span["lead_in_s"] > 0 else ""))
    return f"A window lasts {', '.join(parts)}." if parts else ""


def cautions(study: Study, summary: Mapping[str, Any]) -> list[str]:
    """All warnings about a study, in sentences."""
    return [
        *short_windows(summary),
        *extrapolated(summary),
        *idle_timers(study),
        *cancels(study),
        *replays(study, summary),
    ]


def short_windows(summary: Mapping[str, Any]) -> list[str]:
    """Loads whose windows are short against a request's life under the reference policy."""
    cells = look_up(summary["rows"])
    short = []
    for span in summary["spans"]:
        row = cells.get((summary["reference"], span["rate_per_s"], "e2e_mean_s"))
        life_s = None if row is None else row["estimate"]
        if life_s is not None and span["window_s"] < LIVES_PER_WINDOW * life_s:
            where = _where(summary, span)
            short.append(f"{where} ({_seconds(span['window_s'])} against a mean of {_seconds(life_s)})")
    if not short:
        return []
    return [
        f"Windows are shorter than {LIVES_PER_WINDOW:.0f} times the end-to-end time of {summary['reference']}'s "
        f"requests at {', '.join(short)}: figures of overload there are those of a transient. "
        "Fewer windows or a longer trace make them longer."
    ]


def extrapolated(summary: Mapping[str, Any]) -> list[str]:
    """Steps that took more tokens, decodes or context than were measured, at the load where they are most."""
    shares = [
        (row["estimate"], row["policy"])
        for row in summary["rows"]
        if row["metric"] == "extrapolated_steps_share" and row["estimate"]
    ]
    if not shares or max(shares)[0] < LEAST_EXTRAPOLATED:
        return []
    share, policy = max(shares)
    return [
        f"Up to {share:.1%} of engine steps ({policy}) lie outside the range in which the step law was fitted (more "
        "tokens, decodes, context or KV tokens than measured): their times are extrapolated."
    ]


def idle_timers(study: Study) -> list[str]:
    """Policies that would move the prefill shares of split workers, were there a timer."""
    if study.adjust_period_s > 0.0 or not any(w.role == "split" for w in study.cluster.workers):
        return []
    return [
        f"{choice.label} keeps its start shares: its timer is off, set adjust_period_s (such as adjust_period_s=0.5)."
        for choice in study.entrants
        if not choice.replays and hasattr(choice.build(), "adjust")
    ]


def cancels(study: Study) -> list[str]:
    """Clients that give up: in the trace, but not in the simulator yet."""
    from envs.cluster.simulator import count_cancels

    trace = study.trace.load()
    count = count_cancels(trace)
    if not count:
        return []
    return [
        f"{count} of {len(trace)} requests of the trace would be cancelled by their client after some time "
        "(cancel_after_s). The simulator does not cancel: they are served to the end, so loads and waits are too high."
    ]


def replays(study: Study, summary: Mapping[str, Any]) -> list[str]:
    """Where recorded routes are replayed: what its figures are not, and rates at which they were not recorded."""
    labels = [choice.label for choice in study.entrants if choice.replays]
    if not labels:
        return []
    lines = [
        f"{', '.join(labels)} replays the routes that the trace recorded, whatever the workers are doing: no router, "
        "and not ranked."
    ]
    own = study.trace.pace_per_s("test")
    if off := [span for span in summary["spans"] if abs(span["rate_per_s"] / own - 1.0) > 1e-6]:
        where = ", ".join(_where(summary, span) for span in off)
        lines.append(
            f"Its routes were recorded at {own:.4g} {summary['rate_unit']}/s; at {where} they are replayed at another "
            f"rate. rate_per_s={own!r} replays them as they were."
        )
    return lines


def _where(summary: Mapping[str, Any], span: Mapping[str, Any]) -> str:
    load = span["load"]
    if load is None or math.isnan(load):
        return load_words(None, span["rate_per_s"], summary["rate_unit"])
    return f"load {load:g}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10.0 else f"{value:.0f} s"
