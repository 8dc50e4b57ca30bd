"""The named policies. A policy's module is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module

from policies.errors import PolicyError, nearest
from policies.rulepolicy import RulePolicy

# name -> module that holds its marked ``decide``
_MODULES = {
    "deflect": "policies.deflect",
    "guard": "policies.guard",
    "round_robin": "policies.round_robin",
}


def names() -> list[str]:
    """Names of the policies that :func:`load` knows, sorted."""
    return sorted(_MODULES)


def load(name: str, **params: float | tuple[float, ...]) -> RulePolicy:
    """The named policy; parameters not given keep their defaults.

    Raises:
        PolicyError: unknown name, unknown parameter, or a value that is not a finite number.
    """
    module = _MODULES.get(name)
    if module is None:
        raise PolicyError(f"unknown policy {name!r}{nearest(name, _MODULES)} (known: {', '.join(names())})")
    return RulePolicy.of(import_module(module).decide, **params)
