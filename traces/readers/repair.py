"""Named repairs that readers share. Each is off by default and counted in the provenance."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import nearest
from traces.readers.columns import Table
from traces.readers.log import Log
from traces.source import Source

ZERO_OUTPUT = ("error", "drop", "one")


def zero_outputs(
    output: pl.Series, mode: str, where: Table | Log | tuple[Source, NDArray[np.int64]]
) -> tuple[NDArray[np.bool_], pl.Series, str | None]:
    """Deal with requests that produced no token (failed, or only counted elsewhere).

    Args:
        output: (n,) output tokens, 0 or more, named as their column.
        mode: ``error`` raises, ``drop`` leaves them out, ``one`` counts one token.
        where: for the error: the table, or the file and the (n,) row numbers.

    Returns:
        (n,) rows to keep, the output tokens, a line for the provenance or None.
    """
    source = where[0] if isinstance(where, tuple) else where.source
    if mode not in ZERO_OUTPUT:
        expected = f"one of {', '.join(ZERO_OUTPUT)}{nearest(str(mode), ZERO_OUTPUT)}"
        raise source.error(expected, column="trace.options.zero_output", value=mode)
    zero = (output == 0).to_numpy()
    count = int(zero.sum())
    if not count:
        return ~zero, output, None
    if mode == "error":
        at = int(np.argmax(zero))
        expected = (
            f"at least 1 output token ({count} requests have none); trace.options.zero_output=drop leaves them "
            "out, trace.options.zero_output=one counts one token"
        )
        if isinstance(where, tuple):
            raise source.error(expected, row=int(where[1][at]), column=output.name, value=0)
        raise where.error(expected, at, output.name)
    if mode == "drop":
        if zero.all():
            raise source.error("a request with output", column=output.name, value=0)
        return ~zero, output, f"repair zero_output=drop: {count} requests without output left out"
    note = f"repair zero_output=one: {count} requests set to one token"
    return np.ones(zero.size, np.bool_), output.clip(lower_bound=1), note
