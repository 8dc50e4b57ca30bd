"""The one error type of the policies."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolicyError(ValueError):
    """A policy that does not exist, a parameter it does not have, or a value it cannot use."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``word``, or an empty string."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""
