"""Steps from LLMServingSim's op profiles, and what mixed attention costs beyond the sum of both."""

from __future__ import annotations

import shutil
from dataclasses import replace

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError, OutsideError
from envs.hardware.gpu import load_gpu
from envs.hardware.load import load_profile
from envs.hardware.model_shape import load_model
from envs.hardware.recipe import build
from envs.hardware.sources.llmservingsim import read_profile
from envs.hardware.sources.profiled import mixed_by_region, mixed_ratios, mixed_words, profiled_steps
from tests.envs.hardware import op_profiles as toy

SHAPE = replace(load_model("llama-3.1-8b"), published=(toy.MODEL,))
FOLDER = f"{toy.GPU}/{toy.MODEL}"


def steps(data_dir, version="0.19.0", most_kv_tokens=10**6):
    return profiled_steps(data_dir, FOLDER, version, SHAPE, load_gpu("rtx-pro-6000-server"), most_kv_tokens)


def test_steps_by_hand(tmp_path):
    points, _, files = steps(toy.write_profile(tmp_path))
    each = len(toy.DENSE) + 1  # two norms in a layer

    def by_hand(tokens: int, attention_us: float) -> float:
        layers = SHAPE.layers * (each * toy.dense_us(tokens) + attention_us)
        return (layers + len(toy.ONCE) * toy.dense_us(tokens) + len(toy.SAMPLED) * toy.SAMPLED_US) * 1e-6

    found = {(p.kind, p.new, p.attention, p.seqs, p.kv): p.time_s for p in points}
    assert found["prefill", 512, 512 * 256, 0, 0] == pytest.approx(by_hand(512, toy.prefill_us(512, 0)))
    assert found["append", 128, 128 * (2048 + 64), 0, 0] == pytest.approx(by_hand(128, toy.prefill_us(128, 2048)))
    assert found["decode", 0, 0.0, 16, 16 * 512] == pytest.approx(by_hand(16, toy.decode_us(16, 512)))
    mixed = found["mixed", 512, 512 * 256, 16, 16 * 512]
    assert mixed == pytest.approx(by_hand(528, toy.mixed_us(512, 0, 16, 512)))
    assert [path.rsplit("/", 1)[-1] for path, _ in files] == [
        "meta.yaml.gz", "dense.csv.gz", "per_sequence.csv.gz", "attention.csv.gz",
    ]  # fmt: skip


def test_decodes_beyond_the_cache_are_left_out(tmp_path):
    toy.write_profile(tmp_path)
    assert max(p.kv for p in steps(tmp_path, most_kv_tokens=10_000)[0]) <= 10_000


def test_one_kernel_for_both_takes_longer(tmp_path):
    profile = read_profile(toy.write_profile(tmp_path), toy.GPU, toy.MODEL)
    ratios = mixed_ratios(profile)
    by_decodes = ratios.group_by("n_decode").agg(pl.col("ratio").median()).sort("n_decode")
    assert dict(by_decodes.iter_rows()) == pytest.approx({1: 1.1, 2: 1.2, 4: 1.4, 16: 2.6, 64: 7.4})
    (few, *_) = mixed_by_region(ratios)
    assert (few.decodes, few.heavy, few.p10) == ((1, 8), False, pytest.approx(1.1))
    assert "2.60 at 16, 7.40 at 64" in mixed_words(profile)
    with pytest.raises(OutsideError, match="2048 tokens or more"):
        mixed_ratios(profile, least_chunk=2048)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ("vllm_version: 0.18.0\nmodel: maker/toy-8b\n", "vllm_version = '0.18.0': expected 0.19.0"),
        ("vllm_version: 0.19.0\nmodel: other\n", "model = 'other': expected maker/toy-8b or llama-3.1-8b"),
        ("vllm_version: 0.19.0\n", "model = None: expected maker/toy-8b"),
        ("- 1\n", "holds list: expected a mapping"),
        ("a: [\n", "cannot be read"),
    ],
)
def test_a_profile_of_something_else_is_refused(tmp_path, meta, words):
    toy.write_profile(tmp_path)
    toy.write(toy.folder(tmp_path) / "meta.yaml.gz", meta)
    with pytest.raises(MeasurementError, match=words) as error:
        steps(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "how", "words"),
    [
        ("attention", lambda f: f.with_columns(time_us=pl.lit(-1.0)), r"row 1: time_us = -1.0: expected a finite time"),
        ("attention", lambda f: f.drop("kv_decode"), "'kv_decode' is missing"),
        ("attention", lambda f: f.with_columns(n_decode=-pl.col("n_decode")), r"row \d+: n_decode = -1: expected"),
        ("attention", lambda f: pl.concat([f, f.with_columns(pl.col("time_us") * 2)]), "contradictory duplicates"),
        ("dense", lambda f: f.filter(pl.col("layer") != "o_proj"), "no rows of layer 'o_proj'"),
        ("dense", lambda f: f.with_columns(time_us=pl.lit(None)), "row 1: time_us = None"),
        ("dense", lambda f: f.with_columns(tokens=pl.lit(1.5)), r"row 1: tokens = '1.5': expected whole numbers"),
        ("dense", lambda f: f.with_columns(time_us=pl.lit("fast")), r"row 1: time_us = 'fast': expected numbers"),
        ("per_sequence", lambda f: f.clear(), "no rows"),
    ],
)
def test_bad_measurements_are_one_clear_error(tmp_path, file, how, words):
    path = toy.folder(toy.write_profile(tmp_path)) / "tp1" / f"{file}.csv.gz"
    toy.change(path, how)
    with pytest.raises(MeasurementError, match=words) as error:
        steps(tmp_path)
    assert f"{file}.csv.gz" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor_parallel": "2"}, "tensor_parallel = 2: expected 1: .*no all-reduce"),
        ({"kv_precision": "fp8"}, "kv_precision = fp8: expected bf16"),
        ({"tables": "RTXPRO6000"}, "expected GPU/MODEL"),
        ({"max_seqs": "256\nlaw: tables"}, "law = 'tables': adapter 'llmservingsim' holds steps"),
    ],
)
def test_recipes_that_the_source_cannot_make(tmp_path, root, changes, words):
    text = (root / "envs/hardware/recipes/llama-3.1-8b-bf16-rtx-pro-6000-tp1.yaml").read_text()
    lines = [f"{k}: {changes[k]}" if (k := line.split(":")[0]) in changes else line for line in text.splitlines()]
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=words):
        build(path, tmp_path)


@pytest.mark.parametrize("file", ["dense", "per_sequence", "attention"])
@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_units_are_checked_in_every_table(tmp_path, public_data, file, factor):
    """A step hides an op that is a thousand times too fast."""
    name = "RTXPRO6000/meta-llama/Llama-3.1-8B"
    source = public_data / toy.ROOT / "profiler/perf" / name / "bf16"
    target = tmp_path / toy.ROOT / "profiler/perf" / name / "bf16"
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    toy.change(target / "tp1" / f"{file}.csv.gz", lambda f: f.with_columns(pl.col("time_us") * factor))
    with pytest.raises(MeasurementError, match=rf"{file}\.csv\.gz: time_us = .* us at .*are the units swapped"):
        build("llama-3.1-8b-bf16-rtx-pro-6000-tp1", tmp_path)


def test_the_shipped_profile_tells_the_factor():
    assert (
        "in one kernel over the sum of both"
        in load_profile("llama-3.1-8b-bf16-rtx-pro-6000-tp1").source["mixed_attention"]
    )
