"""Errors of this room: one message that names the file, the field, its value and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProfileError(ValueError):
    """A profile, link, GPU or model that cannot be used."""


class MeasurementError(ProfileError):
    """Measurements that cannot be used, or from which no profile may be written."""


class OutsideError(MeasurementError):
    """A point that lies outside what was measured."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or an empty string if nothing is close."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""
