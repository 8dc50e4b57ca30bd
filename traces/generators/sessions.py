"""How sessions go on after their first turn: turns, think times, growth, answers that reappear, edits, compaction.

A later turn is one of three kinds.

* ``kept``: its prompt is the whole turn before, prompt and answer, and ``new`` tokens (a few may be negative: an
  answer comes back a little shorter).
* ``dropped``: the prompt grows, but by less than the answer: the answer does not reappear (thinking is left out).
* ``compacted``: the prompt shrinks. It becomes a share of the one before; so likely as contexts of that size were.

A turn that grows may be ``edited``: it repeats only the beginning of the prompt before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.generators.dependence import Dependence
from traces.generators.marginal import Marginal
from traces.laws import Copula

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stage:
    """The laws of turns from ``first_turn`` on, up to the next stage.

    ``turns_score`` is the mean normal score of the number of turns of the sessions that get there: where the effect of
    that number is nothing.
    """

    first_turn: int
    turns_score: float
    new_tokens: Marginal
    output_tokens: Marginal
    think_s: Marginal


@dataclass(frozen=True, slots=True)
class Compaction:
    """Turns whose prompt shrinks.

    Attributes:
        large: share of sessions whose contexts grow far beyond those that others compact (a larger window), by the
            rank of the first prompt, in equal steps.
        context_tokens: ascending edges of the context before, tokens.
        share: of turns that are compacted, by context, one more than edges; of other sessions, then of large ones.
        prompt_ratio: prompt after to prompt before.
        kept_ratio: share of the prompt before that the one after begins with.
    """

    large: tuple[float, ...]
    context_tokens: tuple[float, ...]
    share: tuple[tuple[float, ...], tuple[float, ...]]
    prompt_ratio: Marginal
    kept_ratio: Marginal


@dataclass(frozen=True, slots=True)
class SessionLaw:
    """Everything about later turns.

    Attributes:
        turns: turns of a session.
        prompt_and_turns: joint ranks of first prompt and turns.
        stages: by turn number.
        dependence: scores of (new tokens, output, think time) within a turn and from turn to turn.
        dropped_share: of growing turns whose answer does not reappear.
        dropped_growth: growth of their prompts, tokens.
        edited_share: of growing turns that repeat only the beginning of the prompt before.
        edited_kept: which share of it.
        compaction: shrinking prompts, or None.
        max_context_tokens: longest prompt + output; a session that would grow beyond it is compacted, or ends where
            the source has no compaction.
    """

    turns: Marginal
    prompt_and_turns: Copula
    stages: tuple[Stage, ...]
    dependence: Dependence
    dropped_share: float
    dropped_growth: Marginal | None
    edited_share: float
    edited_kept: Marginal | None
    compaction: Compaction | None
    max_context_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML."""
        c = self.compaction
        return {
            "turns": self.turns.to_dict(),
            "prompt_and_turns": [list(row) for row in self.prompt_and_turns.counts],
            "stages": [
                {
                    "first_turn": s.first_turn,
                    "turns_score": s.turns_score,
                    "new_tokens": s.new_tokens.to_dict(),
                    "output_tokens": s.output_tokens.to_dict(),
                    "think_s": s.think_s.to_dict(),
                }
                for s in self.stages
            ],
            "dependence": self.dependence.to_dict(),
            "dropped_share": self.dropped_share,
            "dropped_growth": self.dropped_growth.to_dict() if self.dropped_growth else None,
            "edited_share": self.edited_share,
            "edited_kept": self.edited_kept.to_dict() if self.edited_kept else None,
            "compaction": None
            if c is None
            else {
                "large": list(c.large),
                "context_tokens": list(c.context_tokens),
                "share": [list(row) for row in c.share],
                "prompt_ratio": c.prompt_ratio.to_dict(),
                "kept_ratio": c.kept_ratio.to_dict(),
            },
            "max_context_tokens": self.max_context_tokens,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SessionLaw:
        """The law of :meth:`to_dict`; KeyError, TypeError or ValueError if it is none."""
        c = raw["compaction"]
        stages = tuple(
            Stage(
                int(s["first_turn"]),
                float(s["turns_score"]),
                *(Marginal.from_dict(s[name]) for name in ("new_tokens", "output_tokens", "think_s")),
            )
            for s in raw["stages"]
        )
        numbers = [s.first_turn for s in stages]
        if numbers != sorted(set(numbers)) or numbers[:1] != [2] or not all(abs(s.turns_score) < 10 for s in stages):
            raise ValueError("stages from turn 2 on, in order, with scores of -10 to 10")
        return cls(
            turns=Marginal.from_dict(raw["turns"]),
            prompt_and_turns=copula(raw["prompt_and_turns"]),
            stages=stages,
            dependence=Dependence.from_dict(raw["dependence"]),
            dropped_share=share(raw["dropped_share"]),
            dropped_growth=Marginal.from_dict(raw["dropped_growth"]) if raw["dropped_growth"] else None,
            edited_share=share(raw["edited_share"]),
            edited_kept=Marginal.from_dict(raw["edited_kept"]) if raw["edited_kept"] else None,
            compaction=_compaction(c) if c is not None else None,
            max_context_tokens=int(raw["max_context_tokens"]),
        )


def _compaction(raw: Mapping[str, Any]) -> Compaction:
    edges = tuple(float(x) for x in raw["context_tokens"])
    small, large = (tuple(share(x) for x in row) for row in raw["share"])
    if not len(small) == len(large) == len(edges) + 1 or list(edges) != sorted(edges) or not raw["large"]:
        raise ValueError("ascending contexts, and two rows of one share more")
    ratios = (Marginal.from_dict(raw[name]) for name in ("prompt_ratio", "kept_ratio"))
    return Compaction(tuple(share(x) for x in raw["large"]), edges, (small, large), *ratios)


def copula(rows: Sequence[Sequence[int]]) -> Copula:
    """A copula from plain rows; a ValueError if they are no square grid with something in each row."""
    grid = tuple(tuple(int(x) for x in row) for row in rows)
    if not grid or any(len(row) != len(grid) or min(row) < 0 or sum(row) == 0 for row in grid):
        raise ValueError("a square grid of counts, some in every row")
    return Copula(grid)


def share(value: Any) -> float:
    """A number from 0 to 1."""
    if not 0 <= float(value) <= 1:
        raise ValueError(f"a share from 0 to 1, not {value}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Turns:
    """Drawn requests, session by session, turns in order.

    Attributes:
        session: (m,) session.
        turn: (m,) turn, from 1.
        prompt: (m,) prompt tokens.
        output: (m,) output tokens.
        think_s: (m,) NaN on first turns.
        kept: (m,) tokens that a turn shares with the prompt before it where it does not go on from the whole turn
            before; -1 where it does.
        ended: sessions cut at the longest context.
    """

    session: Ints
    turn: Ints
    prompt: Ints
    output: Ints
    think_s: Floats
    kept: Ints
    ended: int


def draw_turns(
    law: SessionLaw, prompt: Ints, output: Ints, ranks: tuple[Floats, Floats], rng: np.random.Generator
) -> Turns:
    """Later turns for (n,) first turns.

    Args:
        law: the law.
        prompt: (n,) first prompts.
        output: (n,) first outputs.
        ranks: (n,) their ranks in [0, 1], each. The first output carries over to the next; the first prompt is not
            new tokens like those of a later turn, and goes with the number of turns only.
        rng: source of draws.
    """
    from scipy import special

    n = prompt.size
    turns = law.turns.at(law.prompt_and_turns.given(ranks[0], rng)).astype(np.int64).clip(min=1)
    order = np.argsort(-turns, kind="stable")  # those that go on longest come first: the active ones are a slice
    left = np.searchsorted(-turns[order], -np.arange(2, turns.max() + 1), side="right")
    gain = np.asarray(law.dependence.by_turns)
    noise, carry = law.dependence.noise(), np.asarray(law.dependence.carry)
    known = (special.ndtri(u[order].clip(1e-9, 1 - 1e-9)) for u in (ranks[1], law.turns.rank(turns)))
    effect, rest = law.dependence.start(next(known), 1, next(known), rng)
    context, answer = prompt[order].copy(), output[order].copy()
    large = _large(law.compaction, ranks[0][order], rng)
    alive = np.ones(n, np.bool_)
    parts = [(order, np.ones(n, np.int64), context, answer, np.full(n, np.nan), np.full(n, -1, np.int64))]
    stages = {s.first_turn: s for s in law.stages}
    stage = law.stages[0]
    for turn, m in enumerate(left, start=2):
        stage = stages.get(turn, stage)
        rest = rest[:m] @ carry.T + rng.standard_normal((m, 3)) @ noise.T
        u = special.ndtr(effect[:m] + rest - gain * stage.turns_score)
        before, said, alive = context[:m], answer[:m], alive[:m]
        context, kept = _grow(law, before, said, stage.new_tokens.at(u[:, 0]), large[:m], rng)
        answer = stage.output_tokens.at(u[:, 1]).astype(np.int64).clip(min=1)
        if law.compaction is not None:
            over = np.flatnonzero(context + answer > law.max_context_tokens)
            context[over], kept[over] = _compact(law.compaction, before[over], rng)
        alive = alive & (context + answer <= law.max_context_tokens)
        parts.append((order[:m][alive], np.full(int(alive.sum()), turn), context[alive], answer[alive],
                      stage.think_s.at(u[:, 2])[alive].clip(min=0.0), kept[alive]))  # fmt: skip
    session, number, prompts, outputs, think, kept = (np.concatenate(x) for x in zip(*parts, strict=True))
    rows = np.lexsort((number, session))
    return Turns(
        session[rows],
        number[rows],
        prompts[rows],
        outputs[rows],
        think[rows],
        kept[rows],
        int((np.bincount(session, minlength=n) < turns).sum()),
    )


def _large(law: Compaction | None, rank: Floats, rng: np.random.Generator) -> Ints:
    """(n,) 1 for sessions of the large kind, 0 for others."""
    if law is None:
        return np.zeros(rank.size, np.int64)
    at = np.minimum((rank * len(law.large)).astype(np.int64), len(law.large) - 1)
    return (rng.random(rank.size) < np.asarray(law.large)[at]).astype(np.int64)


def _grow(
    law: SessionLaw, before: Ints, said: Ints, new: Floats, large: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Prompts after (n,) prompts and answers, and what is kept of the prompt before (-1: the whole turn)."""
    n = before.size
    prompt = np.maximum(before + said + new.astype(np.int64), before)
    kept = np.full(n, -1, np.int64)
    if law.dropped_growth is not None:
        at = np.flatnonzero(rng.random(n) < law.dropped_share)
        prompt[at] = before[at] + law.dropped_growth.at(rng.random(at.size)).astype(np.int64)
        kept[at] = before[at]
    if law.edited_kept is not None:
        at = np.flatnonzero(rng.random(n) < law.edited_share)
        kept[at] = (law.edited_kept.at(rng.random(at.size)) * before[at]).astype(np.int64)
    if law.compaction is not None:
        hazard = np.asarray(law.compaction.share)[large, np.searchsorted(law.compaction.context_tokens, before)]
        at = np.flatnonzero(rng.random(n) < hazard)
        prompt[at], kept[at] = _compact(law.compaction, before[at], rng)
    return prompt, kept


def _compact(law: Compaction, before: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Prompts after a compaction, and what they keep of the (n,) ones before."""
    prompt = np.maximum(law.prompt_ratio.at(rng.random(before.size)) * before, 1).astype(np.int64)
    kept = (law.kept_ratio.at(rng.random(before.size)) * before).astype(np.int64)
    return prompt, np.minimum(kept, prompt)
