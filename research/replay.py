"""``python -m research.replay``: serve a trace once and keep what happened to each request, as a trace.

The log reads back as any trace does, and ``policy=logged`` replays its routes: the same cluster gives the same times
(:mod:`envs.logged`). On the log of a real cluster it says how far the simulated times are from the logged ones.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from research.choices import PolicyChoice
from research.cli import run_command
from research.errors import ResearchError, nearest
from research.settings import Settings
from research.trace_choice import ZONES, TraceChoice, pace_unit

if TYPE_CHECKING:
    from envs.cluster.result import SimResult
    from traces import Trace

SUMMARY = "Serve a trace once under one policy, whole, and leave a log of the run that is a trace itself."
EXAMPLES = (
    "trace=default cluster=2p2d policy=guard zone=test out=DIR",
    "trace.path=DIR/run.parquet cluster=2p2d policy=logged",
    "trace.path=my_cluster.csv cluster=2p2d policy=logged 'policy.worker_ids={17: 0, 18: 1}'",
)
FIGURES = ("ttft_s", "tpot_s", "e2e_s")
LOGGED_FIGURES = ("ttft_s", "tpot_s")


def run(config: DictConfig) -> int:
    """Replay, print, write the log."""
    from envs.cluster.simulator import simulate
    from envs.logged import as_trace
    from research.clusters import build_cluster
    from research.evidence.runs import make_folder, write_json
    from research.evidence.table import make_console
    from research.study import known_classes, slo_from, trace_from
    from traces.readers import canonical

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    number = Settings(plain)
    choice = PolicyChoice.parse(plain["policy"], "policy")
    cluster, slo = build_cluster(plain["cluster"], plain["hardware"], plain["view"]), slo_from(plain)
    source = trace_from(plain)
    known_classes(slo, source)
    trace, scale = _piece(source, plain, number)
    policy = choice.build_for(trace, cluster)
    seed, csv = int(number("seed", low=0, whole=True)), number.flag("csv")
    period_s = number("adjust_period_s", low=0.0)
    out = _folder(plain, trace, cluster.name, choice.label)
    console = make_console()
    console.print(
        f"{trace!r} on {cluster.name} ({plain['hardware']['profile']}) under {choice.text()}", highlight=False
    )
    start = time.perf_counter()
    with console.status("replaying"):
        result = simulate(trace, cluster, policy, slo, seed=seed, adjust_period_s=period_s)
    seconds = time.perf_counter() - start
    note = f"served by {choice.text()} on {cluster.name}, {plain['hardware']['profile']}, seed {seed}"
    log = as_trace(result, trace, note=note)
    make_folder(out)
    canonical.write(log, out / "run.parquet")
    summary: dict[str, Any] = {
        "trace": trace.name,
        "trace_sha256": trace.sha256,
        "cluster": cluster.name,
        "policy": choice.text(),
        "replay": result.replay,
        "rate_scale": scale,
        "seed": seed,
        **figures(result),
        "against_log": against_log(result, trace),
        "cancels_ignored": result.cancels_ignored,
        "log": str(out / "run.parquet"),
        "log_sha256": log.sha256,
        "config": plain,
    }
    write_json(out / "summary.json", summary)
    for line in words(summary, seconds):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"log      {out / 'run.parquet'}", highlight=False, soft_wrap=True)
    if csv:
        log.frame.write_csv(out / "run.csv")
        lost = " (without its prefix chains: its replay finds nothing in a cache)" if log.prefix_block_tokens else ""
        console.print(f"csv      {out / 'run.csv'}{lost}", highlight=False, soft_wrap=True)
    console.print(f"summary  {out / 'summary.json'}", highlight=False, soft_wrap=True)
    console.print(f"next     {_next(out / 'run.parquet', choice)}", highlight=False, soft_wrap=True)
    return 0


def _next(log: Path, choice: PolicyChoice) -> str:
    """What to run on the log."""
    if choice.replays:
        return f"python -m research.traces action=describe trace.path={log}"
    same = ("cluster", "hardware", "view", "slo")  # what must not change
    given = [word for word in sys.argv[1:] if word.split("=")[0].split(".")[0] in same]
    words = ["python", "-m", "research.replay", f"trace.path={log}", *given, "policy=logged"]
    return f"{shlex.join(words)}   (gives the same times)"


def _piece(choice: TraceChoice, plain: Mapping[str, Any], number: Settings) -> tuple[Trace, float]:
    """The trace or a zone of it, at the rate asked for, and how much faster than recorded that is."""
    zone = plain["zone"]
    if zone is not None and zone not in ZONES:
        raise ResearchError(f"zone={zone}: expected one of {', '.join(ZONES)}{nearest(str(zone), ZONES)}")
    trace = choice.load() if zone is None else choice.zone(zone)
    if plain["rate_per_s"] is None:
        return trace, 1.0
    sessions = trace.frame["turn"] == 1 if pace_unit(trace) == "sessions" else trace.frame["turn"] >= 1
    if trace.duration_s <= 0.0:
        raise ResearchError(f"rate_per_s: trace {trace.name} starts all at once, so it has no rate to scale")
    scale = number("rate_per_s", above=0.0) * trace.duration_s / int(sessions.sum())
    return trace.scale_rate(scale), scale


def _folder(plain: Mapping[str, Any], trace: Trace, cluster: str, policy: str) -> Path:
    name = f"replay-{Path(trace.name).name.split('.')[0].split('[')[0]}-{Path(cluster).stem}-{policy}"
    place = Path("results") / name if plain["out"] is None else Path(plain["out"]).expanduser()
    return place.absolute()


def figures(result: SimResult) -> dict[str, Any]:
    """Counts by outcome, and quantiles of served requests."""
    requests = result.requests
    served = requests.filter(requests["status"] == "served")
    out: dict[str, Any] = {"requests": requests.height, "span_s": result.span_s}
    out |= {
        status: int((requests["status"] == status).sum()) for status in ("served", "rejected", "cancelled", "failed")
    }
    out["attainment"] = int(requests["slo_met"].sum()) / requests.height
    for name in FIGURES:
        values = served[name].drop_nulls()
        for q in (50, 95, 99):
            out[f"{name.removesuffix('_s')}_p{q}_s"] = values.quantile(q / 100, "linear") if values.len() else None
    return out


def against_log(result: SimResult, trace: Trace) -> dict[str, Any]:
    """Simulated times of each request against those that the trace logged; empty where it logged none.

    Errors are simulated less logged, over the logged time.
    """
    out: dict[str, Any] = {}
    for name in LOGGED_FIGURES:
        if name not in trace.frame.columns:
            continue
        logged, now = trace.frame[name], result.requests[name]
        both = logged.is_not_null() & now.is_not_null()
        if not both.any():
            continue
        logged, now = logged.filter(both), now.filter(both)
        error = ((now - logged) / logged).filter(logged > 0)
        key = name.removesuffix("_s")
        out[f"{key}_requests"] = logged.len()
        out[f"{key}_equal"] = int((logged == now).sum())
        out[f"{key}_error_p50"] = error.quantile(0.5, "linear")
        out[f"{key}_abs_error_p50"] = error.abs().quantile(0.5, "linear")
        out[f"{key}_abs_error_p95"] = error.abs().quantile(0.95, "linear")
    return out


def words(summary: Mapping[str, Any], seconds: float) -> list[str]:
    """What is printed."""

    def spread(name: str, unit: str, factor: float) -> str:
        values = [summary[f"{name}_p{q}_s"] for q in (50, 95, 99)]
        shown = " / ".join("-" if v is None else f"{factor * v:.3g}" for v in values)
        return f"{name.upper()} p50/p95/p99 {shown} {unit}"

    ends = ", ".join(f"{summary[s]} {s}" for s in ("served", "rejected", "cancelled", "failed") if summary[s])
    lines = [
        f"{summary['requests']} requests, {summary['replay']} replay: {ends}; {summary['attainment']:.1%} meet their "
        f"objectives ({seconds:.1f} s)",
        ", ".join((spread("ttft", "s", 1.0), spread("tpot", "ms", 1e3), spread("e2e", "s", 1.0))),
    ]
    if summary["cancels_ignored"]:
        lines.append(
            f"{summary['cancels_ignored']} requests would be cancelled by their client (cancel_after_s): the simulator "
            "does not cancel, they are served to the end"
        )
    log = summary["against_log"]
    for name in ("ttft", "tpot"):
        if log.get(f"{name}_requests"):
            lines.append(_against(name, log))
    return lines


def _against(name: str, log: Mapping[str, Any]) -> str:
    n, equal = log[f"{name}_requests"], log[f"{name}_equal"]
    text = f"{name.upper()} against the log: {equal} of {n} equal"
    if equal == n or log[f"{name}_error_p50"] is None:
        return text
    return (
        f"{text}, median error {log[f'{name}_error_p50']:+.1%}, median |error| {log[f'{name}_abs_error_p50']:.1%}, "
        f"p95 {log[f'{name}_abs_error_p95']:.1%}"
    )


def main() -> int:
    """Entry point."""
    return run_command("replay", run, summary=SUMMARY, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
