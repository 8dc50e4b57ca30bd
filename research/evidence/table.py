"""The table that a comparison prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from research.evidence.summary import HEADLINE
from research.evidence.words import load_words

PLAIN_WIDTH = 200
"""Columns where the output is no terminal: wide enough that nothing is cut."""
WIDE = 170
"""Columns that the whole table takes."""


def make_console() -> Console:
    """The console of a command; a pipe or a file gets the whole width."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def look_up(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, float, str], Mapping[str, Any]]:
    """Rows by (policy, rate, metric)."""
    return {(r["policy"], r["rate_per_s"], r["metric"]): r for r in rows}


def comparison_tables(summary: Mapping[str, Any], width: int) -> list[Table]:
    """Policies by load: one wide table, or several where the terminal is narrow. Bold and ✓ mark a proven winner."""
    lines = _lines(summary)
    result, latency = _result_columns(summary), _latency_columns()
    if width >= WIDE:
        return [_table(summary, summary["title"], lines, [*result[:2], *latency, *result[2:]], narrow=False)]
    parts = [_table(summary, summary["title"], lines, result[:3], narrow=True)]
    plain = [replace(line, name=line.policy, won=False) for line in lines]
    parts.append(_table(summary, "latency, caching, transfers", plain, latency, narrow=True))
    if off := [line for line in plain if line.off]:
        parts.append(_table(summary, "goodput with the policies' predictor off", off, result[3:], narrow=True))
    return parts


@dataclass(frozen=True, slots=True)
class _Line:
    """One policy at one load."""

    load: str  # shown at the first line of a load only
    policy: str
    name: str  # with what is to be said about it
    won: bool
    last: bool  # of its load
    metrics: Mapping[str, Mapping[str, Any]]
    delta: Mapping[str, Any] | None
    off: Mapping[float, Mapping[str, Any]]

    def value(self, metric: str) -> float:
        row = self.metrics.get(metric)
        return _nan(None if row is None else row["estimate"])


_Column = tuple[str, Callable[[_Line], str]]


def _result_columns(summary: Mapping[str, Any]) -> list[_Column]:
    columns: list[_Column] = [
        ("goodput/s\n[95 %]", lambda line: _interval_of(line.metrics[HEADLINE])),
        ("attained", lambda line: number(line.value("attainment"), "{:.1%}")),
        (f"Δ goodput vs\n{summary['reference']} [Holm]", lambda line: _interval_of(line.delta, sign=True)),
    ]

    def off(share: float) -> Callable[[_Line], str]:
        return lambda line: _off(line.off.get(share), line.metrics[HEADLINE]) if line.off else ""

    shares = sorted({r["off_by"] for r in summary["robustness"]["rows"]})
    return columns + [(f"pred.\n{share:.0%} off", off(share)) for share in shares]


def _latency_columns() -> list[_Column]:
    return [
        ("TTFT\np95 s", lambda line: number(line.value("ttft_p95_s"), "{:.3f}")),
        ("TTFT\np99 s", lambda line: number(line.value("ttft_p99_s"), "{:.3f}")),
        ("TPOT\np99 ms", lambda line: number(1e3 * line.value("tpot_p99_s"), "{:.1f}")),
        ("TBT\np99 ms", lambda line: number(1e3 * line.value("tbt_p99_s"), "{:.1f}")),
        ("hit", lambda line: number(line.value("hit_rate"), "{:.0%}")),
        ("deflect", lambda line: number(line.value("deflected_share"), "{:.0%}")),
        ("KV MB\n/req", lambda line: number(_nan(kv_mb_per_request(line.metrics)), "{:.1f}")),
    ]


def kv_mb_per_request(metrics: Mapping[str, Mapping[str, Any]]) -> float | None:
    """KV cache moved between workers per measured request, in MB, all windows together; None where nothing arrived.

    (The total grows with the windows and the load, so it says nothing across settings.)
    """
    moved, requests = (
        metrics[name]["estimate"] if name in metrics else None for name in ("kv_moved_bytes", "requests")
    )
    return None if moved is None or not requests else float(moved / requests / 1e6)


def _lines(summary: Mapping[str, Any]) -> list[_Line]:
    metrics: dict[tuple[str, float], dict[str, Mapping[str, Any]]] = {}
    for row in summary["rows"]:
        metrics.setdefault((row["policy"], row["rate_per_s"]), {})[row["metric"]] = row
    deltas = {(d["policy"], d["rate_per_s"]): d for d in summary["differences"] if d["metric"] == HEADLINE}
    off: dict[str, dict[float, Mapping[str, Any]]] = {}
    for row in summary["robustness"]["rows"]:
        if row["metric"] == HEADLINE:
            off.setdefault(row["policy"], {})[row["off_by"]] = row
    out = []
    for winner in summary["winners"]:
        rate = winner["rate_per_s"]
        found = [p for p in summary["policies"] if (p, rate) in metrics]
        found.sort(key=lambda p: -_nan(metrics[p, rate][HEADLINE]["estimate"], -1.0))
        for i, policy in enumerate(found):
            load = _nan(winner["load"])
            name = policy + (" (reference)" if policy == summary["reference"] else "")
            out.append(
                _Line(
                    load="" if i else f"{rate:.3g}" if math.isnan(load) else f"{load:g}",
                    policy=policy,
                    name=name + ("*" if policy in summary["unranked"] else ""),
                    won=winner["proven"] and policy == winner["leader"],
                    last=i == len(found) - 1,
                    metrics=metrics[policy, rate],
                    delta=deltas.get((policy, rate)),
                    off=off.get(policy, {}) if rate == summary["robustness"]["rate_per_s"] else {},
                )
            )
    return out


def _table(
    summary: Mapping[str, Any], title: str, lines: Sequence[_Line], columns: Sequence[_Column], *, narrow: bool
) -> Table:
    look = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False} if narrow else {}
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False, **look)  # type: ignore[arg-type]
    known = not math.isnan(_nan(summary["winners"][0]["load"]))
    table.add_column("load" if known else f"{summary['rate_unit']}/s", justify="right")
    table.add_column("policy", no_wrap=not narrow)
    for header, _ in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for line in lines:
        name = f"[bold]{line.name} ✓[/bold]" if line.won else line.name
        table.add_row(line.load, name, *(show(line) for _, show in columns), end_section=line.last)
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


def _interval_of(row: Mapping[str, Any] | None, sign: bool = False) -> str:
    return "-" if row is None else with_interval(row["estimate"], row["low"], row["high"], sign=sign)


def _off(row: Mapping[str, Any] | None, base: Mapping[str, Any]) -> str:
    if row is None or not base["estimate"]:
        return "-"
    return f"{_nan(row['estimate']) / base['estimate'] - 1:+.1%}"


def _nan(value: float | None, instead: float = math.nan) -> float:
    return instead if value is None or value != value else value
