"""The policies of a study as their user names them: built where a run happens.

Small and picklable, so that a worker process gets the name and builds the thing itself.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from envs.cluster.spec import ClusterSpec
    from traces import Trace

CUSTOM = "custom"
LOGGED = "logged"
"""Not a policy: the routes that the trace recorded."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy of the registry, any object by ``target``, or the routes of the trace itself (``logged``).

    Attributes:
        label: name in tables, unique in a study.
        name: registry name, ``custom`` or ``logged``.
        target: ``package.module:Attribute`` of a custom policy.
        params: parameters given, as sorted (name, value) pairs.
    """

    label: str
    name: str
    target: str | None = None
    params: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, item: object, where: str) -> PolicyChoice:
        """From a name, or from a mapping ``{name: deflect, alpha: 1.3}`` (``{name: custom, target: pkg.mod:Class}``).

        Raises:
            ResearchError: neither, or a custom policy without a target.
        """
        if isinstance(item, str):
            item = {"name": item}
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            raise ResearchError(f"{where}: expected a policy name or {{name: NAME, parameter: value}}, got {item!r}")
        # null in a configuration means not given.
        rest = {str(k): v for k, v in item.items() if k not in ("name", "target", "params") and v is not None}
        rest |= dict(item.get("params") or {})
        name, target = item["name"], item.get("target")
        if name == CUSTOM:
            if not isinstance(target, str) or ":" not in target:
                raise ResearchError(
                    f"{where}: a custom policy needs target=package.module:Class, got target={target!r}"
                )
            label = target.split(":", 1)[1]
        elif target is not None:
            raise ResearchError(f"{where}: target is for name=custom, not for {name!r}")
        else:
            label = name
        if name == LOGGED:
            return cls(label, name, None, _worker_ids(rest, where))
        choice = cls(label, name, target, _pairs(rest))
        if target is not None:
            return choice
        # Values that are the defaults are not worth saying, and guard is guard however it was written.
        policy = choice.build()
        defaults = getattr(getattr(policy, "spec", None), "params", None)
        if defaults is None:
            return choice
        # (A parameter such as a file of weights is no number of the rule: it stays as given.)
        kept = {
            k: policy.params.get(k, v) for k, v in rest.items() if k not in defaults or policy.params[k] != defaults[k]
        }
        return cls(label, name, None, _pairs(kept))

    def build(self) -> Any:
        """A fresh policy.

        Raises:
            PolicyError: unknown name or parameter.
            ResearchError: a target that cannot be imported, or is no policy; ``logged``, which is no router.
        """
        if self.replays:
            raise ResearchError(
                "policy logged replays the routes that a trace recorded: it has no rule that could route other "
                "requests, be exported or be the reference"
            )
        if self.target is None:
            from policies.registry import load

            return load(self.name, **dict(self.params))
        return _build_target(self.target, dict(self.params))

    @property
    def replays(self) -> bool:
        """Whether this is the log of the trace, and no router."""
        return self.name == LOGGED

    def build_for(self, trace: Trace, cluster: ClusterSpec) -> Any:
        """A fresh policy for one run of ``trace`` on ``cluster``.

        Raises:
            TraceError: ``logged``, and the trace has no routes, or some that the cluster cannot carry out.
        """
        if not self.replays:
            return self.build()
        from envs.logged import LoggedRoutes

        return LoggedRoutes(trace, cluster, dict(dict(self.params).get("worker_ids", ())))

    def identity(self) -> dict[str, Any]:
        """What decides the policy's answers: its sources and every parameter, defaults included."""
        if self.replays:  # the trace and the code are in every key
            return {"name": self.name, "target": None, "params": dict(self.params), "sources": None}
        policy = self.build()
        sources = getattr(policy, "source_sha256", None) or getattr(policy, "sha256", None)
        if self.target is not None:
            sources = _file_sha256(self.target.split(":", 1)[0])
        params = getattr(policy, "params", None)
        params = dict(params) if isinstance(params, Mapping) else dict(self.params)
        return {"name": self.name, "target": self.target, "params": params, "sources": sources}

    def text(self) -> str:
        """The label with what was set: ``deflect (alpha=1.3)``."""
        return f"{self.label} ({self.given()})" if self.params and not self.label.endswith(")") else self.label

    def given(self) -> str:
        """Parameters that were set, as ``alpha=1.3, beta=2``."""
        return ", ".join(f"{k}={shown(v)}" for k, v in self.params)


def shown(value: Any) -> str:
    """A parameter as it is written on a command line."""
    if isinstance(value, tuple) and value and all(isinstance(item, tuple) for item in value):
        return "{" + ", ".join(f"{k}: {v}" for k, v in value) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _worker_ids(given: Mapping[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    """The parameters of ``logged``: pairs of logged worker id and worker of the cluster, if any."""
    for key in given:
        if key != "worker_ids":
            raise ResearchError(f"{where}: policy logged: unknown parameter {key!r} (it has: worker_ids)")
    ids = given.get("worker_ids") or {}
    pairs = list(ids.items()) if isinstance(ids, Mapping) else [(None, None)]
    whole = [(str(k).strip(), v) for k, v in pairs]
    if not all(k.lstrip("-").isdecimal() and isinstance(v, int) and not isinstance(v, bool) for k, v in whole):
        raise ResearchError(
            f"{where}: worker_ids={ids}: expected logged ids and workers of the cluster, such as {{17: 0, 18: 1}}"
        )
    return (("worker_ids", tuple(sorted((int(k), v) for k, v in whole))),) if whole else ()


def _pairs(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in params.items()))


def with_unique_labels(choices: list[PolicyChoice]) -> list[PolicyChoice]:
    """Labels carry the parameters where one name occurs twice; equal choices are kept once."""
    from dataclasses import replace

    choices = list(dict.fromkeys(choices))
    names = [choice.label for choice in choices]
    return [
        replace(c, label=f"{c.label}({c.given()})") if names.count(c.label) > 1 and c.params else c for c in choices
    ]


def _build_target(target: str, params: dict[str, Any]) -> Any:
    from policies.contract import rule_spec
    from policies.rulepolicy import RulePolicy

    module_name, _, attribute = target.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = f" in {Path.cwd()} or the environment" if module_name.startswith(str(error.name)) else ""
        raise ResearchError(f"policy.target={target}: no module named {error.name!r}{here}") from None
    except Exception as error:
        raise ResearchError(f"policy.target={target}: importing it failed: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        known = [name for name in vars(module) if not name.startswith("_")]
        raise ResearchError(f"policy.target={target}: {module_name} has no {attribute!r}{nearest(attribute, known)}")
    if isinstance(found, RulePolicy):
        return found.with_params(**params)
    if rule_spec(found) is not None:
        return RulePolicy.of(found, **params)
    if inspect.isclass(found):
        try:
            found = found(**params)
        except TypeError as error:
            raise ResearchError(f"policy.target={target}: {error}") from None
    elif params:
        raise ResearchError(f"policy.target={target}: an object takes no parameters, got {', '.join(params)}")
    if not callable(getattr(found, "route", None)):
        raise ResearchError(f"policy.target={target}: expected a rule, or an object with route(request, view)")
    return found


@cache
def _file_sha256(module_name: str) -> str | None:
    """Hash of a module's file. Its imports are not followed: change them, and give another store."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
