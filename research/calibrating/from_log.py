"""``action=from_log``: the profile in force corrected by the request log of a live server or gateway.

Fitted on the first part of the log in time, judged on the rest of it, which no step of the fit looks at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.hardware.errors import MeasurementError
from research.calibrating import log_words
from research.calibrating.log_replay import INNER, Log, Part, read_log
from research.errors import ResearchError
from research.settings import Settings

if TYPE_CHECKING:
    import polars as pl
    from omegaconf import DictConfig

    from envs.hardware.from_runs import CorrectionFit
    from envs.hardware.profile import Profile

CLOSE = 0.02
"""Mean |log ratio| of each of TTFT, TPOT and E2E up to which no other law is looked for."""
GAIN = 0.9
"""A found law is taken where it is nearer than the correction by this factor, on requests that fitted neither."""
FAR = 3.0
"""TPOT measured over predicted, or the reverse, beyond which the profile is of another model or GPU."""
WORSE = 1.05, 0.01
"""A profile that is further from the judged requests than the one in force by this factor and sum is not written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A corrected law.

    Attributes:
        base: what ``fit`` corrects: the profile in force, or it with a plane found by search.
        fit: on the cells of the fitted part.
        law: ``correction`` or ``coefficients``.
        tried: distance of both on the last third of the fitted part, None where only the correction was tried.
    """

    base: Profile
    fit: CorrectionFit
    law: str
    tried: dict[str, float] | None

    @property
    def profile(self) -> Profile:
        """The corrected one."""
        return self.fit.correction.apply(self.base)

    @property
    def request_s(self) -> float:
        """Time of a hop before an engine."""
        return self.fit.correction.request_s


def run(config: DictConfig) -> int:
    """Correct a profile by a log; leaves it with ``summary.json`` and ``requests.parquet`` in ``out``."""
    from omegaconf import OmegaConf

    from envs.hardware.corrected import constants, errors
    from envs.hardware.from_runs import outside
    from research.calibrating.from_runs import progress
    from research.evidence.provenance import command_line, versions
    from research.evidence.runs import git_state, make_folder, write_json
    from research.evidence.table import make_console
    from research.execute import compiling_once
    from research.validating.requests import backlog

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    number, console = Settings(plain), make_console()
    bound, force = number("bound_percent", above=0.0), number.flag("force")
    log = read_log(plain)
    for line in log_words.start(log):
        console.print(line, highlight=False, soft_wrap=True)
    with progress("replaying the log", "replays") as tick, compiling_once():
        before = log.replay(log.trace, log.profile)
        check_units(log, before)
        found = fitted(log, tick)
        after = log.replay(log.trace, found.profile, found.request_s)
    rows = judged(log, before, after)
    levels = by_level(log, before, after)
    queue = backlog(after)
    part = log.part(log.lead + log.fitted)
    reasons = [_by_cell(reason, part) for reason in outside(found.fit)]
    reasons += [*far_off(found.fit), *doubts(log, before, after, rows, bound)]
    console.print(log_words.quantiles(rows))
    for line in (*log_words.levels(levels), *log_words.shows(log, part, found.fit, queue)):
        console.print(line, highlight=False, soft_wrap=True)
    if reasons and not force:
        told = [*reasons, log_words.QUEUEING] if log_words.queued(queue) else reasons
        raise MeasurementError(
            f"{log.source.text()}: no profile is written (force=true writes it all the same): {'; '.join(told)}"
        )
    out = folder(plain, log.profile)
    make_folder(out)
    held_out = {"quantiles": rows, "levels": levels}
    file, linked = write(plain, log, found, part, held_out, out)
    log_words.frame(before, after, log).write_parquet(out / "requests.parquet")
    summary = {
        "command": command_line("calibrate"),
        "profile": file.stem,
        "file": str(file),
        "corrects": log.profile.name,
        "trace": log.source.text(),
        "trace_sha256": log.trace.sha256,
        "cluster": log.cluster.name,
        "routes": log.policy.text(),
        "requests": counts(log),
        "law": found.law,
        "tried_distance": found.tried,
        "constants": constants(found.fit),
        "request_ms": found.request_s * 1e3,
        "link": None if linked is None else str(linked),
        "cells_errors_percent": errors(found.fit),
        "backlog": queue,
        "held_out": held_out,
        "outside": reasons,
        "versions": versions(),
        **git_state(),
        "config": plain,
    }
    write_json(out / "summary.json", summary)
    last = log_words.ending(log, found.fit, found.law, found.tried, file, linked, plain)
    for line in (*last, *log_words.warnings(levels)):
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def fitted(log: Log, tick: Callable[[], None]) -> Found:
    """The correction of the fitted part or, where that part says it is better, a plane found by search.

    Both are made on the first two thirds of the part and compared on its last third; the better one is then made on
    the whole of it. A search needs requests at several loads and of several lengths.
    """
    part = log.part(log.lead + log.fitted)
    last = log.lead + log.fitted
    fit = correct(log.profile, part, tick)
    inner = log.part(log.lead + int(INNER * log.fitted))
    if part.cells.one_level or part.cells.one_length or not enough(inner):
        return Found(log.profile, fit, "correction", None)
    if part.distance(fit.correction.apply(log.profile), fit.correction.request_s) <= 3 * CLOSE:
        return Found(log.profile, fit, "correction", None)
    first = correct(log.profile, inner, tick)
    start, request_s = first.correction.apply(log.profile), first.correction.request_s
    law = inner.search(start.step, request_s, tick)
    rest = slice(inner.rows.stop, last)
    tried = {
        "correction": part.distance(start, request_s, rest),
        "coefficients": part.distance(log.profile.with_step(law).with_tables(None), request_s, rest),
    }
    if tried["coefficients"] > GAIN * tried["correction"]:
        return Found(log.profile, fit, "correction", tried)
    law = part.search(law, request_s, tick)
    base = log.profile.with_step(law).with_tables(None)
    return Found(base, correct(base, part, tick), "coefficients", tried)


def correct(profile: Profile, part: Part, tick: Callable[[], None]) -> CorrectionFit:
    """Fit the constants on a part's cells; ``before`` of the result is with the link in force."""
    from envs.hardware.from_log import SIGMA
    from envs.hardware.from_runs import fit_correction

    def predict(now: Profile, request_s: float) -> Any:
        tick()
        return part.simulated(now, request_s)

    fit = fit_correction(profile, part.measured(), {log_words.taken_for(part.log): predict}, SIGMA)
    return replace(fit, before=part.simulated(part.log.profile, None))


def enough(part: Part) -> bool:
    """Whether a part has cells to fit by."""
    try:
        return len(part.cells) > 0
    except MeasurementError:
        return False


def check_units(log: Log, before: pl.DataFrame) -> None:
    """Refuse times that are another unit away from what the profile in force says.

    TPOT at the median; TTFT at the 5th percentile, since a queue may make either side's median as long as it likes.

    Raises:
        ResearchError: names the column and both times.
    """
    from envs.hardware.from_runs import UNITS_OFF

    for name, q in (("ttft", 0.05), ("tpot", 0.5)):
        both = before.select(log=f"measured_{name}_s", now=f"simulated_{name}_s").drop_nulls()
        logged, now = (float(both[side].quantile(q) or 0.0) for side in ("log", "now"))
        if not now / UNITS_OFF <= logged <= now * UNITS_OFF:
            raise ResearchError(
                f"trace {log.source.text()}: {name}_s is {logged:.3g} s in the log and {now:.3g} s by profile "
                f"{log.profile.name} ({q:.0%} quantile): expected within a factor {UNITS_OFF:g}; is it another unit "
                "(trace.options.latency_unit=ms), are TTFT and TPOT swapped, or is the profile of another model or GPU?"
            )


def judged(log: Log, before: pl.DataFrame, after: pl.DataFrame) -> list[dict[str, Any]]:
    """Quantiles of the requests that were not fitted: measured, before and after, and the fitted part's as a guess."""
    from research.validating.requests import judge

    was, now = (judge(frame[log.lead :], log.fitted) for frame in (before, after))
    rows = []
    for old, new in zip(was, now, strict=True):
        row = {key: new[key] for key in ("metric", "quantile", "requests", "measured_s")}
        row |= {"before_s": old["simulated_s"], "before_error_percent": old["error_percent"]}
        row |= {"after_s": new["simulated_s"], "after_error_percent": new["error_percent"]}
        row["first_part_error_percent"] = new["rule_error_percent"]
        rows.append(row | {key: new[key] for key in ("low_s", "high_s") if key in new})
    return rows


def by_level(log: Log, before: pl.DataFrame, after: pl.DataFrame) -> list[dict[str, Any]]:
    """Median |error| of the judged requests by terciles of the load at their arrival."""
    import numpy as np

    from research.validating.backtest import LEVELS
    from research.validating.requests import TIMES

    start = log.lead + log.fitted
    load = log.load[start:]
    low, high = np.quantile(load, (1 / 3, 2 / 3), method="lower")
    rows = []
    for level, own in zip(LEVELS, (load <= low, (load > low) & (load <= high), load > high), strict=True):
        if not own.any():
            continue
        row: dict[str, Any] = {"level": level, "in_flight": [int(load[own].min()), int(load[own].max())]}
        row["requests"] = int(own.sum())
        for name in TIMES:
            for when, frame in (("before", before), ("after", after)):
                both = frame[start:].filter(own).select(f"measured_{name}_s", f"simulated_{name}_s").drop_nulls()
                both = both.filter(both.to_series(0) > 0)
                error = np.abs(both.to_series(1).to_numpy() / both.to_series(0).to_numpy() - 1.0)
                key = f"{name}_{when}_median_abs_error_percent"
                row[key] = 100.0 * float(np.median(error)) if error.size else None
        rows.append(row)
    return rows


def far_off(fit: CorrectionFit) -> list[str]:
    """Steps so much longer or shorter than the profile's that it is of something else, whatever law fits them."""
    import numpy as np

    ratio = float(np.median(fit.measured[:, 1] / fit.before[:, 1]))
    if 1.0 / FAR <= ratio <= FAR:
        return []
    return [
        f"TPOT of the log is {ratio:.3g} times the profile's (median of its cells; at most {FAR:g} either way): the "
        "log looks like another model, GPU, precision or engine than the profile's"
    ]


def doubts(
    log: Log, before: pl.DataFrame, after: pl.DataFrame, rows: list[dict[str, Any]], bound_percent: float
) -> list[str]:
    """Why the corrected profile should not be used, by the requests that were not fitted."""
    from research.validating.requests import distance

    start = log.lead + log.fitted
    was, now = distance(before[start:]), distance(after[start:])
    found = []
    if now > WORSE[0] * was + WORSE[1]:
        found.append(
            f"on the requests that were not fitted the corrected profile is further off than {log.profile.name} (mean "
            f"|log ratio| {now / 3:.3f} against {was / 3:.3f}): stay with it"
        )
    for row in rows:
        if row["metric"] == "tpot" and row["quantile"] < 99 and abs(row["after_error_percent"]) > bound_percent:
            found.append(
                f"TPOT p{row['quantile']} of the requests that were not fitted is {row['after_error_percent']:+.1f} % "
                f"off: expected at most {bound_percent:g} % (bound_percent)"
            )
    return found


def counts(log: Log) -> dict[str, int]:
    """Requests of the log by what they were used for."""
    rest = len(log.trace) - log.lead - log.fitted
    return {"log": len(log.trace), "lead_in": log.lead, "fitted": log.fitted, "judged": rest}


def write(
    plain: Mapping[str, Any], log: Log, found: Found, part: Part, held_out: Mapping[str, Any], out: Path
) -> tuple[Path, Path | None]:
    """The profile, and the link where the log determines the time before an engine."""
    from envs.hardware.corrected import LogSource, corrected_record
    from envs.hardware.load import load_handover, load_profile
    from envs.hardware.write import to_yaml
    from research.calibrating.from_runs import write_link

    path, digest = Path(log.source.name).expanduser(), log.trace.sha256
    source = LogSource(
        path.name, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else digest, part.cells.rows(),
        digest, counts(log), found.law, part.range(), held_out,
    )  # fmt: skip
    record = corrected_record(found.base, found.fit, source)
    command = log_words.command(log, plain)
    file = out / f"{record['name']}.yaml"
    file.write_text(to_yaml(record, command), encoding="utf-8")
    load_profile(file)  # what is written can be read
    if not found.fit.request_measured():
        return file, None
    measured = f"{log.fitted} requests of {source.file}"
    return file, write_link(load_handover(plain["hardware"]["link"]), found.fit, measured, "from-log", out, command)


def folder(plain: Mapping[str, Any], profile: Profile) -> Path:
    """Where the results go."""
    place = Path("results") / f"calibrate-from_log-{profile.name}" if plain["out"] is None else Path(plain["out"])
    return place.expanduser().absolute()


def _by_cell(reason: str, part: Part) -> str:
    """``run 3: ...`` as the cell that it is."""
    head, colon, rest = reason.partition(": ")
    if head.startswith("run ") and colon:
        row = part.cells.rows()[int(head[4:]) - 1]
        return f"{log_words.cell(row)}: {rest}"
    return reason.replace("the runs look like", "the log looks like")
