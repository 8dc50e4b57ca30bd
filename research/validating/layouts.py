"""Colocated or disaggregated at an objective: which layout serves more tokens per GPU, and when not to say.

A stratum is a model, GPU, precision and length with runs of both layouts; objectives are nested in it, so n is the
number of strata. The right answer is the layout whose best measured configuration meets the objective with more tokens
per second and GPU. How far its predictions may be off is what they are off *in other strata*, for each layout apart
(:mod:`research.validating.doubt`): an answer is given where one layout wins in 95 % of the draws at least.

No answer can be given, whatever is predicted, in strata where a layout's runs are not what they are called:

* runs that imply more arithmetic than the recorded GPUs have: more replicas than recorded served them;
* "colocated" runs of one tensor-parallel group over more than two servers: whole deployments, filed as one instance.

Nor where less than 95 % of a layout's runs are predicted: one of the others may be the best.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from research.validating.doubt import LATENCIES, Doubt, in_series, measured_doubt
from research.validating.parts import STRATUM
from research.validating.scores import ABOVE_PEAK, COVERAGE, SEED, column

LAYOUTS = ("colocated", "disaggregated")
TTFT_S = (0.5, 1.0, 2.0, 5.0, 10.0)
TPOT_S = (0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
DRAWS = 2000
COVERAGE_DRAWS = 400
AGREE = 0.95
"""Share of the draws (in which the objective is met at all) that a layout must win."""
FEWEST_MET = 0.05
"""An objective that is met in fewer of the draws is not answered."""
ABSTAIN = "abstain"
NONE = "neither"
WIDEST_TP = 16
"""GPUs of one tensor-parallel group of a colocated instance at most: two servers of eight.

The table's two runs of GB200 above it (TP 32 and 64) stand in the same campaign a second time, as disaggregated on as
many GPUs, with the same users and times within 6 %.
"""


def strata(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Strata with measured runs of both layouts, in order."""
    return [
        (" | ".join(map(str, key)), group)
        for key, group in frame.sort(*STRATUM, "run").group_by(*STRATUM, maintain_order=True)
        if group["layout"].n_unique() == len(LAYOUTS)
    ]


def plausible(frame: pl.DataFrame) -> pl.DataFrame:
    """Runs that can be what they are called."""
    return frame.filter(~(_above_peak() | _whole_deployment()))


def unanswerable(group: pl.DataFrame) -> str | None:
    """Why a stratum has no answer, or None."""
    for layout in LAYOUTS:
        own = group.filter(layout=layout)
        kept = plausible(own)
        if kept.is_empty():
            above = own.filter(_above_peak()).height
            return f"{layout} runs " + ("above their GPUs' peak" if above else f"with TP above {WIDEST_TP}")
    for layout in LAYOUTS:
        kept = plausible(group).filter(layout=layout)
        known = kept["predicted_tpot_s"].count()
        if known < COVERAGE * kept.height:
            return f"{known} of {kept.height} {layout} runs predicted"
    return None


def _above_peak() -> pl.Expr:
    return pl.col("arithmetic") == ABOVE_PEAK


def _whole_deployment() -> pl.Expr:
    return (pl.col("layout") == "colocated") & (pl.col("tp").fill_null(1) > WIDEST_TP)


def elsewhere(frame: pl.DataFrame, group: pl.DataFrame, layout: str) -> Doubt | None:
    """Errors of a layout's predictions in all strata but the one asked: of its kind (dense or not), if they suffice."""
    here = [pl.col(name) == group[name][0] for name in STRATUM]
    others = plausible(frame).filter(pl.col("layout") == layout).filter(~pl.all_horizontal(here))
    return measured_doubt(others.filter(dense=group["dense"][0])) or measured_doubt(others)


def decisions(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """One row a stratum and objective that a measured run meets: measured and predicted answer, and what it costs.

    ``predicted``: a layout, :data:`ABSTAIN`, or None in a stratum without an answer; ``likely``: the layout that wins
    in more of the draws, and ``share`` in how many; ``nominal``: the answer of the predictions as they are. ``loss``:
    the share of the best goodput that is lost by each layout.
    """
    rows = []
    for key, group in strata(frame):
        kept = plausible(group)
        asked = unanswerable(group) is None
        won = shares(frame, kept) if asked else {}
        for ttft_s, tpot_s in product(TTFT_S, TPOT_S):
            rate = {layout: best_rate(kept, "measured", layout, ttft_s, tpot_s) for layout in LAYOUTS}
            if not any(rate.values()):
                continue
            guess = {layout: best_rate(kept, "predicted", layout, ttft_s, tpot_s) for layout in LAYOUTS}
            likely, share = won.get((ttft_s, tpot_s), (NONE, 0.0))
            rows.append(
                {
                    "stratum": key,
                    "slo_ttft_s": ttft_s,
                    "slo_tpot_s": tpot_s,
                    "measured": max(rate, key=lambda layout: rate[layout]),
                    "predicted": (likely if share >= AGREE else ABSTAIN) if asked else None,
                    "likely": likely if asked else None,
                    "share": share,
                    "nominal": (max(guess, key=lambda k: guess[k]) if any(guess.values()) else NONE) if asked else None,
                    "loss": {layout: 1.0 - rate[layout] / max(rate.values()) for layout in LAYOUTS},
                }
            )
    return rows


def best_rate(group: pl.DataFrame, source: str, layout: str, ttft_s: float, tpot_s: float) -> float:
    """Tokens per second and GPU of a layout's best run that meets the objective; 0 if none does."""
    own = group.filter(
        (pl.col("layout") == layout)
        & (pl.col(column(source, "ttft")) <= ttft_s)
        & (pl.col(column(source, "tpot")) <= tpot_s)
    )
    value = own[column(source, "tokens_per_gpu")].max()
    return 0.0 if value is None else float(value)  # type: ignore[arg-type]


def shares(frame: pl.DataFrame, group: pl.DataFrame) -> dict[tuple[float, float], tuple[str, float]]:
    """The layout that wins in more of the draws at each objective, and in which share of those that meet it.

    Objectives that fewer than :data:`FEWEST_MET` of the draws meet are left out.

    Args:
        frame: all runs, whose other strata say how far predictions are off.
        group: the plausible runs of the stratum asked.
    """
    drawn = []
    for layout in LAYOUTS:
        doubt = elsewhere(frame, group, layout)
        if doubt is None:
            return {}
        name = " | ".join(str(group[name][0]) for name in STRATUM)
        rng = np.random.default_rng([SEED, zlib.crc32(f"{name} | {layout}".encode())])
        drawn.append(_drawn(group.filter(layout=layout), doubt, rng))
    likely: dict[tuple[float, float], tuple[str, float]] = {}
    for ttft_s, tpot_s in product(TTFT_S, TPOT_S):
        rates = np.stack([_best(*own, ttft_s, tpot_s) for own in drawn])
        met = rates.max(axis=0) > 0.0
        if met.mean() >= FEWEST_MET:
            won = [float((rates[i, met] > rates[1 - i, met]).mean()) for i in (0, 1)]
            likely[ttft_s, tpot_s] = (LAYOUTS[won.index(max(won))], max(won))
    return likely


Drawn = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _drawn(own: pl.DataFrame, doubt: Doubt, rng: np.random.Generator) -> Drawn:
    """TTFT, TPOT (seconds) and tokens/s per GPU that the runs may truly have, each (draws, runs)."""
    series = in_series(own.filter(pl.col("predicted_tpot_s").is_not_null()))
    runs = pl.concat(series)
    errors = doubt.draw([group.height for group in series], DRAWS, rng)
    ttft = runs[column("predicted", "ttft")].to_numpy() * np.exp(-errors[:, :, 0])
    tpot = runs[column("predicted", "tpot")].to_numpy() * np.exp(-errors[:, :, 1])
    output = runs["mean_output_tokens"].to_numpy()
    per_gpu = runs["users"].to_numpy() * output / runs["gpus"].to_numpy()
    return ttft, tpot, per_gpu / (ttft + tpot * (output - 1))


def _best(
    ttft: NDArray[np.float64], tpot: NDArray[np.float64], rate: NDArray[np.float64], ttft_s: float, tpot_s: float
) -> NDArray[np.float64]:
    best: NDArray[np.float64] = np.where((ttft <= ttft_s) & (tpot <= tpot_s), rate, 0.0).max(axis=1)
    return best


def coverage_percent(frame: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Per layout, in how many runs the measured TTFT and TPOT lie within the middle 95 % of draws from other strata.

    Over all strata of the layout that are left out in turn, each weighing the same.
    """
    out: dict[str, dict[str, float]] = {}
    for layout in LAYOUTS:
        own = plausible(frame).filter((pl.col("layout") == layout) & pl.col("predicted_tpot_s").is_not_null())
        inside = []
        for _, group in own.sort(*STRATUM, "run").group_by(*STRATUM, maintain_order=True):
            doubt = elsewhere(frame, group, layout)
            if doubt is not None:
                series = in_series(group)
                drawn = doubt.draw([g.height for g in series], COVERAGE_DRAWS, np.random.default_rng(SEED))
                true = pl.concat(series).select(
                    (pl.col(column("predicted", name)) / pl.col(column("measured", name))).log().alias(name)
                    for name in LATENCIES
                )
                low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
                inside.append(((low <= true.to_numpy()) & (true.to_numpy() <= high)).mean(axis=0))
        if inside:
            out[layout] = dict(zip(LATENCIES, (100.0 * np.mean(inside, axis=0)).tolist(), strict=True))
    return out


def verdict(frame: pl.DataFrame) -> dict[str, Any]:
    """Confusion table, abstentions, the majority answer, each stratum's outcome, and what answers cost.

    ``confidently_wrong``: strata in which at least half of the given answers are wrong. ``loss_percent``: mean goodput
    that is lost, at the objectives with an answer (``given``) by the answers and by the majority answer, at all that
    were asked by the likelier layout, the nominal predictions and the majority answer. An objective that the named
    layout does not meet costs 100 %, and so does the answer that neither meets it.
    """
    rows = decisions(frame)
    asked = [row for row in rows if row["predicted"] is not None]
    given = [row for row in asked if row["predicted"] != ABSTAIN]
    majority = [name for name, _ in Counter(row["measured"] for row in asked or rows).most_common(1)]
    by_stratum = [
        _of_stratum(frame, key, group, [r for r in rows if r["stratum"] == key]) for key, group in strata(frame)
    ]
    usual = majority[0] if majority else NONE
    return {
        "strata": by_stratum,
        "decisions": rows,
        "asked": len(asked),
        "asked_strata": len({row["stratum"] for row in asked}),
        "given": len(given),
        "given_strata": len({row["stratum"] for row in given}),
        "confusion": {
            f"{truth} -> {guess}": n
            for (truth, guess), n in sorted(Counter((r["measured"], r["predicted"]) for r in asked).items())
        },
        "abstained_percent": 100.0 * (len(asked) - len(given)) / len(asked) if asked else None,
        "right_percent": _right(given, [r["predicted"] for r in given]),
        "likely_right_percent": _right(asked, [r["likely"] for r in asked]),
        "nominal_right_percent": _right(asked, [r["nominal"] for r in asked]),
        "majority": majority[0] if majority else None,
        "majority_percent": _right(asked or rows, [usual] * len(asked or rows)),
        "majority_given_percent": _right(given, [usual] * len(given)),
        "loss_percent": {
            "given": _loss(given, [r["predicted"] for r in given]),
            "majority_given": _loss(given, [usual] * len(given)),
            "likely": _loss(asked, [r["likely"] for r in asked]),
            "nominal": _loss(asked, [r["nominal"] for r in asked]),
            "majority": _loss(asked, [usual] * len(asked)),
        },
        "confidently_wrong": [row["stratum"] for row in by_stratum if row["confidently_wrong"]],
        "coverage_percent": coverage_percent(frame) if asked else {},
    }


def _of_stratum(frame: pl.DataFrame, key: str, group: pl.DataFrame, own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kept, why = plausible(group), unanswerable(group)
    given = [row for row in own if row["predicted"] not in (None, ABSTAIN)]
    wrong = [row for row in given if row["measured"] != row["predicted"]]
    doubts = {layout: elsewhere(frame, group, layout) for layout in LAYOUTS} if why is None else {}
    return {
        "stratum": key,
        "runs": {layout: group.filter(layout=layout).height for layout in LAYOUTS},
        "not_what_they_are_called": group.height - kept.height,
        "no_answer": why,
        "objectives": len(own),
        "measured_disaggregated": sum(row["measured"] == "disaggregated" for row in own),
        "asked": len([row for row in own if row["predicted"] is not None]),
        "likely_right": sum(row["likely"] == row["measured"] for row in own),
        "given": len(given),
        "wrong": len(wrong),
        "loss_percent": _loss(given, [row["predicted"] for row in given]),
        "confidently_wrong": bool(wrong) and 2 * len(wrong) >= len(given),
        "elsewhere": {layout: None if doubt is None else doubt.record() for layout, doubt in doubts.items()},
    }


def _right(rows: Sequence[dict[str, Any]], said: Sequence[str]) -> float | None:
    return 100.0 * float(np.mean([r["measured"] == s for r, s in zip(rows, said, strict=True)])) if rows else None


def _loss(rows: Sequence[dict[str, Any]], said: Sequence[str]) -> float | None:
    return 100.0 * float(np.mean([r["loss"].get(s, 1.0) for r, s in zip(rows, said, strict=True)])) if rows else None
