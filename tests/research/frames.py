"""Results made by hand: what the simulator returns, with only the interesting values given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from envs.cluster.problem import TBT_BINS, tbt_bin

SERVED: dict[str, Any] = {
    "session": -1,
    "turn": 1,
    "class_id": 0,
    "status": "served",
    "reason": 0,
    "prompt_tokens": 1000,
    "output_tokens": 10,
    "emitted_tokens": 10,
    "prefill_worker": 0,
    "decode_worker": 1,
    "local": False,
    "arrival_s": 0.0,
    "routed_s": 0.0,
    "prefill_start_s": 0.1,
    "prefill_done_s": 0.3,
    "pull_start_s": 0.3,
    "pull_end_s": 0.35,
    "first_token_s": 0.4,
    "finish_s": 1.0,
    "ttft_s": 0.4,
    "tpot_s": 0.02,
    "e2e_s": 1.0,
    "cached_tokens": 0,
    "prefill_tokens_computed": 1000,
    "pulled_tokens": 1000,
    "pulled_bytes": 1e6,
    "preemptions": 0,
    "holds": 0,
    "slo_ttft_s": 0.5,
    "slo_tpot_s": 0.025,
    "idle_ttft_s": 0.2,
    "idle_tpot_s": 0.01,
    "slo_met": True,
}
REFUSED: dict[str, Any] = {
    **SERVED,
    "status": "rejected",
    "emitted_tokens": 0,
    "slo_met": False,
    **dict.fromkeys(
        [
            "prefill_worker",
            "decode_worker",
            "prefill_start_s",
            "prefill_done_s",
            "pull_start_s",
            "pull_end_s",
            "first_token_s",
            "ttft_s",
            "tpot_s",
            "e2e_s",
        ]
    ),
    "pulled_bytes": 0.0,
}
WORKER: dict[str, Any] = {
    "worker": 0,
    "role": "prefill",
    "gpus": 4,
    "steps": 10,
    "prefill_s": 5.0,
    "decode_s": 0.0,
    "mixed_s": 0.0,
    "idle_rank_s": 0.0,
    "prefill_tokens": 1000,
    "decode_tokens": 0,
    "evictions": 0,
    "preemptions": 0,
    "peak_kv_usage": 0.5,
}


def result(
    requests: list[dict[str, Any]],
    *,
    workers: list[dict[str, Any]] | None = None,
    gaps_s: list[float] = (),  # type: ignore[assignment]
    span_s: float = 10.0,
) -> Any:
    """A SimResult-like object: ``requests`` over SERVED, a prefill and a decode worker unless given."""
    rows = [{**SERVED, "request": i, **row} for i, row in enumerate(requests)]
    floats = {k: pl.Float64 for k in SERVED if k.endswith(("_s", "_bytes"))}
    ints = {k: pl.Int64 for k in ("prefill_worker", "decode_worker")}
    counts = np.zeros(TBT_BINS, np.int64)
    for gap in gaps_s:
        counts[tbt_bin(round(gap * 1e12))] += 1
    workers = workers or [{}, {"worker": 1, "role": "decode", "prefill_s": 0.0, "decode_s": 4.0, "mixed_s": 1.0}]
    return SimpleNamespace(
        requests=pl.DataFrame(rows, schema_overrides={**floats, **ints}, infer_schema_length=None),
        workers=pl.DataFrame([{**WORKER, **w} for w in workers]),
        tbt_counts=counts,
        span_s=span_s,
        decisions=len(rows),
        extrapolated_share=None,
        gpus=8,
    )
