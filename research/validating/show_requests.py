"""What the validation on per-request logs prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Measured and simulated quantiles of the requests after the calibration."""
    out = Table(
        box=box.SIMPLE, title=f"{name}: quantiles of the {rows[0]['requests']} requests that were not looked at"
    )
    for title in ("", "measured", "simulated", "error", "rule: as the first requests", "bar 10 %"):
        out.add_column(title, justify="left" if title == "" else "right")
    for row in rows:
        factor, unit = (1e3, "ms") if row["metric"] == "tpot" else (1.0, "s")
        measured, simulated = (f"{row[key] * factor:.3g} {unit}" for key in ("measured_s", "simulated_s"))
        if "low_s" in row:
            inside = "inside" if row["low_s"] <= row["simulated_s"] <= row["high_s"] else "outside"
            verdict = f"{inside} {row['low_s'] * factor:.4g} to {row['high_s'] * factor:.4g} {unit}"
        else:
            verdict = "met" if row["met"] else "missed"
        out.add_row(
            f"{TITLES[row['metric']]} p{row['quantile']}",
            measured,
            simulated,
            f"{row['error_percent']:+.1f} %",
            f"{row['rule_error_percent']:+.0f} %",
            verdict,
        )
    return out


def words(run: Mapping[str, Any]) -> list[str]:
    """The law that was found, and what the run can show."""
    law, waiting = run["law"], run["backlog"]
    lines = [
        f"{run['name']}: step = {law['c0_s'] * 1e3:.2f} ms + {law['c_tok_s'] * 1e6:.1f} us a prompt token + "
        f"{law['c_attn_s'] * 1e9:.3g} ns a token x context + {law['c_seq_s'] * 1e6:.1f} us a sequence + "
        f"{law['c_kv_s'] * 1e9:.3g} ns a KV token, from the first {run['calibrated_on']} requests"
    ]
    if waiting["waiting_percent"] >= 20.0:
        lines.append(
            f"  overloaded: {waiting['waiting']} of {run['requests']} requests wait when the last one arrives "
            f"({waiting['arrivals_s']:.0f} s). Its TTFT and E2E are time in that queue: they show that tokens per "
            "second are right, not what TTFT is at a load that is kept up with"
        )
    return lines
