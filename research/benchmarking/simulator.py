"""``research.benchmark simulator``: requests a second, compiled and not, against the plain-Python reference."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from research.benchmarking.measure import peak_rss_gib, row, timed

DEFAULTS = {"repeats": 5, "requests": 1_000_000, "load": 0.9, "rate_per_s": None}
HOW = "one process, median of {repeats}"
NEXT = "python -m research.compare"
REFERENCE_REQUESTS = 300
PYTHON_REQUESTS = 5_000


class NoOp:
    """A Python policy that does nothing: the price of the interface itself."""

    def route(self, request: Any, view: Any) -> Any:
        """Always the same pair."""
        from policies.contract import route

        return route(0, 8)


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


def rows(config: DictConfig) -> list[dict[str, Any]]:
    """The cases."""
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
    load = float(config.load)

    rate = config.rate_per_s or load * _knee_rate(base, cluster, TIGHT, guard)
    azure = replicate(base, int(config.requests))
    azure = azure.scale_rate(rate / azure.rate_per_s)
    problem = build_problem(azure, cluster, TIGHT)
    cpu, wall, run = timed(lambda p=problem: run_problem(p, guard), repeats)  # type: ignore[misc]
    found = [row(f"{base.name} 8p8d guard compiled", len(azure), "requests", cpu, wall)]
    found[0] |= {
        "rate_per_s": rate,
        "served_share": float((run.outcomes["status"] == 1).mean()),
        "engine_steps": int(run.workers["steps"].sum()),
        "peak_rss_gib": peak_rss_gib(),
    }
    compiled_per_s = found[0]["per_cpu_s"]
    del problem, azure, run

    moon = _load("mooncake_conversation", config)
    moon_rate = load * _knee_rate(moon, cluster, TIGHT, guard)
    moon = moon.scale_rate(moon_rate / moon.rate_per_s)
    moon_problem = build_problem(moon, cluster, TIGHT)
    cpu, wall, run = timed(lambda: run_problem(moon_problem, guard), repeats)
    hit = float(run.outcomes["cached_tokens"].sum() / moon_problem.requests["prompt_tokens"].sum())
    found.append(row(f"{moon.name} 8p8d guard compiled, prefix caches", len(moon), "requests", cpu, wall))
    found[-1] |= {"rate_per_s": moon_rate, "hit_rate": hit, "served_share": float((run.outcomes["status"] == 1).mean())}

    small = base.scale_rate(rate / base.rate_per_s)
    small = small.window(0.0, small.duration_s * min(1.0, PYTHON_REQUESTS / len(small)))
    small_problem = build_problem(small, cluster, TIGHT)
    for label, policy, interpret in (("no-op Python policy", NoOp(), False), ("guard interpreted", guard, True)):
        cpu, wall, run = timed(lambda p=policy, i=interpret: run_problem(small_problem, p, interpret=i), repeats)  # type: ignore[misc]
        found.append(row(f"{base.name} 8p8d {label}", run.decisions, "decisions", cpu, wall))

    few = small.window(0.0, small.duration_s * min(1.0, REFERENCE_REQUESTS / len(small)))
    few_problem = build_problem(few, cluster, TIGHT)
    cpu, wall, _ = timed(lambda: run_reference(few_problem, guard.decide, params=guard.params), 1)
    found.append(row(f"{base.name} 8p8d guard, plain-Python reference", len(few), "requests", cpu, wall))
    fast_cpu, _, _ = timed(lambda: [run_problem(few_problem, guard) for _ in range(50)], repeats)
    found[-1]["compiled_is_times_faster_on_this_slice"] = cpu / (fast_cpu / 50)
    found[0]["times_faster_than_reference"] = compiled_per_s / found[-1]["per_cpu_s"]
    return found
