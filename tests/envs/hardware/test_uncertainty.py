from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.hardware.errors import ProfileError
from envs.hardware.load import load_handover, load_profile, profile_names
from envs.hardware.tables import StepTables
from envs.hardware.uncertainty import covariance, draw, off_by, perturb, perturb_handover

TABLES = StepTables((1, 5, 9), (0.01, 0.02, 0.03), (1, 3), (0.001, 0.002), (1e-7, 9e-8), 1e-9, 0.003, 0.002, 4e-5)


@pytest.mark.parametrize("name", profile_names())
def test_draws_spread_as_the_profile_says(name):
    profile = load_profile(name)
    rng = np.random.default_rng(3)
    laws = [draw(profile, rng).step for _ in range(400)]
    common = profile.fit["common_relative_sd"]
    for index, term in enumerate(profile.step.__slots__):
        nominal = getattr(profile.step, term)
        drawn = np.array([getattr(law, term) for law in laws])
        assert (drawn >= 0.0).all()
        if nominal == 0.0:
            assert (drawn == 0.0).all()
            continue
        expected = np.hypot(np.sqrt(covariance(profile)[index, index]), common)
        assert drawn.mean() / nominal == pytest.approx(1.0, abs=0.1)
        assert drawn.std() / nominal == pytest.approx(expected, rel=0.25)


def test_a_draw_changes_the_world_and_nothing_else():
    profile = load_profile("llama-3.1-8b-bf16-h100-tp1")
    drawn = draw(profile, np.random.default_rng(1))
    assert drawn.step != profile.step
    assert replace(drawn, step=profile.step) == profile
    assert draw(profile, np.random.default_rng(1)) == drawn


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("seed", range(8))
def test_a_predictor_is_off_by_the_share_in_every_term(share, seed):
    profile = load_profile("llama-3.1-8b-bf16-h100-tp1")
    law = off_by(profile, share, seed)
    factors = [getattr(law, term) / getattr(profile.step, term) for term in law.__slots__]
    assert all(factor == pytest.approx(1 + share) or factor == pytest.approx(1 - share) for factor in factors)
    assert max(factors) > 1.0 > min(factors)  # not one common factor
    assert perturb(profile, share, seed).step == law
    assert off_by(profile, share, seed) == law


def test_an_exact_predictor_is_off_by_nothing():
    profile = load_profile("llama-3.1-8b-bf16-h100-tp1")
    assert off_by(profile, 0.0) == profile.step


@pytest.mark.parametrize("share", [-0.1, 1.0, 20])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ProfileError, match="expected a share"):
        off_by(load_profile("llama-3.1-8b-bf16-h100-tp1"), share)


def test_a_profile_without_covariance_has_no_draws():
    profile = replace(load_profile("llama-3.1-8b-bf16-h100-tp1"), fit={})
    with pytest.raises(ProfileError, match=r"fit\.covariance is missing"):
        draw(profile, np.random.default_rng(0))
    broken = replace(profile, fit={"covariance": {"relative_sd": [0.1], "correlation": []}})
    with pytest.raises(ProfileError, match="expected 6 relative_sd"):
        draw(broken, np.random.default_rng(0))


def test_a_predicted_handover_is_off_by_the_share_in_both_its_parts():
    law = load_handover("nixl-published")
    seen = set()
    for seed in range(12):
        off = perturb_handover(law, 0.2, seed)
        fixed, a_byte = off.base_s / law.base_s, law.bandwidth_bytes_per_s / off.bandwidth_bytes_per_s
        assert abs(fixed - 1) == pytest.approx(0.2)
        assert abs(a_byte - 1) == pytest.approx(0.2)
        assert off.connect_s == law.connect_s
        seen.add((fixed > 1, a_byte > 1))
    assert len(seen) == 4
    with pytest.raises(ProfileError, match="below 1"):
        perturb_handover(law, 1.0)


def tabled(**sd):
    """A shipped profile with tables and what is not known of them."""
    profile = load_profile("llama-3.1-8b-bf16-h100-tp1").with_tables(TABLES)
    return replace(profile, fit={"common_relative_sd": 0.1, "tables_relative_sd": sd})


def test_draws_of_tables_scale_their_parts_and_leave_the_plane():
    sd = {"matrices": 0.05, "decode": 0.2, "prefill": 0.0, "host": 0.4}
    profile, rng = tabled(**sd), np.random.default_rng(5)
    worlds = [draw(profile, rng) for _ in range(600)]
    for world in worlds:
        assert replace(world, tables=TABLES) == profile
    for part, own in (("matrices", "w_s"), ("decode", "d0_s"), ("prefill", "a0_s"), ("host", "h1_s")):
        ratios = np.array([np.divide(getattr(world.tables, own), getattr(TABLES, own)) for world in worlds])
        logs = np.log(ratios.reshape(len(worlds), -1))
        assert np.ptp(logs, axis=1).max() < 1e-12  # one factor for the whole part
        assert logs[:, 0].mean() == pytest.approx(0.0, abs=0.05)
        assert logs[:, 0].std() == pytest.approx(np.hypot(sd[part], 0.1), rel=0.15)
    factors = [world.tables.d1_s[1] / world.tables.d0_s[1] for world in worlds]
    assert factors == pytest.approx([TABLES.d1_s[1] / TABLES.d0_s[1]] * len(worlds))
    assert draw(profile, np.random.default_rng(2)) == draw(profile, np.random.default_rng(2))


def test_a_predictor_off_by_a_share_leaves_the_tables():
    profile = tabled(matrices=0.1, decode=0.1, prefill=0.1, host=0.1)
    off = perturb(profile, 0.2, 3)
    assert off.tables == TABLES
    assert off.step == off_by(profile, 0.2, 3) != profile.step


@pytest.mark.parametrize(
    ("sd", "words"),
    [
        ({}, ["tables_relative_sd.matrices = None", "0 to 1"]),
        ({"matrices": 0.1, "decode": 0.1, "prefill": 0.1, "host": -0.1}, ["tables_relative_sd.host = -0.1"]),
        ({"matrices": 0.1, "decode": 0.1, "prefill": 0.1, "host": 5}, ["tables_relative_sd.host = 5"]),
        ({"matrices": 0.1, "decode": 0.1, "prefill": 0.1, "hosts": 0.1}, ["tables_relative_sd.hosts", "'host'"]),
    ],
)
def test_bad_deviations_of_tables_are_one_clear_error(sd, words):
    with pytest.raises(ProfileError) as error:
        draw(tabled(**sd), np.random.default_rng(0))
    for word in words:
        assert word in str(error.value)


def test_tables_without_deviations_have_no_draws():
    profile = replace(tabled(), fit=load_profile("llama-3.1-8b-bf16-h100-tp1").fit)  # the plane's covariance only
    with pytest.raises(ProfileError, match=r"fit\.tables_relative_sd is missing"):
        draw(profile, np.random.default_rng(0))
