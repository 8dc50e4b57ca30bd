"""Says clearly when another installed package hides one of ours.

Our import packages have short names (``envs``, ``traces``), and so have unrelated packages that anybody may have
installed. ``research/__init__.py`` loads this file by its path, not by its name: where a foreign ``envs`` comes
first, ``envs._guard`` could not be imported at all.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOMS = ("traces", "policies", "envs", "research", "conf")


def _folder(name: str) -> Path | None:
    """The folder that ``import name`` would read, or None where there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    place = places[0] if places else spec.origin
    return Path(place).resolve() if place else None


def check_rooms(root: Path | None = None) -> None:
    """Exit with one clear message if a room would be imported from elsewhere than ``root``.

    Args:
        root: the folder that holds the rooms; default: the one that this file lies in.

    Raises:
        SystemExit: a room is missing, or another package of its name comes first on the import path.
    """
    root = (root or Path(__file__).parents[1]).resolve()
    for name in ROOMS:
        found = _folder(name)
        if found == root / name:
            continue
        if found is None:
            raise SystemExit(f"pdgym: the package {name!r} is missing: expected it in {root}. Is the install complete?")
        raise SystemExit(
            f"pdgym: the package {name!r} comes from {found}, not from {root / name}: another distribution hides ours. "
            f"Give pdgym an environment of its own (`make compare` makes .venv), or uninstall the other {name!r}."
        )
