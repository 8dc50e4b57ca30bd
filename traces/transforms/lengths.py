"""Lengths with an upper bound, and what that does to later turns and to prefix chains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traces.errors import TraceError, nearest
from traces.transforms.rows import number, rebuild, shorten_chains, subset

if TYPE_CHECKING:
    from traces.trace import Trace

OVER = ("end", "cut")


def cap(
    trace: Trace,
    *,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    context_tokens: int | None = None,
    over: str = "end",
) -> Trace:
    """No prompt, output or context (prompt + output) longer than that.

    * An output too long ends at the bound, and so do the client's limit and the length hint, where there are any.
      Later turns keep their prompts: the text that followed in the log is theirs. Blocks that the output no longer
      completes leave the request's own chain; the next turn brings them, as new text.
    * A prompt too long, or one that leaves no room for a token of output: with ``over=end`` the session ends before
      that turn, as an engine that refuses it would have it (a request without a session is left out). With
      ``over=cut`` the prompt keeps its first tokens and the full blocks in them. What its output would complete is
      then another text: those blocks leave the chain. Later turns cut at one place share all of their prompt.

    Args:
        trace: the trace.
        prompt_tokens: longest prompt.
        output_tokens: longest output.
        context_tokens: longest prompt with its output, 2 or more; the output is what becomes shorter.
        over: ``end`` or ``cut``.

    Raises:
        TraceError: nothing to cap, no such number, an unknown ``over``, or no request left.
    """
    given = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "context_tokens": context_tokens}
    bounds = {k: int(number(trace, k, v, low=1, whole=True)) for k, v in given.items() if v is not None}
    if not bounds:
        raise TraceError(file=trace.name, column="cap", expected=f"one of {', '.join(given)}")
    if over not in OVER:
        raise TraceError(file=trace.name, column="over", value=over, expected=f"end or cut{nearest(str(over), OVER)}")
    if context_tokens is not None:
        number(trace, "context_tokens", context_tokens, low=2, whole=True)
    name = f"{trace.name}~capped"
    said = ", ".join(f"{k} {v}" for k, v in bounds.items())
    most = min(bounds.get("prompt_tokens", 2**62), bounds.get("context_tokens", 2**62) - 1)
    note = ""
    if over == "end":
        fits = _before_the_first(trace, trace.frame["prompt_tokens"].to_numpy() > most)
        if not fits.all():
            note = f"; {int((~fits).sum())} turns left out, sessions end there"
            trace = subset(
                trace,
                fits,
                start_s=0.0,
                duration_s=trace.duration_s,
                name=name,
                note=f"capped ({said}): prompts of more than {most} tokens end their session",
            )
    prompt = trace.frame["prompt_tokens"].to_numpy()
    output = trace.frame["output_tokens"].to_numpy()
    new_prompt = np.minimum(prompt, most)
    room = np.maximum(bounds.get("context_tokens", 2**62) - new_prompt, 1)
    new_output = np.minimum(np.minimum(output, bounds.get("output_tokens", 2**62)), room)
    cut = new_prompt < prompt
    blocks = max(trace.prefix_block_tokens, 1)
    lengths = np.diff(trace.chain_offsets)
    lengths = np.minimum(lengths, np.where(cut, new_prompt, new_prompt + new_output) // blocks)
    offsets, ids = shorten_chains(trace.chain_offsets, trace.chain_ids, lengths)
    frame = trace.frame.with_columns(pl.Series("prompt_tokens", new_prompt), pl.Series("output_tokens", new_output))
    for column in ("max_output_tokens", "output_hint_tokens"):
        if column in frame.columns and "output_tokens" in bounds:
            frame = frame.with_columns(pl.col(column).clip(upper_bound=bounds["output_tokens"]))
    shorter = int((new_output < output).sum())
    note = f"capped ({said}, over={over}): {shorter} outputs shorter, {int(cut.sum())} prompts shorter{note}"
    return rebuild(trace, frame, name, note, offsets=offsets, ids=ids)


def _before_the_first(trace: Trace, bad: np.ndarray) -> np.ndarray:
    """(n,) requests before the first bad one of their session; a bad one without a session is out."""
    session, turn = trace.frame["session"].to_numpy(), trace.frame["turn"].to_numpy()
    first = np.full(trace.n_sessions + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, session[bad & (session >= 0)], turn[bad & (session >= 0)])
    return np.where(session >= 0, turn < first[session], ~bad)
