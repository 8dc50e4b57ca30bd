"""``action=default``: make the shipped trace again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEYS: tuple[str, ...] = ("refit",)


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Draw the default trace, from its numbers or from numbers fitted anew."""
    from traces.catalog import load_trace
    from traces.default import default_trace, fit_default, read_fit, write_fit
    from traces.readers import canonical

    fit = fit_default(config.data_dir) if config.refit else read_fit()
    trace = default_trace(fit)
    canonical.write(trace, out / "default.parquet")
    write_fit(fit, out / "default_fit.yaml")
    same = trace.sha256 == load_trace("default").sha256
    print(f"{trace}\nwritten to {out / 'default.parquet'}; {'equal to' if same else 'differs from'} the shipped trace")
    return {"sha256": trace.sha256, "requests": len(trace), "equals_shipped": same, "refit": bool(config.refit)}
