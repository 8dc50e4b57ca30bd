"""The session law of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.generators.dependence import Dependence, normal_scores
from traces.generators.marginal import Marginal
from traces.generators.sessions import Compaction, SessionLaw, Stage
from traces.laws import Copula
from traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLERANCE_TOKENS = 128
"""A prompt that falls short of the whole turn before by no more than this still holds its answer."""

_STAGES = (2, 3, 5, 9, 17, 65)
_STAGE_TURNS = 100  # fewer turns than this join the stage before
_HAZARD_BINS = 6
_FAR = 1.15  # beyond the 90 % quantile of compacted contexts by this factor: a larger window
THINK_DIGITS, RATIO_DIGITS = 2, 4


@dataclass(frozen=True, slots=True)
class Later:
    """Later turns of a trace, in order of (session, turn).

    Attributes:
        frame: one row each: session, turn, prompt, output, before (prompt of the turn before), said (its output),
            think, new (prompt - before - said), shared (tokens that its full prompt blocks share with the prompt
            before; null without chains), follows (the row before is the turn before it, itself a later turn).
    """

    frame: pl.DataFrame


def later_turns(trace: Trace) -> Later:
    """Later turns, each beside the turn before it."""
    rows = trace.frame.with_row_index("row").sort("session", "turn").with_columns(
        before=pl.col("prompt_tokens").shift(1),
        said=pl.col("output_tokens").shift(1),
        row_before=pl.col("row").shift(1),
    )  # fmt: skip
    rows = rows.filter(pl.col("turn") > 1).with_columns(follows=pl.col("turn") > 2)
    rows = rows.select(
        "session", "turn", "row", "row_before", "before", "said", "follows",
        prompt=pl.col("prompt_tokens"), output=pl.col("output_tokens"), think=pl.col("think_s"),
        new=pl.col("prompt_tokens") - pl.col("before") - pl.col("said"),
    )  # fmt: skip
    shared = _shared(trace, rows["row"].to_numpy(), rows["row_before"].to_numpy())
    return Later(rows.with_columns(shared=shared))


def _shared(trace: Trace, row: Ints, row_before: Ints) -> pl.Series:
    """Tokens that prompts share with the prompts before them, in full blocks."""
    block = trace.prefix_block_tokens
    if not block or not row.size:
        return pl.Series([None] * row.size, dtype=pl.Int64)
    prompt = trace.frame["prompt_tokens"].to_numpy() // block
    offsets, ids = trace.chain_offsets, trace.chain_ids
    length = np.diff(offsets)
    common = np.minimum.reduce([prompt[row], prompt[row_before], length[row], length[row_before]])
    # An id names its whole prefix, so the last equal one is found by halving.
    low, high = np.zeros(row.size, np.int64), common.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        at = np.maximum(middle - 1, 0)
        open_ = low < high
        equal = np.zeros(row.size, np.bool_)
        equal[open_] = ids[offsets[row[open_]] + at[open_]] == ids[offsets[row_before[open_]] + at[open_]]
        low = np.where(open_ & equal, middle, low)
        high = np.where(open_ & ~equal, middle - 1, high)
    return pl.Series(low * block, dtype=pl.Int64)


def fit_sessions(trace: Trace) -> SessionLaw | None:
    """The law of a trace's later turns; None without any.

    A later turn without a think time (open replay allows it) counts for everything but think times.
    """
    frame = later_turns(trace).frame
    if not frame.height:
        return None
    block = max(trace.prefix_block_tokens, 1)
    shrinks = frame["prompt"] < frame["before"]
    grows = frame.filter(~shrinks)
    dropped = grows["new"] < -TOLERANCE_TOKENS
    kept = grows.filter(~dropped)
    # The last block of a prompt is seldom full: what is shared counts to its last full block.
    edited = grows.filter(pl.col("shared") < pl.col("before") // block * block)
    first = trace.frame.filter((pl.col("session") >= 0) & (pl.col("turn") == 1)).sort("session")
    whole = trace.frame.filter(pl.col("session") >= 0).group_by("session").agg(pl.len(), pl.col("prompt_tokens").max())
    whole = whole.sort("session")
    alone = trace.frame.filter(pl.col("session") < 0)["prompt_tokens"].to_numpy()
    prompts, most = (np.r_[part["prompt_tokens"].to_numpy(), alone] for part in (first, whole))
    turns = np.r_[whole["len"].to_numpy().astype(np.int64), np.ones(alone.size, np.int64)]
    score = normal_scores(turns.astype(np.float64))[frame["session"].to_numpy()]
    starts = _starts(frame["turn"].to_numpy())
    return SessionLaw(
        turns=Marginal.fit(turns),
        prompt_and_turns=Copula.fit(prompts, turns, cells(turns.size)),
        stages=_stages(frame, kept if kept.height else frame, starts, score),
        dependence=_dependence(frame, starts, score),
        dropped_share=_round(dropped.mean()),
        dropped_growth=_law((grows.filter(dropped)["prompt"] - grows.filter(dropped)["before"]).to_numpy()),
        edited_share=_round(edited.height / max(grows.height, 1)),
        edited_kept=_law((edited["shared"] / edited["before"]).to_numpy(), RATIO_DIGITS),
        compaction=_compaction(frame, shrinks, prompts, most),
        max_context_tokens=int((trace.frame["prompt_tokens"] + trace.frame["output_tokens"]).to_numpy().max()),
    )


def cells(n: int) -> int:
    """Side of a copula grid that n pairs fill, with some in every row."""
    return int(np.clip(int(np.sqrt(n) / 4), 1, 12))


def _starts(turn: Ints) -> list[int]:
    """First turns of the stages: turn numbers apart as long as each has enough turns."""
    starts = [2]
    for start in _STAGES[1:]:
        if (turn >= start).sum() >= _STAGE_TURNS and ((turn >= starts[-1]) & (turn < start)).sum() >= _STAGE_TURNS:
            starts.append(start)
    return starts


def _stages(frame: pl.DataFrame, kept: pl.DataFrame, starts: list[int], score: Floats) -> tuple[Stage, ...]:
    found = []
    turn = frame["turn"].to_numpy()
    for low, high in zip(starts, [*starts[1:], np.inf], strict=True):
        part, growth = (f.filter((pl.col("turn") >= low) & (pl.col("turn") < high)) for f in (frame, kept))
        think = part["think"].drop_nulls()
        found.append(
            Stage(
                low,
                round(float(score[(turn >= low) & (turn < high)].mean()), 4),
                Marginal.fit((growth if growth.height else kept)["new"].to_numpy()),
                Marginal.fit(part["output"].to_numpy()),
                Marginal.fit(think.to_numpy() if think.len() else np.zeros(1), THINK_DIGITS),
            )
        )
    return tuple(found)


def _dependence(frame: pl.DataFrame, starts: list[int], score: Floats) -> Dependence:
    """Of scores within each stage, as each stage has tables of its own."""
    stage = np.searchsorted(starts, frame["turn"].to_numpy(), side="right") - 1
    scores, turns = np.empty((frame.height, 3)), np.empty(frame.height)
    columns = [frame["new"], frame["output"], frame["think"].fill_null(0.0)]
    for number in range(len(starts)):
        at = np.flatnonzero(stage == number)
        turns[at] = score[at] - score[at].mean()
        for k, column in enumerate(columns):
            scores[at, k] = normal_scores(column.to_numpy()[at].astype(np.float64))
    return Dependence.fit(scores, frame["session"].to_numpy(), frame["follows"].to_numpy(), turns)


def _compaction(frame: pl.DataFrame, shrinks: pl.Series, prompts: Ints, most: Ints) -> Compaction | None:
    """Shrinking prompts.

    Args:
        frame: later turns.
        shrinks: which of them.
        prompts: (s,) first prompts of sessions.
        most: (s,) their longest prompts; sessions are numbered as in ``frame``, those without a number come last.
    """
    some = frame.filter(shrinks)
    if not some.height:
        return None
    before, shrunk = frame["before"].to_numpy(), shrinks.to_numpy()
    compacted = some["before"].to_numpy()
    # Sessions of a larger window pass untouched where others are compacted: they would hide how likely that is.
    large = most > _FAR * np.quantile(compacted, 0.9)
    steps = int(np.clip(prompts.size // 20, 1, 10))
    step = np.argsort(np.argsort(prompts, kind="stable"), kind="stable") * steps // prompts.size
    by_step = np.bincount(step, weights=large, minlength=steps) / np.bincount(step, minlength=steps)
    # Edges at quantiles of the contexts that were compacted: every bin has some.
    bins = int(np.clip(some.height // 10, 1, _HAZARD_BINS))
    edges = np.unique(np.rint(np.quantile(compacted, np.arange(1, bins) / bins)))
    kind, at = large[frame["session"].to_numpy()].astype(np.int64), np.searchsorted(edges, before)
    count, hit = (np.zeros((2, edges.size + 1)) for _ in range(2))
    np.add.at(count, (kind, at), 1)
    np.add.at(hit, (kind, at), shrunk)
    hazard = hit / np.maximum(count, 1)
    shared = some["shared"] if some["shared"].null_count() == 0 else some["prompt"] * 0
    return Compaction(
        tuple(_round(x) for x in by_step),
        tuple(float(edge) for edge in edges),
        (tuple(_round(x) for x in hazard[0]), tuple(_round(x) for x in hazard[1])),
        Marginal.fit((some["prompt"] / some["before"]).to_numpy(), RATIO_DIGITS),
        Marginal.fit((shared / some["before"]).to_numpy(), RATIO_DIGITS),
    )


def _law(sample: Floats, digits: int = 0) -> Marginal | None:
    return Marginal.fit(sample, digits) if sample.size else None


def _round(value: object) -> float:
    return round(float(value or 0.0), 6)  # type: ignore[arg-type]
