"""``action=describe``: a trace's statistics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEYS: tuple[str, ...] = ()


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Print the statistics of one trace."""
    from omegaconf import OmegaConf

    from traces import load_trace
    from traces.catalog import zones
    from traces.describe import describe
    from traces.errors import TraceError

    chosen: Any = OmegaConf.to_container(config.trace, resolve=True)
    path, name = chosen.get("path"), chosen.get("name")
    options = chosen.get("options") or {}
    trace = load_trace(path or name, chosen.get("format") if path else None, config.data_dir, **options)
    stats = describe(trace)
    try:
        stats["zones"] = {zone: len(part) for zone, part in zones(trace).items()}
    except TraceError as error:  # too short to cut
        stats["zones"] = str(error)
    for key, value in stats.items():
        for item in value if isinstance(value, list) else [value]:
            print(f"{key:<36} {f'{item:,.6g}' if isinstance(item, float) else item}")
    return stats
