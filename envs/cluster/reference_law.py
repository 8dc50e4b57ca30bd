"""Step laws of the reference simulator, written from ``docs/engine.md`` (Time): one step at a time, from the knots."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from types import SimpleNamespace
from typing import Any, Protocol

from envs.cluster.problem import Problem, TablePs, step_ps


@dataclass(frozen=True, slots=True)
class Step:
    """What a step computes: prefill tokens, their attention (twice), decodes, and the tokens these attend to."""

    new: int
    attn2: int
    decodes: int
    kv: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """The range that a law was fitted in; a limit of 0 is not known."""

    tokens: int
    context: int
    seqs: int
    kv: int

    def lacks(self, step: Step) -> bool:
        """Does the step lie outside?"""
        context = Fraction(step.attn2, 2 * step.new) if step.new else Fraction(0)
        sizes: list[tuple[Fraction | int, int]] = [
            (step.new + step.decodes, self.tokens),
            (context, self.context),
            (step.decodes, self.seqs),
            (step.kv, self.kv),
        ]
        return any(limit > 0 and size > limit for size, limit in sizes)


class Law(Protocol):
    """How long steps take, in picoseconds."""

    fitted: Fitted

    def duration(self, step: Step) -> int:
        """A step with something to compute."""
        ...

    def idle(self) -> int:
        """A step of the group in which this rank computes nothing."""
        ...


@dataclass(slots=True)
class Plane:
    """The six coefficients."""

    law: Any
    fitted: Fitted

    def duration(self, step: Step) -> int:
        """See Law."""
        return step_ps(self.law, step.new, step.attn2, step.decodes, step.kv)

    def idle(self) -> int:
        """See Law."""
        return int(self.law.floor_ps)


@dataclass(slots=True)
class Table:
    """Lines through knots."""

    table: TablePs
    fitted: Fitted

    def duration(self, step: Step) -> int:
        """See Law."""
        t, n = self.table, step.decodes
        total = floor(height(t.tokens, t.w_ps, step.new + n)) + t.h0_ps
        if n > 0:
            a_token = Fraction(floor(height(t.seqs, t.kv_ps, n)), n)
            total += floor(height(t.seqs, t.d0_ps, n)) + t.h1_ps * n + floor(a_token + Fraction(1, 2)) * step.kv
        if step.new > 0:
            total += t.a0_ps + round(t.c_attn_ps * (step.attn2 / 2))
        return total

    def idle(self) -> int:
        """See Law."""
        return self.table.w_ps[0] + self.table.h0_ps


def height(at: tuple[int, ...], values: tuple[int, ...], x: int) -> Fraction:
    """The line through the knots at ``x`` of at least the first; it goes on by its last slope, unless that falls."""
    for left, right, low, high in zip(at, at[1:], values, values[1:], strict=False):
        if x <= right:
            return low + Fraction(high - low, right - left) * (x - left)
    return values[-1] + max(Fraction(0), Fraction(high - low, right - left)) * (x - at[-1])


def law_of(problem: Problem, row: Any) -> Law:
    """The law of a worker, a row of ``problem.workers``."""
    fitted = Fitted(*(int(row[f"fit_{name}"]) for name in ("tokens", "context", "seqs", "kv")))
    if row["table"] > 0:
        return Table(problem.tables[int(row["table"]) - 1], fitted)
    return Plane(SimpleNamespace(**{name: row["law"][name].item() for name in row["law"].dtype.names}), fitted)
