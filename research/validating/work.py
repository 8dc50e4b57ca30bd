"""Carries out the runs of a validation on all cores; what is finished is kept, so that a stopped command goes on.

One line a finished run in ``finished.jsonl``, named by everything that decides it: the measured run, the setting,
the measurements at hand and the sources that compute.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from envs.hardware.sources.op_tables import PACKAGE
from research.errors import ResearchError
from research.evidence.runs import code_version, key_of
from research.validating.profiles import Instance, NoProfileError, instance_of
from research.validating.recipes import TABLE as RECIPES
from research.validating.serving import Setting, serve

FINISHED = "finished.jsonl"
INPUTS = (
    *("run", "engine", "engine_version", "model", "gpu", "precision", "layout", "prompt_tokens", "output_tokens"),
    *("users", "campaign", "tp", "pp", "dp", "moe_tp", "moe_ep"),
    *(f"{p}_{axis}" for p in ("prefill", "decode") for axis in ("workers", "tp", "pp", "dp", "moe_tp", "moe_ep")),
)
"""Columns of a measured run that its prediction may see: no measured time."""


def predict(
    runs: Sequence[Mapping[str, Any]],
    setting: Setting,
    data_dir: Path,
    folder: Path,
    workers: int,
    advance: Callable[[int], None],
) -> dict[str, dict[str, Any]]:
    """Predictions by run id: what :func:`serving.serve` gives, or ``missing`` and its reason.

    Args:
        runs: measured runs.
        setting: what is not in them.
        data_dir: the data folder.
        folder: where finished runs are kept.
        workers: processes.
        advance: called with the number of runs that are done.

    Raises:
        ResearchError: a run failed; finished ones are kept.
    """
    inputs = [{name: run[name] for name in INPUTS} for run in runs]
    source = version(data_dir)
    keys = {str(run["run"]): key_of({"run": run, "setting": asdict(setting), "source": source}) for run in inputs}
    kept = read_finished(folder / FINISHED)
    done = {run: kept[key] for run, key in keys.items() if key in kept}
    advance(len(done))
    groups: dict[tuple[Instance, ...], list[Mapping[str, Any]]] = {}
    for run in inputs:
        if str(run["run"]) not in done:
            groups.setdefault(_instances(run), []).append(run)
    # The longest first: many users and long outputs.
    jobs = sorted(
        groups.values(), key=lambda rows: -sum(r["users"] * (r["prompt_tokens"] + r["output_tokens"]) for r in rows)
    )
    with (folder / FINISHED).open("a", encoding="utf-8") as file:
        for results in _results(jobs, setting, data_dir, workers):
            for name, result in results:
                if "failed" in result:
                    raise ResearchError(f"run {name}: {result['failed']}\n{result['trace']}")
                done[name] = result
                file.write(json.dumps({"key": keys[name], "result": result}) + "\n")
            file.flush()
            advance(len(results))
    return done


def version(data_dir: Path) -> str:
    """Names what a prediction is made of: code, validation, and all measurements at hand, by name and size."""
    own = [path.read_text(encoding="utf-8") for path in (*sorted(Path(__file__).parent.glob("*.py")), RECIPES)]
    files = sorted(path for path in (data_dir / "measurements").rglob("*") if path.is_file())
    listed = [f"{path.relative_to(data_dir)} {path.stat().st_size}" for path in files]
    return key_of({"code": code_version(), "own": own, "measured": listed, "package": _package()})


def _package() -> str | None:
    """Version of the installed package that op tables are read from where the data folder lacks a GPU."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(PACKAGE)
    return None


def read_finished(path: Path) -> dict[str, dict[str, Any]]:
    """Results by key; a line that was cut off is not there."""
    found: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            item = json.loads(line)
            found[item["key"]] = item["result"]
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _instances(run: Mapping[str, Any]) -> tuple[Instance, ...]:
    phases = ("",) if run["layout"] == "colocated" else ("prefill_", "decode_")
    return tuple(instance_of(run, phase) for phase in phases)


def _results(
    jobs: Sequence[Sequence[Mapping[str, Any]]], setting: Setting, data_dir: Path, workers: int
) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    if workers == 1 or len(jobs) <= 1:
        yield from (perform(job, setting, data_dir, list(sys.path)) for job in jobs)
        return
    from joblib import delayed

    from research.execute import in_processes

    yield from in_processes((delayed(perform)(job, setting, data_dir, list(sys.path)) for job in jobs), workers)


def perform(
    job: Sequence[Mapping[str, Any]], setting: Setting, data_dir: Path, path: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Predict runs that share their instances; called in a worker process."""
    from research.execute import compiling_once

    for entry in path:
        if entry not in sys.path:
            sys.path.append(entry)
    out: list[tuple[str, dict[str, Any]]] = []
    for run in job:
        start = time.perf_counter()
        try:
            with compiling_once():
                result = serve(run, setting, data_dir)
        except NoProfileError as error:
            result = {"missing": str(error)}
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        out.append((str(run["run"]), result | {"wall_s": round(time.perf_counter() - start, 4)}))
    return out
