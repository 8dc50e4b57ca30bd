from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.hardware.errors import MeasurementError, ProfileError
from envs.hardware.estimate import profile_for
from envs.hardware.load import load_profile
from envs.hardware.recipe import build
from envs.hardware.sources.op_tables import load_op_tables
from envs.hardware.uncertainty import draw
from envs.hardware.write import to_yaml
from tests.envs.hardware import tables
from tests.envs.hardware.quantised import write_engine
from tests.envs.hardware.tables import BASE, ENGINE, GPU, VERSION, toy_sheet, write_tables


def toy_gpu(tmp_path: Path, **changes: object) -> str:
    return str(toy_sheet(tmp_path, **changes))


def make(data_dir: Path, gpu: str, engine: str = ENGINE, version: str | None = VERSION, precision: str = "bf16"):
    return profile_for("meta-llama/Llama-3.1-8B", gpu, engine, version, 2, precision, "bf16", data_dir)


def test_a_profile_of_any_configuration(tmp_path):
    profile = make(write_engine(tmp_path, "trtllm"), toy_gpu(tmp_path), "trtllm", "9.9", "fp8")
    assert profile.tables is not None
    assert profile.name == "llama-3.1-8b-fp8-toy-gpu-tp2-trtllm"
    assert profile.source["tables"] == f"{GPU}, trtllm {VERSION}"  # the nearest measured version
    assert profile.fit["range"]["sequences"] == [1, 256]
    plane, table = profile.fit["errors_percent"]["all"], profile.fit["tables_errors_percent"]["all"]
    assert table["mape"] < plane["mape"]
    assert make(tmp_path, toy_gpu(tmp_path), "trtllm", "9.9", "fp8") is profile  # remembered


def test_a_quantised_layer_is_faster_where_its_scales_are_known(tmp_path):
    write_engine(tmp_path, "trtllm")
    known, searched = (make(tmp_path, toy_gpu(tmp_path), "trtllm", None, p) for p in ("fp8", "fp8_dynamic"))
    assert known.seconds(0, 0, 8, 8000) < searched.seconds(0, 0, 8, 8000)


def test_how_tokens_are_chosen_and_what_the_engine_may_use_are_part_of_the_profile(tmp_path):
    data_dir, gpu = write_tables(tmp_path), toy_gpu(tmp_path)
    place = ("llama-3.1-8b", gpu, ENGINE, "0.12.0", 2, "bf16", "bf16", data_dir)
    greedy, asked = profile_for(*place), profile_for(*place, sampling="default")
    assert asked.seconds(0, 0, 128, 128e3) - greedy.seconds(0, 0, 128, 128e3) > 2e-3
    assert profile_for(*place, sampling="default") is asked
    assert profile_for(*place, utilisation=0.9).kv == greedy.kv
    assert profile_for(*place, utilisation=0.5).kv.capacity_tokens < greedy.kv.capacity_tokens
    with pytest.raises(ProfileError, match="sampling 'best'"):
        profile_for(*place, sampling="best")


def test_another_gpu_stands_in_and_is_named(tmp_path):
    profile = make(write_tables(tmp_path), toy_gpu(tmp_path, tables="absent", stand_in=GPU))
    assert "toy_gpu stand in" in profile.source["method"]
    with pytest.raises(MeasurementError, match=r"no op tables .*aiconfigurator/data/absent"):
        make(tmp_path, toy_gpu(tmp_path, tables="absent", name="other"))


def test_tables_are_found_in_the_installed_package(tmp_path, monkeypatch):
    write_tables(tmp_path / "written")
    package = tmp_path / "site" / "aiconfigurator_core"
    (package / "systems").mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "written" / BASE.parent).rename(package / "systems" / "data")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    ops = load_op_tables(tmp_path / "empty", GPU, ENGINE, VERSION)
    assert all(path.startswith("aiconfigurator_core/systems/data") for path, _ in ops.files())


def test_what_cannot_be_is_one_clear_error(tmp_path):
    write_tables(tmp_path)
    with pytest.raises(ProfileError, match=r"unknown engine .did you mean 'vllm'"):
        make(tmp_path, toy_gpu(tmp_path), engine="vlm")
    with pytest.raises(ProfileError, match="precision 'fp9'"):
        make(tmp_path, toy_gpu(tmp_path), precision="fp9")
    with pytest.raises(MeasurementError, match="no rows with gemm_dtype 'nvfp4'"):
        make(tmp_path, toy_gpu(tmp_path), precision="nvfp4")


def test_a_recipe_may_ask_for_the_table_law(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"name: mine\nmodel: llama-3.1-8b\ngpu: {toy_gpu(tmp_path)}\ntensor_parallel: 1\nengine: {ENGINE}\n"
        f"engine_version: '{VERSION}'\nprecision: bf16\nkv_precision: bf16\nadapter: op_tables\ntables: {GPU}\n"
        "max_new_tokens: 8192\nmax_seqs: 256\nutilisation: 0.9\nlaw: tables\n"
    )
    built = build(path, write_tables(tmp_path))
    (tmp_path / "profile.yaml").write_text(to_yaml(built.record, "a test"))
    profile = load_profile(tmp_path / "profile.yaml")
    assert profile.tables is not None
    assert profile.source["host_time"]
    assert built.tables is not None
    assert profile.fit["tables_errors_percent"]["all"]["mape"] == round(built.tables["all"].mape, 1)


def test_the_default_kernel_of_a_table_counts(tmp_path):
    write_tables(tmp_path)

    def with_others(frame):
        import polars as pl

        main = frame.with_columns(kernel_source=pl.lit("main"))
        other = frame.head(20).with_columns(pl.col("latency") * 3, kernel_source=pl.lit("other"))
        return pl.concat([main, other])

    tables.change(tmp_path / tables.CONTEXT, with_others)
    ops = load_op_tables(tmp_path, GPU, ENGINE, VERSION)
    expected = tables.context_ms(1, 1024) * 1e-3
    assert ops.context_attention_s(1024, 1, 32, 8, 128, "bf16") == pytest.approx(expected)


CONFIGURATIONS = [
    (model, gpu, engine, version, tp, precision, kv)
    for model, gpu, engine, version, precision, kv in (
        ("meta-llama/Llama-3.1-70B", "b200_sxm", "trtllm", None, "fp8", "fp8"),
        ("meta-llama/Llama-3.1-70B", "b200_sxm", "vllm", None, "nvfp4", "fp8"),
        ("Qwen/Qwen3-32B", "h100_sxm", "sglang", "0.5.1.post1", "bf16", "bf16"),
        ("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", "trtllm", "1.0.0rc3", "bf16", "bf16"),
        ("meta-llama/Llama-3.1-8B", "a100_sxm", "sglang", "0.5.8", "bf16", "bf16"),
        ("nvidia/Qwen3-32B-NVFP4", "gb200", "trtllm", "1.3.0rc5", "nvfp4", "fp8"),
    )
    for tp in (2, 4)
]


def test_measured_configurations_are_close_to_their_ops_and_can_be_drawn_from(public_data):
    for configuration in CONFIGURATIONS:
        profile = profile_for(*configuration, public_data)
        error = profile.fit["tables_errors_percent"]["all"]
        assert error["mape"] < 4.0, configuration
        assert error["mape"] < profile.fit["errors_percent"]["all"]["mape"], configuration
        world = draw(profile, np.random.default_rng(0))
        assert world.tables is not None
        assert world.tables != profile.tables


def test_an_engine_without_tables_is_refused_by_name(tmp_path):
    with pytest.raises(ProfileError, match=r"engine = 'vlm': unknown engine.*'vllm'.*: expected one of vllm, sglang"):
        profile_for("llama-3.1-8b", "h100_sxm", "vlm", None, 1, "bf16", "bf16", tmp_path)
    with pytest.raises(ProfileError, match="engine = 'tgi': unknown engine"):
        profile_for("qwen3-30b-a3b", "h100_sxm", "tgi", None, 1, "bf16", "bf16", tmp_path)
