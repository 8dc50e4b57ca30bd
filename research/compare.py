"""``python -m research.compare``: several policies on the same windows of one trace, paired, with intervals."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from research.cli import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from research.conduct import Conducted
    from research.evidence.summary import Cell
    from research.study import Study

SUMMARY = "Serve a trace on a cluster under several routing policies; which one wins, by how much, how sure."
EXAMPLES = (
    "",
    "trace=mooncake_conversation cluster=2p2d 'policies=[round_robin,ppd,{name: deflect, alpha: 1.3}]' "
    "'load=[0.8,1.0,1.2]' slo=tight out=DIR",
    "trace.path=my.csv trace.format=azure cluster=1p3d 'policies=[round_robin,guard]' 'rate_per_s=[2,4]'",
)


def run(config: DictConfig) -> int:
    """Conduct the study, print it, leave it in its folder."""
    present(config, "compare")
    return 0


def present(config: DictConfig, command: str) -> dict[str, Any]:
    """What compare and evaluate do; returns the summary."""
    start = time.perf_counter()
    from research.conduct import conduct
    from research.evidence import runs, table
    from research.study import study_from

    study = study_from(config, command)
    console = table.make_console()
    console.print(introduction(study), highlight=False)
    done = conduct(study, console)
    summary = summarise(study, done)
    runs.write_json(study.out / "summary.json", summary)
    report, tracked = show(study, summary, console)
    seconds = time.perf_counter() - start
    console.print()
    console.print(ending(study, done, report, tracked, seconds, summary), highlight=False, soft_wrap=True)
    return summary


def show(study: Study, summary: Mapping[str, Any], console: Console) -> tuple[Path | None, str | None]:
    """Print a finished study, write its report, track it; returns the report and where it is tracked, if at all."""
    from research.evidence import table

    console.print()
    for part in table.comparison_tables(summary, console.width):
        console.print(part)
    if study.command == "evaluate":
        console.print()
        console.print(table.detail_table(summary, study.policies[0].label))
    console.print(notes(study, summary), highlight=False)
    console.print()
    for line in (*summary["words"], *summary["cautions"]):
        console.print(line, highlight=False, soft_wrap=True)
    report = None
    if study.report:
        from research.report import write_report

        report = write_report(study.out, study.store)
    return report, track(study, summary, console)


def introduction(study: Study) -> str:
    """What is about to be run, in a line or two."""
    trace = study.trace.load()
    return (
        f"trace {study.trace.text()} ({len(trace)} requests, {trace.replay} replay), cluster {study.cluster.name} "
        f"({study.cluster.gpus} GPUs, {study.hardware['profile']}, {study.cluster.handover.name}), slo {study.slo.name}"
    )


def summarise(study: Study, done: Conducted) -> dict[str, Any]:
    """The content of ``summary.json``: rows, differences, winners, words, provenance. Equal runs give an equal one."""
    from research.evidence import backtests, cautions, provenance, ranking, summary, words, worlds
    from research.trace_choice import pace_unit

    trace = study.trace.load()
    labels = [p.label for p in study.entrants]
    reasons = ranking.unranked(study, trace)
    unranked = list(reasons)
    out: dict[str, Any] = {
        "format": 1,
        "command": study.command,
        "title": f"{study.trace.text()} on {study.cluster.name}, slo {study.slo.name}: "
        f"means over {study.windows} windows of the test zone",
        "policies": labels,
        "given": {p.label: dict(p.params) for p in study.entrants},
        "reference": study.reference.label,
        "unranked": unranked,
        "unranked_because": reasons,
        "rate_unit": pace_unit(trace),
        "windows": study.windows,
        "lead_in": study.lead_in,
        "spans": cautions.spans(study, done),
        "seeds": study.seeds,
        "knee": knee_plain(study, done),
        "rows": summary.rows(done.cells, study.slo.name, study.seeds),
        "differences": summary.differences(done.cells, study.reference.label, study.slo.name),
        "winners": summary.winners(done.cells, study.slo.name, unranked),
        "robustness": robustness(study, done, unranked),
        "worlds": worlds.verdict(_at_worlds(done), done.worlds)
        | ({"widths": worlds.widths(study.cluster)} if done.worlds else {}),
    }
    out["words"] = [*words.say(out), *ranking.prefix_words(study, trace, reasons)]
    out["backtest"] = backtests.record(study.backtest, trace)
    out["cautions"] = [backtests.words(out["backtest"]), *cautions.cautions(study, out)]
    out["provenance"] = provenance.of_study(study)
    out["config"] = study.config
    out["runs"] = [{"policy": p, "rate_per_s": rate, "keys": keys} for (p, rate), keys in done.keys.items()]
    return out


def robustness(study: Study, done: Conducted, unranked: list[str]) -> dict[str, Any]:
    """The comparison at the load nearest 1 with the policies' predictor off."""
    from research.evidence import summary

    cells = done.robustness
    if not cells:
        return {"load": None, "rate_per_s": None, "leader": None, "leaders": {}, "rows": []}
    rate = cells[0].rate_per_s
    base = summary.winners([c for c in done.cells if c.rate_per_s == rate], study.slo.name, unranked)
    leaders = {}
    for off_by in study.robustness:
        found = summary.winners([c for c in cells if c.off_by == off_by], study.slo.name, unranked)
        if found:
            leaders[str(off_by)] = {key: found[0][key] for key in ("leader", "estimate", "proven")}
    metrics = [m for m in summary.COMPARED]
    return {
        "load": cells[0].load,
        "rate_per_s": rate,
        "leader": base[0]["leader"] if base else None,
        "leaders": leaders,
        "rows": summary.rows(cells, study.slo.name, study.seeds, metrics),
    }


def _at_worlds(done: Conducted) -> list[Cell]:
    """The nominal cells of the policies and the rate that drawn worlds were run for."""
    names = {cell.policy for cell in done.worlds}
    return [c for c in done.cells if done.worlds and c.rate_per_s == done.worlds[0].rate_per_s and c.policy in names]


def knee_plain(study: Study, done: Conducted) -> dict[str, Any] | None:
    """The knee as plain values."""
    if done.knee is None:
        return None
    k = done.knee
    return {
        "outcome": k.outcome,
        "rate_per_s": k.rate_per_s,
        "scale": k.scale,
        "policy": study.reference.label,
        "attainment": study.knee.attainment,
        "words": k.sentence(study),
        "curve": [
            {
                "rate_per_s": p.rate_per_s,
                "feasible_attainment": None if math.isnan(p.attainment) else p.attainment,
                "infeasible_share": p.infeasible_share,
            }
            for p in k.curve
        ],
    }


def notes(study: Study, summary: Mapping[str, Any]) -> str:
    """What the table's figures are."""
    from research.evidence.cautions import lengths

    before = "the window" if study.lead_in == 1.0 else f"{study.lead_in:g} windows"
    verb = "is" if study.lead_in == 1.0 else "are"
    lead = f"; {before} before it {verb} served first, uncounted, from idle with empty caches"
    if study.lead_in == 0.0:
        lead = ", which starts idle with empty caches"
    lines = [
        f"Measured: requests that arrive after the first {study.skip_first:.0%} and before the last "
        f"{study.skip_last:.0%} of each window{lead}.",
        lengths(summary),
        "Goodput: requests a second that meet all their objectives. Δ: paired over windows, Holm-adjusted. "
        "✓: a proven winner.",
    ]
    shares = [r["estimate"] for r in summary["rows"] if r["metric"] == "infeasible_share" and r["estimate"] is not None]
    if shares and max(shares) > 0:
        lines.append(
            "Infeasible requests (an idle cluster with a perfect prefix cache would miss their objectives too): "
            f"{max(shares):.1%}."
        )
    if because := summary["unranked_because"]:
        lines.append(f"* not ranked on this trace: {'; '.join(f'{p} {why}' for p, why in because.items())}.")
    return "\n".join(lines)


def track(study: Study, summary: Mapping[str, Any], console: Console) -> str | None:
    """Put the study into MLflow; a failure is told in one line and loses nothing."""
    if not study.tracking["enabled"]:
        return None
    from research.evidence import tracking

    try:
        return tracking.log_study(
            summary,
            study.out,
            uri=study.tracking["uri"],
            folder=study.store.parent,
            experiment=study.tracking["experiment"],
        )
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        console.print(f"tracking failed, results are kept: {type(error).__name__}: {reason}", highlight=False)
        return None


def ending(
    study: Study,
    done: Conducted,
    report: object,
    tracked: str | None,
    seconds: float,
    summary: Mapping[str, Any],
) -> str:
    """Where things are, and what to run next."""
    runner = done.runner
    lines = [
        f"{runner.made} runs made, {runner.reused} reused, {seconds:.1f} s "
        f"({runner.seconds:.1f} s of simulation on {study.workers} processes)",
        f"summary  {study.out / 'summary.json'}",
    ]
    if report is not None:
        lines.append(f"report   {report}")
    if tracked is not None:
        lines.append(f"tracking {tracked}  (extra `ui`: python -m mlflow ui --workers 1 --backend-store-uri {tracked})")
    if study.command == "compare":
        leader = summary["winners"][-1]["leader"] or study.reference.label
        lines.append(f"next     {evaluate_command(study, leader)}")
    else:
        lines.append(
            "next     python -m research.compare 'policies=[...]' with the same settings puts it beside others"
        )
    return "\n".join(lines)


def evaluate_command(study: Study, label: str) -> str:
    """The command that shows one policy of the study in detail."""
    from research.choices import shown

    choice = next(p for p in study.entrants if p.label == label)
    words = ["python", "-m", "research.evaluate", *study.trace.words()]
    words += [f"cluster={study.config['cluster']['name']}", f"slo={study.slo.name}", f"policy={choice.name}"]
    words += [f"policy.target={choice.target}"] if choice.target else []
    words += ["no_shared_prefixes=true"] if study.no_shared_prefixes else []
    prefix = "policy.params." if choice.target else "policy."
    words += [f"{prefix}{name}={shown(value)}" for name, value in choice.params]
    return shlex.join(words)


def main() -> int:
    """Entry point."""
    return run_command("compare", run, summary=SUMMARY, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
