"""Backtests that were made, by cluster: one file each, which a comparison on that cluster can look for.

``<folder>/<key>.json`` with ``key = cluster_key(cluster)``::

    {"format": 3, "cluster": NAME, "profiles": [...], "trace": NAME, "trace_sha256": ..., "requests": n,
     "ttft": {"median_abs_error_percent": ..., "median_signed_error_percent": ...}, "tpot": {...}, "summary": PATH,
     "code": SHA}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envs.cluster.spec import ClusterSpec
from research.evidence.runs import code_version, key_of, write_json

FORMAT = 3
FEWEST = 100
"""Requests that a backtest must have compared to leave a mark."""
FOLDER = Path("results") / "backtests"
"""Where commands look, below the folder they are called in."""


def cluster_key(cluster: ClusterSpec) -> str:
    """Names a cluster by what decides its times: its workers, their laws and the handover; not by its name or view."""
    workers = [
        {
            "profile": worker.profile.name,
            "step": asdict(worker.profile.step),
            "tables": None if worker.profile.tables is None else asdict(worker.profile.tables),
            "kv": asdict(worker.profile.kv),
            "role": worker.role,
            "group": worker.group,
            "can_prefill": worker.can_prefill,
            "can_decode": worker.can_decode,
            "max_batched_tokens": worker.max_batched_tokens,
            "max_num_seqs": worker.max_num_seqs,
            "kv_tokens": worker.kv_tokens,
            "prefix_cache": worker.prefix_cache,
            "prefill_share": worker.prefill_share,
        }
        for worker in cluster.workers
    ]
    law = cluster.handover
    terms = (law.dispatch_s, law.connect_s, law.base_s, law.per_block_s, law.bandwidth_bytes_per_s)
    return key_of({"workers": workers, "handover": list(terms)})


def leave(cluster: ClusterSpec, content: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write the mark of a backtest over any of the same cluster; :func:`offer` asks whether it should."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cluster_key(cluster)}.json"
    write_json(path, {"format": FORMAT, **content, "code": code_version()})
    return path.absolute()


def offer(cluster: ClusterSpec, content: dict[str, Any], doubts: Sequence[str] = (), folder: Path = FOLDER) -> str:
    """Leave the mark of a backtest unless it is too small, in doubt, or another log's of as many requests is there.

    Args:
        cluster: the cluster that was backtested.
        content: of the mark, with ``trace`` and ``trace_sha256``; ``ttft`` and ``tpot`` hold how many ``requests`` each
            was compared on.
        doubts: why its times cannot be trusted.
        folder: where marks are.

    Returns:
        A line that says what became of it.
    """
    counts = {name: content[name]["requests"] if content[name] else 0 for name in ("ttft", "tpot")}
    compared = max(counts.values())
    if doubts:
        return f"none: {' '.join(doubts)}"
    if compared < FEWEST:
        return f"none: {compared} requests with times are compared, a mark needs {FEWEST}"
    old, path = find(cluster, folder) or {}, (folder / f"{cluster_key(cluster)}.json").absolute()
    before, same_log = old.get("requests"), old.get("trace_sha256") == content["trace_sha256"]
    if isinstance(before, int) and before >= compared and not same_log:
        count = "more than" if before > compared else "as many as"
        return (
            f"{path} stays: it is of {before} requests of {old.get('trace')}, another log, {count} the {compared} "
            f"compared here of {content['trace']} (remove it to have this one's)"
        )
    small = {name: None for name, count in counts.items() if count < FEWEST}
    leave(cluster, {**content, **small, "requests": compared}, folder)
    return f"{path}   (comparisons on this cluster can look for it)"


def find(cluster: ClusterSpec, folder: Path = FOLDER) -> dict[str, Any] | None:
    """The last backtest of a cluster; None if there is none that can be read."""
    try:
        content = json.loads((folder / f"{cluster_key(cluster)}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else None
