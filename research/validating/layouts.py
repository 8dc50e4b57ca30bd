"""Colocated or disaggregated at an objective: which layout serves more tokens per GPU, and when not to say.

A stratum is a model, GPU, precision and length with runs of both layouts; objectives are nested in it, so n is the
number of strata. The answer is the layout whose best configuration meets the objective with more tokens per second and
GPU. A prediction is made nine times, with each layout's latencies 10 % lower, as they are and 10 % higher (what the
profiles leave open at least): if the answers differ, or the two are within 10 %, it abstains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import polars as pl

from research.validating.parts import STRATUM
from research.validating.scores import ABOVE_PEAK, column

LAYOUTS = ("colocated", "disaggregated")
TTFT_S = (0.5, 1.0, 2.0, 5.0, 10.0)
TPOT_S = (0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
DOUBT = 0.10
ABSTAIN = "abstain"
NONE = "neither"


def decisions(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """One row a stratum and objective that a measured run meets: measured and predicted answer.

    ``predicted`` is None where one of the layouts has no prediction in the stratum.
    """
    rows = []
    for key, group in strata(frame):
        known = group.filter(pl.col("predicted_tpot_s").is_not_null())
        covered = known["layout"].n_unique() == len(LAYOUTS)
        for ttft_s, tpot_s in product(TTFT_S, TPOT_S):
            truth = best(group, "measured", ttft_s, tpot_s)
            if truth == NONE:
                continue
            rows.append(
                {
                    "stratum": key,
                    "slo_ttft_s": ttft_s,
                    "slo_tpot_s": tpot_s,
                    "measured": truth,
                    "predicted": answer(known, ttft_s, tpot_s) if covered else None,
                    "predicted_without_doubt": best(known, "predicted", ttft_s, tpot_s) if covered else None,
                }
            )
    return rows


def strata(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Strata with measured runs of both layouts."""
    return [
        (" | ".join(map(str, key)), group)
        for key, group in frame.group_by(*STRATUM, maintain_order=True)
        if group["layout"].n_unique() == len(LAYOUTS)
    ]


def best(group: pl.DataFrame, source: str, ttft_s: float, tpot_s: float, factors: Sequence[float] = (1.0, 1.0)) -> str:
    """The layout of the best run that meets the objective, with each layout's latencies times its factor."""
    rate = {
        layout: found for layout, factor in zip(LAYOUTS, factors, strict=True)
        if (found := _rate(group, source, layout, ttft_s, tpot_s, factor)) is not None
    }  # fmt: skip
    return max(rate, key=lambda layout: rate[layout]) if rate else NONE


def answer(group: pl.DataFrame, ttft_s: float, tpot_s: float) -> str:
    """The predicted layout if doubt does not change it, else :data:`ABSTAIN`."""
    spread = (1.0 - DOUBT, 1.0, 1.0 + DOUBT)
    said = {best(group, "predicted", ttft_s, tpot_s, factors) for factors in product(spread, spread)}
    return said.pop() if len(said) == 1 and NONE not in said else ABSTAIN


def _rate(group: pl.DataFrame, source: str, layout: str, ttft_s: float, tpot_s: float, factor: float) -> float | None:
    own = group.filter(
        (pl.col("layout") == layout)
        & (pl.col(column(source, "ttft")) * factor <= ttft_s)
        & (pl.col(column(source, "tpot")) * factor <= tpot_s)
    )
    value = own[column(source, "tokens_per_gpu")].max()
    return None if value is None else float(value) / factor  # type: ignore[arg-type]


def verdict(frame: pl.DataFrame) -> dict[str, Any]:
    """Confusion table, abstentions, the majority answer and each stratum's outcome.

    ``confidently_wrong``: strata in which more answers that were given are wrong than right. ``impossible_runs``: runs
    of a stratum that imply more arithmetic than their GPUs have, so that its measured answer is none.
    """
    rows = decisions(frame)
    asked = [row for row in rows if row["predicted"] is not None]
    said = [row for row in asked if row["predicted"] != ABSTAIN]
    counts = Counter((row["measured"], row["predicted"]) for row in asked)
    by_stratum = []
    for key, group in strata(frame):
        own = [row for row in rows if row["stratum"] == key]
        given = [row for row in own if row["predicted"] not in (None, ABSTAIN)]
        wrong = sum(row["measured"] != row["predicted"] for row in given)
        by_stratum.append(
            {
                "stratum": key,
                "runs": {layout: group.filter(pl.col("layout") == layout).height for layout in LAYOUTS},
                "objectives": len(own),
                "measured_disaggregated": sum(row["measured"] == "disaggregated" for row in own),
                "predicted": len([row for row in own if row["predicted"] is not None]),
                "abstained": len([row for row in own if row["predicted"] == ABSTAIN]),
                "wrong": wrong,
                "confidently_wrong": 2 * wrong > len(given),
                "impossible_runs": group.filter(pl.col("arithmetic") == ABOVE_PEAK).height,
            }
        )
    majority = Counter(row["measured"] for row in asked or rows).most_common(1)
    return {
        "strata": by_stratum,
        "decisions": rows,
        "asked": len(asked),
        "confusion": {f"{truth} -> {guess}": n for (truth, guess), n in sorted(counts.items())},
        "abstained_percent": 100.0 * (len(asked) - len(said)) / len(asked) if asked else None,
        "right_percent": 100.0 * sum(r["measured"] == r["predicted"] for r in said) / len(said) if said else None,
        "right_without_doubt_percent": (
            100.0 * sum(r["measured"] == r["predicted_without_doubt"] for r in asked) / len(asked) if asked else None
        ),
        "majority": majority[0][0] if majority else None,
        "majority_percent": 100.0 * majority[0][1] / len(asked or rows) if majority else None,
        "confidently_wrong": [row["stratum"] for row in by_stratum if row["confidently_wrong"]],
    }
