"""``research.benchmark traces``: a large log read, validated, hashed, written as canonical Parquet and read again.

The log is generated, about 27 bytes a request: ``arrival_s,prompt_tokens,output_tokens,session``, in order of
arrival, with session keys as text. Sessions start at random (Poisson), have three turns on average and a minute
between turns; lengths are log-normal. Each step runs in a process of its own, whose peak memory is its own. What it
is compared with is a plain loop of the csv module over a slice that does the least there is to do: numbers in lists,
sessions numbered and turns counted by a dict, ranges and order checked.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from research.benchmarking.measure import peak_rss_gib, row
from research.errors import ResearchError

DEFAULTS = {"repeats": 1, "rows": 10_000_000}
HOW = "a process for each step, median of {repeats}"
NEXT = "python -m research.traces action=describe trace.path=my.csv trace.format=table"
BAR_S, BAR_GIB = 60.0, 1.5e9 / 2**30
"""What 10 million rows may take, on two cores."""

_SLICE = 500_000
_PIECE = 1_000_000
_RATE_PER_S = 100.0
_TURNS = 3.0
_THINK_S = 60.0
_LONGEST = 128_000


def rows(config: DictConfig) -> list[dict[str, Any]]:
    """The cases."""
    count, repeats = int(config.rows), int(config.repeats)
    if count < 1 or repeats < 1:
        raise ResearchError(f"rows={count} repeats={repeats}: expected 1 or more of each")
    with tempfile.TemporaryDirectory(prefix="pdgym-benchmark-") as folder:
        log, parquet = Path(folder) / "log.csv", Path(folder) / "log.parquet"
        write_log(log, count)
        size = log.stat().st_size / 1e6
        first = _measured("read_log", repeats, log)
        case = f"CSV of {size:,.0f} MB: read and validated"
        within = bool(first["wall_s"] < BAR_S and first["peak_rss_gib"] < BAR_GIB)
        found = [row(case, count, "requests", first["cpu_s"], first["wall_s"], peak_rss_gib=first["peak_rss_gib"])]
        if count == DEFAULTS["rows"]:
            found[0]["under_60_s_and_1500_mb"] = within
        found.append(row("content hash of it", count, "requests", first["hash_cpu_s"], first["hash_wall_s"]))
        loop = _measured("loop", repeats, log, min(count, _SLICE))
        case = "plain csv-module loop over a slice"
        found.append(row(case, loop["count"], "requests", loop["cpu_s"], loop["wall_s"]))
        for clock in ("cpu", "wall"):
            ratio = found[0][f"per_{clock}_s"] / found[-1][f"per_{clock}_s"]
            found[0][f"times_faster_than_csv_loop_{clock}"] = ratio
        for step, done, more in (("write_parquet", "written", [log]), ("read_parquet", "read", [])):
            got = _measured(step, repeats, parquet, *more)
            case = f"canonical Parquet: {done}"
            found.append(row(case, count, "requests", got["cpu_s"], got["wall_s"], peak_rss_gib=got["peak_rss_gib"]))
            found[-1]["file_mb"] = parquet.stat().st_size / 1e6
            if got["sha256"] != first["sha256"]:
                raise ResearchError("the canonical Parquet does not hold the trace that was read")
    return found


def write_log(path: Path, count: int, seed: int = 0) -> None:
    """Write a CSV of ``count`` requests; see the module for what is in it."""
    import polars as pl

    rng = np.random.default_rng(seed)
    sessions = int(count / _TURNS) + 1
    start_s = np.cumsum(rng.exponential(_TURNS / _RATE_PER_S, sessions))
    turns = rng.geometric(1 / _TURNS, sessions)
    turns[-1] += max(0, count - int(turns.sum()))
    session = np.repeat(np.arange(sessions, dtype=np.int32), turns)
    gap_s = rng.exponential(_THINK_S, session.size)
    gap_s[np.cumsum(turns) - turns] = start_s - np.r_[0.0, start_s[:-1]]
    arrival_s = np.cumsum(gap_s)
    # The cumulative sum runs on through sessions: each is set back to its own start.
    begins = np.cumsum(turns) - turns
    arrival_s += np.repeat(start_s - arrival_s[begins], turns)
    order = np.argsort(arrival_s)[:count]
    arrival_s, session = arrival_s[order], session[order]
    with path.open("wb") as file:
        for at in range(0, count, _PIECE):
            n = min(_PIECE, count - at)
            piece = pl.DataFrame(
                {
                    "arrival_s": arrival_s[at : at + n],
                    "prompt_tokens": np.clip(rng.lognormal(7.0, 1.0, n), 1, _LONGEST).astype(np.int64),
                    "output_tokens": np.clip(rng.lognormal(5.5, 0.8, n), 1, _LONGEST).astype(np.int64),
                    "session": session[at : at + n],
                }
            ).with_columns(session=pl.format("s{}", "session"))
            piece.write_csv(file, include_header=at == 0, float_precision=6)


def _measured(step: str, repeats: int, path: Path, *more: object) -> dict[str, Any]:
    """Medians of a step run in processes of its own; the peak is the highest."""
    code = "import sys; from research.benchmarking import traces; traces.child(sys.argv[1:])"
    words = [sys.executable, "-c", code, step, str(path), *map(str, more)]
    results = []
    for _ in range(repeats):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ResearchError(f"benchmark step {step} failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
        results.append(json.loads(done.stdout.splitlines()[-1]))
    merged = dict(results[0])
    for key in merged:
        if key.endswith("_s"):
            merged[key] = statistics.median(result[key] for result in results)
    merged["peak_rss_gib"] = max(result["peak_rss_gib"] for result in results)
    return merged


def child(words: list[str]) -> None:
    """One step in this process; prints its figures as JSON."""
    step, path, *more = words
    steps: dict[str, Callable[..., dict[str, Any]]] = {
        "read_log": _read_log,
        "loop": _loop,
        "write_parquet": _write_parquet,
        "read_parquet": _read_parquet,
    }
    print(json.dumps({**steps[step](Path(path), *more), "peak_rss_gib": peak_rss_gib()}))


class _Clock:
    """CPU and wall time since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def figures(self, prefix: str = "") -> dict[str, float]:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return {f"{prefix}cpu_s": cpu, f"{prefix}wall_s": wall}


def _read_log(path: Path) -> dict[str, Any]:
    from traces import load_trace

    clock = _Clock()
    trace = load_trace(path, format="table")
    found: dict[str, Any] = {"count": len(trace), **clock.figures()}
    clock = _Clock()
    return {**found, "sha256": trace.sha256, **clock.figures("hash_")}


def _write_parquet(path: Path, log: str) -> dict[str, Any]:
    from traces import load_trace
    from traces.readers import canonical

    trace = load_trace(log, format="table")
    found = {"count": len(trace), "sha256": trace.sha256}
    clock = _Clock()
    canonical.write(trace, path)
    return {**found, **clock.figures()}


def _read_parquet(path: Path) -> dict[str, Any]:
    from traces import load_trace

    clock = _Clock()
    trace = load_trace(path)
    return {"count": len(trace), **clock.figures(), "sha256": trace.sha256}


def _loop(path: Path, count: str) -> dict[str, Any]:
    """What a few lines of plain Python take: every value checked, sessions numbered, turns counted."""
    clock = _Clock()
    arrival: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    session: list[int] = []
    turn: list[int] = []
    numbers: dict[str, int] = {}
    turns: dict[int, int] = {}
    last = 0.0
    with path.open(newline="") as file:
        reader = csv.reader(file)
        next(reader)
        for line, (stamp, asked, said, key) in zip(range(int(count)), reader, strict=False):
            at, prompt_tokens, output_tokens = float(stamp), int(asked), int(said)
            if at < last or not 1 <= prompt_tokens <= 10**7 or not 1 <= output_tokens <= 10**7:
                raise ValueError(line)
            last = at
            number = numbers.setdefault(key, len(numbers))
            turns[number] = turns.get(number, 0) + 1
            arrival.append(at)
            prompt.append(prompt_tokens)
            output.append(output_tokens)
            session.append(number)
            turn.append(turns[number])
    return {"count": len(arrival), **clock.figures()}
