"""What a backtest prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from research.validating.backtest import LEVELS, TIMES

TITLES = {"ttft": "TTFT", "tpot": "TPOT"}


def table(found: Mapping[str, Any]) -> Table:
    """Error of all requests, by load level and by worker, and by worker at each level."""
    out = Table(box=box.SIMPLE, title="error in per cent: median |error| / p90 |error|, median signed error; requests")
    out.add_column("")
    for title in TITLES.values():
        out.add_column(title, justify="right")
    out.add_row("all", *(_cell(found["all"][name]) for name in TIMES))
    for row in found["levels"]:
        low, high = row["in_flight"]
        out.add_row(f"{row['level']} load ({low} to {high} in flight)", *(_cell(row[name]) for name in TIMES))
    for row in found["workers"]:
        out.add_row(f"worker {row['worker']}", *(_cell(row[name]) for name in TIMES))
        for level in LEVELS:
            cells = [_cell(row["levels"][level][name]) for name in TIMES]
            if any(cells):
                out.add_row(f"  {level} load", *cells)
    return out


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return ""
    return (
        f"{score['median_abs_error_percent']:.1f} / {score['p90_abs_error_percent']:.1f} "
        f"{score['median_signed_error_percent']:+.1f}; {score['requests']}"
    )


def words(summary: Mapping[str, Any]) -> list[str]:
    """Counts, and how the quantiles of the log are hit."""
    lines = [
        f"{summary['compared']} of {summary['requests']} requests of {summary['trace']} compared on "
        f"{summary['cluster']}"
    ]
    for name, title in TITLES.items():
        score = summary["all"][name]
        if score is None:
            lines.append(f"{title}: the log has none")
            continue
        ends = ", ".join(
            f"{q} {score[f'{q}_error_percent']:+.1f} %" for q in ("p50", "p90", "p99") if f"{q}_error_percent" in score
        )
        lines.append(f"{title} of the simulation against the log: {ends}")
    return lines
