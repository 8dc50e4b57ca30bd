"""What a simulator has to beat: a one-line rule from data sheets, and aiconfigurator's own static estimates.

The rule: a decode step reads the weights and the KV cache once at peak bandwidth; a prompt costs 2 x parameters FLOP a
token at peak arithmetic, and each request's prompt is paid by all while it runs::

    t_prompt = 2 * parameters * prompt / (GPUs * peak)          TTFT = t_prompt
    TPOT = (weights + users * KV(prompt + output/2)) / (GPUs * bandwidth) + users * t_prompt / output
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.hardware.errors import ProfileError
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import load_model
from research.validating.profiles import instance_of

ESTIMATES = "derived/aic_estimates.csv"
"""Static estimates of aiconfigurator 0.12.0: one context pass, or one decode step at a batch and context, in ms."""
AIC_MODELS = {
    "meta-llama/Meta-Llama-3.1-70B": "meta-llama/Llama-3.1-70B",
    "meta-llama/Meta-Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct",
}


def one_line(run: Mapping[str, Any]) -> tuple[float, float] | None:
    """(TTFT, TPOT) in seconds by the rule, of a colocated dense run; None where a data sheet or shape is missing."""
    if run["layout"] != "colocated" or not run["dense"]:
        return None
    made_with = instance_of(run)
    try:
        shape, gpu = load_model(made_with.model), load_gpu(made_with.gpu)
        peak, weights = gpu.peak(made_with.precision), shape.weight_bytes(made_with.precision)
        cache = shape.kv_bytes(int(run["prompt_tokens"] + run["output_tokens"] / 2), made_with.kv_precision)
    except ProfileError:
        return None
    gpus, users = int(run["gpus"]), int(run["users"])
    prompt_s = 2.0 * shape.params * int(run["prompt_tokens"]) / (gpus * peak)
    read_s = (weights + users * cache) / (gpus * gpu.memory_bytes_per_s)
    return prompt_s, read_s + users * prompt_s / int(run["output_tokens"])


def arithmetic_share(run: Mapping[str, Any]) -> float | None:
    """Share of the recorded GPUs' peak arithmetic that a dense run implies; above 1 it cannot have run on so few.

    ``users * (prompt + output) * 2 * parameters / (TTFT + TPOT * (output - 1)) / (GPUs * peak)``, from the measured
    times: it looks at no prediction. None where a data sheet or shape is missing.
    """
    if not run["dense"]:
        return None
    phase = "" if run["layout"] == "colocated" else "decode_"
    made_with = instance_of(run, phase)
    try:
        shape, peak = load_model(made_with.model), load_gpu(made_with.gpu).peak(made_with.precision)
    except ProfileError:
        return None
    output = int(run["output_tokens"])
    spent_s = float(run["ttft_s"]) + float(run["tpot_s"]) * (output - 1)
    flop = 2.0 * shape.params * int(run["users"]) * (int(run["prompt_tokens"]) + output)
    return float(flop / spent_s / (int(run["gpus"]) * peak))


class StaticEstimates:
    """aiconfigurator's static estimates by model, GPU, engine, degree and precision.

    A run matches where its batch (the users) was estimated and its lengths lie inside the estimated ones: TTFT is the
    context time of its prompt alone, TPOT the decode step of all users at half the output, both interpolated in
    log-log over the length. Neither queueing nor prefills beside decodes are in them.
    """

    def __init__(self, data_dir: Path) -> None:
        """Read the estimates; none where the file is absent."""
        path = data_dir / ESTIMATES
        self.frame = pl.read_csv(path) if path.is_file() else None
        self._known: dict[tuple[Any, ...], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}
        if self.frame is None:
            return
        named = self.frame.with_columns(
            pl.col("model").replace(AIC_MODELS), time_ms=pl.max_horizontal("ttft_ms", "tpot_ms")
        )
        keys = ["model", "system", "backend", "tp", "quant", "mode", "batch"]
        for key, group in named.sort("isl").group_by(keys):
            self._known[key] = (np.log(group["isl"].to_numpy()), np.log(group["time_ms"].to_numpy()))

    def of(self, run: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """(TTFT, TPOT) in seconds, None where nothing matches."""
        if run["layout"] != "colocated":
            return None, None
        precision = {"bf16": "bfloat16"}.get(str(run["precision"]), str(run["precision"]))
        base = (run["model"], run["gpu"], run["engine"], run["tp"], precision)
        prompt, output = float(run["prompt_tokens"]), float(run["output_tokens"])
        ttft = self._at((*base, "static_ctx", 1), prompt)
        return ttft, self._at((*base, "static_gen", run["users"]), prompt + output / 2)

    def _at(self, key: tuple[Any, ...], tokens: float) -> float | None:
        found = self._known.get(key)
        if found is None or not found[0][0] <= np.log(tokens) <= found[0][-1]:
            return None
        return float(np.exp(np.interp(np.log(tokens), *found))) * 1e-3
