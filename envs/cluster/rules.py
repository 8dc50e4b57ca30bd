"""Compile a marked rule for the kernel, without touching the rule.

The rule's function and the plain functions that it calls are copied with compiled helpers in their globals; a thin
wrapper turns parameter and memory bytes into the records that the rule reads. The wrapper has the kernel's one
explicit signature, so a new rule never recompiles the kernel.
"""

from __future__ import annotations

import hashlib
import types as pytypes
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.cluster.engine_kernel import BIND_SIGNATURE, DECIDE_SIGNATURE
from envs.cluster.jit import cache_folder
from policies.contract import (
    PER_WORKER,
    REQUEST_DTYPE,
    WORKER_DTYPE,
    MemoryField,
    Param,
    RuleSpec,
    rule_spec,
)


class RuleCode(NamedTuple):
    """A compiled rule: first-class functions and the bytes of its parameters and memory."""

    decide: Any
    bind: Any
    params: NDArray[np.uint8]
    memory: NDArray[np.uint8]


def param_record(params: Mapping[str, Param]) -> NDArray[Any]:
    """Parameters as a one-element structured array; tuples become array fields."""
    fields: list[Any] = []
    for name, value in params.items():
        fields.append((name, "f8", (len(value),)) if isinstance(value, tuple) else (name, "f8"))
    record = np.zeros(1, np.dtype(fields or [("unused", "f8")], align=True))
    for name, value in params.items():
        record[name] = value
    return record


def memory_record(memory: Mapping[str, MemoryField], n_workers: int) -> NDArray[Any]:
    """Memory of one replica as a one-element structured array at its start values."""
    fields: list[Any] = []
    for name, value in memory.items():
        fields.append((name, "f8", (n_workers,)) if value == PER_WORKER else (name, "f8"))
    record = np.zeros(1, np.dtype(fields or [("unused", "f8")], align=True))
    for name, value in memory.items():
        if value != PER_WORKER:
            record[name] = value
    return record


def _as_bytes(record: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(record.tobytes(), dtype=np.uint8).copy()


def _called(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The plain functions that ``function`` refers to by global name."""
    scope = function.__globals__
    names = function.__code__.co_names
    return {n: scope[n] for n in names if isinstance(scope.get(n), pytypes.FunctionType)}


def _fingerprint(function: Callable[..., Any], seen: dict[str, str]) -> None:
    """Collect everything that decides what ``function`` compiles to: its code, constants and callees."""
    name = f"{function.__module__}.{function.__qualname__}"
    if name in seen:
        return
    code, scope = function.__code__, function.__globals__
    constants = {n: scope[n] for n in code.co_names if isinstance(scope.get(n), int | float | str | tuple)}
    seen[name] = repr((code.co_code, code.co_consts, code.co_names, function.__defaults__, sorted(constants.items())))
    for callee in _called(function).values():
        _fingerprint(callee, seen)


def _cache_key(function: Callable[..., Any]) -> str:
    seen: dict[str, str] = {}
    _fingerprint(function, seen)
    layout = f"{REQUEST_DTYPE}{WORKER_DTYPE}{numba.__version__}"
    return "rule-" + hashlib.sha256(repr(sorted(seen.items())).encode() + layout.encode()).hexdigest()[:16]


_functions: dict[Callable[..., Any], Any] = {}


def _compile(function: Callable[..., Any]) -> Any:
    """``function`` compiled, with every plain project function that it calls compiled too."""
    if function not in _functions:
        scope = dict(function.__globals__)
        for name, callee in _called(function).items():
            scope[name] = _compile(callee)
        copy = pytypes.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
        copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        on_disk = Path(function.__code__.co_filename).is_file()
        with cache_folder(_cache_key(function)):
            _functions[function] = numba.njit(copy, error_model="numpy", cache=on_disk)
    return _functions[function]


def _wrap(function: Callable[..., Any], signature: Any, params: Any, memory: Any) -> Any:
    inner = _compile(function)
    params_dtype, memory_dtype = params.dtype, memory.dtype

    def call(request: Any, view: Any, param_bytes: Any, memory_bytes: Any, seed: int) -> Any:
        return inner(request, view, param_bytes.view(params_dtype)[0], memory_bytes.view(memory_dtype)[0], seed)

    return numba.njit(signature)(call)


def _no_bind(request: Any, view: Any, params: Any, memory: Any, seed: int) -> int:
    """A rule that never answers LATE is never asked; -1 is an illegal worker."""
    return -1


_compiled: dict[Any, RuleCode] = {}


def compile_rule(decide: Callable[..., Any], params: Mapping[str, Param], n_workers: int) -> RuleCode:
    """Compile the marked function ``decide``; cached in this process by function and record layout."""
    spec = _require_spec(decide)
    p, m = param_record(params), memory_record(spec.memory, n_workers)
    key = (decide, str(p.dtype), str(m.dtype))
    if key not in _compiled:
        _compiled[key] = RuleCode(
            _wrap(decide, DECIDE_SIGNATURE, p, m),
            _wrap(spec.bind or _no_bind, BIND_SIGNATURE, p, m),
            _as_bytes(p),
            _as_bytes(m),
        )
    return _compiled[key]._replace(params=_as_bytes(p), memory=_as_bytes(m))


def _require_spec(decide: Callable[..., Any]) -> RuleSpec:
    spec = rule_spec(decide)
    if spec is None:
        raise TypeError(f"{decide!r} is not a marked rule: use policies.contract.rule")
    return spec


class InterpretedRule:
    """The same rule as a policy object: the plain source, run by Python (``interpret=True``)."""

    def __init__(self, decide: Callable[..., Any], params: Mapping[str, Param]) -> None:
        self._decide = decide
        self._spec = _require_spec(decide)
        self._params = SimpleNamespace(**params)
        self._memory: list[SimpleNamespace] = []
        self._seed = 0

    def reset(self, workers: int, replicas: int, seed: int) -> None:
        """Start values for a run with ``workers`` workers."""
        self._seed = seed
        self._memory = [
            SimpleNamespace(**{k: [0.0] * workers if v == PER_WORKER else v for k, v in self._spec.memory.items()})
            for _ in range(replicas)
        ]

    def route(self, request: Any, view: Any) -> Any:
        """One decision."""
        return self._decide(request, view, self._params, self._memory[request.replica], self._seed)

    def bind_decode(self, request: Any, view: Any) -> int:
        """One late binding."""
        if self._spec.bind is None:
            raise TypeError(f"rule {self._spec.name!r} answered LATE but declares no bind")
        return self._spec.bind(request, view, self._params, self._memory[request.replica], self._seed)
