from __future__ import annotations

import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.recipe import build
from envs.hardware.sources.splitwise import TABLE, splitwise_steps

HEADER = "hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,tensor_parallel"


def write(tmp_path, rows, header=HEADER):
    path = tmp_path / TABLE
    path.parent.mkdir(parents=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


def row(prompt=512, batch=1, tokens=128, prompt_ms=90.0, token_ms=45.0, made=128):
    return f"a100-80gb,{prompt},{batch},{tokens},{prompt_ms},{token_ms},{prompt_ms + made * token_ms},8"


def test_steps_by_hand(tmp_path):
    data = write(tmp_path, [row(), row(prompt_ms=92.0), row(prompt_ms=94.0), row(prompt=2048, prompt_ms=300)])
    points, _ = splitwise_steps(data, "a100-80gb", 8)
    assert [(p.kind, p.new, p.seqs, p.kv, p.time_s) for p in points] == [
        ("prefill", 512, 0, 0, pytest.approx(0.092)),
        ("prefill", 2048, 0, 0, pytest.approx(0.3)),
        ("decode", 0, 1, 512 + 64, pytest.approx(0.045)),
        ("decode", 0, 1, 2048 + 64, pytest.approx(0.045)),
    ]


def test_a_run_that_stopped_early_counts_the_tokens_it_made(tmp_path):
    points, _ = splitwise_steps(write(tmp_path, [row(tokens=4096, made=600)]), "a100-80gb", 8)
    assert points[-1].kv == 512 + 300


def test_large_batches_of_prompts_are_no_step(tmp_path):
    data = write(tmp_path, [row(), row(batch=4, prompt_ms=290.0), row(batch=8, prompt_ms=770.0)])
    points, _ = splitwise_steps(data, "a100-80gb", 8)
    assert [p.new for p in points if p.kind == "prefill"] == [512, 2048]
    assert [p.seqs for p in points if p.kind == "decode"] == [1, 4, 8]


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        ([row()], HEADER.replace("token_time", "tokentime"), "'token_time' is missing.*did you mean 'tokentime'"),
        ([row(prompt_ms=-5.0)], HEADER, "prompt_time = -5.0"),
        ([row(), row(prompt_ms=200.0)], HEADER, "contradictory duplicates: prompt_time from 90 to 200"),
        ([row(prompt_ms=float("nan"))], HEADER, "prompt_time = nan"),
        (["a100-80gb,512,1,128,ninety,45,5000,8"], HEADER, "row 1: prompt_time = 'ninety': expected numbers"),
        ([row(), row().replace(",8", ",")], HEADER, "row 2: tensor_parallel = None: expected a whole number"),
        ([row(), row().replace("a100-80gb", "")], HEADER, "row 2: hardware is empty"),
        ([row(), row(prompt_ms=-5.0).replace("a100", "h100")], HEADER, "row 2: prompt_time = -5.0"),
        ([row(prompt=-512)], HEADER, "prompt_size = -512: expected a whole number of at least 0"),
        ([], HEADER, "no rows"),
        ([row().replace("a100", "v100")], HEADER, "no runs on a100-80gb with tensor_parallel 8: the file has v100"),
    ],
)
def test_bad_measurements_are_one_clear_error(tmp_path, rows, header, words):
    with pytest.raises(MeasurementError, match=words) as error:
        splitwise_steps(write(tmp_path, rows, header), "a100-80gb", 8)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(prompt=n, prompt_ms=0.2 * n, tokens=t) for n in (256, 512, 1024) for t in (128, 512)], "are the units"),
        ([row()], "2 measured steps: expected at least 12"),
    ],
)
def test_steps_that_make_no_law_name_the_file(tmp_path, rows, words):
    data = write(tmp_path, [text.replace(",45.0,", ",45000.0,") if "units" in words else text for text in rows])
    with pytest.raises(MeasurementError, match=rf"perf_model\.llama2-70b\.csv: .*{words}"):
        build("llama2-70b-fp16-a100-tp8", data)
