"""``action=list``: the public traces, and which are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEYS: tuple[str, ...] = ()


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Print the catalogue."""
    from rich.console import Console
    from rich.table import Column, Table

    from traces.catalog import ENTRIES, find_file
    from traces.errors import TraceError

    table = Table(Column("trace", no_wrap=True), "format", "licence", "at hand", "from")
    rows = {}
    for entry in ENTRIES.values():
        try:
            file = str(find_file(entry, config.data_dir))
        except TraceError:
            file = ""
        at_hand = "yes" if file else "fetch" if entry.url else "no"
        table.add_row(entry.name, entry.format, entry.licence, at_hand, entry.source.split(" : ")[0])
        rows[entry.name] = {
            "format": entry.format,
            "file": file or None,
            "source": entry.source,
            "url": entry.url,
            "licence": entry.licence,
            "citation": entry.citation,
            "oddities": list(entry.oddities),
            "sha256": dict(entry.sha256),
            "cuts_s": entry.cuts_s,
        }
    console = Console()
    # Names are there to be copied: a pipe has no width that could cut them.
    (console if console.is_terminal else Console(width=200)).print(table)
    print(
        "what to cite and to know of each is in the summary; fetch: python -m research.traces action=fetch trace=NAME"
    )
    return rows
