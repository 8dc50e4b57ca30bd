"""What ``action=from_log`` prints: what the log is taken for, errors on what was not fitted, what it can show."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from envs.hardware.from_runs import CorrectionFit
    from research.calibrating.log_replay import Log, Part

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
OVERLOADED_PERCENT = 20.0
"""Requests without a first token when the last one arrives, from which a log counts as overloaded."""
QUEUEING = (
    "many requests of the log wait in a queue, and how many run at once decides how long: give the engine's own "
    "cluster.max_num_seqs=N (its --max-num-seqs), cluster.kv_tokens=N (the KV tokens that it prints at its start) and "
    "cluster.decode_budget_tokens=N (its --max-num-batched-tokens)"
)
FEW_JUDGED = 300
"""Below so many judged requests p99 hangs on three of them."""


def start(log: Log) -> list[str]:
    """What is replayed, and with what."""
    worker = next(w for w in log.cluster.workers if w.profile.name == log.profile.name)
    kv_tokens = worker.kv_tokens or worker.profile.kv.capacity_tokens
    others = sorted({w.profile.name for w in log.cluster.workers} - {log.profile.name})
    lead = f", after {log.lead} that are replayed but not counted" if log.lead else ""
    lines = [
        f"{log.source.text()}: {len(log.trace)} requests over {log.trace.duration_s:.0f} s; fitted on the first "
        f"{log.fitted}{lead}, judged on the other {len(log.trace) - log.lead - log.fitted}",
        f"profile in force: {log.profile.name} on {log.cluster.name}, link {log.cluster.handover.name}, "
        f"{taken_for(log)}; steps of up to {worker.max_batched_tokens:,} tokens and {worker.max_num_seqs} sequences, "
        f"KV memory of {kv_tokens:,} tokens, prefix cache "
        f"{'on' if worker.prefix_cache else 'off'} (cluster.decode_budget_tokens=N, cluster.prefill_budget_tokens=N, "
        "cluster.max_num_seqs=N, cluster.kv_tokens=N, cluster.prefix_cache=false say otherwise)",
    ]
    if others:
        lines.append(f"workers with {', '.join(others)} stay as they are")
    return lines


def taken_for(log: Log) -> str:
    """Whose routes are followed."""
    return "the log's own routes" if log.policy.replays else f"routes taken for those of {log.policy.text()}"


def quantiles(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Quantiles of the judged requests, before and after, beside the guess that they are those of the fitted part."""
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE, title=f"quantiles of the {rows[0]['requests']} requests that were not fitted")
    for title in ("", "measured", "before", "error", "after", "error", "rule: as the fitted part", ""):
        out.add_column(title, justify="left" if title == "" else "right")
    for row in rows:
        factor, unit = (1e3, "ms") if row["metric"] == "tpot" else (1.0, "s")
        measured, was, now = (f"{row[key] * factor:.4g} {unit}" for key in ("measured_s", "before_s", "after_s"))
        verdict = ""
        if "low_s" in row:
            inside = "inside" if row["low_s"] <= row["after_s"] <= row["high_s"] else "outside"
            verdict = f"{inside} {row['low_s'] * factor:.4g} to {row['high_s'] * factor:.4g} {unit}"
        out.add_row(
            f"{TITLES[row['metric']]} p{row['quantile']}", measured, was, f"{row['before_error_percent']:+.1f} %", now,
            f"{row['after_error_percent']:+.1f} %", f"{row['first_part_error_percent']:+.1f} %", verdict,
        )  # fmt: skip
    return out


def levels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Errors of single requests by load."""
    lines = ["single requests, median |error| before -> after:"]
    for row in rows:
        low, high = row["in_flight"]
        cells = []
        for name, title in TITLES.items():
            before, after = (row[f"{name}_{when}_median_abs_error_percent"] for when in ("before", "after"))
            if before is not None and after is not None:
                cells.append(f"{title} {before:.1f} -> {after:.1f} %")
        load = f"{row['level']} load ({low} to {high} in flight)"
        lines.append(f"  {load:<36} {', '.join(cells)}; {row['requests']} requests")
    return lines


def shows(log: Log, part: Part, fit: CorrectionFit, queue: Mapping[str, Any]) -> list[str]:
    """What this log can show, and what it cannot."""
    from envs.hardware.corrected import constants
    from envs.hardware.from_runs import MEASURED_SHARE

    lines = []
    if queue["waiting_percent"] >= OVERLOADED_PERCENT:
        lines.append(
            f"overloaded: {queue['waiting']} of {len(log.trace)} requests wait for their first token when the last one "
            f"arrives ({queue['arrivals_s']:.0f} s). TTFT and E2E are time in that queue: they show that tokens per "
            "second are right, not what TTFT is at a load that is kept up with"
        )
    if queued(queue):
        lines.append(QUEUEING)
    if part.cells.one_level:
        load = log.load[part.rows]
        lines.append(
            f"one load level: {int(np.quantile(load, 0.1))} to {int(np.quantile(load, 0.9))} requests in flight "
            "(deciles). What a step costs whatever its batch and what each sequence adds are told apart by the prior "
            "only: believe the profile at this load, not at another"
        )
    if part.cells.one_length:
        lines.append(
            "prompts of one length: what prompt tokens cost is known at this length only, and prefill and attention "
            "are not told apart"
        )
    judged = len(log.trace) - log.lead - log.fitted
    if judged < FEW_JUDGED:
        lines.append(f"{judged} judged requests: a p99 of so few hangs on {max(1, judged // 100)} of them")
    rows = constants(fit)
    open_ = [row["name"] for row in rows if row["sd"] > MEASURED_SHARE * row["prior_sd"]]
    if open_:
        lines.append(f"not determined by this log (the prior's word): {', '.join(open_)}")
    return lines


def queued(queue: Mapping[str, Any]) -> bool:
    """Whether many of the log's requests are still waiting when its last one arrives."""
    return bool(queue["waiting_percent"] >= OVERLOADED_PERCENT)


def warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a profile that was written should not be used for: TTFT where it got worse at every load."""
    both = [(row["ttft_before_median_abs_error_percent"], row["ttft_after_median_abs_error_percent"]) for row in rows]
    known = [(before, after) for before, after in both if before is not None and after is not None]
    if not known or any(after <= before for before, after in known):
        return []
    told = ", ".join(f"{before:.1f} -> {after:.1f} %" for before, after in known)
    return [
        f"warning: TTFT of single requests got worse at every load level ({told}): use the profile for TPOT, and the "
        "one in force for TTFT, or say more of the cluster (its budgets, link and routes) and fit again"
    ]


def ending(
    log: Log, fit: CorrectionFit, law: str, tried: Mapping[str, float] | None, file: Path, linked: Path | None,
    plain: Mapping[str, Any],
) -> list[str]:  # fmt: skip
    """Constants with their uncertainty, the kind of law, files, and what comes next."""
    from research.calibrating.from_runs import constants_words

    lines = ["", *constants_words(fit)]
    if law == "coefficients":
        lines.append("  (corrections of a plane whose coefficients were found by search, not of the profile's law)")
    if tried is not None:
        told = ", ".join(f"{name} {value / 3:.3f}" for name, value in tried.items())
        lines.append(f"law: {law}; mean |log ratio| on the last third of the fitted part: {told}")
    lines += [f"profile  {file}", f"summary  {file.parent / 'summary.json'}"]
    lines += [f"requests {file.parent / 'requests.parquet'}"]
    lines += [f"link     {linked}"] if linked is not None else []
    lines.append(f"next     {following(log, file, linked, plain)}")
    return lines


def command(log: Log, plain: Mapping[str, Any]) -> str:
    """The command that makes the profile again, without what is the user's machine."""
    words = [word for word in cluster_words(plain) if "/" not in word]
    name = Path(log.source.name).name
    return f"python -m research.calibrate action=from_log trace={name} {' '.join(words)}".rstrip()


def following(log: Log, file: Path, linked: Path | None, plain: Mapping[str, Any]) -> str:
    """The backtest of the log with the corrected profile, or a comparison where it has no routes."""
    hardware = [f"hardware.profile={file}", f"hardware.link={linked or plain['hardware']['link']}"]
    words = [word for word in cluster_words(plain) if not word.startswith("hardware.")]
    if not log.policy.replays:
        return shlex.join(["python", "-m", "research.compare", *log.source.words(), *words, *hardware, "worlds=20"])
    ids = dict(log.policy.params).get("worker_ids", ())
    mapped = [f"policy.worker_ids={{{', '.join(f'{a}: {b}' for a, b in ids)}}}"] if ids else []
    return shlex.join(
        ["python", "-m", "research.validate", *log.source.words(), "policy=logged", *mapped, *words, *hardware]
    )


def cluster_words(plain: Mapping[str, Any]) -> list[str]:
    """The cluster and hardware of a configuration, as they are given on a command line."""
    from research.cli import compose_config

    default = compose_config("calibrate", [])
    words = [f"cluster={plain['cluster']['name']}"]
    for key, value in plain["cluster"].items():
        if key != "name" and value != default.cluster[key]:
            words.append(f"cluster.{key}={str(value).lower() if isinstance(value, bool) else value}")
    return [*words, f"hardware.profile={plain['hardware']['profile']}", f"hardware.link={plain['hardware']['link']}"]


def cell(row: Mapping[str, Any]) -> str:
    """A cell in words."""
    (short, long), (low, high) = row["prompt_tokens"], row["in_flight"]
    return f"prompts of {short:,} to {long:,} tokens with {low} to {high} in flight"


def frame(before: pl.DataFrame, after: pl.DataFrame, log: Log) -> pl.DataFrame:
    """One row a request: measured, before and after; which part it was in."""
    import polars as pl

    n, stop = len(log.trace), log.lead + log.fitted
    part = ["lead_in"] * log.lead + ["fitted"] * log.fitted + ["judged"] * (n - stop)
    times = tuple(TITLES)
    return pl.DataFrame(
        {
            "arrival_s": before["arrival_s"],
            "part": part,
            "in_flight": log.load,
            **{f"measured_{name}_s": before[f"measured_{name}_s"] for name in times},
            **{f"before_{name}_s": before[f"simulated_{name}_s"] for name in times},
            **{f"after_{name}_s": after[f"simulated_{name}_s"] for name in times},
        }
    )
