"""Parts of the measured runs that a command validates at a time, and the columns that all figures share."""

from __future__ import annotations

import polars as pl

from envs.hardware.sources.serving_runs import SAME_WEIGHTS
from research.validating.profiles import is_dense

RUN_PARTS = ("colocated_dense", "colocated_moe", "disaggregated", "all")
REQUEST_PART = "vllm_requests"
PARTS = (*RUN_PARTS, REQUEST_PART)

DEGREES = ("tp", "pp", "dp", "moe_tp", "moe_ep")
CONFIGURATION = (
    "engine",
    "layout",
    *DEGREES,
    *(f"{phase}_{axis}" for phase in ("prefill", "decode") for axis in ("workers", *DEGREES)),
    "users",
)
"""Columns that make a configuration: what a user chooses."""
STRATUM = ("weights", "gpu", "precision", "prompt_tokens", "output_tokens")
"""Columns within which configurations are compared: one model and GPU, one precision, one length."""


def select(runs: pl.DataFrame, part: str) -> pl.DataFrame:
    """Rows of a part; adds ``weights`` (the model, models of one architecture as one), ``dense``, ``lengths``."""
    name = pl.col("model").replace(SAME_WEIGHTS)
    dense = pl.col("model").is_in([model for model in runs["model"].unique() if is_dense(model)])
    runs = runs.with_columns(
        weights=name, precision=pl.col("precision").fill_null("bf16"), dense=dense, lengths=length_class()
    )
    colocated = pl.col("layout") == "colocated"
    wanted = {
        "colocated_dense": colocated & dense,
        "colocated_moe": colocated & ~dense,
        "disaggregated": ~colocated,
        "all": pl.lit(True),
    }
    return runs.filter(wanted[part])


def length_class() -> pl.Expr:
    """``prompt 1K-4K, output <1K`` and the like, of nominal lengths."""

    def named(column: str) -> pl.Expr:
        tokens = pl.col(column)
        return pl.when(tokens < 1000).then(pl.lit("<1K")).when(tokens < 4000).then(pl.lit("1K-4K")).otherwise(
            pl.lit(">=4K")
        )  # fmt: skip

    return pl.format("prompt {}, output {}", named("prompt_tokens"), named("output_tokens"))


def cluster_of_errors() -> pl.Expr:
    """What shares its error: one campaign's runs of one model on one GPU, engine and precision."""
    return pl.concat_str("campaign", "weights", "gpu", "engine", "precision", separator=" | ")


def tokens_per_gpu(users: pl.Expr, output: pl.Expr, ttft_s: pl.Expr, tpot_s: pl.Expr, gpus: pl.Expr) -> pl.Expr:
    """Output tokens per second and GPU of a closed loop; derived, on both sides: the runs hold no throughput."""
    return users * output / (ttft_s + tpot_s * (output - 1)) / gpus
