"""The table law in whole picoseconds: knots for the reference, dense arrays for the kernel (docs/engine.md, Time)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.problem import PS, TablePs
from envs.hardware.tables import StepTables

MOST_TOKENS = 1 << 20
"""Largest number of tokens or sequences in a step for which tables are laid out."""

TABLE_DTYPE = np.dtype([("a0_ps", "i8"), ("c_attn_ps", "f8")])
"""The terms of a step with prefill tokens that are no table."""


@dataclass(frozen=True, slots=True)
class DenseTable:
    """A step of ``new`` prefill tokens and ``B`` decodes takes ``work[new + B] + base[B] + slope[B]*kv`` and prefill.

    Attributes:
        work: (tokens + 1,) W and the host's h0; that of no token is that of one.
        base: (seqs + 1,) D0 and the host's h1, 0 for none.
        slope: (seqs + 1,) D1, 0 for none.
    """

    work: NDArray[np.int64]
    base: NDArray[np.int64]
    slope: NDArray[np.int64]


def table_ps(tables: StepTables) -> TablePs:
    """The knots in picoseconds, each rounded to the nearest whole one."""
    return TablePs(
        tokens=tables.tokens,
        w_ps=tuple(round(value * PS) for value in tables.w_s),
        seqs=tables.seqs,
        d0_ps=tuple(round(value * PS) for value in tables.d0_s),
        kv_ps=tuple(round(n * value * PS) for n, value in zip(tables.seqs, tables.d1_s, strict=True)),
        a0_ps=round(tables.a0_s * PS),
        h0_ps=round(tables.h0_s * PS),
        h1_ps=round(tables.h1_s * PS),
        c_attn_ps=tables.c_attn_s * PS,
    )


def _line(at: tuple[int, ...], values: tuple[int, ...], x: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each point of the line through the knots, rounded down, (n,); see ``envs.hardware.tables.interpolate``."""
    knots, heights = np.array(at, np.int64), np.array(values, np.int64)
    piece = np.searchsorted(knots, x, side="right")  # knots passed; the line beyond the last is a piece of its own
    run, rise = np.diff(knots, append=0), np.diff(heights, append=0)
    run[-1], rise[-1] = run[-2], max(0, rise[-2])
    i = np.maximum(piece - 1, 0)
    far = np.maximum(x - knots[i], 0)
    whole, rest = np.divmod(rise[i], run[i])  # apart, so that no product overflows
    return np.asarray(heights[i] + whole * far + rest * far // run[i])


@lru_cache(maxsize=64)
def dense(table: TablePs, tokens: int, seqs: int) -> DenseTable:
    """Step times for every number of tokens up to ``tokens`` and of decodes up to ``seqs``; not to be written to."""
    each = np.arange(1, seqs + 1)
    work = np.zeros(tokens + 1, np.int64)
    base, slope = np.zeros(seqs + 1, np.int64), np.zeros(seqs + 1, np.int64)
    work[1:] = _line(table.tokens, table.w_ps, np.arange(1, tokens + 1)) + table.h0_ps
    work[0] = work[1]
    base[1:] = _line(table.seqs, table.d0_ps, each) + table.h1_ps * each
    slope[1:] = (2 * _line(table.seqs, table.kv_ps, each) + each) // (2 * each)
    return DenseTable(work, base, slope)


def room(workers: NDArray[Any]) -> tuple[int, int]:
    """(tokens, sequences) that a step of any of these workers may hold; ``workers`` (w,) WORKER_INPUT_DTYPE."""
    seqs = int(workers["max_num_seqs"].max())
    return max(int(workers["max_batched_tokens"].max()), seqs), seqs


def layout(tables: tuple[TablePs, ...], workers: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The kernel's arrays ``work``, ``base``, ``slope`` and ``tab``: row k is table k - 1, row 0 stays empty."""
    tokens, seqs = room(workers) if tables else (0, 0)
    rows = 1 + len(tables)
    arrays: dict[str, NDArray[Any]] = {
        "work": np.zeros((rows, tokens + 1), np.int64),
        "base": np.zeros((rows, seqs + 1), np.int64),
        "slope": np.zeros((rows, seqs + 1), np.int64),
        "tab": np.zeros(rows, TABLE_DTYPE),
    }
    for k, table in enumerate(tables, 1):
        made = dense(table, tokens, seqs)
        arrays["work"][k], arrays["base"][k], arrays["slope"][k] = made.work, made.base, made.slope
        arrays["tab"][k] = (table.a0_ps, table.c_attn_ps)
    return arrays


def table_step_ps(
    work_ps: int, base_ps: int, slope_ps: int, a0_ps: int, c_attn_ps: float, new_tokens: int, attn2: int, kv_tokens: int
) -> int:
    """Duration of one step from the entries of its tables; ``attn2`` = sum(chunk * (2*ctx + chunk)).

    Whole but for the attention of prefill tokens, which is rounded once.
    """
    t = work_ps + base_ps + slope_ps * kv_tokens
    if new_tokens > 0:
        t += a0_ps + int(round(c_attn_ps * (0.5 * attn2)))
    return t
