"""Hand-made measured runs and profiles for the tests of validation."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl

from envs.hardware.profile import KvLaw, Profile, StepLaw
from envs.hardware.sources.serving_runs import COLUMNS, TABLE
from research.validating.parts import select
from research.validating.work import INPUTS

LAW = StepLaw(floor_s=0.010, c0_s=0.010, c_tok_s=1e-5, c_attn_s=0.0, c_seq_s=0.0, c_kv_s=0.0)
"""A step takes 10 ms and 0.01 ms for each prompt token."""


def profile(law: StepLaw = LAW, capacity: int = 1_000_000) -> Profile:
    """A worker of one GPU."""
    return Profile("hand", "m", "g", 1, "e", "bf16", law, KvLaw(1000.0, capacity, 16))


def run(**given: Any) -> dict[str, Any]:
    """A measured run: colocated vLLM on one GPU unless said otherwise."""
    base: dict[str, Any] = dict.fromkeys(INPUTS)
    base |= {
        "run": "r0", "engine": "vllm", "engine_version": "0.12.0", "model": "Qwen/Qwen3-32B", "gpu": "h100_sxm",
        "precision": "fp8", "layout": "colocated", "prompt_tokens": 1000, "output_tokens": 100, "users": 1,
        "campaign": "a/b.csv", "tp": 1, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 1,
    }  # fmt: skip
    return base | given


def disaggregated(prefill: int, decode: int, **given: Any) -> dict[str, Any]:
    """A disaggregated run of one-GPU workers."""
    degrees = {f"{p}_{axis}": 1 for p in ("prefill", "decode") for axis in ("tp", "pp", "dp", "moe_tp", "moe_ep")}
    return run(layout="disaggregated", prefill_workers=prefill, decode_workers=decode, **degrees, **given)


def measured(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Runs as ``parts.select`` gives them; rows need ``gpus``, ``ttft_s`` and ``tpot_s``."""
    return select(pl.DataFrame(rows, infer_schema_length=None), "all")


def table_rows(n: int) -> list[dict[str, Any]]:
    """Rows of the published table: two campaigns, rising concurrency, TPOT rising with it."""
    rows = []
    for i in range(n):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        users = 1 + i % (n // 2)
        campaign = "2026-04-06.csv" if i < n // 2 else "somewhere/Qwen.csv"
        row |= {
            "id": f"run{i}", "silicon_data_source": f"source_file={campaign};silicon_concurrency={users}",
            "backend": "vllm", "backend_version": "0.12.0", "model_path": "Qwen/Qwen3-32B", "system": "h100_sxm",
            "precision": "fp8", "mode": "agg", "isl": 1000, "osl": 50, "tp_size": 1, "pp_size": 1,
            "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1,
            "silicon_ttft_ms": 20.0 + i, "silicon_tpot_ms": 10.0 + users + 0.01 * i,
        }  # fmt: skip
        rows.append(row)
    return rows


def write_table(data_dir: Path, n: int = 8) -> None:
    """The published table with ``n`` rows below ``data_dir``."""
    path = data_dir / TABLE
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(pl.DataFrame(table_rows(n), infer_schema_length=None).write_csv().encode()))
