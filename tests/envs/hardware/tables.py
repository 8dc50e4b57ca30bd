"""Small op tables in the published layout, from a formula: what adapters read in tests without the public data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import yaml

from envs.hardware.gpu import GPU_DIR

GPU, ENGINE, VERSION = "toy_gpu", "vllm", "1.0"


def toy_sheet(folder: Path, **changes: object) -> Path:
    """An H100 whose op tables are the toy's, as a file."""
    own = {"name": "toy-gpu", "tables": GPU}
    sheet = yaml.safe_load((GPU_DIR / "h100-sxm-80gb.yaml").read_text()) | own | changes
    path = folder / "toy-gpu.yaml"
    path.write_text(yaml.safe_dump(sheet))
    return path


BASE = Path("measurements/aiconfigurator/data") / GPU
GEMM = BASE / "gemm" / ENGINE / VERSION / "gemm_perf.parquet"
CONTEXT = BASE / "attention" / ENGINE / VERSION / "context_attention_perf.parquet"
GENERATION = BASE / "attention" / ENGINE / VERSION / "generation_attention_perf.parquet"
ALLREDUCE = BASE / "comm" / ENGINE / VERSION / "custom_allreduce_perf.parquet"

POWERS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


def gemm_ms(m: int, n: int, k: int) -> float:
    """Weights at 2 TB/s, or 400 TFLOP/s."""
    return max(2 * n * k / 2e9, 2 * m * n * k / 4e11) + 0.004


def context_ms(batch: int, tokens: int) -> float:
    return 0.01 + batch * tokens * tokens * 6e-9


def generation_ms(batch: int, context: int) -> float:
    return 0.01 + batch * context * 2e-6


def allreduce_ms(elements: int) -> float:
    return 0.005 + elements * 8e-9


def write_tables(data_dir: Path) -> Path:
    """A full set of tables for Llama-3.1-8B on one or two GPUs; returns ``data_dir``."""
    grid = (1024, 2048, 4096, 6144, 8192, 16384, 32768, 65536)
    gemm = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k)}
        for m in POWERS
        for n in grid
        for k in grid[:-2]
    ]
    heads = [
        {"num_heads": h, "num_key_value_heads": kv, "head_dim": 128, "kv_cache_dtype": "bfloat16"}
        for h, kv in ((32, 8), (16, 4))
    ]
    common = {"attn_dtype": "bfloat16", "window_size": 0}
    context = [
        {"batch_size": b, "isl": n, "latency": context_ms(b, n), **shape, **common}
        for b in (1, 2, 4, 8, 16)
        for n in POWERS
        for shape in heads
    ]
    generation = [
        {"batch_size": b, "step": n - 1, "latency": generation_ms(b, n), **shape, **common}
        for b in (1, 2, 8, 32, 64, 128, 256)
        for n in (64, 256, 1024, 2048, 4096, 16384)
        for shape in heads
    ]
    allreduce = [
        {"num_gpus": 2, "message_size": 2**i, "latency": allreduce_ms(2**i) * slow, "backend": backend}
        for i in range(7, 30)
        for backend, slow in (("vllm_graph", 1.0), ("vllm_eager", 1.25))
    ]
    for path, rows in ((GEMM, gemm), (CONTEXT, context), (GENERATION, generation), (ALLREDUCE, allreduce)):
        write(data_dir / path, pl.DataFrame(rows))
    return data_dir


def write(path: Path, frame: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path)


def change(path: Path, how: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Rewrite one table."""
    write(path, how(pl.read_parquet(path)))
