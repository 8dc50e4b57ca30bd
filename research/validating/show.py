"""What a validation prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from research.validating.scores import ABOVE_PEAK, GROUPS, METRICS, SOURCES


def errors_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """MAPE / median in per cent of each metric; the simulator's by group, rule and aiconfigurator beside it overall.

    Rows that repeat the first, or the one without runs above their GPUs' peak, are left out.
    """
    table = Table(
        box=box.SIMPLE, title="error in per cent: mean / median (95 % interval of the mean), median signed error; runs"
    )
    table.add_column("")
    for name in METRICS.values():
        table.add_column(name, justify="right")
    named = {
        **SOURCES,
        "predicted on rule": "simulator, on the rule's runs",
        "predicted on aic": "simulator, on its runs",
    }

    def cells(group: str, value: str, source: str) -> list[str]:
        return [_cell(rows, group, value, source, metric) for metric in METRICS]

    whole, possible = cells("all", "all", "predicted"), cells("possible", "all", "predicted")
    lines = [(named["predicted"], whole), (f"simulator, without runs {ABOVE_PEAK}", possible)]
    for source in ("rule", "aic"):
        lines.append((named[source], cells("all", "all", source)))
        common = cells("all", "all", f"predicted on {source}")
        lines += [(named[f"predicted on {source}"], common)] if common != whole else []
    for group in GROUPS:
        values = dict.fromkeys(r["value"] for r in rows if r["group"] == group)
        if len(values) > 1:
            own = [(f"{group} {value}", cells(group, value, "predicted")) for value in values]
            lines += [line for line in own if group != "arithmetic" or line[1] != possible]
    for title, row in lines:
        if any(row):
            table.add_row(title, *row)
    return table


def _cell(rows: Sequence[Mapping[str, Any]], group: str, value: str, source: str, metric: str) -> str:
    found = [r for r in rows if (r["group"], r["value"], r["source"], r["metric"]) == (group, value, source, metric)]
    if not found:
        return ""
    row = found[0]
    spread = (
        ""
        if math.isnan(row["mape_low_percent"])
        else f" ({row['mape_low_percent']:.0f} to {row['mape_high_percent']:.0f})"
    )
    signed = f"{row['median_signed_error_percent']:+.0f}"
    return f"{row['mape_percent']:.1f} / {row['median_percent']:.1f}{spread} {signed}; {row['runs']}"


def rounds_words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What not knowing the rounds leaves open."""
    out = []
    for metric in ("ttft", "tpot"):
        own = {r["source"]: r for r in rows if r["metric"] == metric}
        if {"lowest", "scored", "highest"} <= own.keys():
            ends = ", ".join(
                f"{own[k]['mape_percent']:.1f} / {own[k]['median_percent']:.1f} {said}"
                for k, said in (("lowest", "at the low end"), ("scored", "scored"), ("highest", "at the high end"))
            )
            out.append(
                f"rounds not published with the runs ({own['scored']['runs']} runs): {METRICS[metric]} error {ends} of "
                "what they give"
            )
    return out


def ranking_table(rows: Sequence[Mapping[str, Any]]) -> Table | str:
    """Agreement on hard pairs; a line where there are none."""
    if not rows:
        return "hard pairs: none among these runs"
    table = Table(box=box.SIMPLE, title="hard pairs: the better one is predicted, per cent (95 % interval over strata)")
    columns = ("", "pairs", "strata", "right", "ceiling", "10 % apart", "equal users a GPU", "one-line rules", "bar")
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "one-line rules") else "right")
    for row in rows:
        low, high = row["low_percent"], row["high_percent"]
        spread = "" if math.isnan(low) else f" ({low:.0f} to {high:.0f})"
        clear, same = (
            ""
            if row[f"{kind}_right_percent"] is None
            else f"{row[f'{kind}_right_percent']:.0f} of {row[f'{kind}_pairs']}"
            for kind in ("clear", "same_users")
        )
        most, most_same = (
            "" if row[name] is None else f"{row[name]:.0f}"
            for name in ("ceiling_percent", "same_users_ceiling_percent")
        )
        same += f", ceiling {most_same}" if same and most_same else ""
        rules = ", ".join(f"{name} {value:.0f}" for name, value in row["rules_percent"].items())
        if not math.isnan(row["over_rule_low"]):
            rules += (
                f"; ours {row['over_rule_points']:+.0f} ({row['over_rule_low']:+.0f} to {row['over_rule_high']:+.0f})"
            )
        said = {True: "met", False: "missed", None: "not judged"}[row["met"]]
        bar = "" if row["bar_percent"] is None else f"{row['bar_percent']:.0f} {said}"
        title = row["question"] + (", one engine" if row["one_engine"] else "")
        right = f"{row['right_percent']:.0f}{spread}"
        table.add_row(title, str(row["pairs"]), str(row["strata"]), right, most, clear, same, rules, bar)
    return table


def layout_table(verdict: Mapping[str, Any]) -> Table:
    """Every stratum with both layouts."""
    table = Table(box=box.SIMPLE, title=f"colocated or disaggregated at an objective: {len(verdict['strata'])} strata")
    names = ("stratum", "runs", "objectives", "measured disaggregated", "likelier right", "answered", "wrong", "lost")
    for name in (*names, "verdict"):
        table.add_column(name, justify="left" if name in ("stratum", "verdict") else "right")
    for row in verdict["strata"]:
        runs = " + ".join(str(n) for n in row["runs"].values())
        lost = "" if row["loss_percent"] is None else f"{row['loss_percent']:.0f} %"
        if row["no_answer"] is not None:
            table.add_row(row["stratum"], runs, *[""] * 6, f"no answer: {row['no_answer']}")
            continue
        said = "wrong" if row["confidently_wrong"] else "right" if row["given"] else "abstained"
        figures = [
            str(row[name]) for name in ("objectives", "measured_disaggregated", "likely_right", "given", "wrong")
        ]
        table.add_row(row["stratum"], runs, *figures, lost, said)
    return table


def layout_words(verdict: Mapping[str, Any]) -> list[str]:
    """The confusion table in words, beside the majority answer, and what is lost."""
    if not verdict["strata"]:
        return ["colocated or disaggregated: no stratum of this part has runs of both layouts (part=all has)"]
    majority = f"always {verdict['majority']}"
    if not verdict["asked"]:
        return [
            "colocated or disaggregated: no stratum has an answer; of all objectives "
            f"{majority} is right in {verdict['majority_percent']:.0f} %"
        ]
    lost = verdict["loss_percent"]
    given = "none given"
    if verdict["given"]:
        given = (
            f"of the {verdict['given']} answers (in {verdict['given_strata']} strata) {verdict['right_percent']:.0f} % "
            f"right, {lost['given']:.1f} % of the goodput lost ({majority} on the same: "
            f"{verdict['majority_given_percent']:.0f} %, {lost['majority_given']:.1f} %)"
        )
    lines = [
        f"decisions: {verdict['asked']} in {verdict['asked_strata']} strata, abstained "
        f"{verdict['abstained_percent']:.0f} %; {given}",
        "on all of them: " + "; ".join(
            f"{name} {verdict[f'{key}_percent']:.0f} % right, {lost[key.removesuffix('_right')]:.1f} % lost"
            for name, key in (
                (majority, "majority"),
                ("the likelier layout", "likely_right"),
                ("predictions as they are", "nominal_right"),
            )
        ),
        "measured -> predicted: " + ", ".join(f"{name} {n}" for name, n in verdict["confusion"].items()),
        "confidently wrong in: " + ("; ".join(verdict["confidently_wrong"]) or "no stratum"),
    ]  # fmt: skip
    found: Mapping[str, Any] = next(
        (row["elsewhere"] for row in verdict["strata"] if any(row["elsewhere"].values())), {}
    )
    held = verdict["coverage_percent"]
    return lines + [_doubt_words(name, doubt, held.get(name)) for name, doubt in found.items() if doubt is not None]


def _doubt_words(layout: str, doubt: Mapping[str, float], held: Mapping[str, float] | None) -> str:
    """How far predictions of a layout are off in other strata; factors are one standard deviation."""
    parts = [
        f"{METRICS[name]} {doubt[f'{name}_bias_percent']:+.0f} %, a factor of "
        f"{math.exp(doubt[f'{name}_between_sd']):.2f} between strata, {math.exp(doubt[f'{name}_within_sd']):.2f} within"
        for name in ("ttft", "tpot")
    ]
    if held is not None:
        parts.append(f"its 95 % intervals hold {held['ttft']:.0f} and {held['tpot']:.0f} % of runs in strata left out")
    return f"doubt, {layout}, from {doubt['strata']:.0f} other strata: " + "; ".join(parts)


def bars_words(bars: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each bar and what was reached."""
    out = []
    for row in bars:
        name = {"mape": "MAPE", "median": "median"}[row["statistic"]]
        bar = f"bar {METRICS[row['metric']]} {name} {row['bar_percent']:g} %"
        if row["reached_percent"] is None:
            out.append(f"{bar}: nothing to score")
            continue
        part = "" if row["runs"] == row["of"] else f" on the {row['runs']} of {row['of']} runs that are predicted"
        apart = row["possible_percent"]
        beside = "" if apart is None else f"; {apart:.1f} % without runs above their GPUs' peak arithmetic"
        said = {True: "met", False: "missed", None: "too few to judge"}[row["met"]]
        out.append(f"{bar}: {row['reached_percent']:.1f} %, {said}{part}{beside}")
    return out
