"""Loading policies by name, their parameters, and the hash of their source."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from policies import guard, predict
from policies.errors import PolicyError
from policies.registry import load, names
from policies.rulepolicy import RulePolicy


def test_every_name_loads_under_its_own_name():
    assert {"round_robin", "deflect", "guard"} <= set(names())
    for name in names():
        assert load(name).name == name


def test_unknown_policy_names_the_nearest():
    with pytest.raises(PolicyError, match=r"unknown policy 'gaurd'; did you mean 'guard'"):
        load("gaurd")


def test_unknown_parameter_names_policy_and_nearest():
    with pytest.raises(PolicyError, match=r"policy guard: unknown parameter 'kapa'; did you mean 'kappa'"):
        load("guard", kapa=3)


@pytest.mark.parametrize("value", [math.nan, math.inf, "high", None, (1.0, 2.0)])
def test_a_parameter_must_be_a_finite_number(value):
    with pytest.raises(PolicyError, match="policy guard: parameter kappa"):
        load("guard", kappa=value)


def test_with_params_leaves_the_original_alone():
    first = load("guard", kappa=4)
    second = first.with_params(mu=1)
    assert (first.params["kappa"], first.params["mu"]) == (4.0, 3.0)
    assert (second.params["kappa"], second.params["mu"]) == (4.0, 1.0)


def test_an_unmarked_function_is_refused():
    with pytest.raises(PolicyError, match="is not a rule"):
        RulePolicy.of(test_every_name_loads_under_its_own_name)


def test_source_hash_sees_helpers_but_not_parameters(monkeypatch):
    before = load("guard").source_sha256
    assert load("guard", kappa=1).source_sha256 == before
    assert load("deflect").source_sha256 != before

    def harm_s(worker, local_s):
        return 0.0

    monkeypatch.setattr("policies.joint.harm_s", harm_s)
    assert load("guard").source_sha256 != before
    assert guard.decide.__pdgym_rule__.name == "guard"
    assert predict.harm_s is not harm_s


def test_importing_the_registry_imports_no_policy_and_nothing_heavy():
    code = (
        "import sys, policies.registry; "
        "print([m for m in ('numba', 'torch', 'polars', 'envs', 'policies.guard') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
