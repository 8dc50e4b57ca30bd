from __future__ import annotations

from dataclasses import replace

import pytest

from envs.hardware.errors import ProfileError
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import load_model
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.op_tables import load_op_tables
from envs.hardware.sources.sampling import VOCABULARY, cut_s, kernel_of
from tests.envs.hardware.tables import ENGINE, GPU, VERSION, write_tables


@pytest.mark.parametrize(
    ("engine", "version", "kernel"),
    [
        ("vllm", "0.12.0", "sort"),
        ("vllm", "0.19.0", "triton"),
        ("vllm", "0.24.0", "flashinfer"),
        ("vllm", None, "flashinfer"),
        ("sglang", "0.5.1.post1", None),  # temperature only
        ("sglang", "0.5.8", "flashinfer"),
        ("trtllm", None, None),  # the likeliest token where nothing is asked for
    ],
)
def test_which_kernel_cuts_the_distribution(engine, version, kernel):
    assert kernel_of(engine, version, "default") == kernel
    assert kernel_of(engine, version, "greedy") is None


def test_sorting_many_sequences_takes_milliseconds():
    assert cut_s("sort", 64, VOCABULARY) == pytest.approx(1.12e-3)
    assert 2.3e-3 < cut_s("sort", 128, VOCABULARY) < 4.3e-3  # two published times
    assert cut_s("sort", 1024, VOCABULARY) == pytest.approx(2 * cut_s("sort", 512, VOCABULARY))
    assert cut_s("sort", 64, 2 * VOCABULARY) == pytest.approx(2 * cut_s("sort", 64, VOCABULARY))
    assert cut_s("sort", 128, VOCABULARY) > 5 * cut_s("flashinfer", 128, VOCABULARY)
    assert cut_s(None, 128, VOCABULARY) == 0.0


def test_decodes_pay_for_how_tokens_are_chosen(tmp_path):
    ops = load_op_tables(write_tables(tmp_path), GPU, ENGINE, VERSION)
    place = (ops, load_model("llama-3.1-8b"), load_gpu("h100-sxm-80gb"), 2, "bf16", "bf16")
    greedy = Composer(*place, as_served=True, engine_version="0.12.0")
    asked = replace(greedy, sampling="default")
    more = [asked.decode(batch, 1024).time_s - greedy.decode(batch, 1024).time_s for batch in (1, 64, 256)]
    assert more[0] < 0.2e-3 < 1e-3 < more[1] < more[2]
    assert replace(asked, as_served=False).head_s(64) == replace(greedy, as_served=False).head_s(64)


def test_logits_are_gathered_over_the_gpus(tmp_path):
    ops = load_op_tables(write_tables(tmp_path), GPU, ENGINE, VERSION)
    place = (load_model("llama-3.1-8b"), load_gpu("h100-sxm-80gb"), 2, "bf16", "bf16")
    served = Composer(ops, *place, as_served=True)
    one = replace(served, tensor_parallel=1)
    product = [ops.gemm_s(64, 128256 // gpus, 4096, "bf16") for gpus in (1, 2)]
    gathered_s = served.head_s(64) - product[1] - (one.head_s(64) - product[0])
    assert gathered_s == pytest.approx(ops.allreduce_s(64 * 128256, 2, captured=True) / 2)


def test_an_unknown_way_of_sampling_is_one_clear_error():
    with pytest.raises(ProfileError, match="sampling 'beam': expected one of greedy, default"):
        kernel_of("vllm", None, "beam")
