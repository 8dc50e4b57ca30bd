"""Transforms by name, as a list of steps: ``[{name: thin, keep: 0.5, seed: 1}, {name: cap, output_tokens: 2048}]``.

Steps are done in the order given, before zones are cut. The cuts go along: a zone is the same time of the source
before and after, whatever a step does to the clock; and steps that move or draw requests (superpose, resample) do so
inside each zone, with sessions cut where it ends, and a retry of what began in train is in no test. So nothing that
was trained on is tested on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traces import catalog, transform
from traces.errors import TraceError, nearest
from traces.trace import Trace

Cuts = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A trace after its steps.

    Attributes:
        trace: the trace.
        cuts_s: end of train, of validation and of test in its time, for :func:`traces.catalog.zones`; None where
            zones are shares of its duration.
    """

    trace: Trace
    cuts_s: Cuts | None


@dataclass(frozen=True, slots=True)
class _Context:
    data_dir: str | Path | None


def apply_steps(trace: Trace, steps: Sequence[Mapping[str, Any]], *, data_dir: str | Path | None = None) -> Stepped:
    """Do the steps one after the other.

    Args:
        trace: the trace, under its catalogue name if it has one: that tells its cuts.
        steps: mappings of ``name`` and arguments, see :data:`STEPS`. An argument that is None counts as not given.
        data_dir: folder of public traces, for ``merge``.

    Raises:
        TraceError: an unknown step or argument (with the nearest), or one that does not fit the trace.
    """
    if isinstance(steps, str | Mapping) or not isinstance(steps, Sequence):
        raise TraceError(file="trace.steps", value=steps, expected="a list such as [{name: thin, keep: 0.5}]")
    cuts_s = catalog.fixed_cuts(trace)
    for i, step in enumerate(steps):
        where = f"trace.steps[{i}]"
        name, given = _checked(step, where)
        act = STEPS[name]
        before = trace
        parameters = inspect.signature(act).parameters
        if "cuts_s" in parameters:
            given["cuts_s"] = (cuts_s or transform.zone_cuts(trace))[:2]
            if name in _INSIDE:
                trace = transform.cut_sessions(trace, given["cuts_s"])
        if "context" in parameters:
            given["context"] = _Context(data_dir)
        try:
            trace = act(trace, **given)
        except TraceError as error:
            raise TraceError(
                file=f"{where} ({name}), {error.file}",
                row=error.row,
                column=error.column,
                value=error.value,
                expected=error.expected,
            ) from error
        if cuts_s is not None and name in _CLOCK:
            cuts_s = _CLOCK[name](before, cuts_s, given)
    return Stepped(trace, cuts_s)


def _checked(step: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a step, all of them known."""
    if not isinstance(step, Mapping) or not isinstance(step.get("name"), str):
        raise TraceError(file=where, value=step, expected=f"{{name: STEP, argument: value}}, STEP {_known()}")
    name = step["name"]
    if name not in STEPS:
        raise TraceError(file=where, column="name", value=name, expected=f"{_known()}{nearest(name, STEPS)}")
    given = {str(k): v for k, v in step.items() if k != "name" and v is not None}
    takes = arguments(name)
    for key, value in given.items():
        if key not in takes:
            expected = f"an argument of {name}: {', '.join(takes)}{nearest(key, takes)}"
            raise TraceError(file=where, column=key, value=value, expected=expected)
        if isinstance(takes[key].default, bool) and not isinstance(value, bool):
            raise TraceError(file=where, column=key, value=value, expected="true or false")
    for key, parameter in takes.items():
        if parameter.default is inspect.Parameter.empty and key not in given:
            raise TraceError(file=where, column=key, expected=f"a value, which {name} needs")
    return name, given


def arguments(name: str) -> dict[str, inspect.Parameter]:
    """Arguments that a step takes, by name; a parameter without default must be given."""
    found = inspect.signature(STEPS[name]).parameters.values()
    return {p.name: p for p in found if p.name not in ("trace", "cuts_s", "context")}


def _merge(
    trace: Trace,
    others: Sequence[Any],
    *,
    label: str | None = None,
    into: str = "both",
    coarsen: bool = False,
    context: _Context,
) -> Trace:
    """``others``: names, or mappings with ``name`` or ``path``, ``format``, ``options``, ``steps`` and ``label``."""
    if isinstance(others, str | Mapping):
        others = [others]
    if not isinstance(others, Sequence):
        raise TraceError(file=trace.name, column="others", value=others, expected="a list of traces")
    parts = {trace.name if label is None else str(label): trace}
    for item in others:
        name, other = _other(trace, {"name": item} if isinstance(item, str) else item, context)
        if name in parts:
            expected = f"labels that differ: {{name: ..., label: OTHER}}, not {name} twice"
            raise TraceError(file=trace.name, column="label", value=name, expected=expected)
        parts[name] = other
    return transform.merge(parts, into=into, coarsen=coarsen)


_OTHER = ("name", "path", "format", "options", "steps", "label")


def _other(trace: Trace, item: Any, context: _Context) -> tuple[str, Trace]:
    if not isinstance(item, Mapping) or (item.get("name") is None) == (item.get("path") is None):
        expected = "a name, or {name: NAME} or {path: FILE, format: FORMAT}, with options, steps and label"
        raise TraceError(file=trace.name, column="others", value=item, expected=expected)
    for key in item:
        if key not in _OTHER:
            expected = f"one of {', '.join(_OTHER)}{nearest(str(key), _OTHER)}"
            raise TraceError(file=trace.name, column=f"others.{key}", value=item[key], expected=expected)
    path, options, form = item.get("path"), item.get("options") or {}, item.get("format")
    named = isinstance(options, Mapping) and all(isinstance(key, str) for key in options)
    if not named or {"name", "format", "data_dir"} & set(options):  # those are no reader's
        expected = "a mapping of the reader's options by name"
        raise TraceError(file=trace.name, column="others.options", value=options, expected=expected)
    if form is not None and not isinstance(form, str):
        raise TraceError(file=trace.name, column="others.format", value=form, expected="the name of a format")
    where = str(item["name"]) if path is None else Path(str(path))
    loaded = catalog.load_trace(where, form, context.data_dir, **options)
    loaded = apply_steps(loaded, item.get("steps") or [], data_dir=context.data_dir).trace
    return str(item.get("label") or item.get("name") or Path(str(path)).name.split(".")[0]), loaded


STEPS: dict[str, Callable[..., Trace]] = {
    "window": transform.window,
    "rate": transform.scale_rate,
    "superpose": transform.superpose,
    "thin": transform.thin,
    "jitter": transform.jitter,
    "resample": transform.resample,
    "cap": transform.cap,
    "filter": transform.select,
    "merge": _merge,
    "coarsen": transform.coarsen_blocks,
    "cancel": transform.cancel,
}
"""Name -> function; the function says what its arguments mean."""


_INSIDE = ("superpose", "resample")
"""Steps that move or draw requests inside zones, for which sessions end where zones do."""


def _known() -> str:
    return f"one of {', '.join(STEPS)}"


def _window_cuts(trace: Trace, cuts_s: Cuts, given: Mapping[str, Any]) -> Cuts:
    start_s, end_s = given["start_s"], min(given["end_s"], trace.duration_s)
    a, b, c = (min(max(cut, start_s), end_s) - start_s for cut in cuts_s)
    return a, b, c


def _rate_cuts(trace: Trace, cuts_s: Cuts, given: Mapping[str, Any]) -> Cuts:
    a, b, c = (cut / given["factor"] for cut in cuts_s)
    return a, b, c


_CLOCK: dict[str, Callable[[Trace, Cuts, Mapping[str, Any]], Cuts]] = {"window": _window_cuts, "rate": _rate_cuts}
