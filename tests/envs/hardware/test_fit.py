from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.fit import _plane, _predict, fit_step_law, predict_s
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import load_model
from envs.hardware.profile import StepLaw
from envs.hardware.steps import StepPoint, check_plausible, ordered

TRUE = StepLaw(floor_s=0.011, c0_s=0.009, c_tok_s=5e-5, c_attn_s=9e-10, c_seq_s=4e-5, c_kv_s=1.5e-8)


def steps(law: StepLaw = TRUE, noise: float = 0.0) -> list[StepPoint]:
    rng = np.random.default_rng(7)
    points = [StepPoint("prefill", n, n * n / 2, 0, 0, 0.0) for n in 2 ** np.arange(4, 14)]
    points += [StepPoint("append", n, n * (p + n / 2), 0, 0, 0.0) for n in (64, 512, 2048) for p in (512, 4096, 8192)]
    points += [StepPoint("decode", 0, 0.0, b, b * c, 0.0) for b in (1, 4, 16, 64, 256) for c in (256, 1024, 4096)]
    points += [StepPoint("mixed", n, n * n / 2, b, b * 1024, 0.0) for n in (256, 2048) for b in (8, 64)]
    factor = 1.0 + noise * rng.standard_normal(len(points))
    return [
        replace(p, time_s=float(law.seconds(p.new, p.attention, p.seqs, p.kv) * f))
        for p, f in zip(points, factor, strict=True)
    ]


def test_an_exact_law_is_found_again():
    fit = fit_step_law(steps())
    for name in TRUE.__slots__:
        assert getattr(fit.law, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    assert fit.errors["all"].worst < 0.1
    assert fit.held_out["all"].worst < 0.5


def test_noise_is_reported_and_covered_by_the_covariance():
    fit = fit_step_law(steps(noise=0.03))
    assert 1.0 < fit.errors["all"].mape < 5.0
    assert fit.held_out["all"].mape >= fit.errors["all"].mape * 0.9
    sd = np.sqrt(np.diag(fit.covariance))
    for name, deviation in zip(TRUE.__slots__, sd, strict=True):
        assert abs(getattr(fit.law, name) - getattr(TRUE, name)) < 4 * deviation, name


def test_the_floor_bounds_the_matrix_products_only():
    # 9 ms + 40 tokens at 50 us reach the floor of 11 ms: as many are free; attention and decodes come on top
    assert TRUE.seconds(39, 0, 0, 0) == TRUE.seconds(0, 0, 0, 0) == 0.011
    assert TRUE.seconds(41, 0, 0, 0) == pytest.approx(0.01105)
    assert TRUE.seconds(16, 2e6, 10, 1e5) == pytest.approx(0.011 + 0.0018 + 0.0004 + 0.0015)


def test_the_fit_has_its_floor_where_the_law_has_it():
    points = steps()
    theta = np.array([getattr(TRUE, name) for name in TRUE.__slots__])
    np.testing.assert_allclose(_predict(theta, _plane(points)), predict_s(TRUE, points), rtol=1e-12)


def test_the_order_of_the_points_does_not_matter():
    points = steps(noise=0.03)
    assert fit_step_law(points[::-1]).law == fit_step_law(points).law
    assert ordered(points[::-1]) == ordered(points)


def test_no_coefficient_is_negative():
    shrinking = [replace(p, time_s=0.02 - 1e-9 * p.kv) for p in steps()]
    law = fit_step_law(shrinking).law
    assert min(getattr(law, name) for name in law.__slots__) >= 0.0


def test_errors_tell_the_phases_apart():
    # Prefills have half the constant of decodes: no shared constant fits both.
    points = [replace(p, time_s=p.time_s + (0.01 if p.kind == "decode" else 0.0)) for p in steps(noise=0.001)]
    fit = fit_step_law(points)
    assert fit.errors["all"].mape > 3.0
    assert fit.by_kind["prefill"][0] < 1.0
    assert fit.by_kind["decode"][0] < 1.0


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (steps()[:1], "1 measured steps: expected at least"),
        ([], "0 measured steps"),
        ([replace(steps()[0], time_s=-0.01), *steps()[1:]], "-0.01 s: expected a finite time above 0"),
        ([replace(steps()[0], time_s=float("nan")), *steps()[1:]], "nan s"),
        ([replace(p, seqs=-1) for p in steps()], "no negative tokens"),
        ([p for p in steps() if p.kind in ("prefill", "append")], "fewer than 3 values of decoding sequences"),
        ([p for p in steps() if p.kind == "decode"], "fewer than 3 values of new tokens"),
        ([steps()[0]] * 20, "fewer than 3 values"),
    ],
)
def test_points_that_hold_no_law_are_refused(points, words):
    with pytest.raises(MeasurementError, match=words):
        fit_step_law(points)


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_swapped_units_are_implausible(factor):
    shape, gpu = load_model("llama-3.1-70b"), load_gpu("h100-sxm-80gb")
    check_plausible(steps(), shape, gpu, 4, "fp8", "fp8")
    with pytest.raises(MeasurementError, match="are the units swapped"):
        check_plausible([replace(p, time_s=p.time_s * factor) for p in steps()], shape, gpu, 4, "fp8", "fp8")
