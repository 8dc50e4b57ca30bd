"""``python -m research.benchmark simulator|env``: how fast it is here, as figures and as ratios of one run."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from research.cli import run_command
from research.errors import ResearchError, nearest

SUMMARY = "Speed of the simulator (or of the environments) on this machine, one process."
EXAMPLES = ("simulator out=DIR", "simulator requests=100000 repeats=3", "env")
SUBJECTS = ("simulator", "env")
REFERENCE_REQUESTS = 300
PYTHON_REQUESTS = 5_000


class NoOp:
    """A Python policy that does nothing: the price of the interface itself."""

    def route(self, request: Any, view: Any) -> Any:
        """Always the same pair."""
        from policies.contract import route

        return route(0, 8)


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """(median CPU seconds, median wall seconds, last result) of ``repeats`` calls after one warm-up."""
    result = work()
    cpu, wall = [], []
    for _ in range(repeats):
        c, w = time.process_time(), time.perf_counter()
        result = work()
        cpu.append(time.process_time() - c)
        wall.append(time.perf_counter() - w)
    return statistics.median(cpu), statistics.median(wall), result


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _row(case: str, count: int, what: str, cpu_s: float, wall_s: float, **more: Any) -> dict[str, Any]:
    return {
        "case": case,
        "count": count,
        "unit": what,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "per_cpu_s": count / cpu_s,
        "per_wall_s": count / wall_s,
        **more,
    }


def _load(name: str, config: DictConfig) -> Any:
    """A public trace, or the default one where the data folder is absent."""
    from traces import TraceError, load_trace

    try:
        return load_trace(name, data_dir=config.data_dir)
    except TraceError:
        print(f"{name} is not in the data folder: the default trace stands in")
        return load_trace("default")


def _knee_rate(trace: Any, cluster: Any, slo: Any, policy: Any) -> float:
    """Requests a second at which the policy attains 90 % of feasible requests, by bisection on a slice."""
    from envs.cluster.simulator import simulate

    piece = trace if len(trace) <= 20_000 else trace.window(0.0, trace.duration_s * 20_000 / len(trace))
    low, high = 0.5, 512.0
    while high / low > 1.03:
        middle = (low * high) ** 0.5
        frame = simulate(piece.scale_rate(middle), cluster, policy, slo).requests
        feasible = (frame["idle_ttft_s"] <= frame["slo_ttft_s"]) & (frame["idle_tpot_s"] <= frame["slo_tpot_s"])
        good = (frame["slo_met"] & feasible).sum() / max(1, int(feasible.sum()))
        low, high = (middle, high) if good >= 0.9 else (low, middle)
    return float(low * piece.rate_per_s)


def simulator_rows(config: DictConfig) -> list[dict[str, Any]]:
    """The cases of ``research.benchmark simulator``."""
    from envs.cluster.presets import parse_cluster
    from envs.cluster.reference import run_reference
    from envs.cluster.simulator import build_problem, run_problem
    from envs.cluster.slo import TIGHT
    from envs.hardware.load import load_handover, load_profile
    from policies import registry
    from traces.generate import replicate

    profile = load_profile("llama-3.1-70b-fp8-h100-tp4")
    cluster = parse_cluster("8p8d", profile=profile, handover=load_handover("rdma", gpus=profile.gpus))
    guard = registry.load("guard")
    base = _load("azure_conv", config)
    repeats = int(config.repeats)

    rate = config.rate_per_s or float(config.load) * _knee_rate(base, cluster, TIGHT, guard)
    azure = replicate(base, int(config.requests))
    azure = azure.scale_rate(rate / azure.rate_per_s)
    problem = build_problem(azure, cluster, TIGHT)
    cpu, wall, run = timed(lambda p=problem: run_problem(p, guard), repeats)  # type: ignore[misc]
    rows = [_row(f"{base.name} 8p8d guard compiled", len(azure), "requests", cpu, wall)]
    rows[0] |= {
        "rate_per_s": rate,
        "served_share": float((run.outcomes["status"] == 1).mean()),
        "engine_steps": int(run.workers["steps"].sum()),
        "peak_rss_gib": _peak_gib(),
    }
    compiled_per_s = rows[0]["per_cpu_s"]
    del problem, azure, run

    moon = _load("mooncake_conversation", config)
    moon_rate = float(config.load) * _knee_rate(moon, cluster, TIGHT, guard)
    moon = moon.scale_rate(moon_rate / moon.rate_per_s)
    moon_problem = build_problem(moon, cluster, TIGHT)
    cpu, wall, run = timed(lambda: run_problem(moon_problem, guard), repeats)
    hit = float(run.outcomes["cached_tokens"].sum() / moon_problem.requests["prompt_tokens"].sum())
    rows.append(_row(f"{moon.name} 8p8d guard compiled, prefix caches", len(moon), "requests", cpu, wall))
    rows[-1] |= {"rate_per_s": moon_rate, "hit_rate": hit, "served_share": float((run.outcomes["status"] == 1).mean())}

    small = base.scale_rate(rate / base.rate_per_s)
    small = small.window(0.0, small.duration_s * min(1.0, PYTHON_REQUESTS / len(small)))
    small_problem = build_problem(small, cluster, TIGHT)
    for label, policy, interpret in (("no-op Python policy", NoOp(), False), ("guard interpreted", guard, True)):
        cpu, wall, run = timed(lambda p=policy, i=interpret: run_problem(small_problem, p, interpret=i), repeats)  # type: ignore[misc]
        rows.append(_row(f"{base.name} 8p8d {label}", run.decisions, "decisions", cpu, wall))

    few = small.window(0.0, small.duration_s * min(1.0, REFERENCE_REQUESTS / len(small)))
    few_problem = build_problem(few, cluster, TIGHT)
    cpu, wall, _ = timed(lambda: run_reference(few_problem, guard.decide, params=guard.params), 1)
    rows.append(_row(f"{base.name} 8p8d guard, plain-Python reference", len(few), "requests", cpu, wall))
    fast_cpu, _, _ = timed(lambda: [run_problem(few_problem, guard) for _ in range(50)], repeats)
    rows[-1]["compiled_is_times_faster_on_this_slice"] = cpu / (fast_cpu / 50)
    rows[0]["times_faster_than_reference"] = compiled_per_s / rows[-1]["per_cpu_s"]
    return rows


def env_rows(config: DictConfig) -> list[dict[str, Any]]:
    """The cases of ``research.benchmark env``."""
    from research.training import throughput

    rows = []
    for num_envs in (64, 256):
        got = throughput(num_envs=num_envs, data_dir=config.data_dir, repeats=int(config.repeats))
        count = got["decisions"]
        where = f"{got['trace']} {got['cluster']} at {got['rate_per_s']:g}/s"
        case = f"PDRouting {where}, first legal candidate, batch {num_envs}"
        rows.append(_row(case, count, "decisions", count / got["decisions_per_cpu_s"], count / got["decisions_per_s"]))
    return rows


def run(config: DictConfig, subject: str) -> int:
    """Measure, print, leave ``summary.json``."""
    from rich.table import Table

    from research.evidence import runs, table

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    rows = simulator_rows(config) if subject == "simulator" else env_rows(config)
    console = table.make_console()
    shown = Table(
        title=f"{subject}, one process, median of {config.repeats}; load average {load_before:.1f} at the start"
    )
    for column in ("case", "count", "CPU s", "per CPU second", "per wall second", "more"):
        shown.add_column(column, justify="left" if column in ("case", "more") else "right")
    known = {"case", "count", "unit", "cpu_s", "wall_s", "per_cpu_s", "per_wall_s"}
    for row in rows:
        more = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k not in known
        )
        shown.add_row(
            row["case"], f"{row['count']:,}", f"{row['cpu_s']:.3f}", f"{row['per_cpu_s']:,.0f}",
            f"{row['per_wall_s']:,.0f}", more,
        )  # fmt: skip
    console.print(shown)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    runs.write_json(out / "summary.json", {"subject": subject, "load_average": load_before, "rows": rows})
    console.print(f"summary  {out / 'summary.json'}\nnext     python -m research.compare", highlight=False)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the first word says what to measure."""
    words = list(sys.argv[1:] if argv is None else argv)
    subject = words.pop(0) if words and "=" not in words[0] and not words[0].startswith("-") else "simulator"

    def chosen(config: DictConfig) -> int:
        if subject not in SUBJECTS:
            hint = nearest(subject, SUBJECTS)
            raise ResearchError(f"unknown benchmark {subject!r}{hint}: expected one of {', '.join(SUBJECTS)}")
        return run(config, subject)

    return run_command("benchmark", chosen, summary=SUMMARY, examples=EXAMPLES, argv=words)


if __name__ == "__main__":
    sys.exit(main())
