"""What InferenceX's runs were really made with, where their record counts a degree of parallelism twice.

Engines deal experts out among the same GPUs that share attention: ``--tensor-parallel-size 8 --ep-size 8`` (SGLang),
``--tp_size=8 --ep_size=8`` (TensorRT-LLM) and ``--enable-expert-parallel`` (vLLM) take eight GPUs. InferenceX's
database falls back to ``tp * ep`` as the number of GPUs of a run on one machine (SemiAnalysisAI/InferenceX-app
@ 01668b87, packages/db/src/etl/topology.ts), and the published table of runs derives all degrees from that number, as
aiconfigurator's own adapter does (ai-dynamo/aiconfigurator @ 87699bd1,
src/aiconfigurator/sdk/config_adapter/inferencex.py: with TP 8 and EP 8 read as 64 GPUs, ``moe_tp = gpus / ep`` is 8):

* SGLang and TensorRT-LLM: attention over ``tp * ep`` GPUs (or as many data-parallel ranks), experts ``tp`` by ``ep``;
* vLLM: ``tp`` by ``ep`` ranks of attention, experts over all of them.

Both are told from what was run by the launch scripts: every configuration of one machine that InferenceX published to
May 2026 (876 in the history of its nvidia-master.yaml, to SemiAnalysisAI/InferenceX @ 843c6254) has EP 1 or EP = TP. So
experts are either split or dealt out, never both, and a vLLM rank of several GPUs has no data-parallel siblings. 83
of these runs were also filed by another dump with degrees counted once: all 83 have what :func:`counted_once` gives.
"""

from __future__ import annotations

import polars as pl

DUMPS = r"^(\d{4}-\d{2}-\d{2}\.csv|db-dump/.*)$"
"""Campaigns that are dumps of InferenceX's database."""


def counted_once(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs with the degrees and GPUs that they were made with; rows that are not counted twice stay as they are.

    Args:
        runs: (n,) as :attr:`envs.hardware.sources.serving_runs.ServingRuns.kept`: ``campaign, layout, engine, tp, dp,
            moe_tp, moe_ep, gpus`` are read.

    Returns:
        (n,) the same rows and columns, and ``recorded_gpus``: what ``gpus`` was.
    """
    of_one_machine = pl.col("campaign").str.contains(DUMPS) & (pl.col("layout") == "colocated")
    dealt_out = of_one_machine & (pl.col("moe_ep") > 1)
    vllm = dealt_out & (pl.col("engine") == "vllm") & (pl.col("tp") > 1) & (pl.col("dp") > 1)
    others = dealt_out & (pl.col("engine") != "vllm") & (pl.col("moe_tp") > 1)
    ranks = pl.col("dp").fill_null(1) > 1
    gpus = pl.when(others).then("moe_tp").otherwise("tp")
    twice = (vllm | others).fill_null(False)
    degrees = {
        "tp": pl.when(others & ranks).then(1).otherwise(gpus),
        "dp": pl.when(others & ranks).then(gpus).otherwise(1),
        "moe_tp": pl.lit(1),
        "moe_ep": gpus,
        "gpus": gpus,
    }
    return runs.with_columns(
        recorded_gpus="gpus",
        **{name: pl.when(twice).then(value).otherwise(pl.col(name)).cast(pl.Int64) for name, value in degrees.items()},
    )
