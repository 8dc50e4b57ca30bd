"""Benchmark runs of the user's own cluster: a CSV file in, checked rows out."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.hardware.errors import MeasurementError, nearest
from envs.hardware.from_runs import FEWEST_POINTS, FEWEST_RUNS
from envs.hardware.sources.files import CONTRADICTION
from traces.check import MAX_TOKENS
from traces.clients import STARTS

PLAUSIBLE_S = {"ttft": (1e-3, 100.0), "tpot": (1e-4, 10.0)}
"""Medians that are believed, in seconds."""
MOST_USERS = 4096
"""Of one engine instance: several times what engines batch by default."""
LENGTHS = ("prompt_tokens", "output_tokens", "concurrency")
OPTIONAL = ("engine", "version", "rounds", "jitter", "start")
UNITS = {"ms": 1e-3, "s": 1.0}
TIMES = tuple(f"{name}_{unit}" for name in PLAUSIBLE_S for unit in UNITS)
KNOWN = (*LENGTHS, *TIMES, *OPTIONAL)
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What files of other programs are separated by."""


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run of a closed-loop benchmark.

    Attributes:
        line: of the file, for messages.
        prompt_tokens: mean length.
        output_tokens: mean length, at least 2.
        users: concurrency.
        ttft_s: mean.
        tpot_s: mean.
        rounds: requests of each user; None: not known.
        jitter: lengths are drawn evenly from mean * [1 - jitter, 1 + jitter]; None: not known.
        start: ``together`` or ``staggered``; None: not known.
        version: of the engine; None: not known.
    """

    line: int
    prompt_tokens: int
    output_tokens: int
    users: int
    ttft_s: float
    tpot_s: float
    rounds: int | None = None
    jitter: float | None = None
    start: str | None = None
    version: str | None = None

    @property
    def point(self) -> tuple[int, int, int]:
        """What was run, protocol aside."""
        return self.prompt_tokens, self.output_tokens, self.users

    def words(self) -> str:
        """For messages."""
        return f"{self.prompt_tokens} prompt and {self.output_tokens} output tokens at concurrency {self.users}"


@dataclass(frozen=True, slots=True)
class RunsTable:
    """The file, read: ``engines`` and ``versions`` are those that its rows name."""

    path: Path
    sha256: str
    runs: tuple[BenchmarkRun, ...]
    engines: tuple[str, ...]
    versions: tuple[str, ...]


def read_runs(path: Path) -> RunsTable:
    """Read and check benchmark runs.

    Raises:
        MeasurementError: names file, line, column, value and what was expected: no such file, a missing, doubled or
            unknown column, a number that is none or out of range, times in another unit than their column says, fewer
            than FEWEST_RUNS rows or FEWEST_POINTS different ones, rows of one point that contradict each other, a row
            that is there twice.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementError(f"path={path}: cannot be read: {error}") from None
    reader = csv.reader(io.StringIO(text))
    rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    if not rows:
        raise MeasurementError(f"{path}: empty: expected a header line and at least {FEWEST_RUNS} runs")
    header = [name.strip() for name in rows[0][1]]
    if len(header) == 1 and (other := next((mark for mark in SEPARATORS if mark in header[0]), None)):
        raise MeasurementError(
            f"{path}, line {rows[0][0]}: the header is separated by {SEPARATORS[other]}: expected a comma-separated "
            f"file that begins with {','.join(LENGTHS)} (numbers with a decimal point)"
        )
    units = _columns(path, header)
    found, named = [], {"engine": set[str](), "version": set[str]()}
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise MeasurementError(
                f"{path}, line {line}: {len(cells)} values: expected {len(header)}, as in the header"
            )
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        found.append(_run(path, line, row, units))
        for name, words in named.items():
            words |= {row[name]} if row.get(name) else set()
    table = RunsTable(
        path, hashlib.sha256(data).hexdigest(), tuple(found), *(tuple(sorted(words)) for words in named.values())
    )
    _check_enough(table)
    _check_units(table, units)
    _check_order(table)
    _check_contradictions(table)
    return table


def _columns(path: Path, header: Sequence[str]) -> dict[str, str]:
    """Time column by what it holds; every other column must be known."""
    units = {}
    for name in header:
        if header.count(name) > 1:
            raise MeasurementError(f"{path}: column {name!r} is there twice")
        if name in PLAUSIBLE_S:
            raise MeasurementError(f"{path}: column {name!r} has no unit: expected {name}_ms or {name}_s")
        if name not in KNOWN:
            raise MeasurementError(
                f"{path}: unknown column {name!r}{nearest(name, KNOWN)}: expected some of {', '.join(KNOWN)}"
            )
    for name in LENGTHS:
        if name not in header:
            raise MeasurementError(f"{path}: column {name!r} is missing: the file has {', '.join(header)}")
    for name in PLAUSIBLE_S:
        given = [f"{name}_{unit}" for unit in UNITS if f"{name}_{unit}" in header]
        if len(given) != 1:
            raise MeasurementError(
                f"{path}: expected one of {name}_ms and {name}_s, found {' and '.join(given) or 'none'}"
            )
        units[name] = given[0]
    return units


def _run(path: Path, line: int, row: Mapping[str, str], units: Mapping[str, str]) -> BenchmarkRun:
    def number(name: str, expected: str, fits: Callable[[float], bool]) -> float:
        try:
            value = float(row[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and fits(value)):
            raise MeasurementError(f"{path}, line {line}: {name} = {row[name]!r}: expected {expected}")
        return value

    def count(name: str, low: int, high: int) -> int:
        expected = f"a whole number from {low:,} to {high:,}"
        return int(number(name, expected, lambda v: v.is_integer() and low <= v <= high))

    times = {
        name: number(column, "a time above 0", lambda v: v > 0) * UNITS[column.rsplit("_", 1)[1]]
        for name, column in units.items()
    }
    start = row.get("start") or None
    if start is not None and start not in STARTS:
        expected = f"{', '.join(STARTS)}{nearest(start, STARTS)}"
        raise MeasurementError(f"{path}, line {line}: start = {start!r}: expected one of {expected}")
    jitter = number("jitter", "a share from 0 to below 1", lambda v: 0 <= v < 1) if row.get("jitter") else None
    return BenchmarkRun(
        line, count("prompt_tokens", 1, MAX_TOKENS), count("output_tokens", 2, MAX_TOKENS),
        count("concurrency", 1, MOST_USERS), times["ttft"], times["tpot"],
        count("rounds", 1, 100_000) if row.get("rounds") else None, jitter, start, row.get("version") or None,
    )  # fmt: skip


def _check_enough(table: RunsTable) -> None:
    if len(table.runs) < FEWEST_RUNS:
        raise MeasurementError(f"{table.path}: {len(table.runs)} runs: expected at least {FEWEST_RUNS}")
    points = {run.point for run in table.runs}
    if len(points) < FEWEST_POINTS:
        raise MeasurementError(
            f"{table.path}: {len(points)} different (prompt_tokens, output_tokens, concurrency): expected at least "
            f"{FEWEST_POINTS}; repeats of one point say nothing of the others"
        )
    if len(table.engines) > 1:
        raise MeasurementError(f"{table.path}: engine: {', '.join(table.engines)}: expected runs of one engine")


def _check_units(table: RunsTable, units: Mapping[str, str]) -> None:
    for name, (low, high) in PLAUSIBLE_S.items():
        values = sorted(getattr(run, f"{name}_s") for run in table.runs)
        median = values[len(values) // 2]
        if not low <= median <= high:
            unit = units[name].rsplit("_", 1)[1]
            other = f"{name}_s" if unit == "ms" else f"{name}_ms"
            shown, least, most = (f"{value / UNITS[unit]:,.6g}" for value in (median, low, high))
            raise MeasurementError(
                f"{table.path}: {units[name]} has a median of {shown} {unit}: expected {least} to {most} {unit}; "
                f"should the column be {other}?"
            )


def _check_order(table: RunsTable) -> None:
    """A first token comes out of a step that any other token could come out of as well: TTFT is hardly below TPOT."""
    below = [run.line for run in table.runs if run.ttft_s < run.tpot_s]
    if 2 * len(below) > len(table.runs):
        raise MeasurementError(
            f"{table.path}: TTFT is shorter than TPOT in {len(below)} of {len(table.runs)} runs (line {below[0]} "
            "first): expected it to be longer; are the two columns swapped, or in different units?"
        )


def _check_contradictions(table: RunsTable) -> None:
    """Repeats of one point: a copied row, or times that cannot both be."""
    first: dict[tuple[object, ...], BenchmarkRun] = {}
    for run in table.runs:
        other = first.setdefault((*run.point, run.rounds, run.jitter, run.start), run)
        if other is not run and (other.ttft_s, other.tpot_s) == (run.ttft_s, run.tpot_s):
            raise MeasurementError(
                f"{table.path}: lines {other.line} and {run.line} are the same run twice: {run.words()}, "
                f"{run.ttft_s:g} and {run.tpot_s:g} s: expected every run once (a copy would "
                "count as a measurement of its own)"
            )
        for name in PLAUSIBLE_S:
            a, b = getattr(other, f"{name}_s"), getattr(run, f"{name}_s")
            if max(a, b) > CONTRADICTION * min(a, b):
                raise MeasurementError(
                    f"{table.path}: lines {other.line} and {run.line} contradict each other: {name} of {a:g} and {b:g} "
                    f"s for {run.words()}: expected repeats within a factor {CONTRADICTION:g}"
                )
