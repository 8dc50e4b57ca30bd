"""Speculative decoding: tokens that a step emits, and what a step that verifies drafts costs.

A step drafts ``k`` tokens for each sequence, verifies them in one pass and emits those accepted before the first
rejection, and one token of its own. With draft ``i`` accepted with probability ``a_i`` given that all before it were,
the step emits ``n`` tokens with probability ``a_1 ... a_(n-1) * (1 - a_n)`` (``n = k + 1``: all accepted), and
``1 + a_1 + a_1*a_2 + ... + a_1*...*a_k`` on the mean: Leviathan et al., arXiv:2211.17192, for equal ``a_i``
``(1 - a^(k+1)) / (1 - a)``.

DeepSeek-V3 reports that its one trained draft is accepted for 85 to 90 % of tokens, 1.8 times the tokens a second
(arXiv:2412.19437, section 5.4.3). Nothing here is fitted to serving runs; no engine of the simulator speculates yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from envs.hardware.errors import ProfileError
from envs.hardware.profile import Profile

HARDLY_ANY = 1e-9


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many drafts of a step are accepted.

    Attributes:
        rates: (k,) probability that draft i is accepted, given that all before it were.

    Raises:
        ProfileError: a rate outside 0 to 1.
    """

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        for i, rate in enumerate(self.rates):
            if not 0.0 <= rate <= 1.0:
                raise ProfileError(f"speculation.rates[{i}] = {rate!r}: expected a probability from 0 to 1")

    @classmethod
    def equal(cls, rate: float, drafts: int) -> Acceptance:
        """Every draft is accepted with the same probability."""
        return cls((rate,) * drafts)

    @property
    def drafts(self) -> int:
        """Drafted tokens of a step."""
        return len(self.rates)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """(k + 1,) probability that a step emits 1, 2, ... k + 1 tokens."""
        reached = [1.0, *accumulate(self.rates, mul)]
        return tuple(p * (1.0 - a) for p, a in zip(reached, (*self.rates, 0.0), strict=True))

    @property
    def tokens(self) -> float:
        """Mean tokens that a step emits, 1 to k + 1."""
        return 1.0 + float(sum(accumulate(self.rates, mul)))

    @property
    def variance(self) -> float:
        """Variance of the tokens that a step emits."""
        squares = sum((n + 1) ** 2 * p for n, p in enumerate(self.probabilities))
        return max(0.0, squares - self.tokens**2)

    def steps(self, tokens: int) -> float:
        """Mean steps until at least ``tokens`` tokens are out: exact, the last step's surplus included."""
        chances = self.probabilities
        left = [0.0] * (tokens + 1)
        for need in range(1, tokens + 1):
            left[need] = 1.0 + sum(p * left[max(0, need - n - 1)] for n, p in enumerate(chances))
        return left[tokens]


def from_counts(counts: Sequence[int]) -> Acceptance:
    """The law that measured steps follow: ``counts[n]`` of them emitted ``n + 1`` tokens.

    Raises:
        ProfileError: a negative count, or no step at all.
    """
    for n, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ProfileError(f"speculation.counts[{n}] = {count!r}: expected a whole number of steps, at least 0")
    if sum(counts) == 0:
        raise ProfileError(f"speculation.counts = {list(counts)}: expected at least one step")
    reached = [sum(counts[n:]) for n in range(len(counts))]
    return Acceptance(tuple(after / before if before else 0.0 for before, after in pairwise(reached)))


def verify_s(profile: Profile, seqs: int, kv: int, drafts: int, draft_share: float) -> float:
    """Time of a step that drafts and verifies for ``seqs`` sequences over ``kv`` tokens.

    The pass over ``drafts + 1`` tokens of each sequence costs the law's products of so many tokens, and attention once:
    a kernel reads a sequence's cache once for all its tokens, as bound by memory as for one. Each draft costs a pass of
    the drafting layers over one token of each sequence: ``draft_share`` of a plain step.

    Args:
        profile: the law of plain steps.
        seqs: decoding sequences.
        kv: tokens that they attend to together.
        drafts: drafted tokens of each.
        draft_share: the drafting layers' share of a plain step; one trained layer of 61: 1 / 61.

    Raises:
        ProfileError: fewer than no drafts, or a share that is none.
    """
    if drafts < 0:
        raise ProfileError(f"speculation.drafts = {drafts}: expected at least 0")
    if not (math.isfinite(draft_share) and draft_share >= 0.0):
        raise ProfileError(f"speculation.draft_share = {draft_share!r}: expected a share of at least 0")
    plain_s = profile.seconds(0, 0.0, seqs, kv)
    # Both with prompt tokens, if hardly any, so that what a step with any pays once cancels.
    wider_s = profile.seconds(drafts * seqs, 0.0, seqs, kv) - profile.seconds(HARDLY_ANY, 0.0, seqs, kv)
    return plain_s * (1.0 + draft_share * drafts) + (max(0.0, wider_s) if drafts else 0.0)


def speedup(profile: Profile, acceptance: Acceptance, seqs: int, kv: int, draft_share: float) -> float:
    """Decode time per token without speculation over that with it; below 1 it does not pay."""
    plain_s = profile.seconds(0, 0.0, seqs, kv)
    return acceptance.tokens * plain_s / verify_s(profile, seqs, kv, acceptance.drafts, draft_share)
