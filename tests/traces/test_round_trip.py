"""Every trace that can be read is the same after it was written as canonical Parquet; and counts what the file holds.

The counts are made again in a few lines that share nothing with the readers. Azure and Mooncake are counted in
``test_public_data.py``.
"""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.test_fuzz import OPTIONS, VALID
from traces import Trace, load_trace
from traces.readers import canonical

LLMSERVINGSIM = (
    "sharegpt-llama-3.1-8b-300-sps10",
    "sharegpt-qwen3-30b-a3b-300-sps10",
    "sharegpt-qwen3-32b-300-sps10",
    "workload_me2_01_mixed",
)
VIDUR = "traces/vidur/arxiv_summarization_lengths.csv.gz"
SHARED: dict[str, dict[str, Any]] = {
    "traces/azure2023/AzureLLMInferenceTrace_conv.first2400s.csv.gz": {},
    "traces/azure2023/AzureLLMInferenceTrace_code.first2400s.csv.gz": {},
    "traces/mooncake/conversation_trace.first2700s.jsonl.gz": {},
    "traces/agentic_cc/requests.derived.parquet": {"zero_output": "one"},
    **{f"traces/llmservingsim/{name}.lengths.jsonl.gz": {} for name in LLMSERVINGSIM},
    VIDUR: {"rate_per_s": 2.0},
}


def again(trace: Trace, folder: Path) -> Trace:
    """The trace, written and read."""
    canonical.write(trace, folder / "again.parquet")
    return load_trace(folder / "again.parquet")


def same(one: Trace, other: Trace) -> None:
    assert one.sha256 == other.sha256
    assert one.frame.equals(other.frame)
    assert (one.provenance, one.name, one.replay) == (other.provenance, other.name, other.replay)


@pytest.mark.parametrize("file", SHARED)
def test_every_shared_trace(public_data: Path, tmp_path: Path, file: str) -> None:
    if not (public_data / file).exists():
        pytest.skip(f"{file} is not at hand")
    trace = load_trace(public_data / file, **SHARED[file])
    same(again(trace, tmp_path), trace)


@pytest.mark.parametrize("name", VALID)
def test_samples_of_every_format(tmp_path: Path, name: str) -> None:
    for data in VALID[name]:
        (tmp_path / "sample").write_bytes(data)
        trace = load_trace(tmp_path / "sample", format=name, **OPTIONS.get(name, {}))
        same(again(trace, tmp_path), trace)


@pytest.mark.parametrize("name", LLMSERVINGSIM)
def test_llmservingsim_rows_tokens_and_times(public_data: Path, name: str) -> None:
    path = public_data / "traces/llmservingsim" / f"{name}.lengths.jsonl.gz"
    with gzip.open(path, "rt") as text:
        rows = [json.loads(line) for line in text]
    frame = load_trace(path).frame
    assert frame.height == len(rows)
    assert frame["prompt_tokens"].to_list() == [row["input_toks"] for row in rows]
    assert frame["output_tokens"].to_list() == [row["output_toks"] for row in rows]
    assert frame["arrival_s"].to_numpy() == pytest.approx([row["arrival_time_ns"] / 1e9 for row in rows], abs=1e-9)


def test_vidur_rows_and_tokens(public_data: Path) -> None:
    with gzip.open(public_data / VIDUR, "rt") as text:
        rows = list(csv.DictReader(text))
    frame = load_trace(public_data / VIDUR, rate_per_s=2.0).frame
    assert frame.height == len(rows)
    assert frame["prompt_tokens"].sum() == sum(int(row["num_prefill_tokens"]) for row in rows)
    assert frame["output_tokens"].sum() == sum(int(row["num_decode_tokens"]) for row in rows)
    assert (frame["prompt_tokens"] + frame["output_tokens"]).to_list() == [int(row["num_total_tokens"]) for row in rows]
