"""First turns: joint prompt and output lengths, by class, tenant and model where a trace has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import COLUMNS, MAX_TOKENS
from traces.generators.fit_sessions import cells
from traces.generators.marginal import Marginal
from traces.generators.sessions import copula, share
from traces.laws import Copula
from traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LABELS = ("class", "priority", "tenant", "model", "lora")
"""Columns whose combinations are drawn as they are, one for a whole session."""

_MAX_MIXES = 20
_OWN_LENGTHS = 50  # first turns of a combination, from which on it has lengths of its own


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output of a first turn: a table each, and their joint ranks."""

    prompt: Marginal
    output: Marginal
    joint: Copula

    @classmethod
    def fit(cls, prompt: Ints, output: Ints) -> Lengths:
        """Fit (n,) pairs."""
        return cls(Marginal.fit(prompt), Marginal.fit(output), Copula.fit(prompt, output, cells(prompt.size)))

    def draw(self, rank: Floats, rng: np.random.Generator) -> tuple[Ints, Ints, Floats]:
        """Prompts at (n,) ranks, outputs that go with them, and the outputs' ranks."""
        other = self.joint.given(rank, rng)
        prompt, output = (law.at(u).clip(1, MAX_TOKENS) for law, u in ((self.prompt, rank), (self.output, other)))
        return prompt.astype(np.int64), output.astype(np.int64), other

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML."""
        joint = [list(row) for row in self.joint.counts]
        return {"prompt_tokens": self.prompt.to_dict(), "output_tokens": self.output.to_dict(), "joint_ranks": joint}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Lengths:
        """The law of :meth:`to_dict`; KeyError, TypeError or ValueError if it is none."""
        prompt, output = (Marginal.from_dict(raw[key]) for key in ("prompt_tokens", "output_tokens"))
        return cls(prompt, output, copula(raw["joint_ranks"]))


@dataclass(frozen=True, slots=True)
class Mix:
    """A combination of labels: its share of sessions and, if it is common enough, its own lengths."""

    labels: Mapping[str, Any]
    share: float
    lengths: Lengths | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML."""
        own = self.lengths.to_dict() if self.lengths else None
        return {"labels": dict(self.labels), "share": self.share, "lengths": own}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Mix:
        """The mix of :meth:`to_dict`; KeyError, TypeError or ValueError if it is none."""
        unknown = set(raw["labels"]) - set(LABELS)
        if unknown:
            raise ValueError(f"labels among {', '.join(LABELS)}, not {', '.join(sorted(unknown))}")
        own = Lengths.from_dict(raw["lengths"]) if raw["lengths"] else None
        return cls(dict(raw["labels"]), share(raw["share"]), own)


def fit_mixes(trace: Trace) -> tuple[Lengths, tuple[Mix, ...], float]:
    """Lengths of all first turns, the label combinations, and the share of sessions in rare ones that are left out."""
    first = trace.frame.filter(pl.col("turn") == 1)
    pooled = Lengths.fit(first["prompt_tokens"].to_numpy(), first["output_tokens"].to_numpy())
    labels = [name for name in LABELS if name in first.columns and first[name].null_count() < first.height]
    if not labels:
        return pooled, (), 0.0
    groups = first.group_by(labels, maintain_order=True).agg("prompt_tokens", "output_tokens", n=pl.len())
    groups = groups.sort("n", descending=True, maintain_order=True)
    kept = groups.head(_MAX_MIXES)
    total = int(kept["n"].sum())
    mixes = []
    for row in kept.iter_rows(named=True):
        alone = kept.height > 1 and row["n"] >= _OWN_LENGTHS
        own = Lengths.fit(*(np.array(row[c], np.int64) for c in ("prompt_tokens", "output_tokens"))) if alone else None
        mixes.append(Mix({name: row[name] for name in labels}, round(row["n"] / total, 8), own))
    return pooled, tuple(mixes), round(1 - total / first.height, 6)


def draw_mixes(mixes: tuple[Mix, ...], n: int, rng: np.random.Generator) -> Ints:
    """(n,) indices into ``mixes``; all -1 if there are none."""
    if not mixes:
        return np.full(n, -1, np.int64)
    mass = np.cumsum([mix.share for mix in mixes])
    found = np.searchsorted(mass, rng.random(n) * mass[-1], side="right")
    return np.asarray(np.minimum(found, len(mixes) - 1), np.int64)


def label_columns(mixes: tuple[Mix, ...], index: Ints) -> dict[str, pl.Series]:
    """Label columns of requests with these mixes."""
    if not mixes:
        return {}
    types = {column.name: column.dtype for column in COLUMNS}
    return {
        name: pl.Series(name, [mix.labels.get(name) for mix in mixes], dtype=types[name])[index]
        for name in mixes[0].labels
    }
