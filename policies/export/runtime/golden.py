"""Recorded questions with the compiled rule's answers, and their replay through this runtime.

``golden.jsonl``: a head line; then cells, each a line with the workers and the rule's memory (one a replica) as they
start, followed by its questions in order. A question holds the worker columns that changed since the one before (one
value stands for all workers), the request, and the answer. Floats are written so that they read back exactly; NaN and
the infinities are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from .rulebook import ExportError, Rulebook
from .runner import IllegalAnswerError, Runner
from .values import decode

SCHEMA = 1
SHOWN = 5


def read_golden(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of a golden file, its head first.

    Raises:
        ExportError: the file is not there, or a line is not what it should be.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                record = json.loads(line)
                if number == 1 and record.get("golden") != SCHEMA:
                    raise ExportError(f"{path}: expected a golden file of schema {SCHEMA}")
                yield number, record
    except FileNotFoundError:
        raise ExportError(f"{path}: not there; the export writes it") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"{path}: cannot be read: {error}") from None


class Replay:
    """Counts of a replay.

    Attributes:
        views: questions replayed, by kind (route, bind, adjust).
        mismatches: answers that differ.
        illegal: answers of the rule that the contract does not allow.
        first: the first few mismatches, in words.
        wall_us, cpu_us: time of the rule's answers by number of workers.
    """

    def __init__(self) -> None:
        self.views = {"route": 0, "bind": 0, "adjust": 0}
        self.mismatches = 0
        self.illegal = 0
        self.first: list[str] = []
        self.wall_us: dict[int, list[float]] = {}
        self.cpu_us: dict[int, list[float]] = {}

    def run(self, policy_dir: Path, golden: Path, expanded: bool = True) -> Replay:
        """Ask every recorded question again, of the expanded text or of the verbatim source."""
        cell: Cell | None = None
        for line, record in read_golden(golden):
            if "golden" in record:
                continue
            if "cell" in record:
                cell = Cell(policy_dir, record, expanded)
                continue
            if cell is None:
                raise ExportError(f"{golden}, line {line}: a question before the first cell")
            self._ask(cell, record, f"line {line}, {cell.name}")
        return self

    def _ask(self, cell: Cell, record: dict[str, Any], where: str) -> None:
        kind = record["ask"]
        cell.set_columns(record["workers"])
        expected = record["answer"]
        self.views[kind] += 1
        if kind == "adjust":
            got: Any = {str(k): v for k, v in cell.runner(0).ask_shares().items()}
            same = got == {k: decode(v) for k, v in expected.items()}
        else:
            request = cell.request(record["request"])
            runner = cell.runner(request.replica)
            wall, cpu = perf_counter_ns(), thread_time_ns()
            got = runner.ask(request) if kind == "route" else runner.ask_bind(request)
            cpu, wall = thread_time_ns() - cpu, perf_counter_ns() - wall
            n = len(cell.workers)
            self.wall_us.setdefault(n, []).append(wall / 1e3)
            self.cpu_us.setdefault(n, []).append(cpu / 1e3)
            if kind == "route":
                got, expected = list(got), [decode(v) for v in expected]
                try:
                    runner.judged(got, request.now_s)
                except IllegalAnswerError:
                    self.illegal += 1
            same = got == expected
        if not same:
            self.mismatches += 1
            if len(self.first) < SHOWN:
                self.first.append(f"{where}: {kind} answered {got}, recorded {expected}")


class Cell:
    """Workers of one recorded run, and the routers that saw them: one rule with its memory for each replica."""

    def __init__(self, policy_dir: Path, record: dict[str, Any], expanded: bool) -> None:
        self.name: str = record["cell"]
        self.seed = int(record["seed"])
        self.policy_dir, self.expanded = policy_dir, expanded
        self.book = Rulebook(policy_dir, expanded)
        self.workers = [self.book.Worker() for _ in range(int(record["n_workers"]))]
        self.memory: list[dict[str, Any]] = record["memory"]
        self.runners: dict[int, Runner] = {}
        self.set_columns(record["workers"])
        for w in self.workers:
            w.key = w.id

    def set_columns(self, columns: dict[str, Any]) -> None:
        """Change the fields that changed."""
        for name, values in columns.items():
            if isinstance(values, list):
                for w, value in zip(self.workers, values, strict=True):
                    setattr(w, name, decode(value))
            else:
                value = decode(values)
                for w in self.workers:
                    setattr(w, name, value)

    def request(self, values: list[Any]) -> Any:
        """The record of a request."""
        r = self.book.Request()
        for name, value in zip(self.book.request_fields, values, strict=True):
            setattr(r, name, decode(value))
        return r

    def runner(self, replica: int) -> Runner:
        """The rule of one router replica."""
        if replica not in self.runners:
            book = self.book if not self.runners else Rulebook(self.policy_dir, self.expanded)
            runner = self.runners[replica] = Runner(book, self.seed)
            runner.seat(self.workers)
            for name, value in self.memory[replica].items():
                start = [decode(v) for v in value] if isinstance(value, list) else decode(value)
                setattr(runner.memory, name, start)
        return self.runners[replica]
