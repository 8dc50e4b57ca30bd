"""``action=convert``: any trace, with its options and steps, as one file of the project's own form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEYS: tuple[str, ...] = ("csv",)


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Write ``NAME.parquet`` (and ``NAME.csv`` with ``csv=true``) into ``out``."""
    from omegaconf import OmegaConf

    from research.trace_choice import TraceChoice
    from traces.readers import canonical

    if config.csv not in (None, True, False):
        raise ResearchError(f"csv={config.csv}: expected true or false")
    chosen: Any = OmegaConf.to_container(config.trace, resolve=True)
    choice = TraceChoice.parse(chosen, config.data_dir)
    trace = choice.load()
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(choice.name).name.split(".")[0]) + ("-steps" if choice.steps else "")
    path = out / f"{stem}.parquet"
    trace = trace.named(trace.name, "converted: a file of its own, whose zones are shares of its duration")
    canonical.write(trace, path)
    print(f"{trace}\nsha256 {trace.sha256}\nwritten: {path} ({path.stat().st_size:,} bytes)")
    summary = {
        "name": trace.name,
        "sha256": trace.sha256,
        "requests": len(trace),
        "sessions": trace.n_sessions,
        "duration_s": trace.duration_s,
        "parquet": str(path),
        "csv": None,
        "provenance": list(trace.provenance),
    }
    if config.csv:
        import polars as pl

        table = out / f"{stem}.csv"
        session = pl.when(pl.col("session") >= 0).then(pl.col("session")).otherwise(None).alias("session")
        trace.frame.with_columns(session).write_csv(table)
        summary["csv"] = str(table)
        left = " (prefix chains, duration and provenance are in the Parquet file alone)"
        print(f"written: {table}{left}")
    if choice.cuts_s() is not None:
        print("zones of the file are 40, 20 and 40 % of its duration, not the catalogue's fixed cuts")
    print(f"next: python -m research.compare trace.path={path}")
    return summary
