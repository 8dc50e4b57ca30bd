"""The error that a command shows as one line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ResearchError(Exception):
    """Something the user can put right: a setting, a file, a folder. The message says what was expected."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the known word closest to ``word``, or an empty string."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
