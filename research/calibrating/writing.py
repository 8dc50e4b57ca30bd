"""Files that ``research.calibrate`` leaves in ``out``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.errors import ResearchError


def write_text(path: Path, text: str) -> None:
    """Write a file, and its folder where there is none.

    Raises:
        ResearchError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResearchError(f"out={path.parent}: cannot be written: {error}") from None


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON.

    Raises:
        ResearchError: it cannot be written.
    """
    write_text(path, json.dumps(record, indent=2) + "\n")
