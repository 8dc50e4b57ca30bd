"""The formats that can be read: a name, a reader, and how a file shows that it is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from traces.errors import TraceError, nearest
from traces.readers import agentic, azure, canonical, mooncake, table
from traces.source import Source
from traces.trace import Trace

HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: what ``format=`` takes.
        read: ``read(source, **options) -> Trace``; its keyword arguments are the options.
        sniff: ``sniff(file name, first bytes) -> bool``.
        summary: one line.
    """

    name: str
    read: Callable[..., Trace]
    sniff: Callable[[str, bytes], bool]
    summary: str

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(name for name, p in inspect.signature(self.read).parameters.items() if p.kind is p.KEYWORD_ONLY)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("azure", azure.read, azure.sniff, "Azure 2023 CSV: TIMESTAMP, ContextTokens, GeneratedTokens"),
        Format("mooncake", mooncake.read, mooncake.sniff, "Mooncake JSONL: 512-token prefix hash ids, ms stamps"),
        Format("agentic", agentic.read, agentic.sniff, "coding-agent sessions, derived Parquet, closed loop"),
        Format("table", table.read, table.sniff, "any CSV or Parquet through a column map"),
        Format("pdgym", canonical.read, canonical.sniff, "the project's own Parquet"),
    )
}


def get_format(name: str, file: str = "format") -> Format:
    """The format of that name; an unknown one is an error that suggests the nearest."""
    if name not in FORMATS:
        expected = f"one of {', '.join(FORMATS)}{nearest(name, FORMATS)}"
        raise TraceError(file=file, column="trace.format", value=name, expected=expected)
    return FORMATS[name]


def guess_format(source: Source) -> Format:
    """The first format that recognises the file."""
    for candidate in FORMATS.values():
        if candidate.sniff(source.path.name, source.data[:HEAD_BYTES]):
            return candidate
    raise source.error(
        f"a known format; say which with trace.format=, one of {', '.join(FORMATS)}", value=source.data[:40]
    )


def read_with(source: Source, form: Format, options: dict[str, object]) -> Trace:
    """Read with options checked by name."""
    for option in options:
        if option not in form.options:
            expected = f"an option of format {form.name} ({', '.join(form.options)}){nearest(option, form.options)}"
            raise source.error(expected, column=f"trace.options.{option}", value=options[option])
    return form.read(source, **options)
