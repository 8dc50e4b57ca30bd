"""What whole steps say of their parts: matrices and the rest by tokens, attention alone, and attention mixed."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class Mixed:
    """A mixed step taken apart, times in ms.

    Attributes:
        new: prompt tokens of the step.
        cached: tokens cached before them.
        batch: decodes.
        context: tokens that each attends to.
        step_ms: the whole step.
        rest_ms: a step of as many tokens without attention, ``W(new + batch)``.
        prompt_attention_ms: the prompt alone less ``W(new)``.
        decode_attention_ms: the decodes alone less ``W(batch)``.
    """

    new: int
    cached: int
    batch: int
    context: int
    step_ms: float
    rest_ms: float
    prompt_attention_ms: float
    decode_attention_ms: float

    @property
    def ratio(self) -> float | None:
        """Attention in the mixed step over the sum of both alone; None where neither can be told from noise."""
        alone = self.prompt_attention_ms + self.decode_attention_ms
        return None if alone <= 0.0 else (self.step_ms - self.rest_ms) / alone


def rest_ms(frame: pl.DataFrame) -> dict[tuple[int, int], float]:
    """Time of steps without attention by (prompt tokens, decodes)."""
    rows = frame.filter(~pl.col("attention")).select("new", "batch", "latency").iter_rows()
    return {(new, batch): latency for new, batch, latency in rows}


def take_apart(frame: pl.DataFrame) -> list[Mixed]:
    """Every mixed step whose parts all were measured.

    Args:
        frame: rows of ``steps.parquet``.
    """
    rest = rest_ms(frame)
    whole = {
        (new, cached, batch, context): latency
        for new, cached, batch, context, latency in frame.filter(pl.col("attention"))
        .select("new", "cached", "batch", "context", "latency")
        .iter_rows()
    }
    found = []
    for (new, cached, batch, context), step_ms in sorted(whole.items()):
        if not (new and batch):
            continue
        prompt, decodes = whole.get((new, cached, 0, 0)), whole.get((0, 0, batch, context))
        parts = rest.get((new, batch)), rest.get((new, 0)), rest.get((0, batch))
        if prompt is None or decodes is None or any(part is None for part in parts):
            continue
        both, of_prompt, of_decodes = (float(part) for part in parts if part is not None)
        found.append(Mixed(new, cached, batch, context, step_ms, both, prompt - of_prompt, decodes - of_decodes))
    return found
