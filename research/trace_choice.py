"""The trace of a study as its user names it: loaded, changed by its steps and cut where a run happens.

Small and picklable, so that a worker process gets the name and loads the thing itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from research.errors import ResearchError

if TYPE_CHECKING:
    from traces import Trace
    from traces.steps import Stepped

ZONES = ("train", "validation", "test")


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
    for name in ("name", "format", "data_dir"):
        if name in options:
            where = name if name == "data_dir" else f"trace.{name}"
            raise ResearchError(f"trace.options.{name}={options[name]}: no option of a reader: expected {where}=")
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
