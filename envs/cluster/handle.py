"""The state as compiled code holds it: one pointer, with an array behind each attribute.

Passing thirty structured arrays to every kernel function would cost minutes of compile time and tens of
microseconds a call. A ``State`` value is the address of a table of addresses and shapes
(``state.Memory.addresses``); ``s.wk`` loads an entry and makes the array. The sources read as if ``s`` were an object.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload_attribute, register_model

from envs.cluster.state import FIELD_DTYPES


class StateType(types.Type):
    """Numba type of the state handle."""

    def __init__(self) -> None:
        super().__init__(name="pdgym.State")


STATE = StateType()


@register_model(StateType)
class _StateModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.IntType(64))  # type: ignore[no-untyped-call]


@intrinsic
def _state_at(typingctx: Any, address: Any) -> Any:
    """The handle of the address table at ``address`` (int64)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]

    return STATE(types.int64), codegen


state_at: Any = _state_at  # called from compiled code only, with the address alone


@intrinsic
def _entry(typingctx: Any, handle: Any, index: Any) -> Any:
    """Entry ``index`` of the address table (int64)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(table, [args[1]]))

    return types.int64(STATE, types.int64), codegen


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def _install(name: str, dtype: Any, ndim: int, at: int) -> None:
    """Give the handle the attribute ``name``: an array of ``ndim`` dimensions."""
    from_dtype(dtype)
    carray: Any = numba.carray  # type: ignore[attr-defined]
    entry: Any = _entry
    pointer: Any = _pointer

    if ndim == 1:

        def load(s):  # type: ignore[no-untyped-def]  # numba compares this signature with the lambda's
            return lambda s: carray(pointer(entry(s, at)), (entry(s, at + 1),), dtype)

    elif ndim == 2:

        def load(s):  # type: ignore[no-untyped-def]  # numba compares this signature with the lambda's
            return lambda s: carray(pointer(entry(s, at)), (entry(s, at + 1), entry(s, at + 2)), dtype)

    else:

        def load(s):  # type: ignore[no-untyped-def]  # numba compares this signature with the lambda's
            return lambda s: carray(
                pointer(entry(s, at)), (entry(s, at + 1), entry(s, at + 2), entry(s, at + 3)), dtype
            )

    overload_attribute(StateType, name)(load)


_at = 0
for _name, (_dtype, _ndim) in FIELD_DTYPES.items():
    _install(_name, _dtype, _ndim, _at)
    _at += 1 + _ndim
