"""Where a study's figures come from: trace, code, versions, machine, command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.evidence.runs import code_version, git_state

if TYPE_CHECKING:
    from research.study import Study

PACKAGES = ("pdgym", "numpy", "numba", "polars", "scipy", "hydra-core", "joblib")


def command_line(command: str) -> str:
    """The command as it was typed."""
    return shlex.join(["python", "-m", f"research.{command}", *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute; ``-`` for one that is not installed as a package."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "-"
    return found


def of_study(study: Study) -> dict[str, Any]:
    """Everything needed to know which figures these are and to make them again."""
    trace = study.trace.load()
    zones = {name: study.trace.zone(name) for name in ("validation", "test")}
    profiles = {w.profile.name: w.profile for w in study.cluster.workers}
    return {
        "command": command_line(study.command),
        "trace": {
            "name": study.trace.text(),
            "sha256": trace.sha256,
            "requests": len(trace),
            "replay": trace.replay,
            "prefix_block_tokens": trace.prefix_block_tokens,
            "sources": list(trace.provenance),
            "zones": {
                name: {"requests": len(z), "duration_s": z.duration_s, "pace_per_s": study.trace.pace_per_s(name)}
                for name, z in zones.items()
            },
        },
        "cluster": {
            "name": study.cluster.name,
            "gpus": study.cluster.gpus,
            "workers": [w.role for w in study.cluster.workers],
            "link": {"name": study.cluster.handover.name, "source": dict(study.cluster.handover.source)},
            "profiles": {
                name: {"engine": p.engine, "source": dict(p.source), "fit": dict(p.fit)} for name, p in profiles.items()
            },
        },
        "code": {"sha256": code_version(), **git_state()},
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "store": str(Path(study.store)),
    }
