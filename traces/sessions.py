"""Sessions: the rules that all readers follow, in one place; and sessions inferred from prefix chains.

*Who belongs together.* Session ids are believed where a log has them. Otherwise sessions are inferred from prefix
chains (below), and the provenance gives method, parameters and the share of requests linked. Without either there
are none.

*Think time* is the gap from the end of a turn to the start of the next. A start-to-start gap holds the service time
too, and replaying it as think time counts service twice (inference-sim/inference-sim#1478). Where a log has no end
stamps, an assumed service time stands for them; gaps that come out negative become 0. Both are said and counted.

*What of a turn is in the next one's prompt* (compaction, dropped thinking): :mod:`traces.chains`.

*Sub-agents* are sessions of their own: their context is theirs, and they run beside their parent. Where the log has
their start they begin there, else as their reader says.

*Requests without output* (failed, cancelled, or not counted) are an error until ``zero_output`` says what they are.
``drop`` is refused where turns have recorded think times: it would tear their session.

Method (``link_by_prefix``). A later turn of a conversation repeats the whole earlier prompt and the answer, then
adds to them. So request r continues request p if

* r's full prompt blocks begin with *all* full prompt blocks of p, at least ``min_blocks`` of them (a block or
  two are the system prompt, which everyone shares);
* r's prompt is at least p's prompt + p's output - ``tolerance_tokens`` long (the answer is in it; two questions
  about one shared document fail this) and longer than p's prompt;
* r arrives after p, by its stamp as recorded (where ends are recorded: after p has ended), and at most
  ``max_gap_s`` later;
* p has no continuation yet. Of several candidates the one with the longest prompt in blocks wins, then the
  latest; where more than 64 wait at one block, the latest 64 are looked at (time stays linear). What finds none
  starts a session: a second branch of a conversation is one of its own.

Conversations shorter than ``min_blocks`` blocks cannot be told apart and stay single: the share of linked
requests is a lower bound. Compacted and thinking-stripped turns are not linked either: their prompt repeats less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from traces.chains import Growth, growing_chains

__all__ = ["Growth", "Links", "growing_chains", "link_by_prefix", "think_times"]

_LOOK_BACK = 64


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
    end_s: Sequence[float] | None = None,
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
        end_s: (n,) ends as recorded; None where the log has none.
    """
    n = len(chains)
    over = None if end_s is None else [float(e) for e in end_s]
    stamp, prompt = [float(s) for s in stamp_s], [int(p) for p in prompt_tokens]
    # A candidate's prompt and answer fit into a prompt of at least this length.
    need = [max(p + int(o) - tolerance_tokens, p + 1) for p, o in zip(prompt, output_tokens, strict=True)]
    parent, child = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    ends: dict[int, list[int]] = {}  # last full prompt block -> requests that end there, not continued yet
    for r, chain in enumerate(chains):
        if len(chain) < min_blocks:
            continue
        p = -1
        for waiting in filter(None, map(ends.get, islice(reversed(chain), len(chain) - min_blocks + 1))):
            if stamp[waiting[-1]] < stamp[r] - max_gap_s:  # all of them are too old, for good
                waiting.clear()
                continue
            for at in range(len(waiting) - 1, max(len(waiting) - 1 - _LOOK_BACK, -1), -1):
                q = waiting[at]
                known = over is None or over[q] <= stamp[r]  # nobody answers what is not there yet
                if known and need[q] <= prompt[r] and stamp[r] - max_gap_s <= stamp[q] < stamp[r]:
                    p = waiting.pop(at)
                    break
            if p >= 0:
                break
        if p >= 0:
            parent[r], child[p] = p, r
        ends.setdefault(chain[-1], []).append(r)
    session, turn = np.arange(n), np.ones(n, np.int64)
    for r in np.flatnonzero(parent >= 0).tolist():  # parents come first
        session[r], turn[r] = session[parent[r]], turn[parent[r]] + 1
    return Links(parent, child, session, turn)


def think_times(
    arrival_s: NDArray[np.float64],
    output_tokens: Sequence[int],
    parent: NDArray[np.int64],
    assumed_ttft_s: float,
    assumed_tpot_s: float,
    *,
    end_s: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """(n,) think times, NaN on first turns, and the share that came out below 0 (and is 0).

    A think time is the gap from the *end* of a turn to the next arrival.

    Args:
        arrival_s: (n,) arrivals.
        output_tokens: (n,) output lengths.
        parent: (n,) row of the previous turn, -1 for none.
        assumed_ttft_s: where no end is known it is assumed to lie ``assumed_ttft_s + assumed_tpot_s * output`` after
            the arrival.
        assumed_tpot_s: likewise.
        end_s: (n,) ends as logged, NaN where unknown; None: no end is known.
    """
    end = arrival_s + assumed_ttft_s + assumed_tpot_s * np.asarray(output_tokens, np.float64)
    if end_s is not None:
        end = np.where(np.isnan(end_s), end, end_s)
    linked = np.flatnonzero(parent >= 0)
    think = np.full(arrival_s.size, np.nan)
    gap = arrival_s[linked] - end[parent[linked]]
    think[linked] = np.maximum(gap, 0.0)
    return think, float((gap < 0).mean()) if linked.size else 0.0
