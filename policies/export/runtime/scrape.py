"""Reads the metrics page of an engine (Prometheus text) into the names that the board knows."""

from __future__ import annotations

import re

NAMES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:gpu_cache_usage_perc": "kv_usage",  # its older name
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_usage",
}
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


def read_metrics(text: str) -> dict[str, float]:
    """Running, waiting and KV usage of one engine; counts of several series are added, usages are averaged."""
    found: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        if name in NAMES:
            try:
                sample = float(value)
            except ValueError:
                continue
            found.setdefault(name, []).append(sample)
    metrics: dict[str, float] = {}
    for name, values in found.items():
        total = sum(values)
        metrics.setdefault(NAMES[name], total / len(values) if NAMES[name] == "kv_usage" else total)
    return metrics
