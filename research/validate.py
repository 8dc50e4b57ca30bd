"""``python -m research.validate``: how far the simulator is from measured serving, and whether it ranks rightly.

Without a trace: measured serving runs (closed-loop benchmarks of real engines) replayed with profiles made from op
tables, nothing fitted to the runs. With a trace that is a log of your own cluster: its recorded routes replayed.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from research.cli import run_command
from research.errors import ResearchError, nearest
from research.measurements import told_where_from
from research.settings import Settings

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from research.validating.serving import Setting

SUMMARY = "Measured serving runs, or the log of your own cluster, against the simulator: errors, rankings, a picture."
EXAMPLES = (
    "part=colocated_dense",
    "part=all out=DIR",
    "part=colocated_dense every=5 'budget_tokens.vllm=2048' 'rounds=[5]'",
    "trace=my_cluster_log.parquet policy=logged cluster=2p2d hardware.profile=mine.yaml",
)
DEFAULT_TRACE = "default"
FORMAT = 1


def run(config: DictConfig, words: Sequence[str] = ()) -> int:
    """Validate a part, or backtest a log.

    Args:
        config: the composed configuration.
        words: the command line: a trace that is named there is meant, if it is the default one.
    """
    from research.validating.parts import PARTS, REQUEST_PART

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    part = plain["part"]
    named = any(word.lstrip("+~").partition("=")[0].partition(".")[0] == "trace" for word in words)
    trace_given = named or plain["trace"]["path"] is not None or plain["trace"]["name"] != DEFAULT_TRACE
    if part is not None and part not in PARTS:
        raise ResearchError(f"part={part}: expected one of {', '.join(PARTS)}{nearest(str(part), PARTS)}")
    if trace_given:
        if part is not None:
            raise ResearchError(f"part={part} and trace=...: expected one of them, a part of the runs or a log")
        return backtest(plain)
    with told_where_from():
        return validate_requests(plain) if part == REQUEST_PART else validate(plain, str(part or PARTS[0]))


def validate(plain: Mapping[str, Any], part: str) -> int:
    """Predict the runs of a part, score them, leave table, picture and summary."""
    from envs.hardware.records import origin_record
    from envs.hardware.sources.serving_runs import SILICON, TABLE, serving_runs
    from research.evidence.provenance import command_line, versions
    from research.evidence.runs import git_state, make_folder, write_json
    from research.evidence.table import make_console
    from research.validating import layouts, ranking, show
    from research.validating.parts import select
    from research.validating.picture import draw
    from research.validating.protocols import PROTOCOLS
    from research.validating.rules import StaticEstimates, one_line
    from research.validating.scores import against_bars, by_rounds, gathered, table

    start = time.perf_counter()
    console, number = make_console(), Settings(plain)
    setting, data_dir = _setting(plain, number), _data_dir(plain)
    every = int(number("every", low=1, whole=True))
    workers = _workers(plain, number)
    found = serving_runs(data_dir, str(plain["runs"] or TABLE))
    runs = select(found.kept, part).gather_every(every)
    if runs.is_empty():
        raise ResearchError(f"part={part}: the table {found.table.relative} has no such runs")
    out = _folder(plain, f"validate-{part}" + (f"-every{every}" if every > 1 else ""))
    make_folder(out)
    for line in (
        f"{part}: {runs.height} measured runs of {found.table.relative} ({found.excluded.height} excluded by rules "
        "that look at no error), predicted from op tables, nothing fitted to these runs",
        _how_many(part, every, runs.height, out),
    ):
        console.print(line, highlight=False, soft_wrap=True)
    predictions = _predict(runs, setting, data_dir, out, workers, console)
    estimates = StaticEstimates(data_dir)
    rows = runs.to_dicts()
    frame = gathered(runs, predictions, [one_line(r) for r in rows], [estimates.of(r) for r in rows])
    errors = table(frame)
    summary: dict[str, Any] = {
        "format": FORMAT,
        "command": command_line("validate"),
        "part": part,
        "runs": runs.height,
        "predicted": frame["predicted_tpot_s"].count(),
        "missing": missing(frame),
        "excluded": found.excluded.group_by("rule").len().sort("rule").to_dicts(),
        "table": {
            "path": found.table.relative,
            "sha256": found.table.sha256,
            "source": origin_record(SILICON) if found.table.relative == TABLE else None,
        },
        "errors_percent": errors,
        "rounds_unknown": by_rounds(frame),
        "bars": against_bars(part, errors, runs.height) if every == 1 else [],
        "ranking": ranking.fidelity(frame, whole=every == 1),
        "layouts": layouts.verdict(frame),
        "protocols": [{"name": p.name, "rounds": list(p.rounds), "source": p.source} for p in PROTOCOLS],
        "versions": versions(),
        **git_state(),
        "config": dict(plain),
    }
    write_json(out / "summary.json", summary)
    frame.write_parquet(out / "runs.parquet")
    drawn = draw(
        frame, f"{part}: predicted against measured ({summary['predicted']} of {runs.height} runs)", out / "runs.png"
    )
    console.print(show.errors_table(errors))
    console.print(show.ranking_table(summary["ranking"]), highlight=False)
    if summary["layouts"]["strata"]:
        console.print(show.layout_table(summary["layouts"]))
    lines = [*_missing_words(summary["missing"]), *show.rounds_words(summary["rounds_unknown"])]
    lines += [*show.layout_words(summary["layouts"]), *show.bars_words(summary["bars"])]
    lines += [f"took {time.perf_counter() - start:.0f} s", f"runs     {out / 'runs.parquet'}"]
    lines += [f"picture  {out / 'runs.png'}"] if drawn else []
    lines += [
        f"summary  {out / 'summary.json'}",
        "next     python -m research.validate trace=MY_LOG policy=logged cluster=...   (a log of your own cluster, "
        "with its routes)",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def validate_requests(plain: Mapping[str, Any]) -> int:
    """Calibrate on the first requests of each logged run, judge the rest."""
    from dataclasses import asdict

    from research.evidence.provenance import command_line, versions
    from research.evidence.runs import git_state, make_folder, write_json
    from research.evidence.table import make_console
    from research.validating import requests, show_requests

    console = make_console()
    out = _folder(plain, "validate-vllm_requests")
    make_folder(out)
    found = []
    for logged in requests.logged_runs(_data_dir(plain)):
        with console.status(f"calibrating on the first {requests.CALIBRATION} requests of {logged.name}"):
            law = requests.calibrate(logged)
            frame = requests.simulated(logged, law)
        rows = requests.judge(frame)
        done = {
            "name": logged.name,
            "source": logged.source,
            "requests": frame.height,
            "calibrated_on": requests.CALIBRATION,
            "law": asdict(law),
            "kv_tokens": logged.worker.profile.kv.capacity_tokens,
            "max_batched_tokens": logged.worker.max_batched_tokens,
            "max_num_seqs": logged.worker.max_num_seqs,
            "backlog": requests.backlog(frame),
            "quantiles": rows,
        }
        frame.write_parquet(out / f"requests_{logged.name.split(',')[0]}.parquet")
        console.print(show_requests.table(logged.name, rows))
        for line in show_requests.words(done):
            console.print(line, highlight=False, soft_wrap=True)
        found.append(done)
    summary = {
        "format": FORMAT,
        "command": command_line("validate"),
        "part": "vllm_requests",
        "runs": found,
        "versions": versions(),
        **git_state(),
        "config": dict(plain),
    }
    write_json(out / "summary.json", summary)
    console.print(
        f"requests {out}/requests_*.parquet\nsummary  {out / 'summary.json'}", highlight=False, soft_wrap=True
    )
    console.print("next     python -m research.validate part=colocated_dense", highlight=False)
    return 0


def backtest(plain: Mapping[str, Any]) -> int:
    """Replay a log's own routes, compare its times, leave a mark for comparisons on that cluster if it deserves one."""
    from envs.cluster.simulator import simulate
    from envs.cluster.slo import LOOSE
    from envs.logged import has_routes
    from research.calibrating.log_words import cluster_words
    from research.choices import PolicyChoice
    from research.clusters import build_cluster
    from research.evidence.provenance import command_line
    from research.evidence.runs import make_folder, write_json
    from research.evidence.table import make_console
    from research.study import trace_from
    from research.validating import marks, show_backtest
    from research.validating.backtest import cautions, check_times, compared, errors
    from research.validating.backtest_picture import drawn

    console, number = make_console(), Settings(plain)
    choice = PolicyChoice.parse(plain["policy"], "policy")
    source = trace_from(plain)
    if not choice.replays:
        raise ResearchError(
            f"policy={choice.label}: a backtest replays the recorded routes, expected policy=logged; "
            f"{_without_routes(source.words(), choice.label)}"
        )
    trace, cluster = source.load(), build_cluster(plain["cluster"], plain["hardware"], {})
    if not has_routes(trace):
        raise ResearchError(
            f"trace {trace.name}: no logged routes, expected columns prefill_worker and decode_worker "
            "(trace.options.columns.prefill_worker=NAME maps a table's own); "
            f"{_without_routes(source.words(), 'round_robin')}"
        )
    policy = choice.build_for(trace, cluster)
    out = _folder(plain, f"validate-{Path(trace.name).name}-{Path(cluster.name).stem}")
    make_folder(out)
    with console.status("replaying"):
        result = simulate(trace, cluster, policy, LOOSE, seed=int(number("seed", low=0, whole=True)))
    frame = compared(result, trace)
    if frame.is_empty():
        raise ResearchError(
            f"trace {trace.name}: no request of it is served on {cluster.name}, so there is nothing to compare"
        )
    doubts = check_times(frame, trace, plain["trace"]["options"])
    found = errors(frame)
    summary: dict[str, Any] = {
        "format": FORMAT,
        "command": command_line("validate"),
        "trace": trace.name,
        "trace_sha256": trace.sha256,
        "cluster": cluster.name,
        "profile": plain["hardware"]["profile"],
        "replay": result.replay,
        "requests": len(trace),
        "compared": frame.height,
        "unit_doubts": doubts,
        "cautions": cautions(trace, cluster),
        **found,
        "config": dict(plain),
    }
    write_json(out / "summary.json", summary)
    frame.write_parquet(out / "requests.parquet")
    mark = marks.offer(
        cluster,
        {
            "cluster": cluster.name,
            "profiles": sorted({worker.profile.name for worker in cluster.workers}),
            "trace": trace.name,
            "trace_sha256": trace.sha256,
            **found["all"],
            "summary": str(out / "summary.json"),
        },
        doubts,
    )
    console.print(show_backtest.table(found))
    for line in (
        *show_backtest.words(summary),
        *(f"caution: {line}" for line in summary["cautions"]),
        f"requests {out / 'requests.parquet'}",
        *drawn(frame, f"{trace.name} on {cluster.name}: simulated against logged", out / "requests.png"),
        f"summary  {out / 'summary.json'}",
        f"mark     {mark}",
        f"next     {shlex.join(['python', '-m', 'research.compare', *source.words(), *cluster_words(plain)])}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def missing(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Runs without a prediction, by reason."""
    import polars as pl

    return (
        frame.filter(pl.col("missing").is_not_null())
        .group_by(pl.col("missing").alias("reason"), "weights", "gpu", "engine")
        .len("runs")
        .sort("runs", "reason", "weights", "gpu", "engine", descending=[True, False, False, False, False])
        .to_dicts()
    )


def _missing_words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [
        f"not predicted: {r['runs']} of {r['weights']}, {r['gpu']}, {r['engine']}: {r['reason']}" for r in rows[:8]
    ]
    more = sum(r["runs"] for r in rows[8:])
    return [*shown, f"not predicted: {more} more, see summary.json"] if more else shown


def _predict(
    runs: pl.DataFrame, setting: Setting, data_dir: Path, out: Path, workers: int, console: Console
) -> dict[str, dict[str, Any]]:
    from research.validating.work import predict

    rows = runs.to_dicts()
    if not console.is_terminal:
        return predict(rows, setting, data_dir, out, workers, lambda _: None)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=len(rows))
        return predict(rows, setting, data_dir, out, workers, lambda n: progress.advance(task, n))


def _setting(plain: Mapping[str, Any], number: Settings) -> Setting:
    from envs.hardware.load import load_handover
    from research.validating.serving import Setting

    budgets = tuple(
        (engine, None if value is None else int(number(f"budget_tokens.{engine}", low=1, whole=True)))
        for engine, value in sorted(plain["budget_tokens"].items())
    )
    rounds = plain["rounds"] if isinstance(plain["rounds"], list) else [plain["rounds"]]
    whole = sorted({int(number.check("rounds", value, low=1, whole=True)) for value in rounds})
    if plain["link"] is not None:
        load_handover(plain["link"])
    return Setting(plain["link"], budgets, tuple(whole), int(number("seed", low=0, whole=True)))


def _data_dir(plain: Mapping[str, Any]) -> Path:
    from traces.catalog import default_data_dir

    return Path(plain["data_dir"]).expanduser() if plain["data_dir"] is not None else default_data_dir()


def _workers(plain: Mapping[str, Any], number: Settings) -> int:
    import os

    if plain["workers"] is not None:
        return int(number("workers", low=1, whole=True))
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _how_many(part: str, every: int, runs: int, out: Path) -> str:
    """What a run of the command takes, and how to take less."""
    from research.validating.parts import RUN_PARTS
    from research.validating.work import FINISHED

    others = ", ".join(name for name in RUN_PARTS if name != part)
    less = f"every={40 * every} a sample of them, " if runs >= 40 else ""
    return (
        f"simulating {runs} runs{f', each {every}th of the part' if every > 1 else ''}, less those finished in "
        f"{out / FINISHED}; {less}part=NAME takes other ones ({others})"
    )


def _without_routes(trace_words: Sequence[str], policy: str) -> str:
    """What to do with a log that has no routes."""
    return (
        "a log that has none is compared under the routes of a policy, which leaves no mark: "
        f"python -m research.replay {shlex.join(trace_words)} cluster=... policy={policy}"
    )


def _folder(plain: Mapping[str, Any], name: str) -> Path:
    """Where results are written: ``out``, or a folder of this name in ASCII letters, digits and ``._-``."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-")
    place = Path("results") / name if plain["out"] is None else Path(plain["out"]).expanduser()
    return place.absolute()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command("validate", partial(run, words=words), summary=SUMMARY, examples=EXAMPLES, argv=words)


if __name__ == "__main__":
    sys.exit(main())
