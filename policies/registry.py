"""The named policies. A policy's module is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from policies.errors import PolicyError, nearest
from policies.rulepolicy import RulePolicy, SlicingRulePolicy

# name -> module that holds its marked ``decide`` (and ``shares``, if it slices split workers, or ``make``, if its
# parameters come from a file)
_MODULES = {
    "always_local": "policies.always_local",
    "colocated": "policies.colocated",
    "deflect": "policies.deflect",
    "guard": "policies.guard",
    "learned": "policies.learned",
    "least_loaded": "policies.least_loaded",
    "least_ttft": "policies.least_ttft",
    "multiplicative": "policies.multiplicative",
    "ppd": "policies.ppd",
    "random": "policies.random_choice",
    "round_robin": "policies.round_robin",
    "threshold": "policies.threshold",
    "time_slice": "policies.time_slice",
}


def names() -> list[str]:
    """Names of the policies that :func:`load` knows, sorted."""
    return sorted(_MODULES)


def load(name: str, **params: Any) -> RulePolicy:
    """The named policy; parameters not given keep their defaults.

    A policy that slices split workers comes as a ``SlicingRulePolicy``, which has ``adjust``. ``learned`` also takes
    ``path``, a policy file.

    Raises:
        PolicyError: unknown name, unknown parameter, or a value that is not a finite number.
    """
    module = _MODULES.get(name)
    if module is None:
        raise PolicyError(f"unknown policy {name!r}{nearest(name, _MODULES)} (known: {', '.join(names())})")
    source = import_module(module)
    make = getattr(source, "make", None)
    if make is not None:
        made: RulePolicy = make(**params)
        return made
    policy = RulePolicy.of(source.decide, **params)
    shares = getattr(source, "shares", None)
    if shares is None:
        return policy
    return SlicingRulePolicy(policy.name, policy.decide, policy.spec, policy.params, shares)
