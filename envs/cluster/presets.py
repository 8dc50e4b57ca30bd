"""Clusters by name: ``2p2d`` (any ``<n>p<m>d``), ``colocated4``, ``split2``."""

from __future__ import annotations

import re
from dataclasses import replace

from envs.cluster.spec import ClusterSpec, ViewSpec, WorkerSpec
from envs.hardware.profile import HandoverLaw, Profile

PREFILL_BUDGET_TOKENS = 8192
"""Step budget of prefill workers: long chunks, nothing decodes beside them."""
DECODE_BUDGET_TOKENS = 2048
"""Step budget of workers that decode: a smaller budget bounds what a local prefill adds to a decode step.

vLLM's API server takes 2048 by default on A100 and smaller GPUs, 8192 on H100 and larger."""

_PD = re.compile(r"(\d+)p(\d+)d", re.IGNORECASE)
_POOL = re.compile(r"(colocated|split)(\d+)", re.IGNORECASE)
NAMES = "<n>p<m>d (such as 2p2d), colocated<n> or split<n>"


def role_worker(role: str, profile: Profile) -> WorkerSpec:
    """A worker of ``role`` with that role's budget and capabilities."""
    if role == "prefill":
        return WorkerSpec(profile, role, max_batched_tokens=PREFILL_BUDGET_TOKENS, can_decode=False)
    return WorkerSpec(profile, role, max_batched_tokens=DECODE_BUDGET_TOKENS)


def parse_cluster(
    name: str,
    *,
    profile: Profile,
    handover: HandoverLaw,
    view: ViewSpec | None = None,
    decode_profile: Profile | None = None,
    **worker_options: object,
) -> ClusterSpec:
    """A cluster from its name.

    Args:
        name: one of NAMES.
        profile: hardware of all workers (of the prefill workers if ``decode_profile`` is given).
        handover: the links' law.
        view: what routers see.
        decode_profile: hardware of decode workers.
        worker_options: WorkerSpec fields for every worker (``kv_tokens``, ``max_num_seqs``, ...).

    Raises:
        ValueError: the name is none of the known forms.
    """
    text = name.strip()
    if match := _PD.fullmatch(text):
        n, m = int(match[1]), int(match[2])
        roles = ["prefill"] * n + ["decode"] * m
    elif match := _POOL.fullmatch(text):
        roles = ["mixed" if match[1].lower() == "colocated" else "split"] * int(match[2])
    else:
        raise ValueError(f"cluster {name!r}: expected {NAMES}, or a YAML file")
    workers = []
    for role in roles:
        own = decode_profile if role == "decode" and decode_profile is not None else profile
        workers.append(replace(role_worker(role, own), **worker_options))  # type: ignore[arg-type]
    return ClusterSpec(text.lower(), tuple(workers), handover, view or ViewSpec())
