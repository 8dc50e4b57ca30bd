"""``python -m research.benchmark simulator|env|traces``: how fast it is here, as figures and as ratios of one run."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from research.cli import run_command
from research.errors import ResearchError, nearest

SUMMARY = "Speed of the simulator, of the environments or of the trace readers on this machine."
EXAMPLES = ("simulator out=DIR", "simulator requests=100000 repeats=3", "env", "traces out=DIR", "traces rows=100000")
SUBJECTS = ("simulator", "env", "traces")
"""Modules of research.benchmarking."""

COMMON = ("data_dir", "out")
"""Settings of every subject. The others are null unless given; each subject has its own, ``DEFAULTS``."""

_SHOWN = {"case", "count", "unit", "cpu_s", "wall_s", "per_cpu_s", "per_wall_s"}


def run(config: DictConfig, subject: str) -> int:
    """Measure, print, leave ``summary.json``."""
    from rich.table import Table

    from research.evidence import runs, table

    module = importlib.import_module(f"research.benchmarking.{subject}")
    for key in map(str, config):
        if key not in COMMON and key not in module.DEFAULTS and config[key] is not None:
            takes = ", ".join(module.DEFAULTS)
            raise ResearchError(f"{key}={config[key]}: benchmark {subject} takes no {key}; settings it takes: {takes}")
    for key, default in module.DEFAULTS.items():
        if config[key] is None:
            config[key] = default
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    rows = module.rows(config)
    console = table.make_console()
    shown = Table(
        title=f"{subject}: {module.HOW.format(repeats=config.repeats)}; load average {load_before:.1f} at the start"
    )
    for column in ("case", "count", "CPU s", "per CPU second", "per wall second", "more"):
        shown.add_column(column, justify="left" if column in ("case", "more") else "right")
    for row in rows:
        more = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k not in _SHOWN
        )
        shown.add_row(
            row["case"], f"{row['count']:,}", f"{row['cpu_s']:.3f}", f"{row['per_cpu_s']:,.0f}",
            f"{row['per_wall_s']:,.0f}", more,
        )  # fmt: skip
    console.print(shown)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    runs.write_json(out / "summary.json", {"subject": subject, "load_average": load_before, "rows": rows})
    console.print(f"summary  {out / 'summary.json'}\nnext     {module.NEXT}", highlight=False)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the first word says what to measure."""
    words = list(sys.argv[1:] if argv is None else argv)
    subject = words.pop(0) if words and "=" not in words[0] and not words[0].startswith("-") else "simulator"

    def chosen(config: DictConfig) -> int:
        if subject not in SUBJECTS:
            hint = nearest(subject, SUBJECTS)
            raise ResearchError(f"unknown benchmark {subject!r}{hint}: expected one of {', '.join(SUBJECTS)}")
        return run(config, subject)

    return run_command("benchmark", chosen, summary=SUMMARY, examples=EXAMPLES, argv=words)


if __name__ == "__main__":
    sys.exit(main())
