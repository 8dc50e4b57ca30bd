"""Is it likely that so many requests came in such a time? One question, asked of every format that has stamps.

Stamps in another unit than their name says are a thousand times too fast or too slow. A log of ten or more requests
whose mean gap is above a minute, whose rate is above 100,000 a second or whose span is above ten years stops with a
question, and with the option that answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traces.errors import nearest
from traces.source import Source

FEW = 10
"""Below so many requests a rate or a median says nothing."""

MAX_SPAN_S = 10 * 365 * 86_400.0
ASK, KEEP = "ask", "keep"
IMPLAUSIBLE = (ASK, KEEP)
_MAX_GAP_S = 60.0
_MAX_RATE_PER_S = 1e5
ANSWER = "set trace.options.implausible=keep if that is right"


class Where(Protocol):
    """What an error is about: a table in one of its forms."""

    @property
    def source(self) -> Source:
        """The file."""

    def error(self, expected: str, at: int, column: str) -> Exception:
        """An error about row ``at`` (from 0) of a column."""


def too_slow(n: int, span_s: float) -> str | None:
    """What is wrong with ``n`` stamps that span so long a time: what was expected, and found; None if nothing is."""
    if span_s > MAX_SPAN_S:
        return f"a span below ten years, but it is {span_s:,.0f} s"
    if n >= FEW and span_s / n > _MAX_GAP_S:
        return f"requests less than {_MAX_GAP_S:g} s apart on average, but they are {span_s / n:,.0f} s apart"
    return None


def too_fast(n: int, span_s: float) -> str | None:
    """Likewise for so short a time."""
    if n < FEW or span_s * _MAX_RATE_PER_S >= n:
        return None
    return f"a rate below {_MAX_RATE_PER_S:,.0f} requests/s, but {n:,} arrive within {span_s:g} s"


def check_rate(
    where: Where | tuple[Source, Sequence[int] | NDArray[np.int64]],
    stamp_s: NDArray[np.float64],
    column: str,
    implausible: str,
    *,
    dates: bool = False,
) -> None:
    """Raise where stamps are too fast or too slow.

    Args:
        where: for the error: the table, or the file and the (n,) row numbers.
        stamp_s: (n,) stamps in any order, seconds; NaN for none.
        column: their column.
        implausible: the option: ``ask`` or ``keep``.
        dates: they are date-times, which have no unit to be mistaken.

    Raises:
        TraceError: as above; an unknown ``implausible``.
    """
    source = where[0] if isinstance(where, tuple) else where.source
    if implausible not in IMPLAUSIBLE:
        expected = f"one of {', '.join(IMPLAUSIBLE)}{nearest(implausible, IMPLAUSIBLE)}"
        raise source.error(expected, column="trace.options.implausible", value=implausible)
    n = int(np.count_nonzero(~np.isnan(stamp_s)))
    if implausible == KEEP or not n:
        return
    at, span_s = int(np.nanargmax(stamp_s)), float(np.nanmax(stamp_s) - np.nanmin(stamp_s))
    unit = "" if dates else "another unit than its name says"
    if slow := too_slow(n, span_s):
        expected = f"{slow}{unit and f' ({unit}?)'}: {ANSWER}"
    elif fast := too_fast(n, span_s):
        expected = f"{fast} ({unit and f'{unit}, or '}all sent at once?): {ANSWER}"
    else:
        return
    if isinstance(where, tuple):
        raise source.error(expected, row=int(where[1][at]), column=column, value=float(stamp_s[at]))
    raise where.error(expected, at, column)
