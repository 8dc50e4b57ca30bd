"""Policies and traces as a user names them; windows and what leads into them."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from omegaconf import OmegaConf

from policies.errors import PolicyError
from research import choices, trace_choice
from research.choices import PolicyChoice, with_unique_labels
from research.cli import compose_config, options
from research.errors import ResearchError
from research.study import study_from
from research.trace_choice import TraceChoice


def parse(item):
    return PolicyChoice.parse(item, "policies[0]")


def test_a_name_and_a_mapping_are_both_policies():
    assert parse("guard") == parse({"name": "guard"})
    choice = parse({"name": "deflect", "alpha": 1.7})
    assert (choice.label, choice.text()) == ("deflect", "deflect (alpha=1.7)")
    assert choice.build().params["alpha"] == 1.7


def test_parameters_at_their_defaults_make_no_other_policy():
    alpha = parse("deflect").build().params["alpha"]
    assert parse({"name": "deflect", "alpha": alpha}) == parse("deflect")


def test_one_policy_twice_is_told_apart_by_its_parameters():
    labels = [c.label for c in with_unique_labels([parse("deflect"), parse({"name": "deflect", "alpha": 1.7})])]
    assert labels == ["deflect", "deflect(alpha=1.7)"]
    assert len(with_unique_labels([parse("guard"), parse("guard")])) == 1


def test_every_configured_policy_is_its_default_self():
    for name in options("policy"):
        if name not in ("custom", "logged"):
            config = compose_config("evaluate", [f"policy={name}"]).policy
            choice = parse(OmegaConf.to_container(config))
            assert choice == parse(name)
            assert choice.build().name == name


def test_unknown_names_and_parameters_name_the_nearest():
    with pytest.raises(PolicyError, match="did you mean 'guard'"):
        parse("gaurd")
    with pytest.raises(PolicyError, match="did you mean 'alpha'"):
        parse({"name": "deflect", "alfa": 1})


@pytest.mark.parametrize("item", [3, ["guard"], {"alpha": 1.0}, None])
def test_what_is_no_policy_is_refused(item):
    with pytest.raises(ResearchError, match=r"policies\[0\]: expected a policy name"):
        parse(item)


ROUTER = """
from policies.contract import route

class First:
    def __init__(self, worker=0):
        self.worker = worker
    def route(self, request, view):
        return route(0, len(view) - 1)

made = First()
number = 3
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A package of the user's, next to the prompt."""
    folder = tmp_path / "my_lab"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "router.py").write_text(ROUTER)
    (folder / "broken.py").write_text("import numpy\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [n for n in sys.modules if n.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_a_class_or_an_object_of_the_users_is_a_policy(lab):
    choice = parse({"name": "custom", "target": "my_lab.router:First", "params": {"worker": 2}})
    assert choice.label == "First"
    assert choice.build().worker == 2
    assert parse({"name": "custom", "target": "my_lab.router:made"}).build().worker == 0


def test_editing_the_users_file_makes_another_run(lab):
    choice = parse({"name": "custom", "target": "my_lab.router:First"})
    before = choice.identity()
    (lab / "router.py").write_text(ROUTER + "# another line\n")
    choices._file_sha256.cache_clear()
    assert choice.identity() != before


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_lab.router:Frist", "has no 'Frist' .did you mean 'First'"),
        ("my_lab.rooter:First", "no module named 'my_lab.rooter'"),
        ("no_such_lab.router:First", "no module named 'no_such_lab'"),
        ("my_lab.broken:First", "importing it failed: ZeroDivisionError"),
        ("my_lab.router:number", "expected a rule, or an object with route"),
    ],
)
def test_a_target_that_cannot_be_used_is_told(lab, target, message):
    with pytest.raises(ResearchError, match=message):
        parse({"name": "custom", "target": target}).build()


def test_a_target_must_name_an_attribute():
    with pytest.raises(ResearchError, match=r"custom policy needs target=package\.module:Class"):
        parse({"name": "custom", "target": "my_lab.router"})
    with pytest.raises(ResearchError, match="target is for name=custom"):
        parse({"name": "guard", "target": "a.b:C"})


def test_wrong_arguments_of_a_class_are_told(lab):
    with pytest.raises(ResearchError, match="unexpected keyword argument 'speed'"):
        parse({"name": "custom", "target": "my_lab.router:First", "params": {"speed": 1}}).build()


def test_windows_are_disjoint_and_what_leads_in_is_what_came_before():
    choice = TraceChoice("default")
    zone = choice.zone("test")
    windows = [choice.window("test", 4, i, 1.0) for i in range(4)]
    assert [w.length_s for w in windows] == pytest.approx([zone.duration_s / 4] * 4)
    counts, tails = [], []
    for w in windows:
        assert w.lead_s == pytest.approx(w.length_s)
        arrival = w.trace.frame["arrival_s"].to_numpy()
        assert arrival.max() <= w.lead_s + w.length_s + 1e-6
        tails.append(arrival[arrival >= w.lead_s - 1e-9] - w.lead_s)
        counts.append(tails[-1].size)
    # A window's lead-in is the window before it, with the same arrivals.
    for before, w in pairwise(windows):
        lead = w.trace.frame["arrival_s"].to_numpy()
        lead = lead[lead < w.lead_s - 1e-9]
        own = before.trace.frame["arrival_s"].to_numpy()
        own = own[own >= before.lead_s - 1e-9] - before.lead_s
        np.testing.assert_allclose(lead, own, atol=1e-6)
    assert sum(counts) >= len(zone)


def test_no_session_that_began_in_training_is_in_a_test_window():
    choice = TraceChoice("default")
    train = choice.zone("train").duration_s
    late = choice.load().frame.filter(choice.load().frame["arrival_s"] >= train)
    turns = sum(len(choice.window("test", 4, i, 0.0).trace) for i in range(4))
    zone_end = late.filter(late["arrival_s"] >= train + choice.zone("validation").duration_s)
    assert turns <= zone_end.height


def test_without_lead_in_a_window_starts_at_once():
    assert TraceChoice("default").window("test", 4, 0, 0.0).lead_s == 0.0


def test_too_many_windows_for_a_trace_is_told():
    with pytest.raises(ResearchError, match=r"does not fill 100000 windows: nothing arrives in .*windows=N"):
        TraceChoice("default").window("test", 100000, 0, 0.0)


def test_a_load_scales_sessions_in_closed_replay_and_requests_in_open():
    for replay in ("closed", "open"):
        choice = TraceChoice("default", replay=replay)
        # Windows of the whole zone, counted: what arrives in them is what the pace says.
        windows = [choice.window("test", 4, i, 0.0) for i in range(4)]
        requests = sum(len(w.trace) for w in windows) / sum(w.length_s for w in windows)
        if replay == "open":
            assert choice.pace_per_s("test") == pytest.approx(requests, rel=1e-3)
        else:
            zone = choice.zone("test")
            assert choice.pace_per_s("test") == pytest.approx(zone.n_sessions / zone.duration_s, rel=1e-3)
            assert choice.pace_per_s("test") < requests


USERS_TABLE = "when,in_tok,out_tok\n" + "".join(f"{i},{100 + i},{5 + i % 3}\n" for i in range(60))
MAPPED = {"arrival_s": "when", "prompt_tokens": "in_tok", "output_tokens": "out_tok"}


@pytest.mark.parametrize("whole", [False, True])
def test_a_column_map_on_the_command_line_reaches_the_reader(tmp_path, whole):
    (tmp_path / "mylog.csv").write_text(USERS_TABLE)
    pairs = [f"{k}: {v}" for k, v in MAPPED.items()]
    words = [f"trace.options={{columns: {{{', '.join(pairs)}}}}}"]
    if not whole:
        words = [f"trace.options.columns.{k}={v}" for k, v in MAPPED.items()]
    words += [f"trace.path={tmp_path / 'mylog.csv'}", "trace.format=table", "windows=2", "rate_per_s=2"]
    study = study_from(compose_config("evaluate", [*words, f"out={tmp_path / 'out'}"]), "evaluate")
    assert study.trace.load().frame["prompt_tokens"].to_list() == [100 + i for i in range(60)]
    assert pickle.loads(pickle.dumps(study.trace)) == study.trace


def test_options_are_equal_whatever_their_order_and_come_back_as_they_were():
    given = {"columns": dict(MAPPED), "names": ["a", {"b": [1, None]}]}
    choice = TraceChoice("x.csv", options=tuple(given.items()))
    turned = {"names": given["names"], "columns": dict(reversed(MAPPED.items()))}
    assert choice == TraceChoice("x.csv", options=tuple(turned.items()))
    assert hash(choice) == hash(replace(choice))
    assert {k: trace_choice._thaw(v) for k, v in choice.options} == given


def test_a_trace_with_steps_is_shown_as_it_was_given() -> None:
    given = {
        "name": "default",
        "options": {},
        "steps": [{"name": "thin", "keep": 0.5}, {"name": "merge", "others": [{"path": "a b.csv"}], "label": "x"}],
    }
    choice = TraceChoice.parse(given)
    assert choice.text() == "default (thin, merge)"
    word = choice.words()[1]
    assert word == "trace.steps=[{name: thin, keep: 0.5}, {name: merge, label: x, others: [{path: 'a b.csv'}]}]"
    config = compose_config("compare", [word])
    assert TraceChoice.parse(OmegaConf.to_container(config.trace)) == choice
    assert len(TraceChoice("default", steps=({"name": "thin", "keep": 0.5},)).load()) < 12081
    with pytest.raises(ResearchError, match=r"trace\.steps=thin"):
        TraceChoice.parse({"name": "default", "steps": "thin"})


@pytest.mark.parametrize("name", ["name", "format", "data_dir"])
def test_what_names_the_trace_is_no_option_of_its_reader(name):
    with pytest.raises(ResearchError, match=rf"trace\.options\.{name}=x: no option of a reader"):
        TraceChoice("default", options=((name, "x"),)).load()
