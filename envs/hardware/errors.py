"""Errors of this room: one message that names the file, the field, its value and what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HardwareError(ValueError):
    """Base of every error about profiles, links, model shapes and measurements."""


class ProfileError(HardwareError):
    """A profile, link or model file that cannot be used."""


class MeasurementError(HardwareError):
    """Measurements that cannot be fitted."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or an empty string if nothing is close."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""
