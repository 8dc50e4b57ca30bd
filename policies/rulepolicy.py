"""A rule with its parameters: what the registry hands out and the simulator compiles."""

from __future__ import annotations

import builtins
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from policies.contract import Param, RuleSpec, rule_spec
from policies.errors import PolicyError, nearest


@dataclass(frozen=True, slots=True)
class RulePolicy:
    """A marked rule and the parameter values it runs with.

    Attributes:
        name: the policy's name.
        decide: the marked module-level function.
        spec: what the rule declares.
        params: every declared parameter, as a float or a tuple of floats.
    """

    name: str
    decide: Callable[..., Any]
    spec: RuleSpec
    params: Mapping[str, Param]

    @staticmethod
    def of(decide: Callable[..., Any], **params: float | tuple[float, ...]) -> RulePolicy:
        """The policy of a marked function; parameters not given keep their declared defaults.

        Raises:
            PolicyError: ``decide`` is not marked with ``contract.rule``, or a parameter is wrong.
        """
        spec = rule_spec(decide)
        if spec is None:
            name = getattr(decide, "__qualname__", repr(decide))
            raise PolicyError(f"{name} is not a rule: mark it with policies.contract.rule")
        return RulePolicy(spec.name, decide, spec, dict(spec.params)).with_params(**params)

    def with_params(self, **params: float | tuple[float, ...]) -> RulePolicy:
        """A copy with some parameters replaced.

        Raises:
            PolicyError: a parameter that the rule does not declare, or a value that is not a finite number.
        """
        merged = dict(self.params)
        for key, value in params.items():
            if key not in self.spec.params:
                known = ", ".join(self.spec.params) or "none"
                raise PolicyError(
                    f"policy {self.name}: unknown parameter {key!r}{nearest(key, self.spec.params)} (it has: {known})"
                )
            merged[key] = _checked(self.name, key, value, self.spec.params[key])
        return replace(self, params=merged)

    @property
    def source_sha256(self) -> str:
        """Hash of the rule's source and of every function and constant it reaches, independent of parameters.

        Equal hashes mean the same code, also when the rule is edited through a helper in another module.
        """
        parts: dict[str, str] = {}
        _collect(self.decide, parts)
        for other in (self.spec.bind, getattr(self, "shares", None)):
            if other is not None:
                _collect(other, parts)
        text = "\n".join(f"{key}\n{parts[key]}" for key in sorted(parts))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SlicingRulePolicy(RulePolicy):
    """A rule that also sets the prefill shares of split workers, on the simulator's timer.

    Attributes:
        shares: ``shares(view, params) -> {worker id: prefill share}``; plain Python, never compiled.
    """

    shares: Callable[[Any, Mapping[str, Param]], dict[int, float]]

    def adjust(self, view: Any) -> dict[int, float]:
        """The prefill share of every split worker in the view, by worker id (contract ``Policy.adjust``)."""
        return self.shares(view, self.params)


def _checked(policy: str, key: str, value: Any, default: Param) -> Param:
    """``value`` as the kind of parameter that ``default`` is."""
    where = f"policy {policy}: parameter {key} = {value!r}"
    if isinstance(default, tuple):
        if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            raise PolicyError(f"{where}: expected a list of numbers")
        return tuple(_number(where, item) for item in value)
    return _number(where, value)


def _number(where: str, value: Any) -> float:
    if isinstance(value, str | bytes) or value is None:
        raise PolicyError(f"{where}: expected a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise PolicyError(f"{where}: expected a number") from None
    if not math.isfinite(number):
        raise PolicyError(f"{where}: expected a finite number")
    return number


def _collect(function: Callable[..., Any], parts: dict[str, str]) -> None:
    """Add the source of ``function`` and of what it refers to, by qualified name, to ``parts``."""
    key = f"{function.__module__}.{function.__qualname__}"
    if key in parts:
        return
    parts[key] = inspect.getsource(function)
    code = getattr(function, "__code__", None)
    scope = getattr(function, "__globals__", {})
    for name in code.co_names if code is not None else ():
        value = scope.get(name)
        if isinstance(value, FunctionType):
            _collect(value, parts)
        elif isinstance(value, int | float | str | tuple):
            parts[f"{function.__module__}.{name}"] = repr(value)
        elif inspect.isclass(value) and not hasattr(builtins, name) and value.__module__.startswith("policies."):
            parts[f"{value.__module__}.{name}"] = inspect.getsource(value)
