"""The shipped profiles against the public measurements, where those are at hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from envs.hardware.gpu import load_gpu
from envs.hardware.links import LINKS, build_link
from envs.hardware.load import LINK_DIR, PROFILE_DIR, load_profile
from envs.hardware.model_shape import load_model
from envs.hardware.recipe import build, recipe_names
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.op_tables import load_op_tables
from envs.hardware.write import to_yaml


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_profile_is_what_the_command_writes(public_data, name):
    built = build(name, public_data)
    command = f"python -m research.calibrate action=fit profile={name}"
    assert to_yaml(built.record, command) == (PROFILE_DIR / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", LINKS)
def test_a_shipped_link_is_what_the_command_writes(public_data, name):
    command = f"python -m research.calibrate action=fit link={name}"
    assert to_yaml(build_link(name, public_data), command) == (LINK_DIR / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    ("model", "published", "gpu", "tables", "version", "gpus", "precision"),
    [
        ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B", "h100-sxm-80gb", "h100_sxm", "0.24.0", 4, "fp8"),
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B", "h100-sxm-80gb", "h100_sxm", "0.24.0", 1, "bf16"),
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B", "a100-sxm-80gb", "a100_sxm", "0.14.0", 1, "bf16"),
    ],
)
def test_composed_steps_agree_with_an_independent_composer(
    public_data, model, published, gpu, tables, version, gpus, precision
):
    """The other composer: aiconfigurator's own static estimates from the same tables."""
    estimates = pl.read_csv(public_data / "derived" / "aic_estimates.csv").filter(
        (pl.col("model") == published)
        & (pl.col("system") == tables)
        & (pl.col("isl") <= 16384)
        & (pl.col("batch") * pl.col("isl") <= 262144)
    )
    ops = load_op_tables(public_data, tables, "vllm", version)
    composer = Composer(ops, load_model(model), load_gpu(gpu), gpus, precision, precision)
    ratios = {"static_ctx": [], "static_gen": []}
    for row in estimates.iter_rows(named=True):
        prefill = row["mode"] == "static_ctx"
        point = composer.prefill(row["isl"]) if prefill else composer.decode(row["batch"], row["isl"])
        ratios[row["mode"]].append(point.time_s * 1e3 / (row["ttft_ms"] if prefill else row["tpot_ms"]))
    for mode, values in ratios.items():
        assert len(values) >= 4, mode
        assert np.mean(np.abs(np.array(values) - 1.0)) < 0.05, mode


@pytest.mark.parametrize(
    ("name", "published", "tables"),
    [
        ("llama-3.1-70b-fp8-h100-tp4", "meta-llama/Meta-Llama-3.1-70B", "h100_sxm"),
        ("llama-3.1-8b-bf16-h100-tp1", "meta-llama/Meta-Llama-3.1-8B", "h100_sxm"),
        ("llama-3.1-8b-bf16-a100-tp1", "meta-llama/Meta-Llama-3.1-8B", "a100_sxm"),
    ],
)
def test_the_law_holds_at_twice_the_longest_prompt_of_its_fit(public_data, name, published, tables):
    estimates = pl.read_csv(public_data / "derived" / "aic_estimates.csv").filter(
        (pl.col("model") == published) & (pl.col("system") == tables) & (pl.col("isl") == 32768)
    )
    seconds = load_profile(name).step.seconds(32768, 32768**2 / 2, 0, 0)
    assert seconds * 1e3 == pytest.approx(estimates["ttft_ms"][0], rel=0.09)
