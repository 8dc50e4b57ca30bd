"""Whether the simulated cluster was ever backtested against a log of its own, and how far off it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError

if TYPE_CHECKING:
    from envs.cluster.spec import ClusterSpec
    from traces import Trace

FIGURES = ("median_abs_error_percent", "median_signed_error_percent")


def look_up(cluster: ClusterSpec, path: str | None) -> dict[str, Any] | None:
    """The mark of the last backtest of a cluster.

    Args:
        cluster: compared by what decides its times, not by its name.
        path: a mark's file; None: looked for among those that ``research.validate`` left below this folder.

    Returns:
        None where there is none.

    Raises:
        ResearchError: ``path`` is no such file, or one of another cluster.
    """
    from research.validating import marks

    if path is None:
        return marks.find(cluster)
    file = Path(path).expanduser()
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ResearchError(
            f"backtest={path}: not readable ({error}): expected the mark that research.validate trace=... left"
        ) from None
    if not isinstance(content, dict) or content.get("format") != marks.FORMAT or "trace_sha256" not in content:
        raise ResearchError(f"backtest={path}: expected the mark that research.validate trace=... left")
    if file.stem != marks.cluster_key(cluster):
        raise ResearchError(
            f"backtest={path}: it is of cluster {content.get('cluster')!r} as it was then: expected one of the same "
            "workers, profiles and link as compared here"
        )
    return content


def record(mark: Mapping[str, Any] | None, trace: Trace) -> dict[str, Any] | None:
    """What ``summary.json`` holds of a mark: its trace, requests and errors, and whether it still applies."""
    if mark is None:
        return None
    from research.evidence.runs import code_version

    errors = {
        name: {figure: mark[name][figure] for figure in FIGURES} if isinstance(mark.get(name), Mapping) else None
        for name in ("ttft", "tpot")
    }
    return {
        "trace": mark["trace"],
        "requests": mark["requests"],
        **errors,
        "same_trace": mark["trace_sha256"] == trace.sha256,
        "same_code": mark.get("code") == code_version(),
        "summary": mark.get("summary"),
    }


def words(found: Mapping[str, Any] | None) -> str:
    """One sentence or two for the reader of a comparison."""
    if found is None:
        return (
            "This cluster was never backtested: no log of it was replayed and compared with its own times. Read "
            "differences between policies, not absolute latencies. python -m research.validate trace=YOUR_LOG "
            "policy=logged with the same cluster and hardware does it, on a log that has routes and times."
        )
    errors = ", ".join(
        f"{title} {found[name]['median_abs_error_percent']:.1f} % (signed median "
        f"{found[name]['median_signed_error_percent']:+.1f} %)"
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"))
        if found[name] is not None
    )
    line = f"This cluster was backtested on {found['requests']} requests of {found['trace']}: median error of {errors}."
    if not found["same_trace"]:
        line += " That is another trace than the one compared here."
    if not found["same_code"]:
        line += " The simulator has changed since: backtest it again."
    return line
