"""Runs of one engine that were logged request by request: calibrated on the first of them, judged on the rest.

LLMServingSim's open vLLM runs. Arrivals and lengths of all requests are inputs; of the measured times only those of
the first :data:`CALIBRATION` requests are looked at, to find the five coefficients of a step law with which the
simulator itself reproduces them (a plane, memory bound and compute bound terms in one). No op table is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.cluster.slo import LOOSE
from envs.cluster.spec import ClusterSpec, WorkerSpec
from envs.hardware.load import load_handover
from envs.hardware.model_shape import load_model
from envs.hardware.profile import KvLaw, Profile, StepLaw
from research.errors import ResearchError
from traces import Trace, load_trace

BENCH = "measurements/llmservingsim/bench/examples"
CALIBRATION = 100
WITHIN_PERCENT = 10.0
"""The bar: p50 and p90 of the rest within this."""
TIMES = ("ttft", "tpot", "e2e")
RESAMPLES = 2000
SEED = 20260601
ACTIVATION_BYTES = 2e9
"""What a GPU holds besides weights and KV where the log does not say how many KV tokens fit: an assumption."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of vLLM and how the engine was set.

    Attributes:
        name: GPU and model.
        trace: its requests with ``ttft_s`` and ``tpot_s``.
        worker: the worker that stands for it; its law is the start of the search.
        source: files it was read from, below the data folder.
    """

    name: str
    trace: Trace
    worker: WorkerSpec
    source: str


def logged_runs(data_dir: Path) -> list[LoggedRun]:
    """The runs in the data folder.

    Raises:
        ResearchError: none are there.
    """
    files = sorted((data_dir / BENCH).glob("*/*/vllm/requests.jsonl*"))
    if not files:
        raise ResearchError(
            f"part=vllm_requests: expected {BENCH}/*/*/vllm/requests.jsonl.gz (or .jsonl) in the data folder "
            f"{data_dir} (set by data_dir or $PDGYM_DATA): they are LLMServingSim's bench/examples"
        )
    return [_read(path, data_dir) for path in files]


def _read(path: Path, data_dir: Path) -> LoggedRun:
    trace = load_trace(str(path), "vllm_engine")
    meta = _settings(path.parent / "meta.json", "engine_kwargs", "model")
    config = _settings(path.parents[1] / "config.json", "nodes")
    try:
        node = config["nodes"][0]["instances"][0]
        engine, memory = meta["engine_kwargs"], node["npu_mem"]
        budget, running = int(engine["max_num_batched_tokens"]), int(engine["max_num_seqs"])
        size, share, speed = (float(memory[name]) for name in ("mem_size", "mem_util", "mem_bw"))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ResearchError(
            f"{path.parent}: {type(error).__name__} {error} in meta.json or ../config.json: expected engine_kwargs of "
            "max_num_batched_tokens and max_num_seqs, and npu_mem with mem_size, mem_util and mem_bw"
        ) from error
    shape = load_model(str(meta["model"]))
    kv_bytes, weights = shape.kv_bytes(1, "bf16"), shape.weight_bytes("bf16")
    tokens = (meta.get("kv_cache") or {}).get("num_kv_tokens")
    if tokens is None:
        tokens = int((size * 2**30 * share - weights - ACTIVATION_BYTES) / kv_bytes)
    bandwidth = speed * 1e9
    first = trace.frame.sort("arrival_s").row(0, named=True)
    # Weights and KV at the data sheet's bandwidth; prompts at the pace of the very first request.
    start = StepLaw(
        floor_s=0.0,
        c0_s=weights / bandwidth,
        c_tok_s=max(first["ttft_s"] - weights / bandwidth, 1e-3) / first["prompt_tokens"],
        c_attn_s=1e-10,
        c_seq_s=2e-5,
        c_kv_s=kv_bytes / bandwidth,
    )
    name = f"{node['hardware']}, {shape.name}"
    profile = Profile(
        name, shape.name, str(node["hardware"]), 1, "vllm", "bf16", start, KvLaw(float(kv_bytes), int(tokens), 16)
    )
    worker = WorkerSpec(profile, "mixed", max_batched_tokens=budget, max_num_seqs=running, prefix_cache=False)
    return LoggedRun(name, trace, worker, str(path.relative_to(data_dir)))


def _settings(path: Path, *needed: str) -> dict[str, Any]:
    """A run's JSON file of settings that has the keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResearchError(f"{path}: {error}: expected the settings of the run beside it, as JSON") from error
    missing = [name for name in needed if not isinstance(found, dict) or name not in found]
    if missing:
        raise ResearchError(f"{path}: no key {missing[0]}: expected {', '.join(needed)}")
    return dict(found)


def simulated(run: LoggedRun, law: StepLaw) -> pl.DataFrame:
    """Measured and simulated times of each request under a law, in order of arrival."""
    from envs.cluster.simulator import simulate
    from policies.registry import load as load_policy

    worker = replace(run.worker, profile=run.worker.profile.with_step(law))
    handover = replace(load_handover("nvlink", gpus=1), dispatch_s=0.0)
    result = simulate(run.trace, ClusterSpec("colocated1", (worker,), handover), load_policy("round_robin"), LOOSE)
    return paired(run.trace, result.requests).sort("arrival_s")


def paired(trace: Trace, now: pl.DataFrame) -> pl.DataFrame:
    """Measured and simulated times of each request of a log, in its order.

    Args:
        trace: the log; ``ttft_s`` and ``tpot_s`` were measured.
        now: ``SimResult.requests`` of its replay.
    """
    log = trace.frame
    gaps = (log["output_tokens"] - 1).clip(lower_bound=0)
    return pl.DataFrame(
        {
            "arrival_s": log["arrival_s"],
            "measured_ttft_s": log["ttft_s"],
            "measured_tpot_s": log["tpot_s"],
            "measured_e2e_s": log["ttft_s"] + log["tpot_s"].fill_null(0.0) * gaps,
            **{f"simulated_{name}_s": now[f"{name}_s"] for name in TIMES},
        }
    )


def calibrate(run: LoggedRun, first: int = CALIBRATION) -> StepLaw:
    """The law whose simulation is nearest to the first requests: least mean |log ratio| of TTFT, TPOT and E2E."""
    from envs.hardware.from_log import nearest_law

    return nearest_law(run.worker.profile.step, lambda law: distance(simulated(run, law)[:first]))


def distance(frame: pl.DataFrame) -> float:
    """Mean |log ratio| of simulated to measured TTFT, TPOT and E2E, summed; a row without a time counts for the others.

    Args:
        frame: ``measured_<time>_s`` and ``simulated_<time>_s`` of each request.
    """
    total = 0.0
    for name in TIMES:
        both = frame.select(now=f"simulated_{name}_s", log=f"measured_{name}_s").drop_nulls()
        if both.height:
            total += float(np.abs(np.log(both["now"].to_numpy() / both["log"].to_numpy())).mean())
    return total


def judge(frame: pl.DataFrame, first: int = CALIBRATION) -> list[dict[str, Any]]:
    """Quantiles of the rest: measured, simulated, error in per cent; p99 with the bootstrap interval of the measured.

    The interval resamples requests, which depend on each other under load: it is narrower than the truth. The rule
    beside it takes the quantile of the first requests for that of the rest.
    """
    rows = []
    rng = np.random.default_rng(SEED)
    rest = frame[first:]
    for name in TIMES:
        both = rest.select(now=f"simulated_{name}_s", log=f"measured_{name}_s").drop_nulls()
        now, log = both["now"].to_numpy(), both["log"].to_numpy()
        if log.size == 0:
            continue
        for q in (50, 90, 99):
            measured, guess = float(np.percentile(log, q)), float(np.percentile(now, q))
            known = frame[:first][f"measured_{name}_s"].drop_nulls().to_numpy()
            row: dict[str, Any] = {
                "metric": name,
                "quantile": q,
                "requests": int(log.size),
                "measured_s": measured,
                "simulated_s": guess,
                "error_percent": 100.0 * (guess / measured - 1.0),
                "rule_error_percent": 100.0 * float(np.percentile(known, q) / measured - 1.0),
            }
            if q == 99:
                drawn = np.percentile(log[rng.integers(0, log.size, (RESAMPLES, log.size))], q, axis=1)
                row["low_s"], row["high_s"] = (float(v) for v in np.quantile(drawn, (0.025, 0.975)))
            else:
                row["met"] = abs(row["error_percent"]) <= WITHIN_PERCENT
            rows.append(row)
    return rows


def backlog(frame: pl.DataFrame) -> dict[str, Any]:
    """How much of the run is queueing: requests that wait for their first token when the last one arrives.

    Where that is a large share the arrivals are over what the engine can serve: TTFT and E2E are the time in a queue
    that grows, and show whether tokens per second are right, not what TTFT is at a load that is kept up with.
    """
    last_s = float(frame["arrival_s"].max() or 0.0)  # type: ignore[arg-type]
    waiting = frame.filter(pl.col("arrival_s") + pl.col("measured_ttft_s") > last_s).height
    return {"arrivals_s": last_s, "waiting": waiting, "waiting_percent": 100.0 * waiting / frame.height}
