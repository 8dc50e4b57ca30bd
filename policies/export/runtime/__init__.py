"""A routing policy as a plug-in: ``Router`` decides, its hooks keep the counters, nothing raises into a router.

Standard library and numpy only. The same files run inside the workbench that exported them and in the exported folder.
"""

from __future__ import annotations

from .router import AS_DECIDED, Router
from .rulebook import ExportError
from .runner import Decision

__all__ = ["AS_DECIDED", "Decision", "ExportError", "Router"]
