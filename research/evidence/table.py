"""The table that a comparison prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from research.evidence.summary import HEADLINE
from research.evidence.words import load_words

PLAIN_WIDTH = 200
"""Columns where the output is no terminal: wide enough that nothing is cut."""


def make_console() -> Console:
    """The console of a command; a pipe or a file gets the whole width."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def look_up(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, float, str], Mapping[str, Any]]:
    """Rows by (policy, rate, metric)."""
    return {(r["policy"], r["rate_per_s"], r["metric"]): r for r in rows}


def comparison_table(summary: Mapping[str, Any]) -> Table:
    """Policies by load. Bold marks a proven winner, and nothing else."""
    cells = look_up(summary["rows"])
    deltas = {(d["policy"], d["rate_per_s"]): d for d in summary["differences"] if d["metric"] == HEADLINE}
    reference = summary["reference"]
    off = sorted({r["off_by"] for r in summary["robustness"]["rows"]})
    off_cells = {(r["policy"], r["off_by"]): r for r in summary["robustness"]["rows"] if r["metric"] == HEADLINE}
    table = Table(title=summary["title"], title_justify="left", header_style="bold", pad_edge=False)
    table.add_column(
        "load" if not math.isnan(_nan(summary["winners"][0]["load"])) else f"{summary['rate_unit']}/s", justify="right"
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("goodput/s [95 %]", justify="right", no_wrap=True)
    for name in ("attained", "TTFT p95 s", "p99 s", "TPOT p99 ms", "TBT p99 ms", "hit", "deflect", "KV GB"):
        table.add_column(name, justify="right")
    table.add_column(f"Δ goodput vs {reference} [Holm]", justify="right", no_wrap=True)
    for share in off:
        table.add_column(f"pred. {share:.0%} off", justify="right")
    for winner in summary["winners"]:
        rate = winner["rate_per_s"]
        at = sorted(
            (p for p in summary["policies"] if (p, rate, HEADLINE) in cells),
            key=lambda p: -_nan(cells[p, rate, HEADLINE]["estimate"], -1.0),
        )
        for i, policy in enumerate(at):

            def value(metric: str, policy: str = policy, rate: float = rate) -> float:
                row = cells.get((policy, rate, metric))
                return _nan(None if row is None else row["estimate"])

            goodput = cells[policy, rate, HEADLINE]
            won = winner["proven"] and policy == winner["leader"]
            near = rate == summary["robustness"]["rate_per_s"]
            name = (
                policy
                + (" (reference)" if policy == reference else "")
                + ("*" if policy in summary["unranked"] else "")
            )
            table.add_row(
                ("" if i else (f"{winner['load']:g}" if not math.isnan(_nan(winner["load"])) else f"{rate:.3g}")),
                f"[bold]{name} ✓[/bold]" if won else name,
                with_interval(goodput["estimate"], goodput["low"], goodput["high"]),
                number(value("attainment"), "{:.1%}"),
                number(value("ttft_p95_s"), "{:.3f}"),
                number(value("ttft_p99_s"), "{:.3f}"),
                number(1e3 * value("tpot_p99_s"), "{:.1f}"),
                number(1e3 * value("tbt_p99_s"), "{:.1f}"),
                number(value("hit_rate"), "{:.0%}"),
                number(value("deflected_share"), "{:.0%}"),
                number(value("kv_moved_bytes") / 1e9, "{:.1f}"),
                _delta(deltas.get((policy, rate))),
                *(_off(off_cells.get((policy, share)), goodput) if near else "" for share in off),
                end_section=i == len(at) - 1,
            )
    return table


def detail_table(summary: Mapping[str, Any], policy: str) -> Table:
    """Every figure of one policy, with its interval, a column a load."""
    rows = [r for r in summary["rows"] if r["policy"] == policy]
    rates = sorted({r["rate_per_s"] for r in rows})
    cells = look_up(rows)
    table = Table(title=f"{policy}: mean over windows [95 % interval]", title_justify="left", pad_edge=False)
    table.add_column("figure")
    for rate in rates:
        load = next(r["load"] for r in rows if r["rate_per_s"] == rate)
        table.add_column(load_words(load, rate, summary["rate_unit"]), justify="right")
    for metric in dict.fromkeys(r["metric"] for r in rows):
        found = [cells.get((policy, rate, metric)) for rate in rates]
        table.add_row(metric, *("-" if r is None else with_interval(r["estimate"], r["low"], r["high"]) for r in found))
    return table


def with_interval(value: float | None, low: float | None, high: float | None, sign: bool = False) -> str:
    """``12.3 [11.9, 12.7]``: as many digits as the interval's width deserves."""
    value, low, high = _nan(value), _nan(low), _nan(high)
    if math.isnan(value):
        return "-"
    if math.isnan(low) or high == low:
        return f"{value:{'+' if sign else ''}.4g}"
    digits = decimals(value, high - low)
    form = f"{{:{'+' if sign else ''},.{digits}f}}"
    return f"{form.format(value)} \\[{form.format(low)}, {form.format(high)}]"


def decimals(value: float, width: float) -> int:
    """Decimal places: two digits of the interval's width, and one more where the figure would have less than three."""
    if width <= 0:
        return 3
    wide = 1 - math.floor(math.log10(width))
    own = 2 - math.floor(math.log10(abs(value))) if value else wide
    return max(0, min(6, max(wide, min(own, wide + 1))))


def number(value: float, form: str) -> str:
    """Formatted, or a dash for NaN."""
    return "-" if math.isnan(value) else form.format(value)


def _delta(d: Mapping[str, Any] | None) -> str:
    if d is None:
        return "-"
    return with_interval(d["estimate"], d["low"], d["high"], sign=True)


def _off(row: Mapping[str, Any] | None, base: Mapping[str, Any]) -> str:
    if row is None or not base["estimate"]:
        return "-"
    return f"{_nan(row['estimate']) / base['estimate'] - 1:+.1%}"


def _nan(value: float | None, instead: float = math.nan) -> float:
    return instead if value is None or value != value else value
