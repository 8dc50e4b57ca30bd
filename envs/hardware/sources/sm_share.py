"""How much longer a phase takes on a share of a GPU's SMs: ratios derived from times published by MuxServe.

Each phase ran alone under a cap, not beside another tenant, so a GPU that two phases really share is slower than this.
Rows of the bucket ``ge16k`` are left out: runs that failed there were published as negative times, so their ratios are
1.0 or about 0. The step law has no term for a share of SMs; the ``split`` workers of the simulator slice time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from envs.hardware.errors import MeasurementError
from envs.hardware.sources.files import Origin, Table, merge_repeats, read_table

MUXSERVE = Origin(
    name="MuxServe prefill and decode times against SM share, Llama 7B to 65B on A100-80G; derived median ratios",
    repository="hao-ai-lab/MuxServe",
    commit="223148033454e4740f4b4617c72910c370a5604b",
    licence="none stated upstream: facts (ratios) only",
    attribution="MuxServe authors (ICML 2024)",
)
TABLE = "measurements/sm_share/slowdown.csv"
FAILED = "ge16k"
PHASES = ("prefill", "decode")
KEYS = {
    "model": pl.String,
    "gpu": pl.String,
    "tp": pl.Int64,
    "phase": pl.String,
    "tokens_bucket": pl.String,
    "sm_share_pct": pl.Int64,
}
LEAST, MOST = 0.7, 20.0
"""Slowdowns outside are none: a twentieth of the SMs is below every share measured."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One phase at one share.

    Attributes:
        phase: ``prefill`` or ``decode``.
        tokens: bucket of tokens of the step (prefill) or of its context (decode).
        share: of the SMs, above 0 and at most 1.
        median: time over the time on all SMs, median of the configurations (model and tensor-parallel degree).
        low: of the configurations, the least.
        high: and the greatest.
        configurations: how many.
        held_out_percent: mean absolute error where the median of the other configurations stands for each.
    """

    phase: str
    tokens: str
    share: float
    median: float
    low: float
    high: float
    configurations: int
    held_out_percent: float


def read_slowdowns(data_dir: Path) -> Table:
    """The published ratios, checked; columns of KEYS and ``slowdown``.

    Raises:
        MeasurementError: no such file, a missing column, what cannot be a ratio, share or phase, contradictory repeats.
    """
    table = read_table(data_dir, TABLE, {**KEYS, "slowdown_median": pl.Float64})
    frame = table.frame.rename({"slowdown_median": "slowdown"}).with_row_index("row")
    frame = frame.filter(pl.col("tokens_bucket").ne_missing(FAILED))
    if frame.is_empty():
        raise table.error("no rows")
    checks = (
        ("phase", pl.col("phase").is_in(PHASES), f"one of {', '.join(PHASES)}"),
        ("sm_share_pct", pl.col("sm_share_pct").is_between(1, 100), "percent of the SMs, 1 to 100"),
        ("slowdown", pl.col("slowdown").is_between(LEAST, MOST), f"a ratio of times, {LEAST:g} to {MOST:g}"),
    )
    for column, good, expected in checks:
        bad = frame.filter(~good.fill_null(False))
        if bad.height:
            raise table.error(
                f"row {bad['row'][0] + 1}: {column} = {bad[column][0]}: expected {expected} ({bad.height} such rows)"
            )
    return merge_repeats(Table(table.relative, table.sha256, frame.drop("row")), list(KEYS), "slowdown")


def _order(phase: object, tokens: object) -> tuple[int, int, str]:
    """Prefill first; buckets from short to long."""
    known = [str(tokens).startswith(start) for start in ("lt", "1k", "4k")]
    return PHASES.index(str(phase)), known.index(True) if any(known) else len(known), str(tokens)


def slowdowns(table: Table) -> list[Slowdown]:
    """Medians by phase, tokens and share, never falling as the share gets smaller.

    Raises:
        MeasurementError: a phase with fewer than two configurations: nothing to hold out.
    """
    found = []
    keys = ["phase", "tokens_bucket"]
    for (phase, tokens), group in sorted(table.frame.group_by(keys), key=lambda pair: _order(*pair[0])):
        least = 0.0
        for share in sorted(group["sm_share_pct"].unique().to_list(), reverse=True):
            values = group.filter(pl.col("sm_share_pct") == share)["slowdown"].to_numpy()
            if len(values) < 2:
                raise MeasurementError(
                    f"{table.relative}: {phase}, {tokens}, {share} %: {len(values)} configuration: expected at least "
                    "2, so that one can be held out"
                )
            others = np.array([np.median(np.delete(values, i)) for i in range(len(values))])
            least = max(least, float(np.median(values)))
            found.append(
                Slowdown(
                    str(phase), str(tokens), share / 100, least, float(values.min()), float(values.max()), len(values),
                    float(np.abs(others / values - 1.0).mean()) * 100,
                )
            )  # fmt: skip
    return found
