"""Runs the simulations of a study on all cores; finished ones are read from the store, not run again."""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from research.errors import ResearchError
from research.evidence.runs import RunStore, key_of
from research.evidence.worlds import in_world

if TYPE_CHECKING:
    import polars as pl

    from research.study import Run, Study

# Every worker process is one thread: the processes share the cores already.
THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def in_processes(tasks: Iterable[Any], workers: int) -> Iterator[Any]:
    """Results of joblib's ``delayed`` tasks from ``workers`` processes of one thread, as they finish."""
    from joblib import Parallel, parallel_config

    for name in THREADS:
        os.environ.setdefault(name, "1")
    with parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1):
        yield from Parallel(return_as="generator_unordered")(tasks)


REQUEST_COLUMNS = ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens", "cached_tokens", "local")


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that raised."""

    run: str
    error: str
    trace: str


@dataclass
class Runner:
    """Runs what is missing.

    Attributes:
        store: where results are.
        workers: processes; 1 runs in this one.
        console: for the progress bar, shown on a terminal only.
        reused: runs found finished.
        made: runs made.
        seconds: time spent in simulations, all processes together.
    """

    store: RunStore
    workers: int
    console: Console
    failures_file: Path
    reused: int = 0
    made: int = 0
    seconds: float = 0.0
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def run(self, study: Study, runs: Sequence[Run], what: str) -> list[dict[str, float | None]]:
        """Metrics of each run, in order.

        Raises:
            ResearchError: a run failed; the others were finished first, and their results are kept.
        """
        shared = study.shared_identity()
        identities = [study.identity(run, shared) for run in runs]
        keys = [key_of(identity) for identity in identities]
        todo = {}
        for key, run, identity in zip(keys, runs, identities, strict=True):
            if key in self.metrics or key in todo:
                continue
            result = self.store.read(key)
            if result is None:
                todo[key] = (run, identity)
            else:
                self.reused += 1
                self.metrics[key] = result["metrics"]
        failures: list[Failure] = []
        with self._progress(len(todo), what) as advance:
            for key, outcome, seconds in self._results(todo):
                advance()
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                else:
                    self.made += 1
                    self.seconds += seconds
                    self.metrics[key] = outcome
        if failures:
            self._tell(failures, len(todo))
        return [self.metrics[key] for key in keys]

    @staticmethod
    def keys(study: Study, runs: Sequence[Run]) -> list[str]:
        """Where the results of the runs are in the store."""
        shared = study.shared_identity()
        return [key_of(study.identity(run, shared)) for run in runs]

    def _results(self, todo: Mapping[str, tuple[Run, dict[str, Any]]]) -> Iterator[tuple[str, Any, float]]:
        jobs = [(key, run, identity, str(self.store.root), list(sys.path)) for key, (run, identity) in todo.items()]
        if self.workers == 1 or len(jobs) <= 1:
            yield from (perform(*job) for job in jobs)
            return
        from joblib import delayed

        # Results come as they finish; each is on disk before it comes.
        yield from in_processes((delayed(perform)(*job) for job in jobs), self.workers)

    @contextmanager
    def _progress(self, total: int, what: str) -> Iterator[Any]:
        if total == 0 or not self.console.is_terminal:
            yield lambda: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)

    def _tell(self, failures: Sequence[Failure], total: int) -> None:
        text = "\n\n".join(f"{f.run}\n{f.trace}" for f in failures)
        self.failures_file.parent.mkdir(parents=True, exist_ok=True)
        self.failures_file.write_text(text)
        first = failures[0]
        raise ResearchError(
            f"{len(failures)} of {total} runs failed; the first: {first.run}: {first.error}. "
            f"Tracebacks: {self.failures_file}. Finished runs are kept"
        )


def perform(
    key: str, run: Run, identity: Mapping[str, Any], store: str, path: Sequence[str]
) -> tuple[str, dict[str, float | None] | Failure, float]:
    """Make one run and store it; called in a worker process."""
    for entry in path:
        if entry not in sys.path:
            sys.path.append(entry)
    start = time.perf_counter()
    try:
        with compiling_once():
            metrics, files = simulate_run(run)
    except Exception as error:
        what = f"policy {run.policy.text()}, {run.zone} window {run.window}, rate x {run.scale:.4g}, seed {run.seed}"
        return key, Failure(what, _where(error), traceback.format_exc()), 0.0
    seconds = time.perf_counter() - start
    about = {"wall_s": seconds, "trace": run.trace.name, "policy": run.policy.text(), "finished_unix_s": time.time()}
    result = RunStore(Path(store)).write(key, identity, metrics, about=about, files=files)
    return key, result["metrics"], seconds


@contextmanager
def compiling_once() -> Iterator[None]:
    """While the simulator is not compiled yet, let one process at a time in: the others load what it compiled."""
    global _simulated
    from envs.cluster import jit

    def compiled() -> bool:
        return any(Path(jit.CACHE_DIR).glob("**/*.nbi"))

    with ExitStack() as stack:
        if not _simulated and not compiled():
            # No such locks, or no folder for them: every process compiles for itself.
            with suppress(ImportError, OSError):
                import fcntl

                lock = stack.enter_context((jit.CACHE_ROOT / "compiling.lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)  # gone with the process, however it ends
                if not compiled():
                    print("compiling the simulator, once for this version (about half a minute)", flush=True)
        yield
        _simulated = True


_simulated = False  # in this process


def simulate_run(run: Run) -> tuple[dict[str, float | None], dict[str, bytes]]:
    """Simulate one run; its metrics, and its files."""
    from envs.cluster.simulator import simulate
    from research.evidence.metrics import measure, measured_interval

    window = run.trace.window(run.zone, run.windows, run.window, run.lead_in)
    lead_s, length_s = window.lead_s / run.scale, window.length_s / run.scale
    interval = measured_interval(lead_s, length_s, run.skip_first, run.skip_last)
    cluster = in_world(run.cluster, run.world)
    if run.off_by:
        from envs.hardware.uncertainty import perturb, perturb_handover

        # Each window draws its own directions, the same for every policy: no ranking hangs on one set of coins.
        predictors = tuple(perturb(w.profile, run.off_by, seed=run.window) for w in cluster.workers)
        handover = perturb_handover(cluster.handover, run.off_by, seed=run.window)
        cluster = replace(cluster, predictors=predictors, predicted_handover=handover)
    trace = window.trace.scale_rate(run.scale)
    result = simulate(
        trace,
        cluster,
        run.policy.build_for(trace, cluster),
        run.slo,
        seed=run.seed,
        adjust_period_s=run.adjust_period_s,
    )
    files = {"requests.parquet": _compact(result.requests, interval.start_s, interval.end_s)} if run.requests else {}
    return measure(result, interval), files


def _compact(requests: pl.DataFrame, start_s: float, end_s: float) -> bytes:
    """Measured, served requests as Parquet: what the distributions in the report are drawn from."""
    import polars as pl
    from polars import selectors as cs

    served = requests.filter(
        (pl.col("status") == "served") & pl.col("arrival_s").is_between(start_s, end_s, closed="left")
    )
    table = served.select(REQUEST_COLUMNS).with_columns(cs.float().cast(pl.Float32), cs.integer().cast(pl.Int32))
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _where(error: Exception) -> str:
    """The error in one line with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}{place}"
