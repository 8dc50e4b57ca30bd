"""What a format is: a name, a reader, and how an input shows that it is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from traces.source import Source
from traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Format:
    """One format; every reader module has one as ``FORMAT``.

    Attributes:
        name: what ``format=`` takes.
        read: ``read(source: Source, **options) -> Trace``; its keyword arguments are the options.
        sniff: ``sniff(file name, first bytes) -> bool``; the first bytes are those of :attr:`Source.head`.
        summary: one line.
        confirm: ``confirm(source) -> bool``, asked where ``sniff`` says yes, of a mark that is not in the first bytes.
    """

    name: str
    read: Callable[..., Trace]
    sniff: Callable[[str, bytes], bool]
    summary: str
    confirm: Callable[[Source], bool] | None = None

    def recognises(self, source: Source) -> bool:
        """True if the input shows that it is of this format."""
        return self.sniff(source.path.name, source.head) and (self.confirm is None or self.confirm(source))

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(name for name, p in inspect.signature(self.read).parameters.items() if p.kind is p.KEYWORD_ONLY)
