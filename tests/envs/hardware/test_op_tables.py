from __future__ import annotations

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError, ProfileError
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import load_model
from envs.hardware.recipe import build
from envs.hardware.sources.compose import MEMORY_LATENCY_S, Composer
from envs.hardware.sources.op_tables import load_op_tables
from research.calibrate import main
from tests.envs.hardware import tables
from tests.envs.hardware.tables import ENGINE, GPU, VERSION, toy_sheet, write_tables


@pytest.fixture
def data(tmp_path):
    return write_tables(tmp_path)


def ops(data):
    return load_op_tables(data, GPU, ENGINE, VERSION)


def composer(data, tensor_parallel=1):
    return Composer(ops(data), load_model("llama-3.1-8b"), load_gpu("h100-sxm-80gb"), tensor_parallel, "bf16", "bf16")


def test_measured_points_are_returned_as_they_are(data):
    assert ops(data).gemm_s(256, 4096, 8192, "bf16") == pytest.approx(tables.gemm_ms(256, 4096, 8192) * 1e-3)
    expected = tables.context_ms(4, 2048) * 1e-3
    assert ops(data).context_attention_s(2048, 4, 32, 8, 128, "bf16") == pytest.approx(expected)
    assert ops(data).generation_attention_s(1024, 32, 32, 8, 128, "bf16") == pytest.approx(
        tables.generation_ms(32, 1024) * 1e-3
    )


def test_between_grid_values_products_scale(data):
    # Both corners are at the memory bound, so the time is linear in n.
    expected = tables.gemm_ms(1, 3 * 4096, 4096) * 1e-3
    assert ops(data).gemm_s(1, 3 * 4096, 4096, "bf16") == pytest.approx(expected, rel=1e-6)


def test_a_product_wider_than_measured_is_several(data):
    whole = ops(data).gemm_s(1, 128256, 4096, "bf16")
    assert whole == pytest.approx(2 * ops(data).gemm_s(1, 64128, 4096, "bf16"))


def test_large_all_reduces_are_launched_one_by_one(data):
    captured, eager = (ops(data).allreduce_s(2**20, 2, captured=flag) for flag in (True, False))
    assert eager == pytest.approx(1.25 * captured)
    assert ops(data).allreduce_s(2**20, 1, captured=True) == 0.0


def test_a_decode_step_by_hand(data):
    shape = load_model("llama-3.1-8b")
    matrices = sum(
        ops(data).gemm_s(1, n, k, "bf16") for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    )
    attention = tables.generation_ms(1, 1024) * 1e-3
    head = ops(data).gemm_s(1, 128256, 4096, "bf16")
    point = composer(data).decode(1, 1024)
    memory = point.time_s - shape.layers * (matrices + attention) - head
    assert memory == pytest.approx((3 * shape.layers + 1) * MEMORY_LATENCY_S, rel=0.01)  # one token moves few bytes
    assert (point.seqs, point.kv, point.new) == (1, 1024, 0)


def test_append_costs_what_lies_between_two_prefills(data):
    step = composer(data)
    whole, start = step.prefill(4096), step.prefill(2048)
    append = step.append(2048, 2048)
    assert append.attention == whole.attention - start.attention == 2048 * (2048 + 1024)
    assert start.time_s < append.time_s < whole.time_s
    assert step.append(2048, 0).time_s == pytest.approx(start.time_s)
    # Few new tokens over many cached ones still pay a kernel of their own.
    assert step.append(16, 8192).time_s >= step.append(16, 0).time_s


def test_a_mixed_step_shares_its_products(data):
    step = composer(data)
    mixed, prefill, decode = step.mixed(1024, 0, 64, 1024), step.prefill(1024), step.decode(64, 1024)
    assert prefill.time_s < mixed.time_s < prefill.time_s + decode.time_s
    assert (mixed.new, mixed.seqs, mixed.kv) == (1024, 64, 65536)


def test_two_gpus_are_faster_but_not_twice_as_fast(data):
    one, two = composer(data).prefill(4096), composer(data, 2).prefill(4096)
    assert one.time_s / 2 < two.time_s < one.time_s


def test_nothing_is_read_beyond_the_measurements(data):
    with pytest.raises(MeasurementError, match=r"tokens = 32768 at .*batch_size=1 is outside the measurements"):
        composer(data).prefill(32768)
    with pytest.raises(
        MeasurementError, match=r"tokens = 1024 at .*batch_size=3 is outside the measurements .nothing here"
    ):
        composer(data).decode(3, 1024)
    with pytest.raises(MeasurementError, match="no rows with gemm_dtype 'fp8': the file has bfloat16"):
        ops(data).gemm_s(1, 4096, 4096, "fp8")
    with pytest.raises(MeasurementError, match=r"num_heads=40.*nothing here"):
        ops(data).context_attention_s(128, 1, 40, 8, 128, "bf16")


def recipe(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(
        f"name: toy\nmodel: llama-3.1-8b\ngpu: {toy_sheet(tmp_path)}\ntensor_parallel: 1\nengine: {ENGINE}\n"
        f"engine_version: '{VERSION}'\nprecision: bf16\nkv_precision: bf16\nadapter: op_tables\ntables: {GPU}\n"
        "max_new_tokens: 8192\nmax_seqs: 256\nutilisation: 0.9\n"
    )
    return path


def test_a_profile_is_built_from_tables(data, tmp_path):
    built = build(recipe(tmp_path), data)
    assert built.record["name"] == "toy"
    assert len(built.record["source"]["files"]) == 4
    assert built.record["fit"]["points"].keys() == {"prefill", "append", "decode", "mixed"}
    assert built.fit.errors["all"].mape < 10.0


def test_tables_of_another_gpu_are_refused_and_those_that_stand_in_are_not(data, tmp_path):
    path = recipe(tmp_path)
    path.write_text(path.read_text().replace(str(tmp_path / "toy-gpu.yaml"), "b300-sxm"))
    with pytest.raises(
        ProfileError, match=r"toy\.yaml: tables = 'toy_gpu': not the folder of gpu = 'b300-sxm'"
    ) as error:
        build(path, data)
    assert "expected 'b300_sxm' (its `tables`) or 'b200_sxm' (its `stand_in`)" in str(error.value)
    path = recipe(tmp_path)
    toy_sheet(tmp_path, tables="other", stand_in=GPU)
    assert build(path, data).read == (GPU, ENGINE, VERSION)


def test_the_version_that_was_read_is_told_where_it_is_not_the_recipes(data, tmp_path, capsys):
    path = recipe(tmp_path)
    words = ["action=fit", f"profile={path}", f"data_dir={data}", f"out={tmp_path / 'out'}"]
    assert main(words) == 0
    assert "op times read" not in capsys.readouterr().out
    path.write_text(path.read_text().replace(f"engine_version: '{VERSION}'", "engine_version: '9.9'"))
    assert main(words) == 0
    told = f"op times read: {GPU}, {ENGINE} {VERSION}, the measured version nearest to the recipe's 9.9"
    assert told in capsys.readouterr().out


def test_a_law_that_misses_is_not_written_unless_forced(data, tmp_path):
    with pytest.raises(MeasurementError, match=r"held-out error of .* expected at most 1 %.*force=true"):
        build(recipe(tmp_path), data, bound_percent=1.0)
    assert build(recipe(tmp_path), data, bound_percent=1.0, force=True).record["name"] == "toy"


def scaled(factor):
    return lambda frame: frame.with_columns(pl.col("latency") * factor)


def other_heads(frame):
    return frame.with_columns(num_heads=pl.lit(12))


def first_row(value):
    def how(frame):
        return frame.with_row_index().with_columns(
            latency=pl.when(pl.col("index") == 0).then(value).otherwise(pl.col("latency"))
        )

    return how


def with_other_duplicate(frame):
    return pl.concat([frame, frame.head(1).with_columns(pl.col("latency") * 4)])


@pytest.mark.parametrize(
    ("table", "how", "words"),
    [
        (tables.GEMM, lambda frame: frame.drop("latency"), ["gemm_perf", "'latency' is missing"]),
        (tables.CONTEXT, lambda frame: frame.rename({"isl": "islen"}), ["'isl' is missing", "'islen'"]),
        (tables.GEMM, first_row(-0.01), ["row 1", "latency = -0.01", "above 0"]),
        (tables.GENERATION, first_row(0.0), ["row 1", "latency = 0.0"]),
        (tables.ALLREDUCE, first_row(None), ["row 1", "latency = None"]),
        (tables.GEMM, first_row(float("nan")), ["row 1", "nan"]),
        (tables.GEMM, with_other_duplicate, ["contradictory duplicates", "m=1"]),
        (tables.GEMM, lambda frame: frame.clear(), ["no rows"]),
        (tables.GEMM, lambda frame: frame.with_columns(pl.lit("fast").alias("latency")), ["gemm_perf", "latency"]),
        (tables.GEMM, scaled(1000.0), ["units swapped"]),
        (tables.GEMM, scaled(0.001), ["units swapped"]),
        (tables.GENERATION, lambda frame: frame.head(1), ["generation_attention_perf", "nothing here"]),
        (tables.CONTEXT, other_heads, ["context_attention_perf", "num_heads=32", "nothing here"]),
        (tables.GEMM, lambda frame: frame.filter(pl.col("m") < 512), ["outside the measurements (1 to 256)"]),
    ],
)
def test_bad_measurements_are_one_clear_error(data, tmp_path, table, how, words):
    tables.change(data / table, how)
    with pytest.raises(MeasurementError) as error:
        build(recipe(tmp_path), data)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_repeats_count_as_their_median(data):
    tables.change(data / tables.GEMM, lambda frame: pl.concat([frame, scaled(1.1)(frame), scaled(1.2)(frame)]))
    assert ops(data).gemm_s(256, 4096, 8192, "bf16") == pytest.approx(1.1e-3 * tables.gemm_ms(256, 4096, 8192))


def test_a_missing_or_broken_file_is_one_clear_error(data):
    (data / tables.ALLREDUCE).write_bytes(b"not a table")
    with pytest.raises(MeasurementError, match="custom_allreduce_perf"):
        ops(data)
    (data / tables.ALLREDUCE).unlink()
    with pytest.raises(MeasurementError, match=r"not found in the data folder.*PDGYM_DATA"):
        ops(data)
