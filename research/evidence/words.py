"""What a comparison found, in sentences that claim no more than the intervals do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from research.evidence.summary import COMPARED, HEADLINE

NOT_RANKED = "prefix-aware policies are not ranked on this trace"

METRIC_WORDS = {
    "goodput_per_s": "goodput",
    "attainment": "SLO attainment",
    "ttft_p95_s": "p95 TTFT",
    "ttft_p99_s": "p99 TTFT",
    "tpot_p99_s": "p99 TPOT",
    "tbt_p99_s": "p99 TBT",
    "e2e_p95_s": "p95 end-to-end time",
}


def load_words(load: float, rate_per_s: float) -> str:
    """``load 1.00 (31.2 requests/s)``."""
    rate = f"{rate_per_s:.3g} requests/s"
    return rate if math.isnan(load) else f"load {load:g} ({rate})"


def verdict(winner: Mapping[str, Any], windows: int) -> str:
    """Who wins at a load, by how much, how sure."""
    where = load_words(winner["load"], winner["rate_per_s"])
    value, leader, second = winner["estimate"], winner["leader"], winner["runner_up"]
    if second is None:
        return f"{where}: only {leader} is ranked, goodput {value:.3g}/s."
    gap = f"{second['estimate']:+.3g}/s ({second['relative']:+.1%})"
    interval = f"[{second['low']:+.3g}, {second['high']:+.3g}]"
    level = f"{second['confidence']:.3g}".rstrip("0")
    if winner["proven"]:
        return (
            f"{where}: {leader} wins, goodput {value:.3g}/s, {gap} over {second['versus']}; paired interval {interval} "
            f"at level {level} over {second['windows']} windows{_indicative(second)}."
        )
    if second["estimate"] == 0.0 and second["low"] == 0.0 == second["high"]:
        return f"{where}: no winner is proven: {leader} and {second['versus']} are equal in every window."
    if math.isnan(second["low"]):
        return (
            f"{where}: no winner is proven: {leader} leads, {gap} over {second['versus']}, "
            f"with no interval from {windows} window."
        )
    others = [name for name in winner.get("not_told_apart", ()) if name != second["versus"]]
    too = f" (nor from {', '.join(others)})" if others else ""
    return (
        f"{where}: no winner is proven: {leader} leads with {value:.3g}/s but is not told apart from "
        f"{second['versus']}{too}: {gap}, paired interval {interval} at level {level}{_indicative(second)}. "
        f"{second['windows']} windows find a true difference of {second['detectable']:.2g}/s in 4 of 5 cases."
    )


def other_winners(winner: Mapping[str, Any]) -> str | None:
    """Figures whose best mean belongs to another policy than the leader by goodput."""
    found: dict[str, list[str]] = {}
    for metric in COMPARED:
        best = winner["best_by"].get(metric)
        if metric != HEADLINE and best is not None and best["policy"] != winner["leader"]:
            found.setdefault(best["policy"], []).append(METRIC_WORDS[metric])
    if not found:
        return None
    parts = [f"{policy} ({', '.join(metrics)})" for policy, metrics in found.items()]
    return f"{load_words(winner['load'], winner['rate_per_s'])}: best means of other figures: {'; '.join(parts)}."


def robustness_words(summary: Mapping[str, Any]) -> list[str]:
    """Whether the leader stays the leader when the policies' predictor is off."""
    out = []
    for off_by, entry in summary["robustness"]["leaders"].items():
        share = f"{float(off_by):.0%}"
        base, now = summary["robustness"]["leader"], entry["leader"]
        where = load_words(summary["robustness"]["load"], summary["robustness"]["rate_per_s"])
        if now == base:
            out.append(f"{where}: {base} still leads with the predictor {share} off ({entry['estimate']:.3g}/s).")
        else:
            out.append(
                f"{where}: with the predictor {share} off {now} leads instead of {base} ({entry['estimate']:.3g}/s)."
            )
    return out


def say(summary: Mapping[str, Any], unranked: Sequence[str], has_prefixes: bool) -> list[str]:
    """All sentences, in order."""
    lines = [verdict(w, w["runner_up"]["windows"] if w["runner_up"] else 0) for w in summary["winners"]]
    lines += [line for w in summary["winners"] if (line := other_winners(w)) is not None]
    if summary["robustness"]["leaders"]:
        lines += robustness_words(summary)
    if not has_prefixes:
        names = f" ({', '.join(unranked)})" if unranked else ""
        lines.append(f"{NOT_RANKED}{names}: it has no prefix information.")
    return lines


def _indicative(difference: Mapping[str, Any]) -> str:
    return ", indicative only (fewer than 8 windows)" if difference["indicative"] else ""
