"""``python -m research.traces``: list the known traces, describe one, or make the default trace again.

python -m research.traces action=list
python -m research.traces action=describe trace=mooncake_conversation out=DIR
python -m research.traces action=describe trace.path=my.csv trace.format=table trace.options.context=grows
python -m research.traces action=default out=DIR [refit=true]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.cli import run_command
from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

SUMMARY = "List traces (action=list), print a trace's statistics (describe), make the shipped trace again (default)."
EXAMPLES = (
    "action=list",
    "action=describe trace=mooncake_conversation",
    "action=describe trace.path=my.csv trace.format=table trace.options.columns.prompt_tokens=my_col",
    "action=default out=DIR",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    return run_command("traces", run, summary=SUMMARY, examples=EXAMPLES, argv=argv)


def run(config: DictConfig) -> None:
    """Do one action and leave ``summary.json`` in ``out``."""
    actions = {"list": _list, "describe": _describe, "default": _default}
    action = str(config.action)
    if action not in actions:
        expected = f"one of {', '.join(actions)}{nearest(action, list(actions))}"
        raise ResearchError(f"action={action}: expected {expected}")
    out = Path(config.out if config.out is not None else f"results/traces-{action}")
    summary = actions[action](config, out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(f"summary: {out / 'summary.json'}")


def _list(config: DictConfig, out: Path) -> dict[str, Any]:
    from rich.console import Console
    from rich.table import Table

    from traces.catalog import ENTRIES, find_file
    from traces.errors import TraceError

    table = Table("trace", "format", "licence", "at hand", "source")
    rows = {}
    for entry in ENTRIES.values():
        try:
            file = str(find_file(entry, config.data_dir))
        except TraceError:
            file = ""
        table.add_row(entry.name, entry.format, entry.licence, "yes" if file else "no", entry.source)
        rows[entry.name] = {
            "format": entry.format,
            "file": file or None,
            "source": entry.source,
            "licence": entry.licence,
            "citation": entry.citation,
            "oddities": list(entry.oddities),
            "cuts_s": entry.cuts_s,
        }
    Console().print(table)
    return rows


def _describe(config: DictConfig, out: Path) -> dict[str, Any]:
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


def _default(config: DictConfig, out: Path) -> dict[str, Any]:
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


if __name__ == "__main__":
    raise SystemExit(main())
