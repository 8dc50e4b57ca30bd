"""The parts of a study that are named by the user and built where a run happens: a trace, a policy.

Both are small and picklable, so that a worker process gets the name and loads the thing itself.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from envs.cluster.spec import ClusterSpec
    from traces import Trace
    from traces.steps import Stepped

ZONES = ("train", "validation", "test")
CUSTOM = "custom"
LOGGED = "logged"
"""Not a policy: the routes that the trace recorded."""


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A mapping (``items`` are sorted pairs) or a list of an option, hashable."""

    mapping: bool
    items: tuple[Any, ...]


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _Frozen(True, _frozen_pairs(value.items()))
    return _Frozen(False, tuple(_freeze(v) for v in value)) if isinstance(value, list | tuple) else value


def _frozen_pairs(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(((str(k), _freeze(v)) for k, v in pairs), key=itemgetter(0)))


def _thaw(value: Any) -> Any:
    if not isinstance(value, _Frozen):
        return value
    return {k: _thaw(v) for k, v in value.items} if value.mapping else [_thaw(v) for v in value.items]


def _flow(value: Any) -> str:
    """A value in the grammar of the command line."""
    if isinstance(value, Mapping):
        first = sorted(value.items(), key=lambda item: item[0] != "name")
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in first) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = str(value)
    plain = not isinstance(value, str) or re.fullmatch(r"[A-Za-z_./][\w./+-]*", text)
    return text if plain else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class TraceChoice:
    """A catalogue name, or a file and its format.

    Attributes:
        name: catalogue name, or path of a file.
        format: reader of a file; None recognises it.
        data_dir: folder of public traces; None takes the default.
        options: reader options, as (name, value) pairs; mappings and lists among the values are frozen when made,
            so that a choice can be hashed, and are mappings and lists again for the reader.
        replay: mode that replaces the trace's natural one, or None.
        steps: what is done to it then, see :mod:`traces.steps`; frozen as the options are.
    """

    name: str
    format: str | None = None
    data_dir: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    replay: str | None = None
    steps: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """Freeze options and steps."""
        object.__setattr__(self, "options", _frozen_pairs(self.options))
        object.__setattr__(self, "steps", tuple(_freeze(step) for step in self.steps))

    @classmethod
    def parse(cls, trace: Mapping[str, Any], data_dir: object = None, replay: str | None = None) -> TraceChoice:
        """From the settings ``trace`` (name or path, format, options, steps) and ``data_dir``.

        Raises:
            ResearchError: neither name nor path, options that are no mapping, or steps that are no list.
        """
        path, name = trace.get("path"), trace.get("name")
        if path is None and name is None:
            raise ResearchError("trace: expected trace=NAME, or trace.path=FILE (and trace.format=FORMAT)")
        options, steps = trace.get("options") or {}, trace.get("steps") or []
        if not isinstance(options, Mapping):
            raise ResearchError(f"trace.options={options}: expected trace.options.NAME=VALUE")
        if isinstance(steps, Mapping):
            steps = [steps]
        if not isinstance(steps, list | tuple):
            raise ResearchError(f"trace.steps={steps}: expected a list such as [{{name: thin, keep: 0.5}}]")
        return cls(
            name=str(path if path is not None else name),
            format=trace.get("format") if path is not None else None,
            data_dir=str(data_dir) if data_dir is not None else None,
            options=tuple(options.items()),
            replay=replay,
            steps=tuple(steps),
        )

    def text(self) -> str:
        """The name with its steps: ``azure_conv (thin, cap)``."""
        done = ", ".join(str(_thaw(step)["name"]) for step in self.steps if isinstance(_thaw(step), dict))
        return f"{self.name} ({done})" if done else self.name

    def words(self) -> list[str]:
        """As it is given on a command line, to be joined by ``shlex``."""
        from traces.catalog import names

        words = [f"trace={self.name}" if self.name in names() else f"trace.path={_flow(self.name)}"]
        words += [f"trace.format={self.format}"] if self.format else []
        words += [f"trace.options={_flow({k: _thaw(v) for k, v in self.options})}"] if self.options else []
        words += [f"trace.steps={_flow([_thaw(step) for step in self.steps])}"] if self.steps else []
        words += [f"replay={self.replay}"] if self.replay else []
        return words + ([f"data_dir={_flow(self.data_dir)}"] if self.data_dir else [])

    def load(self) -> Trace:
        """The trace after its steps; loaded once a process."""
        return _load_trace(self).trace

    def cuts_s(self) -> tuple[float, float, float] | None:
        """Where its zones end, if that is not by shares of the duration."""
        return _load_trace(self).cuts_s

    def zone(self, name: str) -> Trace:
        """``train``, ``validation`` or ``test``."""
        return _zones(self)[name]

    def window(self, zone: str, windows: int, index: int, lead_in: float) -> Window:
        """One of ``windows`` disjoint windows of a zone, with ``lead_in`` windows of what came before it."""
        return _windows(self, zone, windows, lead_in)[index]

    def pace_per_s(self, zone: str) -> float:
        """What a load scales, per second of the zone: requests in open replay, else session starts.

        Turns of sessions that began in the zone before are in the windows, so they count here.
        """
        base, first, last = _base(self, zone)
        frame = base.frame.filter((pl.col("arrival_s") >= first) & (pl.col("arrival_s") <= last))
        if base.replay != "open":
            frame = frame.filter((pl.col("turn") == 1) | (pl.col("session") < 0))
        return frame.height / (last - first)


@dataclass(frozen=True, slots=True)
class Window:
    """A window and what leads into it.

    Attributes:
        trace: starts ``lead_s`` before the window and ends with it.
        lead_s: served first, so that caches, queues and running sessions are there; not counted.
        length_s: of the window.
    """

    trace: Trace
    lead_s: float
    length_s: float


def pace_unit(trace: Trace) -> str:
    """``requests`` or ``sessions``: see :meth:`TraceChoice.pace_per_s`."""
    return "requests" if trace.replay == "open" else "sessions"


@cache
def _load_trace(choice: TraceChoice) -> Stepped:
    from traces import load_trace
    from traces.steps import apply_steps

    options = {name: _thaw(value) for name, value in choice.options}
    trace = load_trace(choice.name, choice.format, choice.data_dir, **options)
    trace = trace if choice.replay is None else trace.with_replay(choice.replay)
    return apply_steps(trace, [_thaw(step) for step in choice.steps], data_dir=choice.data_dir)


@cache
def _zones(choice: TraceChoice) -> dict[str, Trace]:
    from traces.catalog import zones

    return zones(choice.load(), choice.cuts_s())


@cache
def _windows(choice: TraceChoice, zone: str, windows: int, lead_in: float) -> list[Window]:
    own = _zones(choice)[zone]
    per_window = np.histogram(own.frame["arrival_s"].to_numpy(), windows, (0.0, own.duration_s))[0]
    if per_window.min() == 0:
        raise ResearchError(
            f"trace {choice.name}: its {zone} zone ({len(own)} requests in {own.duration_s:.0f} s) does not fill "
            f"{windows} windows: nothing arrives in {int((per_window == 0).sum())} of them. "
            f"Give fewer ({'knee.windows' if zone == 'validation' else 'windows'}=N) or a longer trace"
        )
    base, first, last = _base(choice, zone)
    length = (last - first) / windows
    out = []
    for i in range(windows):
        start = first + i * length
        lead = min(lead_in * length, start)
        out.append(Window(base.window(start - lead, start + length, across="restart"), lead, length))
    return out


@cache
def _base(choice: TraceChoice, zone: str) -> tuple[Trace, float, float]:
    """A zone with the one before it, which leads into it, and where in that the zone starts and ends."""
    parts = _zones(choice)
    order = list(parts)
    before = order[max(order.index(zone) - 1, 0)]
    starts = dict(zip(order, np.cumsum([0.0] + [parts[z].duration_s for z in order]), strict=False))
    end = float(starts[zone]) + parts[zone].duration_s
    # No session that began before both is in here: what was trained on is never tested on.
    base = choice.load().window(float(starts[before]), end)
    return base, float(starts[zone] - starts[before]), end - float(starts[before])


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
    return f"{value:g}" if isinstance(value, float) else str(value)


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
