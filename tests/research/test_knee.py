"""The knee against capacities that are known."""

from __future__ import annotations

import math
import re

import pytest

from research.cli import compose_config
from research.errors import ResearchError
from research.evidence.runs import RunStore
from research.knee import GRID_STEP, find_knee, scales
from research.study import study_from


class Oracle:
    """Stands for the runner: attainment is a function of the scale."""

    def __init__(self, store, attainment):
        self.store, self.attainment, self.reused, self.runs = store, attainment, 0, []

    def run(self, study, runs, what):
        self.runs += runs
        return [{"feasible_attainment": self.attainment(r.scale), "infeasible_share": 0.02} for r in runs]


@pytest.fixture
def study():
    return study_from(compose_config("compare", ["trace=default"]), "compare")


def search(study, tmp_path, attainment):
    oracle = Oracle(RunStore.open(tmp_path), attainment)
    return find_knee(study, oracle), oracle


@pytest.mark.parametrize("capacity", [0.03, 0.97, 7.3, 300.0])
def test_the_knee_is_found_within_the_tolerance_from_below(study, tmp_path, capacity):
    knee, oracle = search(study, tmp_path, lambda scale: 0.95 if scale <= capacity else 0.5)
    assert knee.outcome == "found"
    assert knee.scale <= capacity < knee.scale * (1 + study.knee.tolerance) * (1 + 1e-9)
    assert {r.zone for r in oracle.runs} == {"validation"}
    assert {r.policy.label for r in oracle.runs} == {"guard"}


def test_a_dip_below_the_knee_counts(study, tmp_path):
    # All lower grid rates must pass: a cluster that fails at a low rate has its knee below that.
    dip = study.knee.lowest * GRID_STEP**6
    knee, _ = search(study, tmp_path, lambda s: 0.5 if abs(s / dip - 1) < 0.1 or s > 50 else 0.95)
    assert knee.scale < dip


def test_no_knee_is_an_outcome(study, tmp_path):
    slow, _ = search(study, tmp_path / "slow", lambda scale: 0.4)
    assert (slow.outcome, slow.scale) == ("too slow", None)
    assert "only 40.0% of feasible requests" in slow.sentence(study)
    idle, _ = search(study, tmp_path / "idle", lambda scale: 1.0)
    assert (idle.outcome, idle.scale) == ("never full", None)
    with pytest.raises(ResearchError, match=r"no knee.*give rate_per_s"):
        scales(study, slow)


def test_windows_without_a_feasible_request_have_no_say(study, tmp_path):
    knee, _ = search(study, tmp_path, lambda scale: None)
    assert knee.outcome == "too slow"
    assert math.isnan(knee.curve[0].attainment)


def test_where_nothing_is_feasible_the_idle_cluster_is_held_against_the_objectives(tmp_path):
    words = ["trace=default", "slo.tpot_s=0.001", "slo.ttft_base_s=9"]
    made = study_from(compose_config("compare", words), "compare")
    knee, _ = search(made, tmp_path, lambda scale: None)
    text = knee.sentence(made)
    assert text.startswith("no knee: no request is feasible: on an idle cluster the median TTFT is ")
    assert "against an objective of 9" in text  # milliseconds, a share of it by the prompt
    assert re.search(r"TPOT is \d+(\.\d+)? ms against an objective of 1 ms \(100.0% miss it\)", text)
    assert "nan" not in text
    with pytest.raises(ResearchError, match=r"no request is feasible.*give another slo or other hardware"):
        scales(made, knee)


def test_a_knee_is_searched_once(study, tmp_path):
    first, _ = search(study, tmp_path, lambda scale: 0.95 if scale <= 2.0 else 0.5)
    again, oracle = search(study, tmp_path, lambda scale: 0.0)
    assert again == first
    assert oracle.runs == []
    assert oracle.reused == 1


def test_loads_are_multiples_of_the_knee_as_a_rate(study, tmp_path):
    knee, _ = search(study, tmp_path, lambda scale: 0.95 if scale <= 2.0 else 0.5)
    assert knee.rate_per_s == pytest.approx(knee.scale * study.trace.pace_per_s("validation"))
    own = study.trace.pace_per_s("test")
    for (load, rate, scale), wanted in zip(scales(study, knee), study.loads, strict=True):
        assert load == wanted
        assert rate == pytest.approx(wanted * knee.rate_per_s)
        assert scale == pytest.approx(rate / own)


def test_rates_need_no_knee():
    made = study_from(compose_config("compare", ["trace=default", "rate_per_s=[2,4]"]), "compare")
    found = scales(made, None)
    assert [rate for _, rate, _ in found] == [2.0, 4.0]
    assert all(math.isnan(load) for load, _, _ in found)
