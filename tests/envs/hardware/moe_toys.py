"""Small tables of experts, collectives and latent attention, from formulas, beside the dense ones of ``tables``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from envs.hardware.attention_kinds import Experts, Latent, LayerGroup
from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import ModelShape, load_model
from tests.envs.hardware.tables import BASE, write, write_tables

TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
GPU = Gpu("toy", 80e9, 2e12, {"bf16": 4e14}, {1: 0.0, 2: 1e8}, {"name": "toy"}, tables="toy_gpu")
EXPERTS = Experts(count=8, per_token=2, intermediate=1024, shared=1, dense_layers=2)
SHAPE = replace(load_model("llama-3.1-8b"), name="toy-moe", experts=EXPERTS)
LATENT = replace(
    SHAPE,
    name="toy-mla",
    attention=(LayerGroup("mla", 32),),
    latent=Latent(query_rank=1024, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
)


def experts_ms(tokens: int, tp: int, ep: int) -> float:
    return 0.02 / tp + 0.001 * tokens / (tp * ep) * 8


def write_moe(data_dir: Path, engine: str = "vllm", shape: ModelShape = SHAPE) -> Path:
    """All tables of :func:`write_tables`, experts of ``shape`` in two kernels, NCCL; returns ``data_dir``."""
    write_tables(data_dir)
    assert shape.experts is not None
    size = {
        "hidden_size": shape.hidden,
        "inter_size": shape.experts.intermediate,
        "topk": shape.experts.per_token,
        "num_experts": shape.experts.count,
    }
    rows = [
        {
            "kernel_source": kernel,
            "moe_dtype": "bfloat16",
            "num_tokens": n,
            "moe_tp_size": tp,
            "moe_ep_size": ep,
            "distribution": distribution,
            "latency": experts_ms(n, tp, ep) * slow * busiest,
            **size,
        }
        for kernel, slow in (("usual", 1.0), ("small", 0.5))
        for n in TOKENS
        if kernel == "usual" or n <= 16
        for tp, ep in ((1, 1), (2, 1), (1, 2), (1, 4))
        for distribution, busiest in (("balanced", 1.0), ("power_law_1.01", 1.5), ("power_law_1.2", 2.0))
    ]
    write(data_dir / BASE / "moe" / engine / "1.0" / "moe_perf.parquet", pl.DataFrame(rows))
    nccl = [
        {
            "op_name": op,
            "nccl_dtype": dtype,
            "num_gpus": gpus,
            "message_size": 2**i,
            "latency": 0.01 + 2**i * 1e-8 * (1 if dtype == "half" else 0.5),
        }
        for op in ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
        for dtype in ("half", "int8")
        for gpus in (2, 4, 8)
        for i in range(8, 26)
    ]
    write(data_dir / BASE / "comm" / "nccl" / "2.0" / "nccl_perf.parquet", pl.DataFrame(nccl))
    return data_dir


def latent_ms(batch: int, tokens: int) -> float:
    return 0.2 + batch * tokens * 1e-6


def write_latent(data_dir: Path, kind: str, engine: str = "vllm") -> None:
    """Latent attention as ``module`` or ``kernel`` rows: a kernel takes :func:`latent_ms`, a module twice as long."""
    folder = data_dir / BASE / "mla" / engine / "1.0"
    module = kind == "module"
    names = {True: "mla_{}_module_perf.parquet", False: "{}_mla_perf.parquet"}[module]
    for phase, axis, batches in (("context", "isl", (1, 2, 4, 8, 16)), ("generation", "step", (1, 8, 64, 256))):
        rows = [
            {
                "kv_cache_dtype": "bfloat16",
                "num_heads": heads,
                "batch_size": batch,
                axis: tokens - (1 if axis == "step" and not module else 0),
                "latency": latent_ms(batch, tokens) * (2 if module else 1),
                **({"gemm_type": "bfloat16"} if module else {}),
            }
            for heads in (16, 32)
            for batch in batches
            for tokens in (16, 64, 256, 1024, 4096, 16384, 32768)
        ]
        write(folder / names.format(phase), pl.DataFrame(rows))
    products = [
        {"op_name": op, "bmm_dtype": "bfloat16", "num_tokens": n, "num_heads": 32, "latency": 0.05}
        for op in ("mla_gen_pre", "mla_gen_post")
        for n in TOKENS
    ]
    write(data_dir / BASE / "mla_bmm" / engine / "1.0" / "mla_bmm_perf.parquet", pl.DataFrame(products))
