"""Replays the golden file through this runtime, and measures it: ``python -m PACKAGE GOLDEN.jsonl``."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from .golden import Replay
from .latency import measure, percentile
from .router import default_folder
from .rulebook import ExportError, read_manifest

LATENCY_WORKERS = 64


def verify(policy_dir: Path, golden: Path, decisions: int = 3000) -> dict[str, Any]:
    """The report of a replay: counts, mismatches, times, and which packages were loaded for it."""
    manifest = read_manifest(policy_dir)
    started = perf_counter_ns()
    replay = Replay().run(policy_dir, golden)
    verbatim = Replay().run(policy_dir, golden, False) if manifest["rule"]["expanded"] else replay
    report: dict[str, Any] = {
        "policy": manifest["policy"],
        "source_sha256": manifest["rule"]["source_sha256"],
        "views": sum(replay.views.values()),
        "views_by_kind": {kind: n for kind, n in replay.views.items() if n},
        "mismatches": replay.mismatches,
        "mismatches_verbatim": verbatim.mismatches,
        "illegal_answers": replay.illegal,
        "first_mismatches": replay.first or verbatim.first,
        "replay_s": round((perf_counter_ns() - started) / 1e9, 3),
        "rule_us": {
            str(n): {
                "views": len(wall),
                "wall_p50_us": percentile(wall, 0.50),
                "wall_p99_us": percentile(wall, 0.99),
                "cpu_p50_us": percentile(replay.cpu_us[n], 0.50),
                "cpu_p99_us": percentile(replay.cpu_us[n], 0.99),
            }
            for n, wall in sorted(replay.wall_us.items())
        },
        "decide_us": measure(policy_dir, LATENCY_WORKERS, decisions) if decisions > 0 else None,
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    own = {"numpy", __name__.split(".")[0]}
    tops = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - own
    report["foreign_modules"] = sorted(top for top in tops if not top.startswith("_"))
    return report


def passed(report: Mapping[str, Any]) -> bool:
    """Whether every view was answered as recorded, by both texts of the rule."""
    wrong = report["mismatches"] + report["mismatches_verbatim"] + report["illegal_answers"]
    return bool(report["views"] > 0 and wrong == 0)


def main(argv: Sequence[str]) -> int:
    """Print the report as JSON; exit code 1 on a mismatch, 2 if the folder cannot be used."""
    if len(argv) not in (1, 2):
        print(f"usage: python -m {__name__.split('.')[0]} GOLDEN.jsonl [DECISIONS]", file=sys.stderr)
        return 2
    golden = Path(argv[0])
    beside = golden.resolve().parent
    folder = beside if (beside / "policy.json").is_file() else default_folder()
    try:
        report = verify(folder, golden, int(argv[1]) if len(argv) == 2 else 3000)
    except (ExportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2))
    return 0 if passed(report) else 1
