"""From a folder of the project's own tables to a profile, and every way in which the tables can be bad."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.fit import predict_s
from envs.hardware.gpu import gpu_names, load_gpu
from envs.hardware.load import load_profile
from envs.hardware.measure.machine import Machine, write_machine
from envs.hardware.measure.ops import OPS
from envs.hardware.measure.points import Point, scope_of
from envs.hardware.measure.run import sizes
from envs.hardware.measure.store import Store
from envs.hardware.measure.timing import Timing
from envs.hardware.model_shape import load_model
from envs.hardware.profile import StepLaw
from envs.hardware.recipe import build
from envs.hardware.sources.measured import ALLREDUCE, whole_steps
from envs.hardware.sources.op_tables import ROOT, load_op_tables
from envs.hardware.sources.plausible import check_ops
from envs.hardware.steps import StepPoint
from research.calibrate import main
from research.calibrating.measuring import write_recipe
from tests.envs.hardware import tables

SHAPE = load_model("llama-3.1-8b")
LAW = StepLaw(floor_s=0.007, c0_s=0.003, c_tok_s=2e-5, c_attn_s=8e-10, c_seq_s=1e-5, c_kv_s=5e-8)
STEPS = OPS["steps"].file


def machine(**changed) -> Machine:
    record = {
        "device": "cuda", "name": "NVIDIA H100 80GB HBM3", "gpus": 1, "sms": 132, "memory_bytes": 85_000_000_000,
        "l2_bytes": 50 * 2**20, "capability": "9.0", "driver": "570.1", "torch": "2.13.0+cu130", "cuda": "13.0",
        "power_cap_w": 700.0, "power_max_w": 700.0, "clock_max_mhz": 1980.0, "memory_clock_max_mhz": 2619.0,
        "threads": 8, "mps_percent": "", "model": SHAPE.name, "shape": sizes(SHAPE),
    }  # fmt: skip
    return Machine(**(record | changed))


def made_up_ms(point: Point) -> float:
    """A time for every point of an op that a profile reads."""
    at = point.at
    if point.op == "steps":
        new, cached, batch, context = (int(at[name]) for name in ("new", "cached", "batch", "context"))
        kv = batch * context
        (time_s,) = predict_s(LAW, [StepPoint("mixed", new, new * (cached + new / 2), batch, kv, 1.0)])
        return float(time_s) * 1e3
    if point.op == "gemm":
        return tables.gemm_ms(int(at["m"]), int(at["n"]), int(at["k"]))
    if point.op == "context_attention":
        return tables.context_ms(int(at["batch_size"]), int(at["isl"]))
    return tables.generation_ms(int(at["batch_size"]), int(at["step"]) + 1)


@pytest.fixture
def own(tmp_path):
    """A folder as a run on an H100 would leave it, times from formulas."""
    folder = tmp_path / "own-h100"
    write_machine(folder, machine())
    store, scope = Store(folder, machine()), scope_of("cuda", fp8=True, gpus=1)
    for name in ("steps", "gemm", "context_attention", "generation_attention"):
        for point in OPS[name].points(SHAPE, scope):
            source = str(point.at.get("kernel_source", "made up"))
            store.add(point, Timing(made_up_ms(point), 1.0, 1.0, 20, 1, True, source))
    store.flush(1980.0)
    return folder


def recipe(tmp_path, folder, **changed):
    keys = {
        "name": "own", "model": SHAPE.name, "gpu": "h100-sxm-80gb", "tensor_parallel": 1, "engine": "torch",
        "engine_version": "'2.13'", "precision": "bf16", "kv_precision": "bf16", "adapter": "measured",
        "tables": folder, "max_new_tokens": 8192, "max_seqs": 256, "utilisation": 0.9,
    }  # fmt: skip
    path = tmp_path / "own.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (keys | changed).items()))
    return path


def test_whole_steps_make_a_profile(tmp_path, own):
    built = build(recipe(tmp_path, own), tmp_path)
    source = built.record["source"]
    assert (source["kind"], built.record["engine"]) == ("measured", "torch")
    assert source["name"] == "own measurement on NVIDIA H100 80GB HBM3, driver 570.1, CUDA 13.0, power cap 700 W"
    assert [file["path"] for file in source["files"]] == ["own-h100/steps.parquet"]  # not where the folder lies
    assert built.record["fit"]["points"].keys() == {"prefill", "append", "decode", "mixed"}
    assert built.fit.errors["all"].mape < 0.1  # the law that the times were made from
    assert built.record["step"]["c_tok_s"] == pytest.approx(LAW.c_tok_s, rel=1e-3)


def test_the_command_fits_the_recipe_that_measure_leaves(tmp_path, own, capsys):
    write_recipe(own / "recipe.yaml", SHAPE, machine(), "h100-sxm-80gb", own)
    assert main(["action=fit", f"profile={own / 'recipe.yaml'}", f"out={tmp_path / 'fit'}"]) == 0
    name = "llama-3.1-8b-bf16-h100-tp1-torch"
    assert json.loads((tmp_path / "fit" / "summary.json").read_text())["name"] == name
    assert load_profile(tmp_path / "fit" / f"{name}.yaml").engine_version == "2.13.0+cu130"


def test_the_table_law_is_made_of_ops_and_held_against_whole_steps(tmp_path, own):
    built = build(recipe(tmp_path, own, law="tables"), tmp_path)
    assert built.record["tables"]["tokens"][0] == 1
    names = {file["path"] for file in built.record["source"]["files"]}
    assert names == {
        f"own-h100/{OPS[op].file}" for op in ("steps", "gemm", "context_attention", "generation_attention")
    }
    assert built.tables is not None
    assert built.tables["all"].points == len(built.fit.points)


def test_other_precisions_are_composed_from_ops(tmp_path, own):
    built = build(recipe(tmp_path, own, precision="fp8"), tmp_path, force=True)
    assert built.record["source"]["kind"] == "estimated"
    with pytest.raises(MeasurementError, match=r"kv_cache_dtype=fp8.*nothing here"):
        build(recipe(tmp_path, own, kv_precision="fp8"), tmp_path)


def test_several_gpus_need_all_reduce_times(tmp_path, own):
    path = recipe(tmp_path, own, tensor_parallel=2)
    with pytest.raises(MeasurementError, match=rf"no {ALLREDUCE}: expected all-reduce times for tensor_parallel = 2"):
        build(path, tmp_path)
    rows = [{"num_gpus": 2, "message_size": 2**i, "latency": tables.allreduce_ms(2**i)} for i in range(7, 30)]
    pl.DataFrame(rows).write_parquet(own / ALLREDUCE)
    built = build(path, tmp_path, force=True)
    assert f"own-h100/{ALLREDUCE}" in {file["path"] for file in built.record["source"]["files"]}


def test_steps_beyond_the_recipe_are_left_out(own):
    points, _ = whole_steps(own, (1024, 64, 10**9))
    assert max(point.new for point in points) == 1024
    assert max(point.seqs for point in points) == 64
    assert all(point.new + point.seqs <= 1024 for point in points)


def test_a_context_counts_the_new_token(own):
    points, _ = whole_steps(own, (8192, 256, 10**9))
    assert (1, 1024) in {(point.seqs, point.kv) for point in points if point.kind == "decode"}


def scaled(factor):
    return lambda frame: frame.with_columns(pl.col("latency") * factor)


def first(column, value):
    def how(frame):
        rows = frame.with_row_index()
        changed = pl.when(pl.col("index") == 0).then(value).otherwise(pl.col(column)).alias(column)
        return rows.with_columns(changed).drop("index")

    return how


def doubled(frame):
    return pl.concat([frame, scaled(4.0)(frame.head(1))])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (scaled(1000.0), ["are the units swapped"]),
        (scaled(0.001), ["are the units swapped"]),
        (first("latency", -1.0), ["steps.parquet", "row 1", "latency = -1", "above 0"]),
        (first("latency", 0.0), ["row 1", "latency = 0"]),
        (first("latency", None), ["row 1", "latency = None"]),
        (first("latency", float("nan")), ["row 1", "latency = nan"]),
        (lambda frame: frame.head(1), ["1 measured steps", "at least 12"]),
        (lambda frame: frame.filter(pl.col("kind") == "decode"), ["fewer than 3 values of new tokens"]),
        (doubled, ["contradictory duplicates", "steps.parquet", "new="]),
        (lambda frame: frame.clear(), ["no rows"]),
        (lambda frame: frame.rename({"latency": "latency_s"}), ["'latency' is missing", "did you mean"]),
        (lambda frame: frame.drop("cached"), ["'cached' is missing"]),
        (first("cached", None), ["row 1", "cached = None", "whole number"]),
        (first("context", -5), ["row 1", "context = -5", "at least 0"]),
        (lambda frame: first("new", 0.5)(frame.with_columns(pl.col("new").cast(pl.Float64))), ["new = 0.5", "whole"]),
        (first("kind", None), ["row 1", "kind is empty"]),
    ],
)
def test_bad_steps_are_one_clear_error(tmp_path, own, how, words):
    tables.change(own / STEPS, how)
    with pytest.raises(MeasurementError) as error:
        build(recipe(tmp_path, own), tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("op", ["gemm", "context_attention", "generation_attention"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (scaled(1000.0), ["are the units swapped"]),
        (scaled(0.001), ["are the units swapped"]),
        (first("latency", -1.0), ["row 1", "latency = -1"]),
        (lambda frame: frame.drop("latency"), ["'latency' is missing"]),
        (doubled, ["contradictory duplicates"]),
        (lambda frame: frame.head(1), ["measure"]),
    ],
)
def test_bad_ops_are_one_clear_error(tmp_path, own, op, how, words):
    tables.change(own / OPS[op].file, how)
    with pytest.raises(MeasurementError) as error:
        build(recipe(tmp_path, own, law="tables"), tmp_path)
    message = str(error.value)
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("table", [tables.GEMM, tables.CONTEXT, tables.GENERATION, tables.ALLREDUCE])
@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_units_are_checked_in_every_published_table(tmp_path, table, factor):
    """A composed step hides attention or an all-reduce that is a thousand times too fast."""
    tables.change(tables.write_tables(tmp_path) / table, scaled(factor))
    ops = load_op_tables(tmp_path, tables.GPU, tables.ENGINE, tables.VERSION)
    with pytest.raises(MeasurementError, match=rf"{re.escape(table.name)}: latency = .*are the units swapped"):
        check_ops(ops, load_gpu("h100-sxm-80gb"))


def test_published_tables_are_plausible(public_data):
    checked = 0
    for sheet in map(load_gpu, gpu_names()):
        for engine in ("vllm", "sglang", "trtllm"):
            if sheet.tables and (public_data / ROOT / sheet.tables / "gemm" / engine).is_dir():
                check_ops(load_op_tables(public_data, sheet.tables, engine, None), sheet)
                checked += 1
    assert checked >= 6


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": "cpu"}, "measured on a cpu: expected a GPU's tables"),
        ({"shape": sizes(SHAPE) | {"hidden": 5120}, "model": "other"}, "measured for other"),
    ],
)
def test_tables_of_something_else_are_refused(tmp_path, own, changed, words):
    write_machine(own, machine(**changed))
    with pytest.raises(MeasurementError, match=words):
        build(recipe(tmp_path, own), tmp_path)


def test_a_folder_without_a_machine_is_refused(tmp_path, own):
    (own / "machine.json").unlink()
    with pytest.raises(MeasurementError, match=r"no machine\.json: expected a folder that action=measure wrote"):
        build(recipe(tmp_path, own), tmp_path)


def test_a_power_cap_that_is_not_known_is_said(tmp_path, own):
    write_machine(own, Machine(**(asdict(machine()) | {"power_cap_w": None})))
    assert "power cap unknown" in build(recipe(tmp_path, own), tmp_path).record["source"]["name"]
