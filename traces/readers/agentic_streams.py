"""Shared by the two readers of coding-agent sessions: think times, caps and starts of streams.

A frame here has one row a request, sorted by (stream, turn): ``stream`` (number), ``turn`` (from 0), ``t`` (s since
the stream's start), ``input``, ``output`` (tokens), ``api`` (s, null where not recorded), ``recorded_think`` (s, null).
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.source import Source

FILE_BLOCK_TOKENS = 64
ASSUMED_SERVICE = (2.0, 0.018)  # s, s an output token: medians of the recorded api_time by output length


def check_options(source: Source, zero_output: str, block: int) -> None:
    """Raise for an option that does not fit sessions in blocks.

    Args:
        source: for the error.
        zero_output: ``drop`` is refused: it would tear sessions.
        block: prefix block of the trace, tokens.
    """
    if zero_output == "drop":
        expected = "error or one: dropping a turn would tear its session"
        raise source.error(expected, column="trace.options.zero_output", value="drop")
    if block % FILE_BLOCK_TOKENS:
        expected = f"a multiple of {FILE_BLOCK_TOKENS}"
        raise source.error(expected, column="trace.options.prefix_block_tokens", value=block)


def service() -> pl.Expr:
    """Service time as recorded, or assumed from the output length."""
    base, per_token = ASSUMED_SERVICE
    return pl.col("api").fill_null(base + per_token * pl.col("output"))


def think_times(frame: pl.DataFrame) -> tuple[pl.Series, str]:
    """(n,) think times, null on first turns, and a line on what was done.

    The recorded ``think_time`` is the gap from the end of the last turn *whose end is known*. After a turn without
    ``api_time`` it therefore holds that whole turn, and whatever was thought before it: such gaps are taken from
    ``t`` and the assumed service instead.
    """
    timed = pl.col("api").is_not_null().shift(1).over("stream")
    gap = pl.col("t") - (pl.col("t") + service()).shift(1).over("stream")
    taken = pl.when(timed).then(pl.coalesce("recorded_think", gap)).otherwise(gap)
    later = pl.col("turn") > 0
    found = frame.select(
        pl.when(later).then(pl.max_horizontal(taken, 0.0)).alias("think"),
        (later & ~timed).fill_null(False).alias("assumed"),
        (later & (taken < 0)).fill_null(False).alias("negative"),
    )
    base, per_token = ASSUMED_SERVICE
    notes = ["think times as recorded"]
    if found["assumed"].any():
        notes.append(
            f"but for {int(found['assumed'].sum())} turns after one without api_time, where the recorded gap holds "
            f"that turn too: from t and an assumed service of {base:g} s + {per_token:g} s a token"
        )
    if found["negative"].any():
        notes.append(f"{int(found['negative'].sum())} gaps were below 0 and count as 0")
    return found["think"], ", ".join(notes)


def capped(
    frame: pl.DataFrame, max_context: int | None, max_think: float | None, max_turns: int | None, source: Source
) -> tuple[pl.DataFrame, list[str]]:
    """The frame, which has ``think``, within limits; a session ends before its first turn that exceeds one."""
    notes, before = [], frame.height
    if max_turns is not None:
        frame = frame.filter(pl.col("turn") < max_turns)
        notes.append(f"max_turns={max_turns}: {before - frame.height} turns left out")
    if max_context is not None:
        before = frame.height
        fits = (pl.col("input") + pl.col("output") <= max_context).cast(pl.Int8).cum_min().over("stream") == 1
        frame = frame.filter(fits)
        notes.append(f"max_context_tokens={max_context}: {before - frame.height} turns left out, sessions end there")
        if not frame.height:
            raise source.error(
                "a limit that leaves a request", column="trace.options.max_context_tokens", value=max_context
            )
    if max_think is not None:
        cut = int((frame["think"] > max_think).sum())
        frame = frame.with_columns(pl.col("think").clip(upper_bound=max_think))
        notes.append(f"max_think_s={max_think:g}: {cut} think times cut")
    return frame, notes


def drawn_starts(n: int, rate: float, seed: int) -> NDArray[np.float64]:
    """(n,) starts of streams, the first at 0: a Poisson process over the streams in random order."""
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.exponential(1 / rate, n))
    return np.asarray((start - start[0])[np.argsort(rng.permutation(n))])


def since_start(frame: pl.DataFrame) -> NDArray[np.float64]:
    """(n,) nominal time since the start of the stream: service and think of the turns before."""
    step = (service().shift(1).over("stream") + pl.col("think")).fill_null(0.0)
    return frame.select(step.cum_sum().over("stream")).to_series().to_numpy()


def trace_columns(frame: pl.DataFrame, arrival_s: NDArray[np.float64]) -> dict[str, pl.Series | NDArray[np.float64]]:
    """Columns of the trace; the frame has ``think`` and ``model`` by then."""
    return {
        "arrival_s": arrival_s,
        "session": frame["stream"],
        "turn": frame["turn"] + 1,
        "think_s": frame["think"],
        "prompt_tokens": frame["input"],
        "output_tokens": frame["output"],
        "model": frame["model"],
    }
