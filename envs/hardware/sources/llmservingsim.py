"""LLMServingSim's measurements of vLLM 0.19.0: op profiles of two GPUs, and real runs with stamps for each request.

Profiles (``profiler/perf``): microseconds by layer and number of tokens, by layer and number of sequences, and of
attention for a chunk of a prompt, decodes, or both in one kernel. Runs (``bench/examples``): arrival, scheduling, first
and last token of 300 requests on one GPU, in seconds of the engine's clock; every first and last token is the end of a
step.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.files import Origin, Table, check_counts, check_times, merge_repeats, read_bytes, read_table

LLMSERVINGSIM = Origin(
    name="LLMServingSim profiler and bench, vLLM 0.19.0",
    repository="casys-kaist/LLMServingSim",
    commit="5daddb21a545658d5150b535712d0494584b5278",
    licence="MIT",
    attribution="KAIST CASYS, measured on the named GPU",
)
ROOT = "measurements/llmservingsim"
EACH_LAYER = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "layernorm", "gate_up_proj", "act_fn", "down_proj")
ONCE, SAMPLED = ("embedding", "final_layernorm"), ("lm_head", "sampler")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OpProfile:
    """Op times of one model on one GPU with one tensor-parallel degree.

    Attributes:
        dense: ``layer, tokens, time_us``.
        sequences: ``layer, sequences, time_us``.
        attention: ``prefill_chunk, kv_prefill, n_decode, kv_decode, time_us``; ``kv_*`` tokens of each sequence.
    """

    dense: Table
    sequences: Table
    attention: Table

    def decode_s(self, batch: int, kv: float, layers: int) -> float:
        """Time of one step of ``batch`` decodes over ``kv`` tokens together, straight between measured points."""
        us = sum(_along(self.dense, name, "tokens", batch) for name in EACH_LAYER) + self._decode_us(batch, kv / batch)
        us *= layers
        us += sum(_along(self.dense, name, "tokens", batch) for name in ONCE)
        us += sum(_along(self.sequences, name, "sequences", batch) for name in SAMPLED)
        return us * 1e-6

    def _decode_us(self, batch: int, context: float) -> float:
        frame = self.attention.frame.filter((pl.col("prefill_chunk") == 0) & (pl.col("n_decode") > 0))
        batches = frame["n_decode"].unique().sort().to_list()
        times = []
        for measured in batches:
            curve = frame.filter(pl.col("n_decode") == measured).sort("kv_decode")
            times.append(float(np.interp(context, curve["kv_decode"].to_numpy(), curve["time_us"].to_numpy())))
        return float(np.interp(batch, batches, times))


@dataclass(frozen=True, slots=True)
class Requests:
    """A run's requests, each (n,): prompt and output tokens; when scheduled, first and last token, in seconds."""

    relative: str
    sha256: str
    prompt: FloatArray
    output: FloatArray
    scheduled_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray


def read_profile(data_dir: Path, gpu: str, model: str, variant: str = "bf16", tensor_parallel: int = 1) -> OpProfile:
    """Read one op profile.

    Args:
        data_dir: the data folder.
        gpu: folder of the GPU, such as ``RTX4090``.
        model: folder of the model, such as ``meta-llama/Llama-3.1-8B``.
        variant: folder of the precision.
        tensor_parallel: GPUs that shared the model.

    Raises:
        MeasurementError: a missing file or column, a time that is none, contradictory repeats.
    """
    base = f"{ROOT}/profiler/perf/{gpu}/{model}/{variant}/tp{tensor_parallel}"
    time = {"time_us": pl.Float64}

    def table(file: str, keys: dict[str, type[pl.DataType]]) -> Table:
        read = read_table(data_dir, f"{base}/{file}.csv.gz", {**keys, **time})
        check_times(read, "time_us")
        check_counts(read, [name for name, kind in keys.items() if kind.is_integer()])
        return merge_repeats(read, list(keys), "time_us")

    axes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    return OpProfile(
        table("dense", {"layer": pl.String, "tokens": pl.Int64}),
        table("per_sequence", {"layer": pl.String, "sequences": pl.Int64}),
        table("attention", dict.fromkeys(axes, pl.Int64)),
    )


def read_requests(data_dir: Path, gpu: str, model: str) -> Requests:
    """Read one run's requests.

    Raises:
        MeasurementError: no such file, a missing column, stamps out of order, a request without output.
    """
    relative = f"{ROOT}/bench/examples/{gpu}/{model.rsplit('/', 1)[-1]}/vllm/requests.jsonl.gz"
    data = read_bytes(data_dir, relative)
    try:
        frame = pl.read_ndjson(gzip.decompress(data))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise MeasurementError(f"{relative}: cannot be read: {' '.join(str(error).split())}") from error
    stamps = ("scheduled_ts", "first_token_ts", "last_token_ts")
    for column in ("input_toks", "output_toks", *stamps):
        if column not in frame.columns:
            raise MeasurementError(f"{relative}: column {column!r} is missing: the file has {', '.join(frame.columns)}")
    bad = (pl.col("output_toks") < 1) | (pl.col("first_token_ts") < pl.col("scheduled_ts"))
    bad |= pl.col("last_token_ts") < pl.col("first_token_ts")
    wrong = frame.with_row_index("row").filter(bad.fill_null(True))
    if wrong.height:
        raise MeasurementError(
            f"{relative}: row {wrong['row'][0] + 1}: expected at least one output token, and scheduling, first and "
            f"last token in this order ({wrong.height} such rows)"
        )
    columns = [frame[name].cast(pl.Float64).to_numpy() for name in ("input_toks", "output_toks", *stamps)]
    return Requests(relative, hashlib.sha256(data).hexdigest(), *columns)


def _along(table: Table, layer: str, axis: str, value: float) -> float:
    curve = table.frame.filter(pl.col("layer") == layer).sort(axis)
    if curve.is_empty():
        raise table.error(f"no rows of layer {layer!r}")
    return float(np.interp(value, curve[axis].to_numpy(), curve["time_us"].to_numpy()))
