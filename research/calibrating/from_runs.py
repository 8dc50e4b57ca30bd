"""``action=from_runs``: a profile corrected by five or more benchmark runs of the user's own cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.hardware.errors import MeasurementError, nearest
from research.errors import ResearchError
from research.settings import Settings
from traces.clients import STARTS

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from envs.hardware.from_runs import CorrectionFit
    from envs.hardware.profile import HandoverLaw, Profile
    from research.calibrating.runs_table import RunsTable

SWAPPED = (
    "with prompt_tokens and output_tokens the other way round the profile comes much nearer to the times: are the two "
    "columns swapped?"
)
NEARER = 0.5
"""Share of the profile's distance from the runs below which swapped lengths count as a mistake in the columns."""


def run(config: DictConfig) -> int:
    """Correct a profile; leaves it with ``summary.json`` in ``out`` and prints a table before and after."""
    from omegaconf import OmegaConf

    from envs.hardware.corrected import RunsSource, constants, corrected_record, errors
    from envs.hardware.from_runs import outside
    from envs.hardware.load import load_handover, load_profile
    from envs.hardware.write import to_yaml
    from research.calibrating.runs_table import read_runs
    from research.evidence.runs import make_folder, write_json

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    if plain["path"] is None or plain["profile"] is None:
        raise ResearchError("action=from_runs: expected path=RUNS.csv and profile=NAME (the profile to correct)")
    if not isinstance(plain["force"], bool):
        raise ResearchError(f"force={plain['force']}: expected true or false")
    number = Settings(plain)
    budget = None if plain["budget_tokens"] is None else int(number("budget_tokens", low=1, whole=True))
    profile, table = load_profile(str(plain["profile"])), read_runs(Path(str(plain["path"])).expanduser())
    link = None if plain["link"] is None else load_handover(str(plain["link"]))
    _check_engine(table, profile)
    _check_fits(table, profile)
    fit = fitted(table, profile, budget)
    words = table_words(table, fit)
    if (reasons := outside(fit)) and not plain["force"]:
        print("\n".join(words))
        told = [_by_line(reason, table) for reason in reasons]
        told += [SWAPPED] if columns_swapped(table, profile, fit) else []
        raise MeasurementError(
            f"{table.path}: outside what {profile.name} can be corrected to (force=true writes it all the same): "
            + "; ".join(told)
        )
    out = folder(plain, profile)
    make_folder(out)
    rows = [
        {"prompt_tokens": r.prompt_tokens, "output_tokens": r.output_tokens, "concurrency": r.users}
        | ({} if r.version is None else {"version": r.version})
        for r in table.runs
    ]
    record = corrected_record(profile, fit, RunsSource(table.path.name, table.sha256, rows))
    command = f"python -m research.calibrate action=from_runs path={table.path.name} profile={plain['profile']}"
    file = out / f"{record['name']}.yaml"
    file.write_text(to_yaml(record, command), encoding="utf-8")
    load_profile(file)  # what is written can be read
    kept = None if link is None or fit.request_measured() else str(plain["link"])
    linked = (
        None
        if link is None or kept is not None
        else write_link(link, fit, f"{len(table.runs)} runs of {table.path.name}", "from-runs", out, command)
    )
    summary = {
        "profile": record["name"],
        "file": str(file),
        "corrects": profile.name,
        "runs": len(table.runs),
        "versions": list(table.versions),
        "taken_for": fit.candidate,
        "costs": fit.costs,
        "constants": constants(fit),
        "request_ms": fit.correction.request_s * 1e3,
        "errors_percent": errors(fit),
        "outside": reasons,
        "rows": record["fit"]["from_runs"]["runs"],
        "link": None if linked is None else str(linked),
        "link_kept": kept,
    }
    write_json(out / "summary.json", summary)
    words += ending(table, profile, fit, file, linked, kept)
    print("\n".join(words))
    return 0


def fitted(table: RunsTable, profile: Profile, budget_tokens: int | None) -> CorrectionFit:
    """Fit the correction; what the runs do not say of how they were made is tried, the same for all of them."""
    import numpy as np

    from envs.hardware.from_runs import REQUEST_S, check_units, fit_correction
    from research.calibrating.replays import BUDGETS, JITTERS, ROUNDS, assumptions, predictor, replay_of
    from research.execute import compiling_once

    tried = assumptions(
        ROUNDS if any(run.rounds is None for run in table.runs) else ROUNDS[:1],
        STARTS if any(run.start is None for run in table.runs) else STARTS[:1],
        BUDGETS if budget_tokens is None else (budget_tokens,),
        JITTERS if any(run.jitter is None for run in table.runs) else JITTERS[:1],
    )
    measured = np.array([[run.ttft_s, run.tpot_s] for run in table.runs])
    with progress() as tick, compiling_once():
        candidates = {
            assumed.words_for(table.runs, budget_tokens is not None): predictor(
                [replay_of(run, profile, assumed) for run in table.runs], tick
            )
            for assumed in tried
        }
        check_units(measured, next(iter(candidates.values()))(profile, REQUEST_S))
        return fit_correction(profile, measured, candidates)


def columns_swapped(table: RunsTable, profile: Profile, fit: CorrectionFit) -> bool:
    """Whether the profile as it is predicts the runs much better with their two lengths swapped."""
    from dataclasses import replace

    import numpy as np

    from envs.hardware.from_runs import REQUEST_S
    from research.calibrating.replays import assumptions, predictor, replay_of

    runs = [replace(r, prompt_tokens=r.output_tokens, output_tokens=max(r.prompt_tokens, 2)) for r in table.runs]
    try:
        other = predictor([replay_of(run, profile, assumptions()[0]) for run in runs])(profile, REQUEST_S)
    except MeasurementError:
        return False
    own, turned = (float(np.mean(np.abs(np.log(times / fit.measured)))) for times in (fit.before, other))
    return turned < NEARER * own


@contextmanager
def progress(title: str = "simulating the runs", unit: str = "simulations") -> Iterator[Callable[[], None]]:
    """Counts simulations on a terminal."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        yield lambda: None
        return
    count = 0
    with console.status(title) as status:

        def tick() -> None:
            nonlocal count
            count += 1
            status.update(f"{title}: {count:,} {unit}")

        yield tick


def table_words(table: RunsTable, fit: CorrectionFit) -> list[str]:
    """The table before and after, and the errors under it."""
    from envs.hardware.corrected import errors

    head = f"{'prompt':>7} {'output':>7} {'users':>6} | {'TTFT ms':>9} {'before':>8} {'after':>8} {'left out':>8}"
    lines = [head + f" | {'TPOT ms':>8} {'before':>8} {'after':>8} {'left out':>8}"]
    percents = [fit.errors_percent(part) for part in (fit.before, fit.after, fit.left_out)]
    for i, run_ in enumerate(table.runs):
        cells = [f"{run_.prompt_tokens:>7} {run_.output_tokens:>7} {run_.users:>6}"]
        for column, width in ((0, 9), (1, 8)):
            shown = " ".join(f"{p[i, column]:+7.1f}%" for p in percents)
            cells.append(f"{fit.measured[i, column] * 1e3:>{width}.4g} {shown}")
        lines.append(" | ".join(cells))
    found = errors(fit)
    lines.append("")
    for key, title in (("tpot_mape", "TPOT, mean error"), ("ttft_median", "TTFT, median error")):
        before, after, left = (found[part][key] for part in ("before", "after", "left_out"))
        lines.append(f"{title}: {before:g} % before, {after:g} % after, {left:g} % on runs left out of the fit")
    return lines


def ending(
    table: RunsTable, profile: Profile, fit: CorrectionFit, file: Path, linked: Path | None, kept: str | None
) -> list[str]:
    """Constants with their uncertainty, what was assumed, what comes next; ``kept``: a link that stays as it is."""
    from envs.hardware.corrected import constants

    request = constants(fit)[-1]
    lines = ["", *constants_words(fit)]
    lines += ["", f"runs taken for: {fit.candidate}"]
    if other := [version for version in table.versions if version != profile.engine_version]:
        lines.append(f"versions: runs of {', '.join(other)}, profile of {profile.engine_version or 'none stated'}")
    said = f"time before the engine: {request['value']:.3g} ms +- {request['sd']:.2g} a request"
    if not fit.request_measured():
        stays = f"; link {kept} stays as it is, none is written" if kept is not None else ""
        lines.append(f"{said} (prior {request['prior_sd']:g}): the runs do not determine it{stays}")
    elif linked is None and request["value"] >= 0.5:
        lines.append(f"{said}; no part of a profile, link=NAME writes it")
    lines += [f"profile  {file}", f"summary  {file.parent / 'summary.json'}"]
    lines += [] if linked is None else [f"link     {linked}"]
    words = f"hardware.profile={file}" + ("" if linked is None and kept is None else f" hardware.link={linked or kept}")
    lines.append(f"next     python -m research.compare {words} worlds=20")
    return lines


def constants_words(fit: CorrectionFit) -> list[str]:
    """Constants with their uncertainty."""
    from envs.hardware.corrected import constants

    lines = ["constants (value +- standard deviation; the prior's width):"]
    for row in constants(fit):
        if row["unit"] == "factor":
            value = f"x {row['value']:.3f} +- {100 * row['sd']:.0f} %  ({100 * row['prior_sd']:.0f} %)"
        else:
            value = f"{row['value']:+.3g} {row['unit']} +- {row['sd']:.2g}  ({row['prior_sd']:g})"
        lines.append(f"  {row['meaning']:<56} {value}")
    return lines


def write_link(link: HandoverLaw, fit: CorrectionFit, measured_by: str, suffix: str, out: Path, command: str) -> Path:
    """The link with the measured time before an engine as its ``dispatch_s``, named ``<link>-<suffix>``."""
    from envs.hardware.corrected import corrected_name
    from envs.hardware.write import to_yaml

    request_s = float(f"{fit.correction.request_s:.4g}")
    source: dict[str, Any] = json.loads(json.dumps(dict(link.source)))
    measured = f"measured: {measured_by}, +- {fit.request_sd_ms():.2g} ms"
    terms = {**source.get("terms", {}), "dispatch_s": measured}
    record: Mapping[str, Any] = {
        "name": corrected_name(link.name, suffix),
        "dispatch_s": request_s,
        "connect_s": link.connect_s,
        "base_s": link.base_s,
        "per_block_s": link.per_block_s,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "gpus": link.gpus,
        "source": {**source, "terms": terms},
    }
    path = out / f"{record['name']}.yaml"
    path.write_text(to_yaml(record, f"{command} link={link.name}"), encoding="utf-8")
    return path


def folder(plain: Mapping[str, Any], profile: Profile) -> Path:
    """Where the results go."""
    if plain["out"] is not None:
        return Path(plain["out"]).expanduser().absolute()
    return Path("results").absolute() / f"calibrate-from_runs-{profile.name}"


def _check_engine(table: RunsTable, profile: Profile) -> None:
    for engine in table.engines:
        if engine != profile.engine:
            raise MeasurementError(
                f"{table.path}: engine = {engine!r}{nearest(engine, [profile.engine])}: expected {profile.engine!r}, "
                f"the engine of profile {profile.name}"
            )


def _check_fits(table: RunsTable, profile: Profile) -> None:
    for run_ in table.runs:
        if (tokens := run_.prompt_tokens + run_.output_tokens) > profile.kv.capacity_tokens:
            raise MeasurementError(
                f"{table.path}, line {run_.line}: prompt_tokens + output_tokens = {tokens:,}: expected at most "
                f"{profile.kv.capacity_tokens:,}, what the KV memory of profile {profile.name} holds"
            )


def _by_line(reason: str, table: RunsTable) -> str:
    """``run 3: ...`` as the line of the file."""
    head, colon, rest = reason.partition(": ")
    if head.startswith("run ") and colon:
        return f"line {table.runs[int(head[4:]) - 1].line}: {rest}"
    return reason
