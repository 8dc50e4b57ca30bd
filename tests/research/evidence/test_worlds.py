"""Drawn worlds: what is drawn, who leads in them, and when a winner holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.spec import ClusterSpec, WorkerSpec
from envs.hardware.errors import ProfileError
from envs.hardware.load import load_handover, load_profile
from envs.hardware.prediction_errors import error_class, handover_excess_s
from envs.hardware.uncertainty import COEFFICIENTS
from research.evidence import words, worlds
from research.evidence.runs import write_json
from research.report import write_report
from tests.research.studies import cell, study_summary


@pytest.fixture(scope="module")
def profile():
    return load_profile("llama-3.1-8b-bf16-h100-tp1")


def cluster(*profiles):
    return ClusterSpec("made", tuple(WorkerSpec(p) for p in profiles), load_handover("nvlink"))


def drawn(policy, goodput, world=0, moved=0.0):
    """A policy that serves the same goodput in every window of a world."""
    metrics = tuple({"goodput_per_s": goodput, "kv_moved_bytes": moved} for _ in range(8))
    return replace(cell(policy, goodput), metrics=metrics, world=world)


def test_the_nominal_world_is_the_cluster_as_it_is(profile):
    made = cluster(profile)
    assert worlds.in_world(made, 0) is made


def test_a_world_changes_the_laws_and_leaves_the_predictors_nominal(profile):
    made = worlds.in_world(cluster(profile, profile), 1)
    assert made.workers[0].profile.step != profile.step
    assert made.workers[0].profile == made.workers[1].profile  # workers of one kind live in one world
    assert made.predictors == (profile, profile)
    assert made.predicted_handover == cluster(profile).handover
    assert made.handover.base_s > made.predicted_handover.base_s  # orchestration that the link's law does not hold
    assert replace(made.handover, base_s=made.predicted_handover.base_s) == made.predicted_handover
    assert made.workers[0].profile.fit == profile.fit
    assert made.workers[0].profile.kv == profile.kv


def test_two_kinds_of_worker_are_drawn_apart_and_each_world_is_drawn_again_alike(profile):
    other = load_profile("llama-3.1-8b-bf16-a100-tp1")
    made = cluster(profile, other)
    ratios = [
        [getattr(w.profile.step, c) / getattr(n.profile.step, c) for c in COEFFICIENTS]
        for w, n in zip(worlds.in_world(made, 3).workers, made.workers, strict=True)
    ]
    assert not np.allclose(ratios[0], ratios[1])
    assert worlds.in_world(made, 3) == worlds.in_world(made, 3)
    assert worlds.in_world(made, 3) != worlds.in_world(made, 4)


def test_predictors_that_were_given_stay(profile):
    own = profile.with_step(profile.step.scaled(2.0))
    made = worlds.in_world(replace(cluster(profile), predictors=(own,)), 1)
    assert made.predictors == (own,)


def test_a_profile_without_uncertainty_is_refused(profile):
    bare = replace(profile, fit={})
    with pytest.raises(ProfileError, match=r"fit\.covariance is missing"):
        worlds.in_world(cluster(bare), 1)


def common(profile, sd, source):
    """The profile, whose law is known but for one common factor."""
    record = {**profile.fit["covariance"], "relative_sd": [0.0] * 6}
    return replace(profile, fit={"covariance": record, "common_relative_sd": sd, "common_source": source})


def test_an_assumed_width_gives_way_to_the_measured_errors_of_its_class(profile):
    assumed = common(profile, 0.5, "assumption: a guess")
    made = cluster(assumed)
    width = worlds.width_of(made, assumed)
    found = error_class("vllm", "bf16", "dense", "none")
    assert width.relative_sd == found.tpot_relative_sd != 0.5
    assert found.words in width.source
    factors = [worlds.in_world(made, k).workers[0].profile.step.c0_s / profile.step.c0_s for k in range(1, 401)]
    assert np.std(np.log(factors)) == pytest.approx(found.tpot_relative_sd, rel=0.15)


def test_a_measured_width_stays(profile):
    own = common(profile, 0.02, "left-out error of the runs' TPOT")
    assert worlds.width_of(cluster(own), own) == worlds.Width(0.02, "the profile: left-out error of the runs' TPOT")


def test_clusters_that_hand_over_have_errors_of_their_own_where_their_kind_was_measured(profile):
    def apart(law):
        workers = (WorkerSpec(law, "prefill", can_decode=False), WorkerSpec(law, "decode"))
        return ClusterSpec("apart", workers, load_handover("nvlink"))

    experts = replace(profile, model="deepseek-v3", engine="trtllm", precision="nvfp4")
    assert "4 bit, experts, handover by nvlink" in worlds.widths(apart(experts))["laws"][profile.name]["source"]
    stands = worlds.widths(apart(profile))["laws"][profile.name]["source"]
    assert "vllm, 16 bit, dense, no handover" in stands
    assert stands.endswith("for want of runs with a handover by nvlink")


def test_handovers_take_longer_by_what_was_measured(profile):
    nominal = load_handover("rdma")
    made = ClusterSpec("made", (WorkerSpec(profile),), nominal)
    excess = [worlds.in_world(made, k).handover.base_s - nominal.base_s for k in range(1, 401)]
    assert min(excess) >= 0.0
    assert np.median(excess) == pytest.approx(handover_excess_s("rdma", nominal.base_s), rel=0.2)


def verdict(margins, serves=8.0, moved=(0.0, 0.0)):
    """Guard serves ``serves`` requests a second in every world (nominally 8), deflect less by the world's margin."""
    base = [drawn("guard", 8.0), drawn("deflect", 7.5)]
    cells = []
    for world, margin in enumerate(margins, start=1):
        cells += [drawn("guard", serves, world, moved[0]), drawn("deflect", serves - margin, world, moved[1])]
    return worlds.verdict(base, cells)


def test_a_winner_that_leads_in_19_of_20_worlds_holds():
    found = verdict([0.5] * 19 + [-0.5])
    assert (found["leader"], found["held"], found["share"], found["holds"]) == ("guard", 19, 0.95, True)
    assert found["leaders"] == {"guard": 19, "deflect": 1}
    assert not found["indicative"]
    assert found["margin_per_s"]["nominal"] == 0.5
    assert found["low"] < 0.95 < found["high"]


def test_a_winner_that_flips_in_two_of_20_worlds_does_not_hold():
    found = verdict([0.5] * 18 + [-0.5] * 2)
    assert (found["share"], found["holds"]) == (0.9, False)
    assert [row["leader"] for row in found["rows"]].count("deflect") == 2
    assert found["margin_per_s"]["p05"] < 0.0 < found["margin_per_s"]["p50"]


def test_an_equal_policy_does_not_take_the_lead():
    assert verdict([0.0] * 20)["held"] == 20


def test_without_draws_nothing_is_said():
    assert worlds.verdict([], []) == {"draws": 0, "leader": None}
    assert not any("worlds" in line for line in study_summary({"deflect": 5.0, "guard": 8.0})["words"])


def test_the_words_claim_no_more_than_the_share():
    said = study_summary({"deflect": 7.5, "guard": 8.0})
    said["worlds"] = verdict([0.5] * 20)
    (line,) = words.world_words(said)
    assert "guard leads in 20 of 20 worlds" in line
    assert "holds in at least 95%" in line
    said["worlds"] = verdict([0.5, 0.5, -0.5, 0.5])
    (line,) = words.world_words(said)
    assert "guard leads in only 3 of 4 worlds" in line
    assert "deflect in 1" in line
    assert "indicative only" in line
    assert "does not decide between them" in line


def test_few_draws_have_a_range_and_no_tails():
    said = study_summary({"deflect": 7.5, "guard": 8.0})
    said["worlds"] = verdict([0.5, 0.25, -0.5, 0.5])
    margin = said["worlds"]["margin_per_s"]
    assert (margin["min"], margin["max"]) == (-0.5, 0.5)
    assert not {"p05", "p95"} & set(margin)
    (line,) = words.world_words(said)
    assert "-0.500 to +0.500/s in the draws, which is their range and indicative only" in line
    assert "nine of ten" not in line
    said["worlds"] = verdict([0.5] * 19 + [-0.5])
    margin = said["worlds"]["margin_per_s"]
    assert f"in nine of ten worlds {words.sig(margin['p05'], '+')} to +0.500/s" in words.world_words(said)[0]


def test_worlds_in_which_every_policy_collapses_are_counted():
    said = study_summary({"deflect": 7.5, "guard": 8.0})
    said["worlds"] = verdict([0.3, 0.2], serves=3.9)
    assert [row["collapsed"] for row in said["worlds"]["rows"]] == [True, True]
    assert "in 2 of 2 worlds every policy loses more than half of its nominal goodput" in words.world_words(said)[1]
    assert verdict([0.3, -0.2], serves=3.7)["collapsed"] == 1  # deflect serves 3.9 of 7.5 in the second
    assert verdict([0.5], serves=4.0)["collapsed"] == 0  # guard keeps its half
    said["worlds"] = verdict([0.5] * 20)
    assert len(words.world_words(said)) == 1


def test_handovers_are_spoken_of_where_a_policy_made_any(tmp_path, profile):
    made = study_summary({"deflect": 7.5, "guard": 8.0})
    wide = {"widths": worlds.widths(cluster(profile, profile))}
    told = {}
    for name, moved in {"none": (0.0, 0.0), "one": (1e9, 0.0), "both": (1e9, 1e9)}.items():
        made["worlds"] = verdict([0.5] * 20, moved=moved) | wide
        write_json(tmp_path / "summary.json", made)
        page = write_report(tmp_path, tmp_path / "runs").read_text()
        told[name] = (words.world_words(made)[-1], "ms longer in the median" in page, "Handovers: median" in page)
    assert made["worlds"]["handed_over"] == ["deflect", "guard"]
    assert "handover takes" not in told["none"][0]
    assert told["none"][1:] == (False, False)
    assert "and a handover (made by guard) takes longer by" in told["one"][0]
    assert "and a handover takes longer by" in told["both"][0]
    assert told["one"][1:] == told["both"][1:] == (True, True)


def test_the_interval_of_a_share_is_wilsons():
    # Values of the textbook formula, e.g. 19 of 20: 0.764 to 0.991.
    assert worlds.wilson(19, 20) == pytest.approx((0.7639, 0.9911), abs=1e-4)
    assert worlds.wilson(20, 20)[1] == 1.0


def test_the_report_shows_who_leads_in_drawn_worlds_and_how_wide_they_are(tmp_path, profile):
    made = study_summary({"deflect": 7.5, "guard": 8.0})
    made["worlds"] = verdict([0.5] * 15 + [-0.5] * 5) | {"widths": worlds.widths(cluster(profile))}
    write_json(tmp_path / "summary.json", made)
    page = write_report(tmp_path, tmp_path / "runs").read_text()
    assert f"for {profile.name} (predictions of measured serving runs: vllm" in page
    assert "95th percentile of the absolute logarithm" in page
    assert worlds.widths(cluster(profile))["laws"][profile.name]["source"] in words.world_words(made)[-1]
    assert "Worlds that the measurements leave open" in page
    assert "<b>guard does not hold</b>" in page
    assert "<td>deflect</td><td>5</td><td>25.0%</td>" in page
    assert "so few draws" not in page
    made["worlds"] = verdict([0.5] * 3) | {"widths": worlds.widths(cluster(profile))}
    write_json(tmp_path / "summary.json", made)
    assert "<b>guard holds</b>, indicative only: so few draws" in write_report(tmp_path, tmp_path / "runs").read_text()


def test_a_wire_alone_lacks_the_work_around_a_pull():
    bare, nixl, published = (load_handover(name) for name in ("rdma", "nixl-rdma", "nixl-published"))
    excess = handover_excess_s("rdma", bare.base_s)
    assert excess - handover_excess_s("nixl-rdma", nixl.base_s) == pytest.approx(nixl.base_s - bare.base_s)
    assert handover_excess_s("rdma-from-runs", bare.base_s) == excess
    assert handover_excess_s("nixl-published", published.base_s + 1.0) == 0.0
    of_wire, of_pull = (error_class("trtllm", "nvfp4", "experts", name) for name in ("nvlink", "nixl-nvlink-from-log"))
    assert of_wire == of_pull
    assert of_wire.link == "nvlink"
