"""Prefix chains of sessions whose context is taken to grow.

What reappears in the next turn's prompt, by rule:

* *A prompt at least as long as the prompt before it begins with it.* Of 35,942 such turns of the recorded coding-agent
  sessions, whose block hashes tell, 94 % repeat it to the last block, and 99.2 % of its blocks are kept on average;
  the share is the same whether or not the turn grew by its predecessor's output.
* *A prompt that shrank shares nothing with what was before* (compaction, or another context): of 319 such turns none
  repeats the whole prompt, and the median keeps a tenth of its blocks, the tools and system prompt.
* *An output reappears whole, or is of no use.* Where the prompt grew by less than the output, part of it was dropped.
  What is dropped comes first (reasoning precedes the answer), so nothing behind it stands at its old place: none of
  the output's blocks can be found again, while the prompt's can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Growth:
    """Prefix chains of sessions whose context is taken to grow.

    Attributes:
        offsets: (n+1,) CSR offsets into ``ids``.
        ids: prefix-block ids.
        block_tokens: tokens of a prefix block.
        grown: later turns that begin with the whole turn before, prompt and output.
        prompt_only: later turns that begin with the prompt before, but not with its output.
        cut: later turns shorter than the prompt before, which share nothing.
        short: later turns that grew by less than the output before: some of it was dropped.
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    block_tokens: int
    grown: int
    prompt_only: int
    cut: int
    short: int

    @property
    def note(self) -> str:
        """One line for the provenance."""
        return (
            f"prefixes assumed, context=grows: {self.grown} later turns begin with the whole turn before (prompt and "
            f"output), {self.prompt_only} with its prompt only, {self.cut} are shorter than that prompt and share "
            f"nothing; {self.short} grew by less than the output before, so that some of it (thinking) was dropped; "
            f"blocks of {self.block_tokens} tokens"
        )


def growing_chains(
    session: NDArray[np.int64],
    turn: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    block_tokens: int,
    *,
    reappears: float | NDArray[np.int64] = 1.0,
) -> Growth:
    """Chains where a turn's prompt begins with the prompt before it, and with its output if that reappears.

    A prompt shorter than the one before (the context was compacted, or is another one) shares nothing with what was
    before. Sessions share nothing with each other: a common system prompt is not seen.

    Args:
        session: (n,) session numbers, negative for none.
        turn: (n,) turns, from 1.
        prompt_tokens: (n,) prompt lengths.
        output_tokens: (n,) output lengths.
        block_tokens: tokens of a prefix block.
        reappears: how much of each output is in the next prompt: a share from 0 to 1, or (n,) tokens (the output
            less its reasoning). Only an output that reappears whole leaves blocks to be found. A turn that grew by
            less than its predecessor's output has dropped some of it, whatever this says.
    """
    kept = np.asarray(reappears * output_tokens if isinstance(reappears, float | int) else reappears)
    order = np.lexsort((turn, session))
    of, prompt, output = session[order], prompt_tokens[order], output_tokens[order]
    later, fits, repeats = (np.zeros(of.size, np.bool_) for _ in range(3))
    later[1:] = (of[1:] == of[:-1]) & (of[1:] >= 0)
    repeats[1:] = later[1:] & (prompt[1:] >= prompt[:-1])
    fits[1:] = repeats[1:] & (prompt[1:] >= (prompt + output)[:-1])
    grown = fits.copy()
    grown[1:] &= (kept[order] >= output)[:-1]
    # One text runs through the turns that repeat the prompt before. A turn's chain takes its output's blocks only
    # where the next turn begins with them; of the last turn nothing but the prompt is known to be of use.
    ends = np.r_[~repeats[1:], True]
    length = np.where(np.r_[grown[1:], False], prompt + output, prompt) // block_tokens
    text = np.cumsum(~repeats) - 1
    base = np.cumsum(length[ends]) - length[ends]
    lengths, first = np.empty(of.size, np.int64), np.empty(of.size, np.int64)
    lengths[order], first[order] = length, base[text]
    offsets = np.zeros(of.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ids = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)
    return Growth(
        offsets,
        ids,
        block_tokens,
        grown=int(grown.sum()),
        prompt_only=int((repeats & ~grown).sum()),
        cut=int((later & ~repeats).sum()),
        short=int((repeats & ~fits).sum()),
    )
