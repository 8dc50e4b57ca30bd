"""Is the better configuration predicted? On pairs that a one-line rule does not settle.

Pairs of one model, GPU, precision and length whose measured TPOT (or throughput) is within 10 %: which of the two has
more tokens per second and GPU, or the lower TTFT? Easy pairs prove nothing. A pair of equal configurations (another
version or day) is none, nor is one whose judged values are within 1 %, which is what true repeats differ by.
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
REPEATS = 0.01
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


def fidelity(frame: pl.DataFrame, whole: bool = True) -> list[dict[str, Any]]:
    """Agreement in per cent for each question, with the rules' beside it; intervals over strata.

    ``clear_*``: among pairs whose judged values differ by 10 % or more. A predicted tie counts half. ``met`` is None
    where there is no bar, where the pairs are fewer than :data:`FEWEST_PAIRS`, and where the runs are not the ``whole``
    part that the bar is for.
    """
    rows = []
    for question in QUESTIONS:
        found = pairs(frame, question)
        if found is None:
            continue
        strata, right, clear, by_rule = found
        low, high = interval(right, strata, (np.mean,))
        row: dict[str, Any] = {
            "question": question.name,
            "one_engine": question.same_engine,
            "pairs": int(right.size),
            "strata": len(set(strata.tolist())),
            "right_percent": 100.0 * float(right.mean()),
            "low_percent": 100.0 * low[0],
            "high_percent": 100.0 * high[0],
            "clear_pairs": int(clear.sum()),
            "clear_right_percent": 100.0 * float(right[clear].mean()) if clear.any() else None,
            "rules_percent": {name: 100.0 * float(values.mean()) for name, values in by_rule.items()},
        }
        bar = None if question.same_engine else BARS.get(question.name)
        judged = bar is not None and whole and right.size >= FEWEST_PAIRS
        rows.append({**row, "bar_percent": bar, "met": row["right_percent"] >= bar if judged else None})
    return rows


def pairs(
    frame: pl.DataFrame, question: Question
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], dict[str, NDArray[np.float64]]] | None:
    """Stratum, whether the prediction is right (1, 0, a tie 0.5), whether the pair is clear, the same by rule.

    Each (pairs,); None without a pair.
    """
    judged, near = column("measured", question.judged), column("measured", question.near)
    guess = column("predicted", question.judged)
    usable = frame.filter(pl.col(guess).is_not_null())
    if question.disaggregated:
        usable = usable.filter(pl.col("layout") == "disaggregated")
    strata: list[str] = []
    right: list[NDArray[np.float64]] = []
    clear: list[NDArray[np.bool_]] = []
    by_rule: dict[str, list[NDArray[np.float64]]] = {name: [] for name in question.rules}
    for key, group in usable.group_by(*STRATUM, maintain_order=True):
        i, j = _comparable(group, group[near].to_numpy(), question)
        truth = group[judged].to_numpy()
        apart = np.abs(np.log(truth[i] / truth[j])) > np.log1p(REPEATS)
        i, j = i[apart], j[apart]
        if i.size == 0:
            continue
        sign = 1.0 if question.more else -1.0
        order = sign * np.sign(truth[i] - truth[j])
        guessed = group[guess].to_numpy()
        right.append(_agree(order, sign * (guessed[i] - guessed[j])))
        clear.append(np.abs(np.log(truth[i] / truth[j])) >= np.log1p(NEAR))
        for name, rule in question.rules.items():
            scores = rule(group)
            by_rule[name].append(_agree(order, scores[i] - scores[j]))
        strata += [" | ".join(map(str, key))] * i.size
    if not right:
        return None
    joined = {name: np.concatenate(values) for name, values in by_rule.items()}
    return np.array(strata), np.concatenate(right), np.concatenate(clear), joined


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
