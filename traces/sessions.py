"""Sessions inferred from prefix chains, for logs without session ids; prefix chains assumed for logs with them.

Method (``link_by_prefix``). A later turn of a conversation repeats the whole earlier prompt and the answer, then
adds to them. So request r continues request p if

* r's full prompt blocks begin with *all* full prompt blocks of p, at least ``min_blocks`` of them (a block or
  two are the system prompt, which everyone shares);
* r's prompt is at least p's prompt + p's output - ``tolerance_tokens`` long (the answer is in it; two questions
  about one shared document fail this) and longer than p's prompt;
* r arrives after p, by its stamp as recorded, and at most ``max_gap_s`` later;
* p has no continuation yet. Of several candidates the one with the longest prompt in blocks wins, then the
  latest. What finds none starts a session: a second branch of a conversation is one of its own.

Conversations shorter than ``min_blocks`` blocks cannot be told apart and stay single: the share of linked
requests is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Links:
    """Inferred sessions.

    Attributes:
        parent: (n,) row of the previous turn, -1 for none.
        child: (n,) row of the next turn, -1 for none.
        session: (n,) session number; every request has one.
        turn: (n,) turn, from 1.
    """

    parent: NDArray[np.int64]
    child: NDArray[np.int64]
    session: NDArray[np.int64]
    turn: NDArray[np.int64]

    @property
    def linked_share(self) -> float:
        """Share of requests that are a turn 2 or later."""
        return float((self.parent >= 0).mean())

    @property
    def in_sessions_share(self) -> float:
        """Share of requests in a session of two or more turns."""
        return float(((self.parent >= 0) | (self.child >= 0)).mean())


def link_by_prefix(
    chains: Sequence[Sequence[int]],
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    stamp_s: Sequence[float],
    *,
    min_blocks: int,
    tolerance_tokens: int,
    max_gap_s: float,
) -> Links:
    """Link requests into sessions; see the module for the method.

    Args:
        chains: full prompt blocks of each request as prefix ids, in order of arrival.
        prompt_tokens: (n,) prompt lengths.
        output_tokens: (n,) output lengths.
        stamp_s: (n,) stamps as recorded, ascending.
        min_blocks: fewest shared blocks.
        tolerance_tokens: how much of the answer may be missing from the next prompt.
        max_gap_s: longest time from one turn's arrival to the next one's.
    """
    n = len(chains)
    parent, child = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    ends: dict[int, list[int]] = {}  # last full prompt block -> requests that end there, not continued yet
    for r, chain in enumerate(chains):
        p = -1
        for depth in range(len(chain), min_blocks - 1, -1):
            waiting = ends.get(chain[depth - 1])
            if not waiting:
                continue
            for at in range(len(waiting) - 1, -1, -1):
                q = waiting[at]
                answered = prompt_tokens[q] + output_tokens[q] - tolerance_tokens
                if (
                    stamp_s[q] < stamp_s[r] <= stamp_s[q] + max_gap_s
                    and prompt_tokens[r] > prompt_tokens[q]
                    and prompt_tokens[r] >= answered
                ):
                    p = waiting.pop(at)
                    break
            if p >= 0:
                break
        if p >= 0:
            parent[r], child[p] = p, r
        if len(chain) >= min_blocks:
            ends.setdefault(chain[-1], []).append(r)
    session, turn = np.empty(n, np.int64), np.empty(n, np.int64)
    for r in range(n):  # parents come first
        p = parent[r]
        session[r], turn[r] = (session[p], turn[p] + 1) if p >= 0 else (r, 1)
    return Links(parent, child, session, turn)


def chains_with_output(
    chains: Sequence[Sequence[int]],
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    child: NDArray[np.int64],
    block_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR chains of prompt and output: the blocks that an output completes take the next turn's ids.

    They are known as far as the next turn's prompt covers them, and only if it repeats the whole prompt.
    """
    whole: list[Sequence[int]] = []
    for r, chain in enumerate(chains):
        c = int(child[r])
        full = (prompt_tokens[r] + output_tokens[r]) // block_tokens
        if c >= 0 and full > len(chain) and chains[c][: len(chain)] == chain:
            chain = chains[c][:full]
        whole.append(chain)
    offsets = np.zeros(len(whole) + 1, np.int64)
    np.cumsum([len(chain) for chain in whole], out=offsets[1:])
    ids = np.fromiter((i for chain in whole for i in chain), np.int64, int(offsets[-1]))
    return offsets, ids


@dataclass(frozen=True, slots=True)
class Growth:
    """Prefix chains of sessions whose context is taken to grow.

    Attributes:
        offsets: (n+1,) CSR offsets into ``ids``.
        ids: prefix-block ids.
        grown: later turns that begin with the whole turn before.
        cut: later turns too short for that.
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    grown: int
    cut: int


def growing_chains(
    session: NDArray[np.int64],
    turn: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    block_tokens: int,
) -> Growth:
    """Chains where each turn's prompt begins with the whole turn before it (prompt and output), if long enough.

    A prompt shorter than that (the context was compacted, or is another one) shares nothing with what was before.
    Sessions share nothing with each other.

    Args:
        session: (n,) session numbers, negative for none.
        turn: (n,) turns, from 1.
        prompt_tokens: (n,) prompt lengths.
        output_tokens: (n,) output lengths.
        block_tokens: tokens of a prefix block.
    """
    order = np.lexsort((turn, session))
    of, prompt = session[order], prompt_tokens[order]
    whole = prompt + output_tokens[order]
    later, grows = np.zeros(of.size, np.bool_), np.zeros(of.size, np.bool_)
    later[1:] = (of[1:] == of[:-1]) & (of[1:] >= 0)
    grows[1:] = later[1:] & (prompt[1:] >= whole[:-1])
    # One text runs through the turns that grow. Of its last turn only the prompt is known to be of use.
    ends = np.r_[~grows[1:], True]
    length = np.where(ends, prompt, whole) // block_tokens
    text = np.cumsum(~grows) - 1
    base = np.cumsum(length[ends]) - length[ends]
    lengths, first = np.empty(of.size, np.int64), np.empty(of.size, np.int64)
    lengths[order], first[order] = length, base[text]
    offsets = np.zeros(of.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ids = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)
    return Growth(offsets, ids, int(grows.sum()), int((later & ~grows).sum()))


def think_times(
    arrival_s: NDArray[np.float64],
    output_tokens: Sequence[int],
    parent: NDArray[np.int64],
    assumed_ttft_s: float,
    assumed_tpot_s: float,
) -> tuple[NDArray[np.float64], float]:
    """(n,) think times where a log has no end stamps, NaN on first turns, and the share that came out below 0.

    A think time is the gap from the *end* of a turn to the next arrival. The end is assumed to lie
    ``assumed_ttft_s + assumed_tpot_s * output`` after the arrival; what comes out negative becomes 0.
    """
    linked = np.flatnonzero(parent >= 0)
    think = np.full(arrival_s.size, np.nan)
    before = parent[linked]
    service = assumed_ttft_s + assumed_tpot_s * np.asarray(output_tokens, np.float64)[before]
    gap = arrival_s[linked] - arrival_s[before] - service
    think[linked] = np.maximum(gap, 0.0)
    return think, float((gap < 0).mean()) if linked.size else 0.0
