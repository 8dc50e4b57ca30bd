from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.host_time import constant_s, drain_of, host_law, measure_host_time
from envs.hardware.sources.llmservingsim import read_profile, read_requests

GPU, MODEL, LAYERS = "toy", "maker/toy-8b", 4
PROFILE = Path("measurements/llmservingsim/profiler/perf") / GPU / MODEL / "bf16" / "tp1"
REQUESTS = Path("measurements/llmservingsim/bench/examples") / GPU / "toy-8b" / "vllm" / "requests.jsonl.gz"
DENSE = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")


def decode_attention_us(batch: int, context: float) -> float:
    return 5.0 + batch * context * 0.002


def write_profile(data_dir: Path) -> None:
    def write(file: str, rows: list[dict[str, object]]) -> None:
        path = data_dir / PROFILE / f"{file}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(pl.DataFrame(rows).write_csv().encode()))

    once = ("embedding", "final_layernorm")
    write("dense", [{"layer": n, "tokens": t, "time_us": 10.0} for n in (*DENSE, *once) for t in (1, 256)])
    write(
        "per_sequence",
        [{"layer": n, "sequences": t, "time_us": 20.0} for n in ("lm_head", "sampler") for t in (1, 256)],
    )
    axes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    rows: list[dict[str, object]] = []
    for batch in (1, 2, 4, 8):
        for context in (16, 4096):
            alone = decode_attention_us(batch, context)
            rows.append(dict(zip(axes, (0, 0, batch, context), strict=True)) | {"time_us": alone})
            both = (alone + 100.0) * (1.0 + 0.1 * batch)
            rows.append(dict(zip(axes, (256, 0, batch, context), strict=True)) | {"time_us": both})
    rows.append(dict(zip(axes, (256, 0, 0, 0), strict=True)) | {"time_us": 100.0})
    write("attention", rows)


def write_run(data_dir: Path, host_s: float, **changes: object) -> None:
    """Four requests that decode together, as an engine with this host time would stamp them."""
    write_profile(data_dir)
    profile = read_profile(data_dir, GPU, MODEL)
    prompt, output = [100, 200, 300, 400], [40, 60, 80, 90]
    now, last, made = 10.0, [0.0] * 4, 1
    while made < max(output):
        running = [i for i in range(4) if output[i] > made]
        now += profile.decode_s(len(running), sum(prompt[i] + made for i in running), LAYERS) + host_s
        made += 1
        for i in running:
            last[i] = now
    rows = [
        {"input_toks": p, "output_toks": o, "scheduled_ts": 9.9, "first_token_ts": 10.0, "last_token_ts": end} | changes
        for p, o, end in zip(prompt, output, last, strict=True)
    ]
    path = data_dir / REQUESTS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))


@pytest.mark.parametrize("host_s", [0.05e-3, 0.3e-3, 2e-3])
def test_the_host_time_of_a_run_is_found_again(tmp_path, host_s):
    write_run(tmp_path, host_s)
    drain = drain_of(read_requests(tmp_path, GPU, MODEL), read_profile(tmp_path, GPU, MODEL), LAYERS)
    assert drain.steps == 89
    assert drain.seqs.tolist() == [4, 3, 2, 1]
    assert constant_s(drain) == pytest.approx(host_s, abs=5e-6)


def test_ops_that_are_slower_than_the_run_are_refused(tmp_path):
    write_run(tmp_path, -0.2e-3)
    drain = drain_of(read_requests(tmp_path, GPU, MODEL), read_profile(tmp_path, GPU, MODEL), LAYERS)
    with pytest.raises(MeasurementError, match=r"89 steps .* are they of another GPU"):
        constant_s(drain)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_toks": 0}, "row 1: expected at least one output token"),
        ({"last_token_ts": 9.95}, "in this order"),
        ({"first_token_ts": None}, "in this order"),
        ({"output_toks": 1, "last_token_ts": 10.0}, "decodes nothing"),
    ],
)
def test_stamps_that_cannot_be_are_one_clear_error(tmp_path, changes, words):
    write_run(tmp_path, 0.0, **changes)
    with pytest.raises(MeasurementError, match=words):
        drain_of(read_requests(tmp_path, GPU, MODEL), read_profile(tmp_path, GPU, MODEL), LAYERS)


def test_missing_measurements_are_named(tmp_path):
    with pytest.raises(MeasurementError, match=r"requests\.jsonl\.gz"):
        read_requests(tmp_path, GPU, MODEL)
    with pytest.raises(MeasurementError, match=r"dense\.csv\.gz"):
        read_profile(tmp_path, GPU, MODEL)
    (tmp_path / REQUESTS).parent.mkdir(parents=True)
    (tmp_path / REQUESTS).write_bytes(gzip.compress(b'{"input_toks": 3}'))
    with pytest.raises(MeasurementError, match="'output_toks' is missing"):
        read_requests(tmp_path, GPU, MODEL)
    (tmp_path / REQUESTS).write_bytes(b"nothing")
    with pytest.raises(MeasurementError, match="cannot be read"):
        read_requests(tmp_path, GPU, MODEL)


def test_engines_without_a_measurement_have_no_host_time(tmp_path):
    assert host_law(tmp_path, "sglang").h0_s == host_law(tmp_path, "vllm").h0_s == 0.0
    assert "not measured" in host_law(tmp_path, "sglang").source
    assert "not in the data folder" in host_law(tmp_path, "vllm").source


def test_the_published_idle_time_of_trtllm(tmp_path):
    law = host_law(tmp_path, "trtllm", "1.0.0rc3")
    assert (law.h0_s, law.h1_s) == (0.58e-3, 0.0)
    assert "issue 13957" in law.source


def test_vllm_takes_about_a_millisecond(public_data):
    measured = measure_host_time(public_data)
    low, high = measured.interval_s
    assert 0.3e-3 < low < high < 1.5e-3
    assert low < measured.law().h0_s < high
    assert measured.law().h1_s == 0.0
    old, new = host_law(public_data, "vllm", "0.12.0"), host_law(public_data, "vllm", "0.14.1")
    assert new == host_law(public_data, "vllm")
    assert old.h0_s + 256 * old.h1_s == pytest.approx(5.5e-3, rel=0.01)
    assert "issue 10634" in old.source
    assert np.sign(measured.slope_s["RTXPRO6000"]) < 0  # no growth with the decodes
