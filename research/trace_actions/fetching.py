"""``action=fetch``: download a public trace into the data folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from research.errors import ResearchError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from traces.fetch import Progress

KEYS: tuple[str, ...] = ("mirror",)


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Fetch ``trace=NAME``; what is there already is only checked."""
    from traces.catalog import default_data_dir, find_file
    from traces.entries import ENTRIES
    from traces.errors import TraceError
    from traces.fetch import Fetched, fetch_first, mirrored
    from traces.source import read_source

    name = str(config.trace.name)
    if config.trace.path is not None or name not in ENTRIES:
        raise ResearchError(
            f"action=fetch: trace={config.trace.path or name} is no public trace (action=list has them)"
        )
    entry = ENTRIES[name]
    if entry.shipped:
        raise ResearchError(f"action=fetch: {name} comes with the package, there is nothing to fetch")
    folder = Path(config.data_dir) if config.data_dir is not None else default_data_dir()
    saved_as = entry.saved_as or entry.files[0]
    try:
        found: Path | None = find_file(entry, folder)
    except TraceError:
        found = None
    if found is not None:
        source = read_source(found)
        known = entry.sha256.get(source.path.name)
        state = "unverified" if known is None else "verified" if known == source.sha256 else "other bytes than known"
        print(f"{name} is there already: {found} ({state}); delete it to fetch it again")
        fetched = Fetched(found, source.file.stat().st_size, source.sha256, state == "verified", 0)
        url: str | None = None
    else:
        if config.mirror is None and entry.url is None:
            raise ResearchError(
                f"action=fetch: {name} cannot be had by one download; get {entry.source} and put it at "
                f"{folder / saved_as}, or give mirror=URL of a server that has {saved_as}"
            )
        if config.mirror is None:
            places = {saved_as: str(entry.url)}
        else:
            files = [file for file in entry.files if not file.startswith(f"{saved_as}/")]
            places = {file: mirrored(str(config.mirror), file) for file in dict.fromkeys([*files, saved_as])}
        if any(urlsplit(url).scheme == "http" for url in places.values()):
            print("note: over plain HTTP, as the mirror says: the bytes could be changed on the way", file=sys.stderr)
        print(f"{entry.source}\nlicence {entry.licence}; cite {entry.citation}")
        with _shown(name) as progress:
            fetched, url = fetch_first(places, folder, entry.sha256, progress=progress)
        print(f"from {url}")
        state = "verified" if fetched.verified else "unverified: the catalogue knows no hash of this file"
        print(f"{fetched.path}: {fetched.size_bytes:,} bytes, sha256 {fetched.sha256}, {state}")
    print(f"next: python -m research.traces action=describe trace={name}" + _where(config))
    return {
        "trace": name,
        "path": str(fetched.path),
        "url": url,
        "size_bytes": fetched.size_bytes,
        "sha256": fetched.sha256,
        "verified": fetched.verified,
        "resumed_bytes": fetched.resumed_bytes,
        "licence": entry.licence,
        "citation": entry.citation,
    }


def _where(config: DictConfig) -> str:
    return "" if config.data_dir is None else f" data_dir={config.data_dir}"


@contextmanager
def _shown(name: str) -> Iterator[Progress | None]:
    """A progress bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(Path(name).name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
