"""The cluster of a study: by layout (``2p2d``), or from a YAML file of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from envs.cluster.presets import parse_cluster
from envs.cluster.spec import ClusterSpec, ViewSpec, WorkerSpec
from envs.hardware.load import load_handover, load_profile
from envs.hardware.profile import Profile
from policies.contract import ROLES
from research.errors import ResearchError, nearest

_WORKER_FIELDS = tuple(f.name for f in fields(WorkerSpec))


def build_cluster(cluster: Mapping[str, Any], hardware: Mapping[str, Any], view: Mapping[str, Any]) -> ClusterSpec:
    """The cluster of a configuration.

    Args:
        cluster: group ``cluster``: ``name`` and what its workers have in common.
        hardware: group ``hardware``: ``profile`` and ``link``.
        view: group ``view``: fields of ViewSpec.

    Raises:
        ResearchError: a layout, file, field or value that is no good.
        ProfileError: an unknown profile or link.
    """
    profile, handover = load_profile(hardware["profile"]), load_handover(hardware["link"])
    name = str(cluster["name"])
    try:
        spec = ViewSpec(**view)
        if name.endswith((".yaml", ".yml")):
            name, workers = _from_file(Path(name).expanduser(), cluster, profile)
        else:
            _both_phases(name)
            shape = parse_cluster(name, profile=profile, handover=handover)
            name, workers = shape.name, [_worker({"role": w.role}, cluster, profile) for w in shape.workers]
        # One bandwidth serves all links: that of the worker with the fewest GPUs, which bounds its every flow.
        handover = handover.for_gpus(min(w.profile.gpus for w in workers))
        return ClusterSpec(name, tuple(workers), handover, spec)
    except (ValueError, TypeError) as error:
        raise ResearchError(f"cluster {name}: {error}") from None


def _both_phases(layout: str) -> None:
    """A layout ``<n>p<m>d`` has both kinds of workers: with one alone nothing is disaggregated, or nothing decodes."""
    match = re.fullmatch(r"(\d+)p(\d+)d", layout.strip(), re.IGNORECASE)
    prefill, decode = (int(match[1]), int(match[2])) if match else (1, 1)
    if (prefill == 0) != (decode == 0):
        raise ValueError(
            f"it has no {'decode' if prefill else 'prefill'} worker: expected at least one of each phase, such as "
            f"{max(prefill, 1)}p{max(decode, 1)}d, or colocated{prefill + decode} for workers that do both"
        )


def _worker(own: Mapping[str, Any], common: Mapping[str, Any], profile: Profile) -> WorkerSpec:
    role = own.get("role", "mixed")
    given = {
        "max_batched_tokens": common["prefill_budget_tokens" if role == "prefill" else "decode_budget_tokens"],
        "max_num_seqs": common["max_num_seqs"],
        "kv_tokens": common["kv_tokens"],
        "prefix_cache": common["prefix_cache"],
        "can_decode": role != "prefill",
        **own,
    }
    _whole("max_batched_tokens", given["max_batched_tokens"])
    _whole("max_num_seqs", given["max_num_seqs"])
    if given["kv_tokens"] is not None:
        _whole("kv_tokens", given["kv_tokens"])
    if not isinstance(given["prefix_cache"], bool):
        raise ValueError(f"prefix_cache={given['prefix_cache']!r}: expected true or false")
    return replace(WorkerSpec(profile), **given)


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least 1")


def _from_file(path: Path, common: Mapping[str, Any], profile: Profile) -> tuple[str, list[WorkerSpec]]:
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("workers"), list) or not plain["workers"]:
        raise ValueError("expected a mapping with a list `workers`")
    for key in plain:
        if key not in ("name", "workers"):
            raise ValueError(f"unknown field {key!r}{nearest(str(key), ('name', 'workers'))}: expected name, workers")
    workers: list[WorkerSpec] = []
    for i, item in enumerate(plain["workers"]):
        workers += _file_workers(item, f"workers[{i}]", common, profile)
    return str(plain.get("name", path.stem)), workers


def _file_workers(item: Any, where: str, common: Mapping[str, Any], profile: Profile) -> list[WorkerSpec]:
    if not isinstance(item, dict):
        raise ValueError(f"{where}: expected a mapping such as {{role: prefill, count: 2}}, got {item!r}")
    own = dict(item)
    known = ("count", *_WORKER_FIELDS)
    for key in own:
        if key not in known:
            raise ValueError(f"{where}: unknown field {key!r}{nearest(str(key), known)}: expected {', '.join(known)}")
    count = own.pop("count", 1)
    _whole(f"{where}: count", count)
    if own.get("role", "mixed") not in ROLES:
        raise ValueError(
            f"{where}: role={own['role']!r}{nearest(str(own['role']), ROLES)}: expected {', '.join(ROLES)}"
        )
    used = load_profile(own.pop("profile")) if "profile" in own else profile
    return [_worker(own, common, used)] * count
