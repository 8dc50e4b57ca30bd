"""A small op profile in LLMServingSim's layout, from formulas: what adapters read in tests without the public data."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl

from envs.hardware.sources.llmservingsim import ROOT

GPU, MODEL = "toy", "maker/toy-8b"
DENSE = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
ONCE, SAMPLED = ("embedding", "final_layernorm"), ("lm_head", "sampler")
AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
OP_US, SAMPLED_US, CHUNKS, DECODES, CONTEXTS = 50.0, 100.0, (128, 512, 1024), (1, 2, 4, 16, 64), (64, 512, 2048)


def dense_us(tokens: int) -> float:
    return OP_US + tokens * 0.1


def prefill_us(chunk: int, before: int) -> float:
    return 3.0 + chunk * (before + chunk / 2) * 1e-4


def decode_us(batch: int, context: int) -> float:
    return 5.0 + batch * context * 0.002


def mixed_us(chunk: int, before: int, batch: int, context: int) -> float:
    """A tenth more than both for each decode."""
    return (prefill_us(chunk, before) + decode_us(batch, context)) * (1.0 + 0.1 * batch)


def folder(data_dir: Path, model: str = MODEL) -> Path:
    return data_dir / ROOT / "profiler" / "perf" / GPU / model / "bf16"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def write_profile(data_dir: Path, model: str = MODEL, degree: int = 1) -> Path:
    """All tables and the description; returns ``data_dir``."""
    base = folder(data_dir, model)
    write(base / "meta.yaml.gz", f"vllm_version: 0.19.0\nmodel: {model}\n")

    def table(file: str, rows: list[dict[str, object]]) -> None:
        write(base / f"tp{degree}" / f"{file}.csv.gz", pl.DataFrame(rows).write_csv())

    table("dense", [{"layer": n, "tokens": t, "time_us": dense_us(t)} for n in (*DENSE, *ONCE) for t in (1, 2048)])
    table("per_sequence", [{"layer": n, "sequences": t, "time_us": SAMPLED_US} for n in SAMPLED for t in (1, 256)])
    points = {(c, p, 0, 0): prefill_us(c, p) for c in CHUNKS for p in (0, 2048)}
    points |= {(0, 0, b, k): decode_us(b, k) for b in DECODES for k in CONTEXTS}
    points |= {(c, p, b, k): mixed_us(c, p, b, k) for c in CHUNKS for p in (0, 2048) for b in DECODES for k in CONTEXTS}
    table("attention", [dict(zip(AXES, key, strict=True)) | {"time_us": us} for key, us in points.items()])
    return data_dir


def change(path: Path, how) -> None:
    """Rewrite one table."""
    write(path, how(pl.read_csv(gzip.decompress(path.read_bytes()))).write_csv())
