"""Studies made by hand: cells with known values, and the summary that is drawn from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from research.choices import PolicyChoice
from research.evidence import backtests, cautions, ranking, summary, words
from research.evidence.summary import Cell

LOADS = ((0.8, 8.0), (1.0, 10.0))


def cell(
    policy: str,
    goodput: float,
    load: float = 1.0,
    rate: float = 10.0,
    off_by: float = 0.0,
    windows: int = 8,
    spread: float = 0.1,
) -> Cell:
    """A policy whose windows scatter by ``spread`` around ``goodput``; windows are shared by policies."""
    rng = np.random.default_rng(5)
    shared = rng.normal(0.0, 1.0, windows)
    own = np.random.default_rng([ord(c) for c in policy]).normal(0.0, spread, windows)
    metrics = [
        {
            "goodput_per_s": max(0.0, goodput + float(s + o)),
            "offered_per_s": rate,
            "attainment": min(1.0, max(0.0, (goodput + float(s + o)) / rate)),
            "infeasible_share": 0.0,
            "ttft_p50_s": 0.1 + 0.1 / goodput,
            "ttft_p95_s": 0.4 + 1.0 / goodput,
            "ttft_p99_s": 0.5 + 1.0 / goodput,
            "tpot_p50_s": 0.012,
            "tpot_p95_s": 0.015 + 0.0001 * goodput,
            "tpot_p99_s": 0.016 + 0.0001 * goodput,
            "tbt_p99_s": None,
            "e2e_p95_s": 3.0,
            "e2e_mean_s": 2.0,
            "hit_rate": 0.2,
            "deflected_share": 0.3,
            "kv_moved_bytes": 1e11,
            "requests": 800.0,
        }
        for s, o in zip(shared, own, strict=True)
    ]
    return Cell(policy, load, rate, off_by, tuple(range(windows)), tuple(metrics))


def study_summary(
    goodputs: dict[str, float],
    *,
    reference: str = "guard",
    spread: float = 0.1,
    windows: int = 8,
    prefixes: bool = True,
) -> dict[str, Any]:
    """A ``summary.json`` of two loads."""
    cells = [
        cell(p, g * (1.0 if load == 1.0 else 0.9), load, rate, 0.0, windows, spread)
        for load, rate in LOADS
        for p, g in goodputs.items()
    ]
    off = [cell(p, g * 0.97, 1.0, 10.0, 0.2, windows, spread) for p, g in goodputs.items()]
    reasons = {} if prefixes else {p: "decides by session, turn" for p in goodputs if p == "ppd"}
    unranked = list(reasons)
    best = summary.winners(off, "tight", unranked)[0]
    out: dict[str, Any] = {
        "format": 1,
        "command": "compare",
        "title": "made by hand",
        "policies": list(goodputs),
        "given": {p: {} for p in goodputs},
        "reference": reference,
        "unranked": unranked,
        "unranked_because": reasons,
        "rate_unit": "requests",
        "windows": windows,
        "lead_in": 1.0,
        "spans": [
            {"load": load, "rate_per_s": rate, "window_s": 170.0 / rate, "lead_in_s": 340.0 / rate}
            for load, rate in LOADS
        ],
        "seeds": 1,
        "knee": {
            "outcome": "found",
            "rate_per_s": 10.0,
            "scale": 2.0,
            "policy": reference,
            "attainment": 0.9,
            "words": "knee: 10 requests/s",
            "curve": [
                {"rate_per_s": r, "feasible_attainment": a, "infeasible_share": 0.0}
                for r, a in ((2.0, 1.0), (8.0, 0.97), (10.0, 0.9), (12.0, 0.5))
            ],
        },
        "rows": summary.rows(cells, "tight", 1),
        "differences": summary.differences(cells, reference, "tight"),
        "winners": summary.winners(cells, "tight", unranked),
        "robustness": {
            "load": 1.0,
            "rate_per_s": 10.0,
            "leader": max(goodputs, key=lambda p: goodputs[p]),
            "leaders": {"0.2": {k: best[k] for k in ("leader", "estimate", "proven")}},
            "rows": summary.rows(off, "tight", 1, ["goodput_per_s"]),
        },
        "worlds": {"draws": 0, "leader": None},
        "config": {
            "slo": {"name": "tight", "tpot_s": 0.025, "by_class": {}},
            "hardware": {"profile": "some-profile"},
            "knee": {"windows": 4},
            "measure": {"lead_in": 1.0, "skip_first": 0.1, "skip_last": 0.05},
        },
        "runs": [{"policy": p, "rate_per_s": rate, "keys": [f"{p}{rate}"]} for p in goodputs for _, rate in LOADS],
        "provenance": {
            "command": "python -m research.compare 'policies=[a,b]'",
            "trace": {
                "name": "made",
                "sha256": "0" * 64,
                "requests": 100,
                "replay": "open",
                "prefix_block_tokens": 16 if prefixes else 0,
                "sources": ["<b>made</b> by hand"],
                "zones": {z: {"requests": 40, "duration_s": 10.0, "pace_per_s": 4.0} for z in ("validation", "test")},
            },
            "cluster": {
                "name": "2p2d",
                "gpus": 16,
                "workers": ["prefill"],
                "link": {"name": "rdma", "source": {"kind": "assumption"}},
                "profiles": {"some-profile": {"engine": "vllm", "source": {"kind": "measured"}, "fit": {}}},
            },
            "code": {"sha256": "1" * 64, "git_sha": None, "git_dirty": None},
            "versions": {"python": "3.11"},
            "machine": "Linux",
            "store": "/nowhere",
        },
    }
    trace: Any = SimpleNamespace(prefix_block_tokens=16 if prefixes else 0, n_sessions=0)
    study: Any = SimpleNamespace(
        entrants=[PolicyChoice.parse(p, "policies") for p in goodputs], no_shared_prefixes=False
    )
    out["words"] = [*words.say(out), *ranking.prefix_words(study, trace, reasons)]
    out["backtest"] = None
    out["cautions"] = [backtests.words(None), *cautions.short_windows(out)]
    return out
