"""``action=score_from_runs``: five random runs of a public target given, how well are its other runs predicted?

A target is a model, GPU, engine, version and the degrees and precision it was served with, colocated, with at least
:data:`LEAST` measured runs. Its profile comes from op tables; five of its runs correct it; the others are predicted.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from research.settings import Settings

if TYPE_CHECKING:
    import polars as pl
    from omegaconf import DictConfig

    from envs.hardware.from_runs import Predict
    from envs.hardware.profile import Profile
    from research.calibrating.replays import Assumed, Replay

LEAST = 10
GIVEN_RUNS = 5
TARGET = ("model", "gpu", "engine", "engine_version", "tp", "pp", "dp", "moe_tp", "moe_ep", "precision")
BARS = {"tpot_mape": 6.0, "ttft_median": 15.0}
BAR_TARGETS = 5
"""Fewer targets meet or miss no bar."""
KINDS = ("dense", "experts")
RESAMPLES = 2000


def run(config: DictConfig) -> int:
    """Score all targets; leaves ``summary.json`` and ``runs.parquet`` in ``out``."""
    import polars as pl
    from omegaconf import OmegaConf

    from envs.hardware.sources.serving_runs import serving_runs
    from research.evidence.runs import git_state, make_folder, write_json
    from traces.catalog import default_data_dir

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    number, start = Settings(plain), time.perf_counter()
    draws, every = (int(number(key, low=1, whole=True)) for key in ("draws", "every"))
    workers = _cores() if plain["workers"] is None else int(number("workers", low=1, whole=True))
    data_dir = default_data_dir() if plain["data_dir"] is None else Path(plain["data_dir"]).expanduser()
    out = Path("results/calibrate-score_from_runs" if plain["out"] is None else plain["out"]).expanduser().absolute()
    make_folder(out)
    found = targets(serving_runs(data_dir).kept)[::every]
    print(
        f"{len(found)} targets of at least {LEAST} colocated runs, {draws} draws of {GIVEN_RUNS} runs each", flush=True
    )
    rows: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    for result in _results(found, draws, data_dir, workers):
        if "missing" in result:
            missing.append(result)
            continue
        rows += result["rows"]
        print(_line(result), flush=True)
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame.write_parquet(out / "runs.parquet")
    scores = {"all": score(frame)} if rows else {}
    for kind in KINDS:
        if rows and (own := frame.filter(pl.col("kind") == kind)).height:
            scores[kind] = score(own)
    summary = {
        "targets": len(found),
        "scored": 0 if frame.is_empty() else frame["target"].n_unique(),
        "draws": draws,
        "given_runs": GIVEN_RUNS,
        "scores": scores,
        "bars": BARS,
        "by_target": by_target(frame) if rows else [],
        "missing": missing,
        **git_state(),
    }
    write_json(out / "summary.json", summary)
    for line in words(summary):
        print(line)
    print(f"took {time.perf_counter() - start:.0f} s\nruns     {out / 'runs.parquet'}\nsummary  {out / 'summary.json'}")
    print("next     python -m research.calibrate action=from_runs path=RUNS.csv profile=NAME   (runs of your own)")
    return 0


def targets(kept: pl.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    """Name and runs of each target, in order of the name."""
    import polars as pl

    from research.validating.profiles import is_dense

    own = kept.filter(pl.col("layout") == "colocated")
    found = []
    for key, group in own.group_by(*TARGET, maintain_order=True):
        if group.height >= LEAST:
            shown = TARGET[4:7] if is_dense(str(key[0])) else TARGET[4:9]
            degrees = " ".join(f"{n}{v}" for n, v in zip(shown, key[4:9], strict=False) if v not in (None, 1))
            name = [str(part) for part in (key[0], key[1], key[2], key[3], degrees or "tp1", key[9] or "bf16") if part]
            found.append((" | ".join(name), group.to_dicts()))
    return sorted(found, key=lambda target: target[0])


def perform(
    target: tuple[str, Sequence[Mapping[str, Any]]], draws: int, data_dir: Path, path: Sequence[str]
) -> dict[str, Any]:
    """All draws of one target; called in a worker process."""
    for entry in path:
        if entry not in sys.path:
            sys.path.append(entry)
    from envs.hardware.errors import MeasurementError
    from envs.hardware.from_runs import REQUEST_S, fit_correction, outside
    from research.execute import compiling_once
    from research.validating.profiles import NoProfileError, engine_profile, instance_of, is_dense

    name, runs = target
    try:
        profile = engine_profile(instance_of(runs[0]), data_dir)
    except NoProfileError as error:
        return {"target": name, "runs": len(runs), "missing": str(error)}
    tried = assumed_of(runs)
    rows: list[dict[str, Any]] = []
    refused = 0
    for draw in range(draws):
        order = np.random.default_rng([draw, len(runs)]).permutation(len(runs))
        given, others = ([runs[i] for i in part] for part in (order[:GIVEN_RUNS], order[GIVEN_RUNS:]))
        measured = np.array([[run["ttft_s"], run["tpot_s"]] for run in given])
        with compiling_once():
            try:
                fit = fit_correction(profile, measured, {a.words(): _predictor(given, profile, a) for a in tried})
                chosen = next(a for a in tried if a.words() == fit.candidate)
                before = _predictor(others, profile, nominal(tried))(profile, REQUEST_S)
                corrected, request_s = fit.correction.apply(profile), fit.correction.request_s
                after = _predictor(others, profile, chosen)(corrected, request_s)
            except MeasurementError as error:
                return {"target": name, "runs": len(runs), "missing": str(error)}
        reasons = outside(fit)
        refused += bool(reasons)
        left = np.abs(fit.errors_percent(fit.left_out))
        for run, old, new in zip(others, before, after, strict=True):
            truth = np.array([run["ttft_s"], run["tpot_s"]])
            errors = {"before": 100.0 * (old / truth - 1.0), "after": 100.0 * (new / truth - 1.0)}
            rows.append(
                {
                    "target": name,
                    "kind": KINDS[not is_dense(str(run["model"]))],
                    "draw": draw,
                    "run": run["run"],
                    "refused": bool(reasons),
                    "taken_for": fit.candidate,
                }
                | {f"{w}_{k}_percent": float(e[i]) for k, e in errors.items() for i, w in enumerate(("ttft", "tpot"))}
                | {"left_out_tpot_mape": float(left[:, 1].mean()), "left_out_ttft_median": float(np.median(left[:, 0]))}
            )
    return {"target": name, "runs": len(runs), "rows": rows, "refused": refused}


def assumed_of(runs: Sequence[Mapping[str, Any]]) -> list[Assumed]:
    """What is tried for a target: its campaign's protocol where that was published."""
    from research.calibrating.replays import assumptions
    from research.validating.protocols import UNKNOWN, protocol_of

    protocols = {protocol_of(str(run["campaign"])) for run in runs}
    rounds = sorted({r for protocol in protocols for r in protocol.rounds})
    return assumptions(rounds) if UNKNOWN in protocols else assumptions(rounds, budgets=(None,))


def nominal(tried: Sequence[Assumed]) -> Assumed:
    """What is taken without runs: the middle number of rounds, all at once, the published budget."""
    plain = [a for a in tried if a.start == "together" and a.budget_tokens is None]
    return plain[(len(plain) - 1) // 2]


def public_replay(run: Mapping[str, Any], profile: Profile, assumed: Assumed) -> Replay:
    """A public run as validation replays it, but for what is assumed."""
    from dataclasses import replace

    from envs.cluster.spec import ClusterSpec, WorkerSpec
    from envs.hardware.load import load_handover
    from research.calibrating.replays import APART_S, Replay
    from research.validating.engines import PREFILL_FIRST, step_policy
    from research.validating.protocols import protocol_of
    from traces.clients import client_trace

    protocol = protocol_of(str(run["campaign"]))
    policy = step_policy(run, protocol, {str(run["engine"]): assumed.budget_tokens})
    worker = WorkerSpec(
        profile, policy.role, max_batched_tokens=policy.budget_tokens, max_num_seqs=policy.max_num_seqs,
        prefix_cache=False, prefill_share=PREFILL_FIRST,
    )  # fmt: skip
    prompt, output = (protocol.mean_tokens(int(run[f"{what}_tokens"])) for what in ("prompt", "output"))
    jitter = (1.0 - protocol.shortest) / (1.0 + protocol.shortest)
    trace = client_trace(
        int(run["users"]), assumed.rounds, prompt, output, jitter, assumed.start, stagger_s=APART_S
    )  # fmt: skip
    handover = replace(load_handover("nvlink", gpus=profile.gpus), connect_s=0.0)
    return Replay(ClusterSpec("colocated1", (worker,), handover), trace, str(run["run"]), policy.wait)


def _predictor(runs: Sequence[Mapping[str, Any]], profile: Profile, assumed: Assumed) -> Predict:
    from research.calibrating.replays import predictor

    return predictor([public_replay(run, profile, assumed) for run in runs])


def score(frame: pl.DataFrame) -> dict[str, Any]:
    """Errors before and after over all predicted runs, with 95 % intervals from resampling whole targets.

    Args:
        frame: one row a target, draw and predicted run.

    Returns:
        ``tpot_mape, tpot_median, ttft_mape, ttft_median``, each ``before`` and ``after`` of ``estimate, low, high``;
        ``targets, predictions``; ``after_by_draw`` and ``after_not_refused`` (of :func:`plain_score`);
        ``refused_share``, of the draws; ``left_out``: what the fits said of themselves.
    """
    codes = frame["target"].rank("dense").to_numpy().astype(np.int64) - 1
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(codes == code) for code in range(int(codes.max()) + 1)]
    samples = [
        np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))]) for _ in range(RESAMPLES)
    ]
    out: dict[str, Any] = {}
    for what in ("tpot", "ttft"):
        for how, reduce in (("mape", np.mean), ("median", np.median)):
            cell = {}
            for when in ("before", "after"):
                size = frame[f"{what}_{when}_percent"].abs().to_numpy()
                low, high = np.quantile([reduce(size[sample]) for sample in samples], (0.025, 0.975))
                cell[when] = {"estimate": float(reduce(size)), "low": float(low), "high": float(high)}
            out[f"{what}_{how}"] = cell
    fits = frame.unique(["target", "draw"])
    out["targets"], out["predictions"] = len(members), frame.height
    kept = frame.filter(~frame["refused"])
    out["after_by_draw"] = [plain_score(own) for _, own in frame.sort("draw").group_by("draw", maintain_order=True)]
    out["after_not_refused"] = plain_score(kept) if kept.height else None
    out["refused_share"] = float(fits["refused"].mean())  # type: ignore[arg-type]
    out["left_out"] = {name: float(fits[f"left_out_{name}"].mean()) for name in ("tpot_mape", "ttft_median")}  # type: ignore[arg-type]
    return out


def plain_score(frame: pl.DataFrame) -> dict[str, float]:
    """The two figures that have bars, after the correction, without interval."""
    return {
        "tpot_mape": float(frame["tpot_after_percent"].abs().mean()),  # type: ignore[arg-type]
        "ttft_median": float(frame["ttft_after_percent"].abs().median()),  # type: ignore[arg-type]
    }


def by_target(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Errors of each target."""
    import polars as pl

    return (
        frame.group_by("target")
        .agg(
            predictions=pl.len(),
            tpot_mape_before=pl.col("tpot_before_percent").abs().mean(),
            tpot_mape_after=pl.col("tpot_after_percent").abs().mean(),
            ttft_median_before=pl.col("ttft_before_percent").abs().median(),
            ttft_median_after=pl.col("ttft_after_percent").abs().median(),
            refused=pl.col("refused").mean(),
        )
        .sort("target")
        .to_dicts()
    )


def words(summary: Mapping[str, Any]) -> list[str]:
    """The score beside its bar, and the targets without a profile."""
    lines = [""]
    for kind, scores in summary["scores"].items():
        few = scores["targets"] < BAR_TARGETS
        lines.append(f"{kind}: {scores['targets']} targets, {scores['predictions']} predictions of runs not given:")
        for key, title in (("tpot_mape", "TPOT, mean error"), ("ttft_median", "TTFT, median error")):
            before, after = (scores[key][when] for when in ("before", "after"))
            lines.append(
                f"  {title}: {before['estimate']:.1f} % [{before['low']:.1f}, {before['high']:.1f}] before, "
                f"{after['estimate']:.1f} % [{after['low']:.1f}, {after['high']:.1f}] after"
                + ("" if few else f"; bar {BARS[key]:g} %")
            )
        if few:
            lines.append(f"  no bar is met or missed: fewer than {BAR_TARGETS} targets say nothing of all")
        lines.append(
            f"  the fits said of themselves, on runs left out: TPOT {scores['left_out']['tpot_mape']:.1f} %, TTFT "
            f"{scores['left_out']['ttft_median']:.1f} %; {scores['refused_share']:.0%} would be refused"
        )
        draws = scores["after_by_draw"]
        spans = [sorted(draw[key] for draw in draws) for key in BARS]
        told = ", ".join(
            f"{title} {span[0]:.1f} to {span[-1]:.1f} %" for title, span in zip(("TPOT", "TTFT"), spans, strict=True)
        )
        lines.append(f"  single draws ({len(draws)}): {told}")
        if (kept := scores["after_not_refused"]) is not None:
            lines.append(f"  without the refused: TPOT {kept['tpot_mape']:.1f} %, TTFT {kept['ttft_median']:.1f} %")
    reasons = Counter(row["missing"].split("\n")[0] for row in summary["missing"])
    lines += [f"not scored: {n} targets: {reason}" for reason, n in reasons.most_common()]
    return lines


def _line(result: Mapping[str, Any]) -> str:
    rows = result["rows"]

    def of(key: str) -> Any:
        return np.abs([row[key] for row in rows])

    return (
        f"{result['target']}: TPOT {of('tpot_before_percent').mean():.1f} -> {of('tpot_after_percent').mean():.1f} %, "
        f"TTFT {np.median(of('ttft_before_percent')):.1f} -> {np.median(of('ttft_after_percent')):.1f} %"
    )


def _results(
    found: Sequence[tuple[str, list[dict[str, Any]]]], draws: int, data_dir: Path, workers: int
) -> Iterator[dict[str, Any]]:
    if workers == 1 or len(found) <= 1:
        yield from (perform(target, draws, data_dir, list(sys.path)) for target in found)
        return
    from joblib import delayed

    from research.execute import in_processes

    yield from in_processes((delayed(perform)(target, draws, data_dir, list(sys.path)) for target in found), workers)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
