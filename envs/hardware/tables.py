"""The step law as tables: for engines whose step times no plane describes.

A profile carries tables beside its plane. The simulator then takes step times from the tables; policies keep the plane
as their predictor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from envs.hardware.errors import ProfileError

FALLS = 1.0 - 2e-4
"""Values that must not fall may do so by this share: five digits are written, which may round two values apart."""


def interpolate(at: Sequence[int], values: Sequence[float], x: float) -> float:
    """The value at ``x`` of the line through the knots; beyond the last it goes on by its last slope.

    A last slope below 0 counts as 0; before the first knot the value is that of the first.
    """
    if x <= at[0]:
        return values[0]
    i = min(bisect_right(at, x), len(at) - 1)
    slope = (values[i] - values[i - 1]) / (at[i] - at[i - 1])
    if x > at[-1]:
        return values[-1] + max(0.0, slope) * (x - at[-1])
    return values[i - 1] + slope * (x - at[i - 1])


@dataclass(frozen=True, slots=True)
class StepTables:
    """Time of one engine step, in seconds, from knots.

    ``t = W(new + B) + [new > 0]*(a0 + c_attn*sum(chunk*(ctx + chunk/2))) + D0(B) + D1(B)*kv + h0 + h1*B`` with the
    symbols of :class:`envs.hardware.profile.StepLaw`. W and D0 are straight between knots; so is ``B*D1(B)``, which
    means that decodes over one mean context are straight in their number. See :func:`interpolate` beyond the knots.

    Attributes:
        tokens: (k,) knots of W, tokens of the step (prefill tokens and decodes together), rising from 1.
        w_s: (k,) W: matrix products, collectives, norms; above 0 and never falling.
        seqs: (m,) knots of D0 and D1, decoding sequences, rising from 1.
        d0_s: (m,) the part of a step's decode attention that does not grow with the context.
        d1_s: (m,) decode attention per KV token; ``seqs*d1_s`` and ``d0_s + seqs*d1_s`` never fall.
        c_attn_s: prefill attention per token * context token.
        a0_s: what a step with prefill tokens pays on top, once.
        h0_s: time of the host between steps.
        h1_s: the same for each decoding sequence.

    Raises:
        ProfileError: knots that are no knots, values out of order.
    """

    tokens: tuple[int, ...]
    w_s: tuple[float, ...]
    seqs: tuple[int, ...]
    d0_s: tuple[float, ...]
    d1_s: tuple[float, ...]
    c_attn_s: float
    a0_s: float = 0.0
    h0_s: float = 0.0
    h1_s: float = 0.0

    def __post_init__(self) -> None:
        _check_knots("tokens", self.tokens, w_s=self.w_s)
        _check_knots("seqs", self.seqs, d0_s=self.d0_s, d1_s=self.d1_s)
        if self.w_s[0] <= 0.0:
            raise ProfileError(f"tables.w_s[0] = {self.w_s[0]!r}: expected more than 0 (a step takes time)")
        whole = self._kv_s()
        _check_rising("w_s", "tokens", self.tokens, self.w_s)
        _check_rising("seqs*d1_s", "seqs", self.seqs, whole)
        _check_rising("d0_s + seqs*d1_s", "seqs", self.seqs, [a + b for a, b in zip(self.d0_s, whole, strict=True)])

    def _kv_s(self) -> list[float]:
        """Decode attention at the knots for each token of mean context, seconds, (m,)."""
        return [n * d1 for n, d1 in zip(self.seqs, self.d1_s, strict=True)]

    def seconds(self, new: float, attn: float, seqs: float, kv: float) -> float:
        """Step time for ``new`` prefill tokens, attention work ``attn``, ``seqs`` decodes over ``kv`` tokens."""
        time = interpolate(self.tokens, self.w_s, new + seqs) + self.h0_s + self.h1_s * seqs
        if new > 0:
            time += self.a0_s + self.c_attn_s * attn
        if seqs > 0:
            time += interpolate(self.seqs, self.d0_s, seqs)
            time += interpolate(self.seqs, self._kv_s(), seqs) / seqs * kv
        return time

    def scaled(self, matrices: float = 1.0, decode: float = 1.0, prefill: float = 1.0, host: float = 1.0) -> StepTables:
        """Each part times its factor: W; D0 and D1; c_attn and a0; h0 and h1."""
        return replace(
            self,
            w_s=tuple(value * matrices for value in self.w_s),
            d0_s=tuple(value * decode for value in self.d0_s),
            d1_s=tuple(value * decode for value in self.d1_s),
            c_attn_s=self.c_attn_s * prefill,
            a0_s=self.a0_s * prefill,
            h0_s=self.h0_s * host,
            h1_s=self.h1_s * host,
        )


def _check_knots(name: str, at: Sequence[int], **columns: Sequence[float]) -> None:
    if len(at) < 2 or at[0] != 1:
        raise ProfileError(f"tables.{name} = {list(at)}: expected at least two knots, the first of them 1")
    for i, (left, right) in enumerate(pairwise(at)):
        if right <= left:
            raise ProfileError(f"tables.{name}[{i + 1}] = {right} after {left}: expected rising knots")
    for column, values in columns.items():
        if len(values) != len(at):
            raise ProfileError(
                f"tables.{column} has {len(values)} values: expected {len(at)}, one for each of tables.{name}"
            )
        if min(values) < 0.0:
            raise ProfileError(f"tables.{column} = {min(values)!r}: expected seconds of at least 0")


def _check_rising(name: str, axis: str, at: Sequence[int], values: Sequence[float]) -> None:
    for i, (left, right) in enumerate(pairwise(values)):
        if right < left * FALLS:
            raise ProfileError(
                f"tables.{name} falls from {left:g} to {right:g} s between {axis} {at[i]} and {at[i + 1]}: "
                f"expected a time that never falls (more work takes no less time)"
            )
