"""Is the better configuration predicted? On pairs that a one-line rule does not settle.

Pairs of one model, GPU, precision and length whose measured TPOT (or throughput) is within 10 %: which of the two has
more tokens per second and GPU, or the lower TTFT? Easy pairs prove nothing. A pair of equal configurations (another
version or day) is none, nor is one whose judged values are within 1 %.

Throughput is derived from the users, so "more users a GPU" nearly settles it at equal TPOT: pairs with equal users a
GPU, on which that rule is blind, are scored apart. And nobody can rank pairs that are closer than repeats of one
measurement: the ceiling is the share of pairs whose true order is the measured one, if measurements scatter as repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from research.validating.parts import CONFIGURATION, STRATUM
from research.validating.scores import column, interval

NEAR = 0.10
SAME = 0.01
Rule = Callable[[pl.DataFrame], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of hard pair.

    Attributes:
        name: short name.
        near: metric within :data:`NEAR` of each other.
        judged: metric that decides.
        more: whether more of it is better.
        rules: one-line rules by name: (n,) scores, the higher the better.
        same_engine: whether both must be of one engine.
        disaggregated: whether only disaggregated runs with different worker counts are compared.
    """

    name: str
    near: str
    judged: str
    more: bool
    rules: dict[str, Rule]
    same_engine: bool = False
    disaggregated: bool = False


def _fewer_gpus(frame: pl.DataFrame) -> NDArray[np.float64]:
    return -frame["gpus"].to_numpy().astype(np.float64)


def _more_gpus(frame: pl.DataFrame) -> NDArray[np.float64]:
    return frame["gpus"].to_numpy().astype(np.float64)


def _users_per_gpu(frame: pl.DataFrame) -> NDArray[np.float64]:
    return (frame["users"] / frame["gpus"]).to_numpy()


def _fewer_users(frame: pl.DataFrame) -> NDArray[np.float64]:
    return -frame["users"].to_numpy().astype(np.float64)


def _decode_share(frame: pl.DataFrame) -> NDArray[np.float64]:
    return (frame["decode_workers"] / frame["prefill_workers"]).fill_null(0.0).to_numpy()


_TTFT: dict[str, Rule] = {"more GPUs": _more_gpus, "fewer users": _fewer_users}
_RATE: dict[str, Rule] = {"fewer GPUs": _fewer_gpus, "more users a GPU": _users_per_gpu}
QUESTIONS = (
    Question("tokens/s per GPU at equal TPOT", "tpot", "tokens_per_gpu", True, _RATE),
    Question("tokens/s per GPU at equal TPOT", "tpot", "tokens_per_gpu", True, _RATE, same_engine=True),
    Question("TTFT at equal tokens/s per GPU", "tokens_per_gpu", "ttft", False, _TTFT),
    Question("TTFT at equal tokens/s per GPU", "tokens_per_gpu", "ttft", False, _TTFT, same_engine=True),
    Question(
        "x prefill y decode at equal TPOT", "tpot", "tokens_per_gpu", True,
        {**_RATE, "more decode workers a prefill worker": _decode_share}, disaggregated=True,
    ),
)  # fmt: skip
BARS = {
    "tokens/s per GPU at equal TPOT": 90.0,
    "TTFT at equal tokens/s per GPU": 75.0,
    "x prefill y decode at equal TPOT": 95.0,
}


FEWEST_PAIRS = 30
"""Fewer hard pairs than this meet or miss no bar."""


FEWEST_REPEATS = 20
"""Fewer repeats than this show no scatter of measurements: no ceiling."""
COPY = 0.001
"""Repeats whose TTFT and TPOT are both closer than this are one measurement, filed twice."""
SAME_USERS = 0.01
"""Users a GPU count as equal within this."""


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Hard pairs of a question, each array (pairs,).

    Attributes:
        strata: what each belongs to.
        right: whether the prediction is right: 1, 0, a predicted tie 0.5.
        apart: absolute logarithm of the ratio of the two measured values that are judged.
        same_users: whether both have the same users a GPU.
        by_rule: like ``right``, by rule.
    """

    strata: NDArray[Any]
    right: NDArray[np.float64]
    apart: NDArray[np.float64]
    same_users: NDArray[np.bool_]
    by_rule: dict[str, NDArray[np.float64]]


def fidelity(frame: pl.DataFrame, whole: bool = True) -> list[dict[str, Any]]:
    """Agreement in per cent for each question, with the rules' beside it; intervals over strata.

    ``ceiling_percent``: what a perfect predictor would score, from the scatter of repeats. ``clear_*``: among pairs
    whose judged values differ by 10 % or more; ``same_users_*``: among those with equal users a GPU. A predicted tie
    counts half. ``met`` is None
    where there is no bar, where the pairs are fewer than :data:`FEWEST_PAIRS`, and where the runs are not the ``whole``
    part that the bar is for.
    """
    rows = []
    for question in QUESTIONS:
        found = pairs(frame, question)
        if found is None:
            continue
        strata, right = found.strata, found.right
        low, high = interval(right, strata, (np.mean,))
        clear, same = found.apart >= np.log1p(NEAR), found.same_users
        scatter = repeats(frame, question.judged)
        same_low, same_high = interval(right[same], strata[same], (np.mean,))
        row: dict[str, Any] = {
            "question": question.name,
            "one_engine": question.same_engine,
            "pairs": int(right.size),
            "strata": len(set(strata.tolist())),
            "right_percent": 100.0 * float(right.mean()),
            "low_percent": 100.0 * low[0],
            "high_percent": 100.0 * high[0],
            "ties": int((right == 0.5).sum()),
            "repeats": int(scatter.size),
            "ceiling_percent": ceiling_percent(found.apart, scatter),
            "clear_pairs": int(clear.sum()),
            "clear_right_percent": _percent(right[clear]),
            "same_users_pairs": int(same.sum()),
            "same_users_right_percent": _percent(right[same]),
            "same_users_low_percent": 100.0 * same_low[0],
            "same_users_high_percent": 100.0 * same_high[0],
            "same_users_ceiling_percent": ceiling_percent(found.apart[same], scatter),
            "rules_percent": {name: 100.0 * float(values.mean()) for name, values in found.by_rule.items()},
        }
        row |= _over_best_rule(found)
        bar = None if question.same_engine else BARS.get(question.name)
        judged = bar is not None and whole and right.size >= FEWEST_PAIRS
        rows.append({**row, "bar_percent": bar, "met": row["right_percent"] >= bar if judged else None})
    return rows


def _over_best_rule(found: Pairs) -> dict[str, Any]:
    """How much more often the prediction is right than the best of the rules, in points, with its interval."""
    name = max(found.by_rule, key=lambda rule: float(found.by_rule[rule].mean()))
    more = found.right - found.by_rule[name]
    low, high = interval(more, found.strata, (np.mean,))
    points = {"over_rule_points": float(more.mean()), "over_rule_low": low[0], "over_rule_high": high[0]}
    return {"best_rule": name} | {key: 100.0 * value for key, value in points.items()}


def _percent(values: NDArray[np.float64]) -> float | None:
    return 100.0 * float(values.mean()) if values.size else None


def repeats(frame: pl.DataFrame, metric: str) -> NDArray[np.float64]:
    """How far measurements of one configuration and engine version are apart: absolute logarithms of ratios, (n,).

    Copies of one measurement under two campaigns (:data:`COPY`) are left out.
    """
    apart: list[NDArray[np.float64]] = []
    for _, group in frame.group_by(*STRATUM, *CONFIGURATION, "engine_version", maintain_order=True):
        if group.height > 1:
            i, j = np.triu_indices(group.height, 1)
            logs = {name: np.log(group[column("measured", name)].to_numpy()) for name in ("ttft", "tpot", metric)}
            own = {name: np.abs(values[i] - values[j]) for name, values in logs.items()}
            apart.append(own[metric][(own["ttft"] >= COPY) | (own["tpot"] >= COPY)])
    return np.concatenate(apart) if apart else np.array([])


def ceiling_percent(apart: NDArray[np.float64], scatter: NDArray[np.float64]) -> float | None:
    """Share of pairs whose true order is the measured one, if two measurements scatter as repeats do; None for few.

    Both of a pair are measured once, so their ratio is off by what a repeat's is, either way.
    """
    if scatter.size < FEWEST_REPEATS or not apart.size:
        return None
    both_ways = np.sort(np.concatenate([scatter, -scatter]))
    return 100.0 * float(np.mean(np.searchsorted(both_ways, apart) / both_ways.size))


def pairs(frame: pl.DataFrame, question: Question) -> Pairs | None:
    """The hard pairs of a question; None without one."""
    judged, near = column("measured", question.judged), column("measured", question.near)
    guess = column("predicted", question.judged)
    usable = frame.filter(pl.col(guess).is_not_null())
    if question.disaggregated:
        usable = usable.filter(pl.col("layout") == "disaggregated")
    strata: list[str] = []
    right: list[NDArray[np.float64]] = []
    ratios: list[NDArray[np.float64]] = []
    same_users: list[NDArray[np.bool_]] = []
    by_rule: dict[str, list[NDArray[np.float64]]] = {name: [] for name in question.rules}
    for key, group in usable.group_by(*STRATUM, maintain_order=True):
        i, j = _comparable(group, group[near].to_numpy(), question)
        truth = group[judged].to_numpy()
        ratio = np.abs(np.log(truth[i] / truth[j]))
        apart = ratio > np.log1p(SAME)
        i, j = i[apart], j[apart]
        if i.size == 0:
            continue
        sign = 1.0 if question.more else -1.0
        order = sign * np.sign(truth[i] - truth[j])
        guessed = group[guess].to_numpy()
        right.append(_agree(order, sign * (guessed[i] - guessed[j])))
        ratios.append(ratio[apart])
        load = np.log(_users_per_gpu(group))
        same_users.append(np.abs(load[i] - load[j]) <= np.log1p(SAME_USERS))
        for name, rule in question.rules.items():
            scores = rule(group)
            by_rule[name].append(_agree(order, scores[i] - scores[j]))
        strata += [" | ".join(map(str, key))] * i.size
    if not right:
        return None
    joined = {name: np.concatenate(values) for name, values in by_rule.items()}
    return Pairs(
        np.array(strata), np.concatenate(right), np.concatenate(ratios), np.concatenate(same_users), joined
    )  # fmt: skip


def _comparable(
    group: pl.DataFrame, near: NDArray[np.float64], question: Question
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index pairs (i < j) of different configurations that are near each other."""
    i, j = np.triu_indices(group.height, 1)
    keep = np.abs(np.log(near[i] / near[j])) <= np.log1p(NEAR)
    codes = group.select(pl.struct(CONFIGURATION).rank("dense")).to_series().to_numpy()
    keep &= codes[i] != codes[j]
    if question.same_engine:
        engine = group["engine"].rank("dense").to_numpy()
        keep &= engine[i] == engine[j]
    if question.disaggregated:
        workers = group.select(pl.struct("prefill_workers", "decode_workers").rank("dense")).to_series().to_numpy()
        keep &= workers[i] != workers[j]
    return i[keep], j[keep]


def _agree(order: NDArray[np.float64], guess: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(guess == 0.0, 0.5, (np.sign(guess) == order).astype(np.float64))
