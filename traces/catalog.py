"""Names of traces: where they come from, what is odd about them, how they are split; and ``load_trace``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from traces.entries import ENTRIES, Entry
from traces.errors import TraceError, nearest
from traces.readers.registry import get_format, guess_format, read_with
from traces.source import read_source
from traces.trace import Trace
from traces.transforms.window import ZONES, check_zone_rule, cut_zones, zone_cuts

__all__ = ["ENTRIES", "ZONES", "Entry", "default_data_dir", "find_file", "load_trace", "names", "zones"]


def names() -> list[str]:
    """Names that :func:`load_trace` knows."""
    return list(ENTRIES)


def default_data_dir() -> Path:
    """``$PDGYM_DATA``, else the folder ``data`` in the user's cache folder for pdgym."""
    given = os.environ.get("PDGYM_DATA")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("pdgym")) / "data"


def load_trace(
    name: str | Path, format: str | None = None, data_dir: str | Path | None = None, **options: object
) -> Trace:
    """Load a catalogue trace by name, or a file by path.

    Args:
        name: a catalogue name (:func:`names`), or the path of a file.
        format: reader of a file (``azure``, ...); None recognises it by its first bytes.
        data_dir: data folder; None takes :func:`default_data_dir`.
        **options: options of the reader, for example ``sort=True``.

    Raises:
        TraceError: an unknown name, format or option (names the nearest), absent data (says where it was
            looked for and how to get it), or bad data (names file, row, column, value).
    """
    text = str(name)
    if text in ENTRIES:
        if format is not None and format != ENTRIES[text].format:
            raise TraceError(file=text, column="format", value=format, expected=f"{ENTRIES[text].format}, or none")
        return _load_entry(ENTRIES[text], data_dir, options)
    if isinstance(name, str) and os.sep not in text and "." not in text and not Path(text).exists():
        raise TraceError(
            file=text,
            expected=f"a path, or a trace name: {', '.join(ENTRIES)}{nearest(text, ENTRIES)}",
        )
    form = get_format(format, text) if format is not None else None
    source = read_source(name)
    return read_with(source, form or guess_format(source), dict(options))


def find_file(entry: Entry, data_dir: str | Path | None = None) -> Path:
    """The file of a catalogue trace; an error that says how to get it if it is absent."""
    folder = Path(__file__).parent if entry.shipped else Path(data_dir) if data_dir else default_data_dir()
    for file in entry.files:
        if any(path.is_file() for path in (folder / file, *(folder / file).parents)) or (folder / file).is_dir():
            return folder / file
    if entry.shipped:
        raise TraceError(file=entry.name, expected="its file: python -m research.traces action=default makes it again")
    fetch = f"python -m research.traces action=fetch trace={entry.name} gets it, or " if entry.url else ""
    expected = (
        f"{entry.files[0]} in the data folder {folder} (set by data_dir or $PDGYM_DATA): {fetch}get {entry.source} "
        f"(licence {entry.licence}) and put it there"
    )
    raise TraceError(file=entry.name, expected=expected)


def _load_entry(entry: Entry, data_dir: str | Path | None, options: Mapping[str, object]) -> Trace:
    source = read_source(find_file(entry, data_dir))
    trace = read_with(source, get_format(entry.format), {**entry.options, **options})
    if entry.shipped:
        return trace.named(entry.name)
    known = entry.sha256.get(source.path.name)
    state = "verified" if known == source.sha256 else "unverified: not the bytes the catalogue knows"
    return trace.named(entry.name, f"{entry.source}; {entry.licence}; {state}")


def fixed_cuts(trace: Trace) -> tuple[float, float, float] | None:
    """The end of each zone in seconds, where the catalogue fixes it: for its own trace, as it was loaded.

    A file that merely has the name, or a trace to which something was done, has none.
    """
    entry = ENTRIES.get(trace.name)
    if entry is None or not trace.provenance or not trace.provenance[-1].startswith(f"{entry.source}; "):
        return None
    return entry.cuts_s


def zones(
    trace: Trace, cuts_s: tuple[float, float, float] | None = None, *, across: str | None = None
) -> dict[str, Trace]:
    """``train``, ``validation`` and ``test`` of a trace: a catalogue trace at its fixed cuts, else 40/20/40 %.

    No session crosses a cut: see :func:`traces.transform.cut_zones` for what is done to those that would. The cuts
    are fixed in seconds, so more data at hand moves none of them.

    Args:
        trace: the trace.
        cuts_s: end of each zone; None: those of the catalogue for its own trace. Of one that was changed
            :func:`traces.steps.apply_steps` says where its cuts went.
        across: rule for sessions that cross a cut; None: ``apart`` in open replay, ``whole`` otherwise.

    Raises:
        TraceError: too few requests: a zone without one; or an unknown ``across``.
    """
    cuts_s = cuts_s or fixed_cuts(trace) or zone_cuts(trace)
    check_zone_rule(trace, across)
    try:
        return cut_zones(trace, cuts_s, across=across)
    except TraceError as error:
        expected = (
            "in each of train, validation and test a request of its own or the start of a session: "
            "too few to cut into zones"
        )
        found = f"{len(trace)} request{'s' * (len(trace) != 1)} in {trace.duration_s:g} s"
        if cuts_s[1] >= trace.duration_s:
            found += f", zones that end at {', '.join(f'{cut:g}' for cut in cuts_s)} s"
            expected += "; zones keep their times through steps (action=convert makes a trace of its own, cut anew)"
        raise TraceError(file=trace.name, value=found, expected=expected) from error
