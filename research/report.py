"""``python -m research.report path=DIR``: a finished study as one self-contained HTML page, and its figures as PNG."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from research.cli import run_command
from research.errors import ResearchError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SUMMARY = "Write the report of a finished study again: report.html and figures/*.png."
EXAMPLES = ("path=results/compare-default-2p2d-tight",)


def run(config: DictConfig) -> int:
    """Write the report of the study in ``path``."""
    path = Path(str(config.path)).expanduser().absolute()
    out = Path(str(config.out)).expanduser().absolute() if config.out is not None else path
    summary = read_summary(path)
    report = write_report(path, Path(summary["provenance"]["store"]), out)
    print(f"report   {report}\nfigures  {report.parent / 'figures'}")
    return 0


def read_summary(folder: Path) -> dict[str, Any]:
    """The ``summary.json`` of a study.

    Raises:
        ResearchError: there is none, or it is not one.
    """
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_bytes())
    except OSError:
        raise ResearchError(f"{folder}: no summary.json here: expected the out folder of compare or evaluate") from None
    except ValueError as error:
        raise ResearchError(f"{path}: not readable as JSON ({error}): run the comparison again") from None
    if not isinstance(summary, dict) or "rows" not in summary or "provenance" not in summary:
        raise ResearchError(f"{path}: not the summary of a comparison")
    return summary


def write_report(folder: Path, store: Path, out: Path | None = None) -> Path:
    """Draw the figures of the study in ``folder`` and write its page; returns the page.

    Args:
        folder: holds ``summary.json``.
        store: run store; the latency distributions are left out where it is gone.
        out: where ``report.html`` and ``figures`` go; None: the same folder.
    """
    import jinja2

    from research.evidence.runs import make_folder
    from research.evidence.table import kv_mb_per_request

    summary = read_summary(folder)
    out = out or folder
    make_folder(out / "figures")
    pictures = draw(summary, store, out / "figures")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"sig": significant, "share": share, "interval": interval_text, "kv_mb": kv_mb_per_request}
    source = resources.files("research.evidence").joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    page = environment.from_string(source).render(
        s=summary, pictures=pictures, table=leaderboard(summary), **details(summary)
    )
    path = out / "report.html"
    scratch = path.with_suffix(".tmp")
    scratch.write_text(page, encoding="utf-8")
    scratch.replace(path)
    return path


def draw(summary: Mapping[str, Any], store: Path, folder: Path) -> list[dict[str, str]]:
    """Every figure of the study: PNG in ``folder``, SVG for the page."""
    from research.evidence import figures

    rate = nearest_rate(summary)
    load = next(r["load"] for r in summary["rows"] if r["rate_per_s"] == rate)
    where = f"{rate:.3g} {summary['rate_unit']}/s" if load is None else f"load {load:g}"
    requests = read_requests(summary, store, rate)
    plans: list[tuple[str, str, Callable[[], Figure | None]]] = [
        ("goodput", "Goodput over load; bars are 95 % intervals over windows.", partial(figures.goodput, summary)),
        (
            "differences",
            f"Paired difference in goodput from {summary['reference']} over the same windows, Holm-adjusted intervals. "
            "Filled marks: the interval excludes 0.",
            partial(figures.differences, summary),
        ),
        (
            "distributions",
            f"Served requests at {where}, all measured windows pooled. Dashed: the objective. "
            "Refused requests are not in here; see attainment.",
            partial(figures.distributions, summary, requests, where),
        ),
        (
            "latencies",
            f"Percentiles within each window, then averaged, at {where}.",
            partial(figures.latencies, summary, rate, where),
        ),
        (
            "knee",
            "How the load axis was fixed: dashed is the attainment that the knee asks for.",
            partial(figures.knee, summary),
        ),
    ]
    done = []
    for name, caption, plan in plans:
        if figures.save(plan, folder / f"{name}.png"):
            done.append({"name": name, "caption": caption, "svg": figures.svg(plan, name)})
    return done


def nearest_rate(summary: Mapping[str, Any]) -> float:
    """The rate that the pictures of one load show: load nearest 1, or the middle one."""
    at = sorted({(r["rate_per_s"], r["load"]) for r in summary["rows"]}, key=lambda a: a[0])
    if at[0][1] is None:
        return float(at[len(at) // 2][0])
    return float(min(at, key=lambda a: abs(math.log(a[1])))[0])


def read_requests(summary: Mapping[str, Any], store: Path, rate: float) -> dict[str, pl.DataFrame]:
    """Requests of each policy at one load, as far as the runs kept them."""
    import polars as pl

    from research.evidence.runs import RunStore

    found = {}
    runs = RunStore(store)
    for entry in summary["runs"]:
        if entry["rate_per_s"] != rate:
            continue
        files = [runs.folder(key) / "requests.parquet" for key in entry["keys"]]
        tables = [pl.read_parquet(file) for file in files if file.is_file()]
        if tables:
            found[entry["policy"]] = pl.concat(tables)
    return {p: found[p] for p in summary["policies"] if p in found}


def leaderboard(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One block a load: rows of the main table, best goodput first."""
    from research.evidence.table import look_up

    cells = look_up(summary["rows"])
    deltas = {(d["policy"], d["rate_per_s"]): d for d in summary["differences"] if d["metric"] == "goodput_per_s"}
    robust = {(r["policy"], r["off_by"]): r for r in summary["robustness"]["rows"] if r["metric"] == "goodput_per_s"}
    blocks = []
    for winner in summary["winners"]:
        rate = winner["rate_per_s"]
        near = rate == summary["robustness"]["rate_per_s"]
        lines = []
        for policy in summary["policies"]:
            metrics = {metric: row for (p, r, metric), row in cells.items() if p == policy and r == rate}
            base = metrics["goodput_per_s"]["estimate"]
            off = {
                o: row["estimate"] / base - 1 if base and row["estimate"] is not None else None
                for (p, o), row in robust.items()
                if p == policy and near
            }
            lines.append(
                {
                    "policy": policy,
                    "won": winner["proven"] and winner["leader"] == policy,
                    "m": metrics,
                    "delta": deltas.get((policy, rate)),
                    "off": off,
                }
            )
        lines.sort(key=lambda line: -(line["m"]["goodput_per_s"]["estimate"] or 0.0))
        blocks.append({"winner": winner, "load": winner["load"], "rate_per_s": rate, "lines": lines})
    return blocks


def details(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows beside table and pictures."""
    from research.evidence.cautions import lengths

    metrics = list(dict.fromkeys(r["metric"] for r in summary["rows"]))
    rates = sorted({(r["rate_per_s"], r["load"]) for r in summary["rows"]}, key=lambda a: a[0])
    every = {(r["policy"], r["rate_per_s"], r["metric"]): r for r in summary["rows"]}
    shares = [r["estimate"] or 0.0 for r in summary["rows"] if r["metric"] == "infeasible_share"]
    return {
        "metrics": metrics,
        "rates": rates,
        "every": every,
        "off_by": sorted({r["off_by"] for r in summary["robustness"]["rows"]}),
        "indicative": any(r["indicative"] for r in summary["rows"] if r["metric"] == "goodput_per_s"),
        "infeasible": max(shares, default=0.0),
        "config_text": json.dumps(summary["config"], indent=2),
        "lengths": lengths(summary) if "spans" in summary else "",  # older summaries have none
        "icon": base64.b64encode(_ICON.encode()).decode(),
    }


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M2 14V6M7 14V2M12 14V9" stroke="#0072B2" '
    'stroke-width="3" stroke-linecap="round"/></svg>'
)


def significant(value: float | None, digits: int = 3) -> str:
    """A figure at a few significant digits, never in exponent notation for everyday sizes."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 7 or size < -5:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}"


def share(value: float | None, sign: bool = False) -> str:
    """A share in per cent."""
    return "-" if value is None or math.isnan(value) else f"{value:{'+' if sign else ''}.1%}"


def interval_text(row: Mapping[str, Any] | None, sign: bool = False) -> str:
    """``[low, high]``, or nothing."""
    from research.evidence.table import decimals

    if row is None or row["low"] is None or row["estimate"] is None or row["low"] == row["high"]:
        return ""
    digits = decimals(row["estimate"], row["high"] - row["low"])
    form = f"{{:{'+' if sign else ''},.{digits}f}}"
    return f"[{form.format(row['low'])}, {form.format(row['high'])}]"


def main() -> int:
    """Entry point."""
    return run_command("report", run, summary=SUMMARY, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
