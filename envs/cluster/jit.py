"""Numba set-up shared by the kernels: where compiled code is cached.

Numba does not see edits in imported modules, so the cache folder is keyed by a hash of every source that the
kernel is made of.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import platformdirs


def _source_hash() -> str:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in [*sorted(here.glob("*.py")), here.parent.parent / "policies" / "contract.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _choose_cache_root() -> Path:
    """A writable folder for compiled code: $NUMBA_CACHE_DIR, the user's cache, or a temporary folder."""
    base = os.environ.get("PDGYM_KERNEL_CACHE") or os.environ.get("NUMBA_CACHE_DIR")
    roots = [Path(base)] if base else [Path(platformdirs.user_cache_dir("pdgym")) / "kernels"]
    roots.append(Path(tempfile.gettempdir()) / f"pdgym-kernels-{os.getuid() if hasattr(os, 'getuid') else 0}")
    for root in roots:
        if _writable(root):
            return root
    return roots[-1]


CACHE_ROOT = _choose_cache_root()
CACHE_DIR = str(CACHE_ROOT / _source_hash())
_config: Any = numba.config
_config.CACHE_DIR = CACHE_DIR

_options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
njit: Any = numba.njit(cache=True, error_model="numpy", **_options)
"""The one decorator of all kernel functions; only compiled code calls them, so no Python wrappers are built."""


@contextmanager
def cache_folder(key: str) -> Iterator[None]:
    """Functions made inside keep their compiled code in a folder of their own, named by ``key``."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(CACHE_ROOT / key)
    try:
        yield
    finally:
        _config.CACHE_DIR = before
