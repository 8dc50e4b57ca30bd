"""Which measured version of an engine stands for the one that ran."""

from __future__ import annotations

import re
from pathlib import Path

from envs.hardware.errors import MeasurementError

_STAGES = {"dev": 0, "a": 1, "b": 2, "rc": 3, "": 4, "post": 5}
_WORD = re.compile(r"^v?(\d+(?:\.\d+)*)[.\-]?(?:(dev|a|b|rc|post)\.?(\d*))?")

Key = tuple[tuple[int, ...], int, int]


def version_key(version: str) -> Key | None:
    """What versions are ordered by: ``0.5.8.post1``, ``1.0.0rc3``, ``1.1.0-dev.2``; None where it is no version."""
    found = _WORD.match(version)
    if found is None:
        return None
    numbers = tuple(int(part) for part in found.group(1).split("."))
    return numbers, _STAGES[found.group(2) or ""], int(found.group(3) or 0)


def at_least(version: str | None, first: str) -> bool:
    """Whether a version is ``first`` or a later one; one that is not known, or is none, counts as the newest."""
    key, least = version_key(version or ""), version_key(first)
    return key is None or least is None or key >= least


def nearest_version(folder: Path, file: str, version: str | None) -> str:
    """The folder of ``folder`` whose ``file`` stands for ``version``.

    The version itself where it was measured, else the newest older one, else the oldest newer one; the newest of all
    where the version is not known or is no version (a nightly build).

    Args:
        folder: one folder a version.
        file: the table that must be there.
        version: the engine's version, or None.

    Raises:
        MeasurementError: no version was measured.
    """
    measured = [(key, path.parent.name) for path in folder.glob(f"*/{file}") if (key := version_key(path.parent.name))]
    if not measured:
        if version is not None:
            return version  # the reader then says which file is missing
        raise MeasurementError(f"{folder}: no version with {file}: expected a folder for each measured version")
    measured.sort()
    wanted = None if version is None else version_key(version)
    if wanted is None:
        return measured[-1][1]
    older = [name for key, name in measured if key <= wanted]
    return older[-1] if older else measured[0][1]
