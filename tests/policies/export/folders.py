"""Exported folders for tests: made once a process and policy, with easy numbers."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policies.contract import ROLES
from policies.export.module import Setting, export_module
from policies.export.runtime.router import Router
from policies.registry import load
from policies.rulepolicy import RulePolicy
from tests.policies.views import WORKER_DEFAULTS

LAW = (
    "floor_s", "c0_s", "c_tok_s", "c_attn_s", "c_seq_s", "c_kv_s", "kv_bytes_per_token", "handover_s",
    "link_bytes_per_s", "kv_capacity_tokens",
)  # fmt: skip
SETTING = Setting(
    profiles={"easy": {name: WORKER_DEFAULTS[name] for name in LAW}},
    default_profile="easy",
    roles={
        role: {
            "can_prefill": 1,
            "can_decode": 0 if role == "prefill" else 1,
            "prefix_cache": 1,
            "max_batched_tokens": 8192 if role == "prefill" else 2048,
            "max_num_seqs": 256,
        }
        for role in ROLES
    },
    slo={"ttft_base_s": 0.25, "ttft_per_token_s": 1e-4, "tpot_s": 0.025},
    prefix_block_tokens=16,
    approximate_ttl_s=100.0,
)

_kept = Path(tempfile.mkdtemp(prefix="pdgym-exported-"))
atexit.register(shutil.rmtree, _kept, ignore_errors=True)


@functools.cache
def folder_of(name: str) -> Path:
    """The folder of a registered policy with its default parameters."""
    out = _kept / name
    export_module(load(name), out, SETTING)
    return out


@functools.cache
def folder_of_rule(decide: Any) -> Path:
    """The folder of a marked function."""
    policy = RulePolicy.of(decide)
    out = _kept / f"rule-{policy.name}"
    export_module(policy, out, SETTING)
    return out


def make_router(name: str = "guard", workers: Sequence[Any] = (), **options: Any) -> Router:
    """A router on a clock that stands still."""
    options.setdefault("clock", lambda: 0.0)
    return Router(folder_of(name), workers, **options)


def pd(n: int, m: int) -> list[dict[str, Any]]:
    """Workers p0.. and d0.."""
    return [
        *({"id": f"p{i}", "role": "prefill"} for i in range(n)),
        *({"id": f"d{i}", "role": "decode"} for i in range(m)),
    ]
