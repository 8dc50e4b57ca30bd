"""The texts of an exported folder: how to load the policy, what it needs, what it sees, how it is packed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from policies.contract import REQUEST_FIELDS, WORKER_FIELDS, RuleSpec
from policies.export.targets import ACTIONS

# Where the runtime gets a field from, and what stands in where it is missing. (source, stand-in)
REQUEST_SOURCES = {
    "id": ("`request['id']`; text by a 48-bit hash", "a running number"),
    "now_s": ("`now`", "the router's clock"),
    "arrival_s": ("`request['arrival_s']`", "the first `decide` of this id"),
    "replica": ("`Router(replica=...)`", "0"),
    "prompt_tokens": ("`request['prompt_tokens']`", "`prompt_bytes` / 4, else 1"),
    "max_output_tokens": ("`request['max_output_tokens']` or `['max_tokens']`", "-1"),
    "session": ("`request['session']`; text by hash", "-1"),
    "turn": ("`request['turn']`", "turns of the session seen here + 1"),
    "since_last_turn_s": ("own history", "NaN"),
    "last_prefill": ("own history", "-1"),
    "last_decode": ("own history", "-1"),
    "slo_ttft_s": ("`request['slo_ttft_s']`", "`slo` of policy.json"),
    "slo_tpot_s": ("`request['slo_tpot_s']`", "`slo` of policy.json"),
    "class_id": ("`request['class_id']`", "0"),
    "priority": ("`request['priority']`", "0"),
    "holds": ("own count", "0"),
    "mean_output_tokens": ("own count", "NaN"),
}
_COUNTER = ("hooks", "0")
_LAW = ("`Router(workers=...)`", "`profiles` of policy.json")
_ROLE = ("`Router(workers=...)`", "`roles` of policy.json")
_SCRAPE = ("`observe`, or the lists given to `decide`", "NaN; also beyond `max_metric_age_s`")
WORKER_SOURCES = {
    "id": ("the worker's id; text by a 48-bit hash", "required"),
    "group": ("`Router(workers=...)`", "the worker's own"),
    "role": ("`Router(workers=...)`, else by the list it came in", "mixed"),
    "can_prefill": ("role, and the lists given to `decide`", "`roles` of policy.json"),
    "can_decode": ("role, and the lists given to `decide`", "`roles` of policy.json"),
    "prefix_cache": _ROLE,
    "rack": ("`Router(workers=...)`", "0"),
    "kv_capacity_tokens": _LAW,
    "max_batched_tokens": _ROLE,
    "max_num_seqs": _ROLE,
    "age_s": ("the clock", "0 when it was added"),
    "last_tbt_s": ("`on_token`: last gap on a stream here", "NaN"),
    "min_slo_tpot_s": ("hooks", "inf"),
    "scraped_running": _SCRAPE,
    "scraped_waiting": _SCRAPE,
    "scraped_kv_usage": _SCRAPE,
    "scraped_pinned": _SCRAPE,
    "scrape_age_s": ("`observe`, and the clock", "inf"),
    "cached_tokens": ("`cached`, the lists, or own history by `prefix_hashes`", "0"),
}

ACTION_NOTES = {
    "local_prefill": "`Decision.prefill` is None and `.local` true: send the request to the decode worker alone.",
    "late_binding": "`Decision.decode` is None and `.late` true: `bind_decode` and `on_bound` when the prefill ends.",
    "hold": "`Decision.kind` is hold: call `decide` again with the same id at `until_s`.",
    "reject": "`Decision.kind` is reject.",
    "order_key": "`Decision.order_key`: engines without a priority for requests ignore it, and lose that part.",
    "chunk": "`Decision.local_chunk_tokens`: engines without a cap a request ignore it, and lose that part.",
}


def files(manifest: Mapping[str, Any], spec: RuleSpec) -> dict[str, str]:
    """File name -> text."""
    return {
        "README.md": readme(manifest),
        "REPRESENTABILITY.md": representability(manifest, spec),
        "pyproject.toml": pyproject(manifest),
        "wheel_backend.py": resources.files("policies.export").joinpath("wheel_backend.py").read_text("utf-8"),
    }


def readme(manifest: Mapping[str, Any]) -> str:
    """How to load, feed and check the policy."""
    package, policy = manifest["package"], manifest["policy"]
    flat = (
        "`rule/expanded.py` is the same rule with its helper calls expanded in place, which takes less time; the\n"
        "replay checks both texts.\n"
        if manifest["rule"]["expanded"]
        else ""
    )
    late = (
        "\n    if decision.late:                 # when the prefill ends\n"
        '        router.on_bound("r1", router.bind_decode("r1"))\n'
        if manifest["rule"]["bind"]
        else ""
    )
    shares = (
        "\n`router.adjust()`, on a timer, gives the prefill shares of split workers.\n"
        if manifest["rule"]["shares"]
        else ""
    )
    return f"""# Routing policy `{policy}`

Exported by {manifest["exported_by"]}. The rule in `rule/` is the source that was simulated, byte for byte
(sha256 {manifest["rule"]["source_sha256"][:16]}...); `{package}/` is a runtime of the standard library and numpy.
{flat}
    pip install .                     # needs no network; or put this folder on sys.path
    python -m {package} golden.jsonl  # replay the recorded views, measure the decision

## In a router

    from {package} import Router

    router = Router(workers=[
        {{"id": "http://10.0.0.1:8000", "role": "prefill"}},
        {{"id": "http://10.0.0.2:8000", "role": "decode"}},
    ])                                # Router(FOLDER, workers) where the package is not installed

    decision = router.decide({{"id": "r1", "prompt_tokens": 812, "session": "alice"}})
    decision.kind                     # route | hold | reject
    decision.prefill, decision.decode # worker ids; prefill None: the decode worker prefills
    router.on_dispatched("r1")        # before any await
{late}    router.on_prefill_done("r1")
    router.on_first_token("r1")
    router.on_token("r1")             # every further token, or on_token("r1", tokens=8)
    router.on_finished("r1")          # or on_failed, on_cancelled

The hooks keep the counters that the rule reads, so every request needs its end. `decide(request, prefill=[...],
decode=[...])` takes the workers that are up, as ids or with their metrics. `router.observe(id, metrics)` takes a
scrape, also an engine's metrics page as text. `cached={{id: tokens}}` gives prefix matches; without it, requests with
`prefix_hashes` (`{package}.prefix.chain_hashes`) are matched against what this router sent where.
{shares}
Nothing raises but the constructor and `add_worker`: an exception or an illegal answer of the rule falls back to
"{manifest["fallback"]}", which `router.metrics_text()` counts by cause.

REPRESENTABILITY.md lists what the rule reads, where it comes from and what stands in where it is missing.
`policy.json` holds parameters, the predictor's numbers by profile and role, and their defaults.
"""


def representability(manifest: Mapping[str, Any], spec: RuleSpec) -> str:
    """What the target does with each need, action and signal."""
    lines = [
        f"# What `{manifest['policy']}` needs, and what the target `{manifest['target']}` gives",
        "",
        "A Python module represents all that the contract has; what follows must be done by the router around it.",
        "",
        "## Actions",
        "",
        "| action | declared | what the router does |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {'yes' if name in spec.needs else 'no'} | {ACTION_NOTES[name]} |" for name in ACTIONS]
    for title, names, sources, table in (
        ("The request", manifest["reads"]["request"], REQUEST_SOURCES, REQUEST_FIELDS),
        ("The workers", manifest["reads"]["worker"], WORKER_SOURCES, WORKER_FIELDS),
    ):
        lines += [
            "",
            f"## {title}: fields the rule reads",
            "",
            "| field | meaning | from | where missing |",
            "|---|---|---|---|",
        ]
        for name, kind, meaning in table:
            if name in names:
                default = _LAW if kind == "f8" and name not in sources else _COUNTER
                if table is REQUEST_FIELDS:
                    default = (f"`request['{name}']`", "-1")
                source, missing = sources.get(name, default)
                lines.append(f"| {name} | {meaning} | {source} | {missing} |")
    lines += [
        "",
        "(Every field that occurs in the rule's files counts as read, also where this rule's path does not reach it.)",
        "",
        "## Differences from the simulator",
        "",
        "* Counters move when the router reports an event, not when it happens. `on_dispatched` belongs to the",
        "  decision: report it before anything else is decided.",
        "* `last_tbt_s` is the last gap on one of this router's streams; the simulator takes the time between two",
        "  steps of the worker that emitted a token. They differ after a pre-emption and where an engine emits bursts.",
        "* `decode_tokens` follows `on_token`. A router that reports a stream's tokens late, or only at its end, sees",
        "  contexts that are too short.",
        "* A division by zero is infinite in the compiled rule and an exception here: it falls back, counted.",
        "* Weights, law and defaults are those of the profile that the policy was exported with. Another model, GPU or",
        "  engine version needs another export.",
    ]
    if manifest["rule"]["shares"]:
        lines.append(
            "* Prefill shares (`adjust`) need an engine that slices its GPU; without one only the routes remain."
        )
    return "\n".join(lines) + "\n"


def pyproject(manifest: Mapping[str, Any]) -> str:
    """What pip reads."""
    return f"""[build-system]
requires = []
build-backend = "wheel_backend"
backend-path = ["."]

[project]
name = "{manifest["package"].replace("_", "-")}"
version = "{manifest["version"]}"
description = "Routing policy {manifest["policy"]}, exported by {manifest["exported_by"]}"
requires-python = ">=3.11"
dependencies = ["numpy>=1.24"]
"""
