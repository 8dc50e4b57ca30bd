from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from envs.hardware.errors import OutsideError
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import load_model
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.floors import CAPTURED_TOKENS
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.op_tables import load_op_tables
from envs.hardware.sources.table_law import HostLaw, compose_tables, misfit, rising
from tests.envs.hardware import tables
from tests.envs.hardware.tables import ENGINE, GPU, VERSION, change, write_tables

LIMITS = (8192, 256, 400_000)


def composer(data, tensor_parallel=1, as_served=False, model="llama-3.1-8b"):
    ops = load_op_tables(data, GPU, ENGINE, VERSION)
    return Composer(ops, load_model(model), load_gpu("h100-sxm-80gb"), tensor_parallel, "bf16", "bf16", as_served)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_the_law_is_the_ops(tmp_path, tensor_parallel):
    step = composer(write_tables(tmp_path), tensor_parallel)
    law = compose_tables(step, *LIMITS)
    errors = misfit(law, compose_steps(step, *LIMITS))
    assert {"prefill long", "append short", "decode small batch", "mixed"} <= errors.keys()
    assert errors["all"].mape < 3.0
    assert errors["decode large batch"].worst < 3.0
    one = step.decode(32, 1024)
    assert law.seconds(0, 0, 32, 32 * 1024) == pytest.approx(one.time_s, rel=0.02)


def test_one_slow_measurement_does_not_bend_the_law(tmp_path):
    write_tables(tmp_path)
    clean = compose_tables(composer(tmp_path), *LIMITS)
    slow = pl.when(pl.col("m") == 4).then(pl.col("latency") * 2).otherwise(pl.col("latency"))
    change(tmp_path / tables.GEMM, lambda frame: frame.with_columns(latency=slow))
    law = compose_tables(composer(tmp_path), *LIMITS)
    np.testing.assert_allclose(law.w_s, clean.w_s, rtol=0.05)


def test_pooled_neighbours_take_their_median():
    np.testing.assert_allclose(rising([1.0, 3.0, 2.0, 4.0]), [1.0, 6**0.5, 6**0.5, 4.0])
    np.testing.assert_allclose(rising([9.0, 2.0, 2.0, 3.0]), [2.0, 2.0, 2.0, 3.0])
    assert (np.diff(rising(np.random.default_rng(3).random(50) + 0.1)) >= 0).all()


def test_host_time_is_on_top_and_not_part_of_the_misfit(tmp_path):
    step = composer(write_tables(tmp_path))
    alone, hosted = (compose_tables(step, *LIMITS, host) for host in (None, HostLaw(1e-3, 1e-5, "a test")))
    assert hosted.seconds(0, 0, 10, 1e4) - alone.seconds(0, 0, 10, 1e4) == pytest.approx(1.1e-3)
    points = compose_steps(step, *LIMITS)
    assert misfit(hosted, points) == misfit(alone, points)


def test_ops_as_served(tmp_path):
    write_tables(tmp_path)
    timed, served = composer(tmp_path), composer(tmp_path, as_served=True)
    few, many = CAPTURED_TOKENS[ENGINE], CAPTURED_TOKENS[ENGINE] + 1
    assert timed.matrices_s(few) < served.matrices_s(few)  # rotation and the write to the cache
    assert served.head_s(1) - timed.head_s(1) > 20e-6  # sampling
    assert served.launch_floor_s > 0.0
    assert served.matrices_s(many) >= served.launch_floor_s


def test_no_prompts_are_an_error(tmp_path):
    write_tables(tmp_path)
    change(tmp_path / tables.CONTEXT, lambda frame: frame.filter(pl.col("isl") > 20000 - pl.col("batch_size") * 5000))
    with pytest.raises(OutsideError, match="no prompts of this model"):
        compose_tables(composer(tmp_path), *LIMITS)


def test_a_model_that_was_not_measured_is_an_error(tmp_path):
    with pytest.raises(OutsideError, match="no decodes of one sequence"):
        compose_tables(composer(write_tables(tmp_path), model="qwen3-32b"), *LIMITS)
