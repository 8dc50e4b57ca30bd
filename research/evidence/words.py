"""What a comparison found, in sentences that claim no more than the intervals do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from research.evidence.summary import COMPARED, HEADLINE
from research.evidence.worlds import FEWEST

METRIC_WORDS = {
    "goodput_per_s": "goodput",
    "attainment": "SLO attainment",
    "ttft_p95_s": "p95 TTFT",
    "ttft_p99_s": "p99 TTFT",
    "tpot_p99_s": "p99 TPOT",
    "tbt_p99_s": "p99 TBT",
    "e2e_p95_s": "p95 end-to-end time",
}


def sig(value: float, sign: str = "") -> str:
    """Three significant digits, trailing zeros kept: 26.0, 0.416, 1230."""
    return f"{value:{sign}#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:{sign}.0f}"


def relative(share: float) -> str:
    """``+4.2%``, or ``3.1 times`` where a percentage would say little."""
    return f"{1.0 + share:.3g} times" if share > 1.0 else f"{share:+.1%}"


def load_words(load: float | None, rate_per_s: float, unit: str) -> str:
    """``load 1 (31.2 requests/s)``; without a knee the rate alone."""
    rate = f"{sig(rate_per_s)} {unit}/s"
    return rate if load is None or math.isnan(load) else f"load {load:g} ({rate})"


def headline(winners: Sequence[Mapping[str, Any]], all_ranked: bool = True) -> str:
    """The shortest true answer over all loads."""
    if not all_ranked:
        said = headline(winners)
        return (
            f"Among the ranked policies: {said[0].lower() if said.startswith(('No', 'Proven')) else said[0]}{said[1:]}"
        )
    proven = [w["leader"] for w in winners if w["proven"]]
    if len(set(proven)) == 1 and len(proven) == len(winners):
        return f"{proven[0]} wins at every load."
    if not proven:
        return "No policy is proven best at any load."
    parts = [f"{policy} at {proven.count(policy)} of {len(winners)} loads" for policy in dict.fromkeys(proven)]
    rest = "; at the others no winner is proven" if len(proven) < len(winners) else ""
    return f"Proven best: {', '.join(parts)}{rest}."


def verdict(winner: Mapping[str, Any], unit: str) -> str:
    """Who wins at a load, by how much, how sure."""
    where = load_words(winner["load"], winner["rate_per_s"], unit)
    value, leader, second = winner["estimate"], winner["leader"], winner["runner_up"]
    if leader is None:
        return f"{where}: no policy is ranked."
    if second is None:
        return f"{where}: only {leader} is ranked, goodput {sig(value)}/s."
    gap = f"{sig(second['estimate'], '+')}/s"
    if math.isfinite(second["relative"]):  # no share of a runner-up that serves nothing
        gap += f" ({relative(second['relative'])})"
    interval = f"[{sig(second['low'], '+')}, {sig(second['high'], '+')}]"
    level = f"{second['confidence']:.3g}".rstrip("0")
    if winner["proven"]:
        return (
            f"{where}: {leader} wins, goodput {sig(value)}/s, {gap} over {second['versus']}; "
            f"paired interval {interval} at level {level} over {second['windows']} windows{_indicative(second)}."
        )
    if second["estimate"] == 0.0 and second["low"] == 0.0 == second["high"]:
        return f"{where}: no winner is proven: {leader} and {second['versus']} are equal in every window."
    if math.isnan(second["low"]):
        return (
            f"{where}: no winner is proven: {leader} leads, {gap} over {second['versus']}, "
            f"with no interval from {second['windows']} window."
        )
    others = [name for name in winner.get("not_told_apart", ()) if name != second["versus"]]
    too = f" (nor from {', '.join(others)})" if others else ""
    return (
        f"{where}: no winner is proven: {leader} leads with {sig(value)}/s but is not told apart from "
        f"{second['versus']}{too}: {gap}, paired interval {interval} at level {level}{_indicative(second)}. "
        f"{second['windows']} windows find a true difference of {sig(second['detectable'])}/s in 4 of 5 cases."
    )


def other_winners(winner: Mapping[str, Any], unit: str) -> str | None:
    """Figures whose best mean belongs to another policy than the leader by goodput."""
    found: dict[str, list[str]] = {}
    for metric in COMPARED:
        best = winner["best_by"].get(metric)
        if metric != HEADLINE and best is not None and best["policy"] != winner["leader"]:
            found.setdefault(best["policy"], []).append(METRIC_WORDS[metric])
    if not found:
        return None
    parts = [f"{policy} ({', '.join(metrics)})" for policy, metrics in found.items()]
    return f"{load_words(winner['load'], winner['rate_per_s'], unit)}: best means of other figures: {'; '.join(parts)}."


def robustness_words(summary: Mapping[str, Any]) -> list[str]:
    """Whether the leader stays the leader when the policies' predictor is off."""
    out = []
    for off_by, entry in summary["robustness"]["leaders"].items():
        share = f"{float(off_by):.0%}"
        base, now = summary["robustness"]["leader"], entry["leader"]
        if now is None:
            continue
        where = load_words(summary["robustness"]["load"], summary["robustness"]["rate_per_s"], summary["rate_unit"])
        if now == base:
            out.append(f"{where}: {base} still leads with the predictor {share} off ({sig(entry['estimate'])}/s).")
        else:
            out.append(
                f"{where}: with the predictor {share} off {now} leads instead of {base} ({sig(entry['estimate'])}/s)."
            )
    return out


def world_words(summary: Mapping[str, Any]) -> list[str]:
    """Whether the leader holds in the worlds that the measurements leave open."""
    found = summary["worlds"]
    if not found["draws"]:
        return []
    where = load_words(found["load"], found["rate_per_s"], summary["rate_unit"])
    draws, held, leader = found["draws"], found["held"], found["leader"]
    few = f", indicative only (fewer than {FEWEST} draws)" if found["indicative"] else ""
    counted = f"{held} of {draws} worlds drawn from the profiles' uncertainty ({found['share']:.0%}, 95 % interval "
    counted += f"{found['low']:.0%} to {found['high']:.0%}{few})"
    margin = found["margin_per_s"]
    gap = f"its margin is {sig(margin['nominal'], '+')}/s, "
    if found["indicative"]:
        gap += f"{sig(margin['min'], '+')} to {sig(margin['max'], '+')}/s in the draws, which is their range and "
        gap += "indicative only"
    else:
        gap += f"in nine of ten worlds {sig(margin['p05'], '+')} to {sig(margin['p95'], '+')}/s"
    how = []
    if found["collapsed"]:
        how.append(
            f"{where}: in {found['collapsed']} of {draws} worlds every policy loses more than half of its nominal "
            "goodput; a winner there means little."
        )
    if "widths" in found:
        how.append(_width_words(found))
    if found["holds"]:
        return [
            f"{where}: {leader} leads in {counted}: it holds in at least {found['needed']:.0%} of these draws; {gap}.",
            *how,
        ]
    others = ", ".join(f"{policy} in {n}" for policy, n in found["leaders"].items() if policy != leader)
    return [
        f"{where}: {leader} leads in only {counted}: it does not hold in {found['needed']:.0%} of these draws "
        f"({others}); {gap}. What was measured of the hardware does not decide between them.",
        *how,
    ]


def _width_words(found: Mapping[str, Any]) -> str:
    """How wide the worlds are, and by what; of handovers only where a policy made any."""
    widths, moved = found["widths"], found["handed_over"]
    laws = "; ".join(
        f"{name} {law['relative_sd']:.0%} ({law['source']})" for name, law in sorted(widths["laws"].items())
    )
    said = f"The worlds' laws differ by one factor each of relative standard deviation {laws}, beside what their own "
    said += "fits leave open"
    if not moved:
        return f"{said}."
    some = f" (made by {', '.join(moved)})" if len(moved) < len(found["rows"][0]["goodput_per_s"]) else ""
    longer_ms = 1e3 * widths["handover_median_excess_s"]
    return f"{said}, and a handover{some} takes longer by {longer_ms:.0f} ms in the median."


def say(summary: Mapping[str, Any]) -> list[str]:
    """What was found, in order."""
    unit = summary["rate_unit"]
    lines = [headline(summary["winners"], not summary["unranked"])] if len(summary["winners"]) > 1 else []
    for winner in summary["winners"]:
        lines.append(verdict(winner, unit))
        if above := winner["unranked_above"]:
            whom = ", ".join(f"{a['policy']} ({sig(a['estimate'])}/s)" for a in above)
            lines.append(f"{load_words(winner['load'], winner['rate_per_s'], unit)}: above it, but not ranked: {whom}.")
    lines += [line for w in summary["winners"] if (line := other_winners(w, unit)) is not None]
    if summary["robustness"]["leaders"]:
        lines += robustness_words(summary)
    return [*lines, *world_words(summary)]


def _indicative(difference: Mapping[str, Any]) -> str:
    return ", indicative only (fewer than 8 windows)" if difference["indicative"] else ""
