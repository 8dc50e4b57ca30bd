"""``python -m research.literature``: PPD's tables 1 and 2 (2603.13358) beside ours, from stated conditions.

x = 0 sends every turn over the handover (static P to D), x = 1 keeps turn 2 on its decode worker; both place by
session hash, as the paper's proxy does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from omegaconf import DictConfig, OmegaConf

from research.cli import run_command

SUMMARY = "Two-turn sessions on four 8B workers: what staying on the decode worker does, beside PPD's tables 1 and 2."
EXAMPLES = ("out=DIR", "seeds=1 'prefill_cache=[true]'")

# PPD (2603.13358 v2), table 1: change of turn-2 TTFT from x = 0 to x = 1, per cent, by band of conversations a second.
PAPER_TABLE1 = {
    "1p3d": {"low": -57.8, "mid": -65.2, "high": -73.3},
    "2p2d": {"low": -47.7, "mid": -51.6, "high": -56.2},
    "3p1d": {"low": -44.3, "mid": -38.1, "high": -24.9},
}
PAPER_DISAGREE_PERCENT = 92.2  # table 2's text: TTFT-best and TPOT-best layouts differ in this share of cells

ARMS = {
    "x=0": {"w_ttft": 0.0, "w_tpot": 1.0, "balanced": 0.0},
    "x=1": {"bypass_tokens": 1e12, "balanced": 0.0},
}


def _cluster(name: str, config: DictConfig, prefill_cache: bool) -> Any:
    from envs.cluster.presets import parse_cluster
    from envs.hardware.load import load_handover, load_profile

    profile = load_profile(config.profile)
    handover = replace(load_handover(config.link, gpus=profile.gpus), connect_s=config.connect_s)
    cluster = parse_cluster(name, profile=profile, handover=handover)
    workers = tuple(replace(w, prefix_cache=prefill_cache or w.role != "prefill") for w in cluster.workers)
    return replace(cluster, workers=workers)


def measure(config: DictConfig, prefill_cache: bool) -> pl.DataFrame:
    """One row a (layout, arm, turn 1, turn 2, qps): mean turn-2 TTFT and TPOT over the seeds."""
    from rich.progress import track

    from envs.cluster.simulator import simulate
    from envs.cluster.slo import LOOSE
    from policies import registry
    from traces.generate import two_turn_sessions

    entrants = [(layout, arm) for layout in config.layouts for arm in ARMS] + [("colocated4", "x=1")]
    cells = [(t1, t2, q) for t1 in config.turn1 for t2 in config.turn2 for q in config.qps]
    clusters = {layout: _cluster(layout, config, prefill_cache) for layout, _ in entrants}
    policies = {arm: registry.load("ppd", **params) for arm, params in ARMS.items()}
    rows = []
    quiet = not sys.stdout.isatty()
    for t1, t2, qps in track(cells, "two-turn sessions", disable=quiet):
        for seed in range(config.seeds):
            trace = two_turn_sessions(
                qps, config.duration_s, turn1=tuple(t1), turn2=[tuple(t2)], think_s=config.think_s, seed=seed
            )
            for layout, arm in entrants:
                frame = simulate(trace, clusters[layout], policies[arm], LOOSE, seed=seed).requests
                second = frame.filter(turn=2)
                rows.append(
                    {
                        "layout": layout, "arm": arm, "turn1": f"{t1[0]}->{t1[1]}", "turn2": f"{t2[0]}->{t2[1]}",
                        "qps": float(qps), "seed": seed, "ttft_s": second["ttft_s"].mean(),
                        "tpot_s": second["tpot_s"].mean(), "sessions": second.height,
                    }
                )  # fmt: skip
    keys = ["layout", "arm", "turn1", "turn2", "qps"]
    return pl.DataFrame(rows).group_by(keys, maintain_order=True).agg(pl.col("ttft_s", "tpot_s", "sessions").mean())


def table1(cells: pl.DataFrame, bands: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean change of turn-2 TTFT from x = 0 to x = 1 in per cent, by layout and band of rates."""
    keys = ["layout", "turn1", "turn2", "qps"]
    both = cells.filter(arm="x=0").join(cells.filter(arm="x=1"), on=keys, suffix="_1")
    both = both.with_columns(change=100 * (pl.col("ttft_s_1") / pl.col("ttft_s") - 1))
    out: dict[str, dict[str, float]] = {}
    for layout in both["layout"].unique(maintain_order=True):
        rows = both.filter(layout=layout)
        out[layout] = {
            band: float(np.mean(rows.filter(pl.col("qps").is_between(low, high))["change"].to_numpy()))
            for band, (low, high) in bands.items()
        }
    return out


def disagreement_percent(cells: pl.DataFrame) -> float:
    """Share of (workload, rate) cells whose TTFT-best and TPOT-best entrants (layout and arm) differ."""
    keys = ["turn1", "turn2", "qps"]
    name = pl.col("layout") + " " + pl.col("arm")
    best = cells.group_by(keys).agg(ttft=name.sort_by("ttft_s").first(), tpot=name.sort_by("tpot_s").first())
    differ = (best["ttft"] != best["tpot"]).to_numpy()
    return 100.0 * float(differ.mean())


def disagreement_if_slower(cells: pl.DataFrame, factors: Sequence[float]) -> dict[str, float]:
    """The share of disagreement if the colocated layout's TPOT were this many times what the model says.

    Explains the one difference: our steps add prefill and decode work, measured mixed steps cost more than the sum.
    """
    slow = pl.col("layout").str.starts_with("colocated")
    return {
        f"{factor:g}": disagreement_percent(
            cells.with_columns(tpot_s=pl.when(slow).then(pl.col("tpot_s") * factor).otherwise(pl.col("tpot_s")))
        )
        for factor in factors
    }


def verdicts(ours: dict[str, dict[str, float]], disagree: float) -> dict[str, bool]:
    """The paper's claims, each as what our figures say."""
    return {
        "staying local cuts turn-2 TTFT in every layout and band": all(
            v < 0 for t in ours.values() for v in t.values()
        ),
        "the cut grows with rate for 1P3D": ours["1p3d"]["low"] > ours["1p3d"]["mid"] > ours["1p3d"]["high"],
        "the cut shrinks with rate for 3P1D": ours["3p1d"]["low"] < ours["3p1d"]["mid"] < ours["3p1d"]["high"],
        "TTFT-best and TPOT-best entrants differ in most cells": disagree > 50.0,
    }


def run(config: DictConfig) -> int:
    """Measure, print ours beside the paper's, leave cells and summary."""
    from rich.table import Table

    from research.evidence import runs, table

    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    console = table.make_console()
    summary: dict[str, Any] = {"config": OmegaConf.to_container(config), "paper_table1_percent": PAPER_TABLE1}
    for cache in config.prefill_cache:
        cells = measure(config, bool(cache))
        ours, disagree = table1(cells, OmegaConf.to_container(config.bands)), disagreement_percent(cells)  # type: ignore[arg-type]
        label = f"prefill workers {'with' if cache else 'without'} prefix cache"
        shown = Table(title=f"turn-2 TTFT, x=0 to x=1, per cent: ours (paper's); {label}")
        shown.add_column("layout")
        for band in config.bands:
            shown.add_column(f"{band} qps", justify="right")
        for layout, values in ours.items():
            paper = PAPER_TABLE1.get(layout, {})
            shown.add_row(layout, *(f"{v:+.1f} ({paper.get(band, float('nan')):+.1f})" for band, v in values.items()))
        console.print(shown)
        console.print(
            f"TTFT-best and TPOT-best entrants differ in {disagree:.1f}% of cells (paper: {PAPER_DISAGREE_PERCENT}%)"
        )
        slower = disagreement_if_slower(cells, config.colocated_tpot_factors)
        console.print(
            "  the same if mixed steps made the colocated layout's TPOT longer: "
            + ", ".join(f"x{factor}: {share:.0f}%" for factor, share in slower.items())
        )
        claims = verdicts(ours, disagree)
        for claim, holds in claims.items():
            console.print(f"  {'matched    ' if holds else 'NOT matched'}  {claim}")
        name = "with_cache" if cache else "without_cache"
        cells.write_parquet(out / f"cells_{name}.parquet")
        summary[name] = {"table1_percent": ours, "disagree_percent": disagree, "claims": claims}
        summary[name]["disagree_percent_if_colocated_tpot_times"] = slower
    runs.write_json(out / "summary.json", summary)
    console.print(f"summary  {out / 'summary.json'}\nnext     python -m research.compare", highlight=False)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    return run_command("literature", run, summary=SUMMARY, examples=EXAMPLES, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
