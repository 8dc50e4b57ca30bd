"""Settings are checked before anything runs."""

from __future__ import annotations

import pytest

from research.cli import compose_config
from research.errors import ResearchError
from research.evidence.runs import key_of
from research.study import study_from


def study(*words, command="compare", out=None):
    return study_from(compose_config(command, ["trace=default", *words]), command)


def test_the_defaults_are_a_study():
    made = study()
    assert [p.label for p in made.policies][-1] == "guard"
    assert made.reference in made.policies
    assert made.entrants == made.policies
    assert (made.windows, made.seeds, made.loads, made.rates_per_s) == (8, 1, (0.8, 1.0, 1.2), ())


def test_sessions_get_a_longer_lead_in_than_open_arrivals():
    assert study().lead_in == 4.0
    assert study("replay=open").lead_in == 1.0
    assert study("measure.lead_in=2").lead_in == 2.0


def test_the_reference_is_run_even_where_nobody_asked_for_it():
    made = study("policies=[round_robin]")
    assert [p.label for p in made.entrants] == ["round_robin", "guard"]


def test_the_reference_and_a_variant_of_it_are_told_apart():
    made = study("policies=[{name: guard, kappa: 9},round_robin]")
    assert [p.label for p in made.entrants] == ["guard(kappa=9)", "round_robin", "guard"]
    assert made.reference.label == "guard"


def test_a_single_policy_and_a_single_load_need_no_list():
    made = study("policies=round_robin", "load=1")
    assert [p.label for p in made.policies] == ["round_robin"]
    assert made.loads == (1.0,)


def test_rates_replace_loads():
    made = study("rate_per_s=[2,4]")
    assert (made.loads, made.rates_per_s) == ((), (2.0, 4.0))


def test_everything_goes_below_out_if_it_is_given(tmp_path):
    made = study(f"out={tmp_path}/here")
    assert made.out == tmp_path / "here"
    assert made.store == tmp_path / "here" / "runs"


def test_without_out_studies_share_their_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = study("cluster=1p3d")
    assert made.out == tmp_path / "results" / "compare-default-1p3d-tight"
    assert made.store == tmp_path / "results" / "runs"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("windows=0", "windows=0: expected a whole number of at least 1"),
        ("windows=2.5", "windows=2.5: expected a whole number"),
        ("windows=many", "windows='many': expected a whole number"),
        ("seeds=0", "seeds=0"),
        ("workers=0", "workers=0"),
        ("load=[]", "load: expected at least one number"),
        ("load=[-1]", "load=-1: expected a number above 0"),
        ("load=[1,high]", "load='high'"),
        ("rate_per_s=0", "rate_per_s=0: expected a number above 0"),
        ("robustness=[1.0]", "robustness=1.0: expected a number above 0.0 and below 1.0"),
        ("measure.skip_first=1", "measure.skip_first=1"),
        ("measure={skip_first: 0.6, skip_last: 0.5, lead_in: 1}", "expected a sum below 1"),
        ("trace.options=7", "trace.options.NAME=VALUE"),
        ("measure.lead_in=-1", "measure.lead_in=-1"),
        ("knee.attainment=1.5", "knee.attainment=1.5"),
        ("knee={attainment: 0.9, lowest: 2, highest: 1, tolerance: 0.1, windows: 2}", "knee.lowest: expected less"),
        ("replay=closd", "replay=closd.*did you mean 'closed'"),
        ("requests=yes_please", "requests='yes_please': expected true or false"),
        ("policies=[]", "policies: expected a list"),
        ("slo.tpot_s=fast", "slo.tpot_s='fast': expected seconds"),
        ("slo.by_class.batch={tpot: 1}", "slo: unknown field 'tpot' .did you mean 'tpot_s'"),
    ],
)
def test_a_wrong_setting_is_named(word, message):
    with pytest.raises(ResearchError, match=message):
        study(word)


def test_an_unknown_policy_ends_before_anything_runs(tmp_path):
    from policies.errors import PolicyError

    with pytest.raises(PolicyError, match="unknown policy 'gaurd'"):
        study("policies=[gaurd]", f"out={tmp_path}/o")
    assert not (tmp_path / "o").exists()


def test_an_absent_trace_says_where_it_was_looked_for(tmp_path):
    from traces.errors import TraceError

    config = compose_config("compare", ["trace=azure_conv", f"data_dir={tmp_path}"])
    with pytest.raises(TraceError, match=r"azure_conv.*PDGYM_DATA.*put it there"):
        study_from(config, "compare")


def with_classes(folder):
    """A trace of two classes, as the words that name it."""
    path = folder / "mine.csv"
    lines = [f"{t},100,10,{('chat', 'batch')[t % 2]}" for t in range(200)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,class", *lines]))
    return f"trace.path={path}", "trace.format=table"


def test_classes_may_have_objectives_of_their_own(tmp_path):
    made = study("slo.by_class={batch: {tpot_s: 0.2}}", *with_classes(tmp_path))
    batch = made.slo.by_class["batch"]
    assert (batch.tpot_s, batch.ttft_base_s) == (0.2, made.slo.ttft_base_s)


def test_objectives_of_a_class_that_the_trace_does_not_have_are_a_mistake(tmp_path):
    with pytest.raises(
        ResearchError, match=r"mine.csv has no class 'bach' .did you mean 'batch'.*: expected batch, chat"
    ):
        study("slo.by_class={bach: {tpot_s: 0.2}}", *with_classes(tmp_path))
    with pytest.raises(ResearchError, match="trace default has no classes, so batch"):
        study("slo.by_class={batch: {tpot_s: 0.2}}")


def keys_of(made):
    shared = made.shared_identity()
    return [key_of(made.identity(made.run(p, 0, 1.0, 0), shared)) for p in made.policies]


@pytest.mark.parametrize(
    "word",
    [
        "cluster.decode_budget_tokens=512",
        "hardware.link=tcp",
        "slo.tpot_s=0.03",
        "view.scrape_period_s=2",
        "measure.lead_in=2",
        "windows=4",
        "replay=open",
        "adjust_period_s=1",
        "requests=false",
        "policies=[{name: guard, kappa: 9}]",
    ],
)
def test_whatever_changes_a_result_changes_its_key(word):
    policies = [] if word.startswith("policies") else ["policies=[guard]"]
    assert keys_of(study(word, *policies)) != keys_of(study("policies=[guard]"))


@pytest.mark.parametrize("word", ["workers=1", "load=[0.5]", "report=false", "robustness=[]", "reference=round_robin"])
def test_what_changes_no_result_changes_no_key(word):
    assert keys_of(study(word, "policies=[guard]")) == keys_of(study("policies=[guard]"))
