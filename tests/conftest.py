"""What every test may use: one Hypothesis profile, a headless plot backend, the public data where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

os.environ["MPLBACKEND"] = "Agg"  # no test opens a window

# A loaded machine is no bug, so no deadline. CI repeats the same examples; a developer's run draws new ones.
settings.register_profile("pdgym", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("pdgym")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The folder of public traces and measurements; skips the test where it is not at hand."""
    folder = os.environ.get("PDGYM_DATA")
    if not folder:
        pytest.skip("PDGYM_DATA is not set: the public data is not at hand")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"PDGYM_DATA={folder} is not a folder: the public data is not at hand")
    return path
