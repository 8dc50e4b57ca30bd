"""Writes the folder of ``target=module``: the rule's sources, a runtime, the recorded views, and how to load it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from policies.contract import VERSION, WORKER_DTYPE
from policies.errors import PolicyError
from policies.export import documents
from policies.export.expand import CannotExpandError, expand
from policies.export.runtime.rulebook import EXPANDED, SCHEMA
from policies.export.runtime.values import encode
from policies.export.sources import RuleSources, collect
from policies.export.targets import MODULE, check_needs
from policies.rulepolicy import RulePolicy

FALLBACK = "least decode_requests, then most cached tokens; prefill on least prefill_tokens, then most cached tokens"


@dataclass(frozen=True, slots=True)
class Setting:
    """The numbers that a policy carries into production.

    Attributes:
        profiles: by profile name, the predictor's law and the KV capacity: fields of the worker record.
        default_profile: of workers that name none.
        roles: by role, capabilities and step budget: fields of the worker record.
        slo: ``ttft_base_s, ttft_per_token_s, tpot_s``: objectives of requests that carry none.
        prefix_block_tokens: block of ``prefix_hashes``.
        approximate_ttl_s: how long a prefix that was sent to a worker is believed to be there.
        max_metric_age_s: scraped metrics older than this count as unknown.
        training: what the policy was trained on (trace hashes, command); empty for a rule that was not.
    """

    profiles: Mapping[str, Mapping[str, float]]
    default_profile: str
    roles: Mapping[str, Mapping[str, float]]
    slo: Mapping[str, float]
    prefix_block_tokens: int = 64
    approximate_ttl_s: float = 120.0
    max_metric_age_s: float = 30.0
    training: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.default_profile not in self.profiles:
            raise ValueError(f"default_profile {self.default_profile!r}: expected one of {', '.join(self.profiles)}")
        known = set(WORKER_DTYPE.names or ())
        for group in (self.profiles, self.roles):
            for name, fields in group.items():
                if unknown := set(fields) - known:
                    raise ValueError(f"{name}: {', '.join(sorted(unknown))}: no fields of a worker")


def export_module(policy: object, out: Path, setting: Setting, golden: Iterable[str] = ()) -> dict[str, Any]:
    """Write the folder of ``policy`` to ``out``, replacing an earlier export there; returns its ``policy.json``.

    Args:
        policy: a rule.
        out: folder to write.
        setting: the numbers that the policy carries.
        golden: lines of the golden file; empty: none is written.

    Raises:
        PolicyError: not a rule, needs that the target lacks, sources that cannot be carried, or ``out`` holds
            something else.
    """
    if not isinstance(policy, RulePolicy):
        raise PolicyError(
            f"{type(policy).__module__}.{type(policy).__qualname__} cannot be exported: its route() may do anything "
            "and hold any state. Only rules can: a function decide(request, view, params, memory, seed) marked with "
            "policies.contract.rule"
        )
    check_needs(policy, MODULE)
    sources = collect(policy)
    package = package_name(policy.name)
    try:
        flat = expand(policy.decide)
    except CannotExpandError:
        flat = None  # runs as it was written, only slower
    manifest = make_manifest(policy, sources, setting, package, flat)
    check_folder(out)
    fresh = out.with_name(f".{out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    for name, text in sources.files.items():
        _write(fresh / "rule" / name, text)
    if flat is not None:
        _write(fresh / "rule" / EXPANDED, flat)
    for item in resources.files("policies.export.runtime").iterdir():
        if item.name.endswith(".py"):
            _write(fresh / package / item.name, item.read_text("utf-8"))
    _write(fresh / "policy.json", json.dumps(manifest, indent=2) + "\n")
    for name, text in documents.files(manifest, policy.spec).items():
        _write(fresh / name, text)
    n = 0
    with (fresh / "golden.jsonl").open("w", encoding="utf-8") as file:
        for n, line in enumerate(golden, 1):  # noqa: B007  # n is how many there were
            file.write(line + "\n")
    if n == 0:
        (fresh / "golden.jsonl").unlink()
    if out.exists():
        shutil.rmtree(out)
    fresh.rename(out)
    return manifest


def make_manifest(
    policy: RulePolicy, sources: RuleSources, setting: Setting, package: str, flat: str | None
) -> dict[str, Any]:
    """``policy.json``: all that the runtime reads, and where it comes from; ``flat`` is the expanded text, if any."""
    spec = policy.spec
    return {
        "schema": SCHEMA,
        "contract_version": VERSION,
        "policy": policy.name,
        "target": MODULE.name,
        "package": package,
        "version": f"{project_version()}+{policy.source_sha256[:8]}",
        "exported_by": f"pdgym {project_version()}",
        "rule": {
            "decide": sources.decide,
            "bind": sources.bind,
            "shares": sources.shares,
            "source_sha256": policy.source_sha256,
            "files": sources.hashes(),
            "expanded": None if flat is None else {EXPANDED: sha256(flat.encode()).hexdigest()},
        },
        "params": {name: list(v) if isinstance(v, tuple) else v for name, v in policy.params.items()},
        "memory": {name: start if isinstance(start, str) else encode(start) for name, start in spec.memory.items()},
        "needs": list(spec.needs),
        "reasons": list(spec.reasons),
        "reads": {"worker": list(sources.worker_reads), "request": list(sources.request_reads)},
        "decision_order": "prefill first" if spec.bind is not None else "joint",
        "max_metric_age_s": setting.max_metric_age_s,
        "fallback": FALLBACK,
        "prefix_block_tokens": setting.prefix_block_tokens,
        "approximate_ttl_s": setting.approximate_ttl_s,
        "slo": dict(setting.slo),
        "default_profile": setting.default_profile,
        "profiles": {name: dict(fields) for name, fields in setting.profiles.items()},
        "roles": {name: dict(fields) for name, fields in setting.roles.items()},
        "training": dict(setting.training or {}),
    }


def check_folder(out: Path) -> None:
    """That ``out`` may be written: absent, empty, or an earlier export.

    Raises:
        PolicyError: it holds something else.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise PolicyError(f"out={out}: expected a folder")
    held = {item.name for item in out.iterdir()} - {"summary.json"}
    if held and not {"policy.json", "rule"} <= held:
        raise PolicyError(f"out={out}: holds something else than an exported policy; give an empty or a new folder")


def package_name(policy: str) -> str:
    """Import name of the exported package."""
    return "pdgym_" + (re.sub(r"\W+", "_", policy).strip("_").lower() or "policy")


def project_version() -> str:
    """Version of this project, as installed."""
    try:
        return metadata.version("pdgym")
    except metadata.PackageNotFoundError:
        return "0.1.0"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
