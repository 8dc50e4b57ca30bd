"""Lengths of the replayed windows, and the warnings about a study."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from research.cli import compose_config
from research.evidence import cautions
from research.study import study_from
from tests.research.studies import cell, study_summary


def study(*words):
    return study_from(compose_config("compare", ["trace=default", *words]), "compare")


def test_a_higher_load_makes_windows_and_lead_in_shorter():
    made = study("windows=4", "measure.lead_in=1")
    own, window = made.trace.pace_per_s("test"), made.trace.window("test", 4, 0, 1.0)
    done = SimpleNamespace(cells=[cell("guard", 1.0, 2.0, 2 * own), cell("guard", 1.0, 1.0, own)])
    found = cautions.spans(made, done)
    assert [s["load"] for s in found] == [1.0, 2.0]
    assert found[0]["window_s"] == pytest.approx(window.length_s)
    assert found[1]["window_s"] == pytest.approx(window.length_s / 2)
    assert 0 < found[0]["lead_in_s"] <= window.length_s * (1 + 1e-9)


def test_lengths_are_told_for_every_load():
    made = study_summary({"round_robin": 5.0, "guard": 8.0})
    assert cautions.lengths(made) == (
        "A window lasts 21 s at load 0.8 (42 s of lead-in before it), 17 s at load 1 (34 s)."
    )
    made["lead_in"] = 4.0
    assert "(at least 42 s of lead-in before it)" in cautions.lengths(made)
    made["spans"] = [{"load": math.nan, "rate_per_s": 4.0, "window_s": 3.24, "lead_in_s": 0.0}]
    assert cautions.lengths(made) == "A window lasts 3.2 s at 4.00 requests/s."


def test_a_window_short_against_a_request_is_warned_of():
    # Requests take 2 s in these cells: 10 of them do not go into 17 s, but into 21 s.
    (line,) = cautions.short_windows(study_summary({"round_robin": 5.0, "guard": 8.0}))
    assert "guard's requests at load 1 (17 s against a mean of 2 s): " in line
    assert "transient" in line
    assert "load 0.8" not in line


def test_long_windows_need_no_warning():
    made = study_summary({"round_robin": 5.0, "guard": 8.0})
    made["spans"] = [{**s, "window_s": 500.0} for s in made["spans"]]
    assert cautions.short_windows(made) == []


def test_a_policy_whose_timer_is_off_is_told_where_it_would_matter():
    words = ("policies=[time_slice,round_robin]",)
    (line,) = cautions.idle_timers(study("cluster=split4", *words))
    assert line.startswith("time_slice keeps its start shares")
    assert "set adjust_period_s" in line
    assert cautions.idle_timers(study("cluster=split4", "adjust_period_s=0.5", *words)) == []
    assert cautions.idle_timers(study("cluster=2p2d", *words)) == []


def table_study(tmp_path, header, row, *words):
    (tmp_path / "mine.csv").write_text("\n".join([header, *(row.format(i=i) for i in range(200))]))
    given = (f"trace.path={tmp_path / 'mine.csv'}", "trace.format=table", "windows=2", f"out={tmp_path / 'o'}", *words)
    return study_from(compose_config("compare", list(given)), "compare")


def test_cancels_that_are_not_simulated_are_counted(tmp_path):
    made = table_study(
        tmp_path, "arrival_s,prompt_tokens,output_tokens,cancel_after_s", "{i},100,5,2.5", "rate_per_s=1"
    )
    (line,) = cautions.cancels(made)
    assert line.startswith("200 of 200 requests of the trace would be cancelled by their client")
    assert "The simulator does not cancel" in line
    assert cautions.cancels(study()) == []


def test_a_replay_says_what_it_is_and_where_its_rate_is_not_the_recorded_one(tmp_path):
    header = "arrival_s,prompt_tokens,output_tokens,prefill_worker,decode_worker"
    made = table_study(tmp_path, header, "{i},100,5,0,2", "policies=[logged]", "rate_per_s=1")
    own = made.trace.pace_per_s("test")
    summary = {"rate_unit": "requests", "spans": [{"rate_per_s": own, "load": math.nan}]}
    (line,) = cautions.replays(made, summary)
    assert line.startswith("logged replays the routes that the trace recorded")
    summary["spans"].append({"rate_per_s": 2 * own, "load": math.nan})
    _, rate = cautions.replays(made, summary)
    assert f"replayed at another rate. rate_per_s={own!r} replays them as they were." in rate
    assert cautions.idle_timers(made) == []
    assert cautions.replays(study(), summary) == []


def test_steps_outside_the_fitted_range_are_told_where_they_are_most():
    def made(**shares):
        rows = [{"metric": "extrapolated_steps_share", "policy": p, "estimate": share} for p, share in shares.items()]
        return cautions.extrapolated({"rows": rows})

    assert made(guard=None, static=None) == []
    assert made(guard=0.0, static=0.0004) == []
    (line,) = made(guard=0.02, static=0.125)
    assert line.startswith("Up to 12.5% of engine steps (static) lie outside the range")
