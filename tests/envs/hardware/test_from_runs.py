"""A profile corrected by a few runs: constants are found, priors hold, misfits and wrong units are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.hardware.corrected import RunsSource, constants, corrected_record, errors, parts_sd
from envs.hardware.errors import MeasurementError
from envs.hardware.from_runs import (
    CENTRE,
    REQUEST_S,
    TERMS,
    Correction,
    check_units,
    fit_correction,
    law_covariance,
    outside,
)
from envs.hardware.load import load_handover, load_profile
from envs.hardware.tables import StepTables
from envs.hardware.uncertainty import draw
from envs.hardware.write import to_yaml

NAME = "llama-3.1-8b-bf16-h100-tp1"
RUNS = ((512, 256, 1), (512, 256, 64), (4096, 256, 8), (8192, 128, 2), (2048, 1024, 128))
TABLES = StepTables(
    tokens=(1, 64, 256, 8192), w_s=(0.006, 0.0062, 0.0081, 0.152), seqs=(1, 16, 256),
    d0_s=(0.0002, 0.0002, 0.0004), d1_s=(9.0e-08, 5.0e-08, 4.4e-08), c_attn_s=8.3e-10, a0_s=3e-4, h0_s=1e-3, h1_s=1e-5,
)  # fmt: skip


def predictor(runs=RUNS):
    """A closed loop without a simulator: prefills interrupt decodes, prompts of a quarter of the users queue."""

    def predict(profile, request_s):
        out = []
        for prompt, output, users in runs:
            prefill_s = profile.seconds(prompt, prompt * prompt / 2.0, 0, 0)
            decode_s = profile.seconds(0, 0.0, users, users * (prompt + output / 2.0))
            out.append([request_s + prefill_s * (1.0 + users / 4.0), decode_s + users * prefill_s / output])
        return np.array(out)

    return predict


@pytest.fixture(params=["plane", "tables"])
def profile(request):
    made = load_profile(NAME)
    return made.with_tables(TABLES) if request.param == "tables" else made


def fitted(profile, truth, noise=0.0, seed=0, runs=RUNS):
    measured = predictor(runs)(truth.apply(profile), truth.request_s)
    rng = np.random.default_rng(seed)
    measured = measured * np.exp(noise * rng.standard_normal(measured.shape))
    return fit_correction(profile, measured, {"as told": predictor(runs)})


def test_no_correction_changes_nothing(profile):
    assert Correction().apply(profile) == profile


def test_each_constant_moves_its_own_part(profile):
    def time(correction, *work):
        return correction.apply(profile).seconds(*work)

    decode, prefill = (0, 0.0, 16, 16000), (4096, 4096**2 / 2, 0, 0)
    base = Correction()
    assert time(Correction(decode=1.5), *decode) > time(base, *decode)
    assert time(Correction(decode=1.5), *prefill) == pytest.approx(time(base, *prefill))
    assert time(Correction(prefill=1.5), *prefill) > 1.4 * time(base, *prefill)
    assert time(Correction(host_step_s=1e-3), *decode) == pytest.approx(time(base, *decode) + 1e-3)
    assert time(Correction(host_seq_s=1e-5), *decode) == pytest.approx(time(base, *decode) + 16e-5)
    assert time(Correction(request_s=0.1), *prefill) == time(base, *prefill)


def test_host_time_taken_off_leaves_no_negative_step(profile):
    now = Correction(host_step_s=-1.0, host_seq_s=-1.0).apply(profile)
    assert now.seconds(0, 0.0, 4, 4000) > 0.0
    assert now.step.floor_s > 0.0
    assert now.step.c_seq_s == 0.0


def test_five_runs_bring_the_prediction_to_the_truth(profile):
    truth = Correction(matrices=1.2, prefill=1.3, decode=0.8, host_step_s=1.5e-3, host_seq_s=2e-5, request_s=0.02)
    fit = fitted(profile, truth)
    before, after = np.abs(fit.errors_percent(fit.before)), np.abs(fit.errors_percent(fit.after))
    assert before[:, 1].mean() > 10.0
    assert after[:, 1].mean() < 2.0
    other = predictor(((1024, 512, 16), (6000, 64, 4)))
    there = other(truth.apply(profile), truth.request_s)
    found = other(fit.correction.apply(profile), fit.correction.request_s)
    assert np.abs(found / there - 1.0)[:, 1].max() < 0.05


def test_a_profile_that_is_right_stays(profile):
    fit = fitted(profile, Correction())
    moved = [(value - term.centre) / term.prior_sd for value, term in zip(fit.theta, TERMS, strict=True)]
    assert np.abs(moved).max() < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_five_noisy_runs_cannot_break_the_profile(profile, seed):
    fit = fitted(profile, Correction(), noise=0.15, seed=seed)
    others = predictor(((1024, 512, 16), (300, 300, 200), (10000, 64, 1)))
    ratio = others(fit.correction.apply(profile), 0.0)[:, 1] / others(profile, 0.0)[:, 1]
    assert np.abs(np.log(ratio)).max() < 0.35


def test_one_odd_run_does_not_turn_the_others(profile):
    measured = predictor()(profile, 0.0)
    measured[2, 1] *= 3.0
    fit = fit_correction(profile, measured, {"as told": predictor()})
    assert np.abs(fit.errors_percent(fit.after)[[0, 1, 3, 4], 1]).max() < 12.0
    assert any(reason.startswith("run 3: TPOT is still") for reason in outside(fit))


def test_left_out_errors_are_those_of_a_fit_without_the_run(profile):
    truth = Correction(matrices=1.1, decode=1.2, host_step_s=1e-3)
    fit = fitted(profile, truth, noise=0.02)
    own, left = (np.abs(fit.errors_percent(part))[:, 1].mean() for part in (fit.after, fit.left_out))
    assert own < left < 15.0
    assert fit.common_relative_sd() >= 0.02


def test_the_candidate_that_was_true_is_taken(profile):
    def later(profile_, request_s):
        out = predictor()(profile_, request_s)
        out[:, 0] *= [1.0, 4.0, 2.0, 1.2, 6.0]
        return out

    fit = fit_correction(profile, later(profile, 0.0), {"plain": predictor(), "later": later})
    assert fit.candidate == "later"
    assert fit.costs["later"] < fit.costs["plain"]


def test_uncertainty_narrows_with_what_the_runs_say(profile):
    sd = np.sqrt(np.diag(fitted(profile, Correction()).covariance))
    prior = np.array([term.prior_sd for term in TERMS])
    assert (sd <= prior * 1.001).all()
    assert sd[1] < 0.5 * prior[1]  # prompts were run at four lengths


def test_too_few_runs_are_refused(profile):
    with pytest.raises(MeasurementError, match="4 runs: expected at least 5"):
        fit_correction(profile, np.ones((4, 2)), {"as told": predictor(RUNS[:4])})


def test_runs_of_other_hardware_are_told(profile):
    fit = fitted(profile, Correction(matrices=6.0, prefill=6.0, decode=6.0))
    assert any("would have to move by" in reason or "still" in reason for reason in outside(fit))


def test_another_unit_is_told(profile):
    before = predictor()(profile, 0.0)
    check_units(before * 3.0, before)
    with pytest.raises(MeasurementError, match=r"TPOT of the runs is 1e\+03 times .* milliseconds and seconds swapped"):
        check_units(before * [1.0, 1000.0], before)


def written(profile, tmp_path):
    fit = fitted(profile, Correction(matrices=1.1, prefill=1.2, decode=1.1, host_step_s=1e-3), noise=0.02)
    rows = [{"prompt_tokens": p, "output_tokens": o, "concurrency": u} for p, o, u in RUNS]
    record = corrected_record(profile, fit, RunsSource("runs.csv", "0" * 64, rows))
    path = tmp_path / f"{record['name']}.yaml"
    path.write_text(to_yaml(record, "a test"))
    return fit, record, load_profile(path)


def test_the_written_profile_is_the_corrected_one_and_says_what_it_was(profile, tmp_path):
    fit, record, read = written(profile, tmp_path)
    corrected = fit.correction.apply(profile)
    for work in ((512, 512**2 / 2, 0, 0), (0, 0.0, 64, 64000), (256, 1e5, 32, 32000)):
        assert read.seconds(*work) == pytest.approx(corrected.seconds(*work), rel=1e-4)
    assert read.name == f"{NAME}-from-runs"
    assert read.source["corrects"] == NAME
    assert read.source["base"] == dict(profile.source)
    assert read.kv == profile.kv
    told = record["fit"]["from_runs"]
    assert len(told["runs"]) == 5
    assert told["errors_percent"] == errors(fit)
    assert [row["name"] for row in told["constants"]] == [term.name for term in TERMS]
    assert constants(fit)[0]["value"] == pytest.approx(fit.correction.matrices, rel=1e-3)


def test_worlds_are_drawn_from_the_uncertainty_that_is_left(profile, tmp_path):
    _, record, read = written(profile, tmp_path)
    work = (0, 0.0, 64, 64000)
    logs = [np.log(draw(read, np.random.default_rng(i)).seconds(*work) / read.seconds(*work)) for i in range(300)]
    assert 0.5 * record["fit"]["common_relative_sd"] < np.std(logs) < 0.35


def test_the_covariance_of_the_law_is_that_of_its_constants():
    made = load_profile(NAME)
    fit = fitted(made, Correction(prefill=1.2))
    covariance = law_covariance(made, fit)
    step = fit.correction.apply(made).step
    # c_tok = c_tok0 * exp(theta): its relative standard deviation is that of the constant.
    relative = np.sqrt(covariance[2, 2]) / step.c_tok_s
    assert relative == pytest.approx(np.sqrt(fit.covariance[1, 1]), rel=0.02)


def test_parts_of_tables_carry_the_uncertainty_of_the_constants():
    made = load_profile(NAME).with_tables(TABLES)
    fit = fitted(made, Correction())
    sd = parts_sd(made, fit)
    assert sd["prefill"] == pytest.approx(np.sqrt(fit.covariance[1, 1]), rel=0.05)
    assert all(0.0 < value <= 1.0 for value in sd.values())
    certain = replace(fit, covariance=fit.covariance * 0.0)
    assert parts_sd(made, certain) == dict.fromkeys(sd, 0.0)


def test_the_version_is_that_of_the_runs_where_all_of_them_agree(profile):
    fit = fitted(profile, Correction())
    for versions, told, version in (
        (["0.20"] * 5, ["0.20"], "0.20"),
        (["0.20"] * 4 + ["0.21"], ["0.20", "0.21"], profile.engine_version),
        (["0.20"] * 4 + [None], ["0.20"], profile.engine_version),
        ([None] * 5, [], profile.engine_version),
    ):
        record = corrected_record(profile, fit, RunsSource("runs.csv", "0" * 64, [{"version": v} for v in versions]))
        assert record["engine_version"] == version
        assert record["fit"]["from_runs"]["versions"] == told
        assert record["fit"]["from_runs"]["corrects_version"] == profile.engine_version


def test_a_constant_near_its_priors_width_was_not_measured(profile):
    short = ((64, 64, 1), (64, 256, 1), (128, 64, 1), (32, 64, 1), (256, 64, 1))
    fit = fitted(profile, Correction(), runs=short)
    for sd_ms, measured in ((15.0, True), (15.1, False)):
        covariance = fit.covariance.copy()
        covariance[-1, -1] = sd_ms**2
        assert replace(fit, covariance=covariance).request_measured() is measured
    # Seconds of TTFT do not tell milliseconds, whatever a jump of the simulated TTFT made of the posterior.
    covariance[-1, -1] = 1.0
    jumped = replace(fit, covariance=covariance, after=np.full((5, 2), 1.0))
    assert jumped.request_sd_ms() == pytest.approx(30.0, rel=0.05)
    assert not jumped.request_measured()
    assert constants(jumped)[-1]["sd"] == pytest.approx(jumped.request_sd_ms(), rel=1e-2)


def test_the_hop_before_an_engine_is_that_of_the_shipped_links():
    assert {load_handover(name).dispatch_s for name in ("nvlink", "rdma", "tcp")} == {REQUEST_S}
    assert Correction.of(CENTRE) == Correction()
