"""Service-level objectives: a bound on TTFT (a base plus a share a prompt token) and one on TPOT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SloSpec:
    """``ttft <= ttft_base_s + ttft_per_token_s * prompt_tokens`` and ``tpot <= tpot_s``; per class where given."""

    name: str
    ttft_base_s: float
    ttft_per_token_s: float
    tpot_s: float
    by_class: Mapping[str, SloSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("ttft_base_s", "ttft_per_token_s", "tpot_s"):
            value = getattr(self, name)
            if not value >= 0.0:
                raise ValueError(f"slo {self.name!r}: {name} is {value!r}, expected a number of seconds >= 0")
        if self.ttft_base_s + self.ttft_per_token_s <= 0.0 or self.tpot_s <= 0.0:
            raise ValueError(f"slo {self.name!r}: bounds must be above 0")


LOOSE = SloSpec("loose", ttft_base_s=2.0, ttft_per_token_s=0.0, tpot_s=0.050)
TIGHT = SloSpec("tight", ttft_base_s=0.25, ttft_per_token_s=0.0001, tpot_s=0.025)
