"""Logged routes of serving systems: names of workers as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from traces.readers.workers import natural


def number_routes(names: Mapping[str, Sequence[str | None]]) -> tuple[dict[str, pl.Series], str | None]:
    """Columns ``prefill_worker`` and ``decode_worker`` as numbers, and the mapping as a line for the provenance.

    Names are numbered from 0 in natural order, those that prefill first, then those that only decode; a worker that
    does both has one number.

    Args:
        names: ``prefill_worker`` and ``decode_worker``, as far as the log has them, to (n,) names, None for unknown.
    """
    numbers: dict[str | None, int] = {}
    for role in ("prefill_worker", "decode_worker"):
        for name in sorted({n for n in names.get(role, ()) if n is not None}, key=natural):
            numbers.setdefault(name, len(numbers))
    if not numbers:
        return {}, None
    columns = {
        role: pl.Series(role, [numbers.get(name) for name in given], pl.Int64())
        for role, given in names.items()
        if any(name is not None for name in given)
    }
    return columns, "workers numbered, prefill first: " + ", ".join(f"{name}={i}" for name, i in numbers.items())
