"""Fit a generator to a window of a trace, and judge it on another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from traces.arrivals import ArrivalFit, fit_arrivals
from traces.check import BY_NAME
from traces.errors import TraceError, nearest
from traces.generators.distance import distances, starts
from traces.generators.draw import check_seed
from traces.generators.fit_sessions import TOLERANCE_TOKENS, fit_sessions
from traces.generators.lengths import LABELS, fit_mixes
from traces.generators.prefixes import fit_prefixes
from traces.generators.spec import Generator
from traces.trace import Trace
from traces.transform import ZONES, window

FIT_ZONES = (*ZONES, "all")
LEAST = 30  # starts of either window
_SPREAD = re.compile(r"stamps of ([\d.e+-]+) s spread")
_FITTED_SHARE = 2 / 3  # of a zone that is not train: the rest judges
_DRAWN = ("arrival_s", "session", "turn", "think_s", "prompt_tokens", "output_tokens", *LABELS)


def fit_windows(
    trace: Trace, zone: str = "train", cuts_s: tuple[float, float, float] | None = None
) -> tuple[Trace, Trace]:
    """The window to fit on and the one to judge on.

    ``train`` is judged on ``validation``. Any other zone, or ``all``, is fitted on its first two thirds and judged on
    the rest of itself, so that nothing of one zone reaches another. Turns after the end of a window are left out in
    open replay (a session belongs to the window in which it starts).

    Args:
        trace: the trace.
        zone: one of :data:`FIT_ZONES`.
        cuts_s: ends of the zones, where they are not the trace's own.

    Raises:
        TraceError: an unknown zone, or a trace too short to be cut.
    """
    from traces.catalog import zones

    if zone not in FIT_ZONES:
        expected = f"one of {', '.join(FIT_ZONES)}{nearest(str(zone), FIT_ZONES)}"
        raise TraceError(file=trace.name, column="zone", value=zone, expected=expected)
    if zone == "all":
        whole = trace
    else:
        parts = zones(trace, cuts_s, across="drop" if trace.replay == "open" else "whole")
        if zone == "train":
            return parts["train"], parts["validation"]
        whole = parts[zone]
    cut = whole.duration_s * _FITTED_SHARE
    return window(whole, 0.0, cut), window(whole, cut, whole.duration_s)


def fit_generator(
    fitted: Trace,
    held_out: Trace,
    *,
    zone: str = "train",
    seed: int = 0,
    families: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Generator:
    """Fit every law on ``fitted``; choose the arrival law and measure distances on ``held_out``.

    Args:
        fitted: the window to fit on, 30 or more starts.
        held_out: the window to judge on.
        zone: what they are of, for the record.
        seed: of what is drawn to choose the arrival law and for the distances.
        families: of arrival laws to try; None: all that the stamps allow.
        progress: called with the name of each family of arrival laws before it is fitted.

    Raises:
        TraceError: too few requests.
    """
    check_seed(fitted.name, seed)
    for part in (fitted, held_out):
        if starts(part).size < LEAST:
            expected = f"{LEAST} session starts or more to fit from"
            raise TraceError(file=part.name, value=f"{starts(part).size} starts", expected=expected)
    arrivals = fit_arrivals(
        starts(fitted),
        fitted.duration_s,
        starts(held_out),
        held_out.duration_s,
        families=families,
        resolution_s=_spread_s(fitted),
        seed=seed,
        progress=progress,
    )
    lengths, mixes, rare = fit_mixes(fitted)
    sessions, prefixes = fit_sessions(fitted), fit_prefixes(fitted)
    made = Generator(
        source=fitted.name,
        source_sha256=fitted.sha256,
        origin=fitted.provenance,
        zone=zone,
        requests=len(fitted),
        duration_s=fitted.duration_s,
        starts=starts(fitted).size,
        arrivals=arrivals.law,
        arrivals_fit=_record(arrivals),
        lengths=lengths,
        mixes=mixes,
        sessions=sessions,
        prefixes=prefixes,
        kept=_kept(sessions is not None, prefixes is not None, bool(mixes)),
        not_kept=_not_kept(fitted, rare),
    )
    return replace(made, distances=distances(made, fitted, held_out, seed=seed))


def _spread_s(trace: Trace) -> float | None:
    """The width of coarse stamps inside which arrivals were spread, which readers and transforms leave a note of."""
    found = [match[1] for note in trace.provenance for match in [_SPREAD.match(note)] if match]
    return float(found[-1]) if found else None


def _record(arrivals: ArrivalFit) -> dict[str, object]:
    """What the choice of the arrival law rests on, as plain values."""
    return {
        "family": arrivals.law.family,
        "adequate": bool(arrivals.adequate),
        "verdict": str(arrivals.verdict),
        "scores": {str(family): round(float(score), 4) for family, score in arrivals.scores.items()},
        "tests": {str(name): float(f"{value:.4g}") for name, value in arrivals.tests.items()},
    }


def _kept(sessions: bool, prefixes: bool, mixes: bool) -> tuple[str, ...]:
    found = ["first turns: prompt with output length (joint ranks), repeated exact lengths, both tails"]
    if sessions:
        found += [
            "first prompt with number of turns (joint ranks)",
            "turn number with new tokens, output length and think time (a table each by stage)",
            "new tokens, output and think time of a turn with each other and with those of the turn before (correlated "
            "normal scores)",
            "prompt length with turn number: a prompt is the turn before, its answer and new tokens",
            "compaction with the size of the context; answers that do not reappear; edited prompts",
        ]
    if prefixes:
        found += ["system prompts, documents with Zipf popularity and turnover, prompt lengths alike within a document"]
    if mixes:
        found += ["class, priority, tenant, model and adapter together, with first-turn lengths of their own if common"]
    return tuple(found)


def _not_kept(trace: Trace, rare: float) -> tuple[str, ...]:
    found = ["any link between arrivals and lengths, and any drift of lengths inside the window"]
    if trace.n_sessions:
        found += [
            "sessions that the window cuts: their later turns are missing, so long sessions are under-represented",
            "that sessions end before they reach their limit: contexts are compacted more often than in the source",
            f"growth within {TOLERANCE_TOKENS} tokens below the answer counts as the answer kept",
        ]
        think = trace.frame.filter(pl.col("turn") > 1)["think_s"]
        if think.null_count():
            rest = "those of the others" if think.null_count() < think.len() else "0, so that replay=closed says little"
            found.append(f"think times of {think.null_count()} later turns are not in the source: drawn as {rest}")
        if any(name in trace.frame.columns for name in LABELS):
            found.append("labels that change within a session (the first turn's count), later turns by label")
    if trace.prefix_block_tokens:
        found.append("prefixes shared with another session's later turns, and the delay before a document is met again")
    if rare:
        found.append(f"label combinations beyond the most common ones: {rare:.2%} of sessions")
    left = [name for name in trace.frame.columns if name not in _DRAWN and name in BY_NAME]
    if left:
        found.append(f"columns {', '.join(left)}")
    return tuple(found)
