"""``action=measure``: time real kernels on this machine and write the tables that profiles are made of."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.calibrating.writing import write_record
from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from envs.hardware.measure.machine import Machine
    from envs.hardware.measure.plan import PlanRow
    from envs.hardware.measure.points import Point
    from envs.hardware.measure.run import Outcome
    from envs.hardware.measure.store import Store
    from envs.hardware.model_shape import ModelShape

DEVICES = ("cuda", "cpu")
TELL_S = 10.0
TOY = "toy"
RECIPE, PICTURE = "recipe.yaml", "measured.png"


def out_name(config: DictConfig) -> str:
    """Folder of the results below ``results``: one for each model and device, so that a later run goes on."""
    name = Path(str(config.model)).name
    for suffix in (".yaml", ".yml", ".json"):
        name = name.removesuffix(suffix)
    return f"calibrate-measure-{name}-{config.device}"


def run(config: DictConfig) -> int:
    """Measure into ``out`` or, with ``plan=true``, say what would be measured; returns the exit code.

    The figures printed are in ``summary.json`` (of a plan: ``plan.json``).

    Raises:
        ResearchError: an option that cannot be, a folder that cannot be written.
        MeasurementError: no such device, another machine's tables in ``out``, a time that is none.
    """
    from envs.hardware.measure.plan import all_points, plan
    from envs.hardware.measure.points import scope_of
    from envs.hardware.measure.run import check_dense, measure, open_bench, open_store

    device, minutes = _options(config)
    out = Path("results") / out_name(config) if config.out is None else Path(config.out).expanduser()
    out = out.absolute()
    shape = _shape(str(config.model), device)
    check_dense(shape)
    if config.plan:
        points = all_points(shape, scope_of(device, fp8=True, gpus=1))
        rows = plan(points, set(), device, minutes)
        _print_plan(rows, device, minutes)
        if device == "cuda":
            print("(on a GPU with fp8; what is in out=DIR already is not counted)")
        plan_record = {"model": shape.name, "device": device, "minutes": minutes}
        write_record(out / "plan.json", plan_record | {"plan": [asdict(row) for row in rows]})
        print(f"results: {out}")
        print(f"next: {command(config, out)}")
        return 0
    bench = open_bench(device, shape)
    store = open_store(out, bench.machine)
    points = all_points(shape, bench.scope)
    print(f"{shape.name} on {bench.machine.name}, torch {bench.machine.torch}, driver {bench.machine.driver}")
    _print_plan(plan(points, store.done(points), device, minutes), device, minutes)
    try:
        outcome = measure(bench, store, points, minutes, Teller())
    except OSError as error:  # no rights, no folder, no room left
        raise ResearchError(f"out={out}: cannot be written: {error}") from None
    summary = _summary(shape, bench.machine, store, outcome, device, minutes)
    _print_outcome(summary, out)
    write_record(out / "summary.json", summary)
    from research.calibrating.measuring_picture import draw

    title = f"{shape.name} on {bench.machine.name}, torch {bench.machine.torch}"
    if draw(shape, store.frames, summary["tpot_rise"], title, out / PICTURE):
        print(f"picture: {out / PICTURE}")
    _next(config, out, shape, bench.machine, outcome)
    return 0


def command(config: DictConfig, out: Path) -> str:
    """The command that measures (and, given again, goes on)."""
    return (
        f"python -m research.calibrate action=measure device={config.device} model={config.model} "
        f"minutes={config.minutes:g} out={out}"
    )


def _options(config: DictConfig) -> tuple[str, float]:
    device, minutes = str(config.device), config.minutes
    if device not in DEVICES:
        raise ResearchError(f"device={device}: expected one of {', '.join(DEVICES)}{nearest(device, DEVICES)}")
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < float("inf"):
        raise ResearchError(f"minutes={minutes}: expected minutes, a number above 0")
    if not isinstance(config.plan, bool):
        raise ResearchError(f"plan={config.plan}: expected true or false")
    if config.model is None:
        raise ResearchError("action=measure: expected model=NAME, such as llama-3.1-8b (toy with device=cpu)")
    return device, float(minutes)


def _shape(model: str, device: str) -> ModelShape:
    import envs.hardware.measure
    from envs.hardware.model_shape import load_model

    if model == TOY:
        return load_model(Path(envs.hardware.measure.__file__).parent / f"{TOY}.yaml")
    if device == "cpu":
        raise ResearchError(f"device=cpu model={model}: expected model={TOY}; a CPU only shows that measuring works")
    return load_model(model)


class Teller:
    """Says where a run is, every TELL_S seconds."""

    def __init__(self) -> None:
        """Start the clock."""
        self.began = self.last = time.monotonic()

    def __call__(self, index: int, count: int, point: Point) -> None:
        """Told before each point."""
        now = time.monotonic()
        if now - self.last >= TELL_S:
            self.last = now
            print(f"  {now - self.began:4.0f} s: {index} of {count}, {point.label()}", flush=True)


def _print_plan(rows: Sequence[PlanRow], device: str, minutes: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from envs.hardware.measure.ops import OPS

    table = Table(title="what is measured, the most telling points first")
    for title in ("table", "points", "there", "in time", "about"):
        table.add_column(title, justify="left" if title == "table" else "right")
    table.add_column("what")
    for row in rows:
        if row.points:
            cells = (str(row.points), str(row.kept), str(row.within), f"{row.seconds:.0f} s")
            table.add_row(row.op, *cells, OPS[row.op].meaning)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    console.width = max(console.width, 130)
    console.print(table)
    total = sum(row.seconds for row in rows)
    print(f"about {total / 60:.1f} minutes for all of it on {device}; minutes={minutes:g} bounds the run")


def _summary(
    shape: ModelShape, machine: Machine, store: Store, outcome: Outcome, device: str, minutes: float
) -> dict[str, Any]:
    from envs.hardware.measure.interference import tpot_rise
    from envs.hardware.measure.ops import OPS
    from envs.hardware.measure.separate import take_apart
    from envs.hardware.measure.sharing import share_slowdowns

    steps, interference, shared = (store.frames.get(name) for name in ("steps", "interference", "sm_share"))
    mixed = [] if steps is None else take_apart(steps)
    return {
        "model": shape.name,
        "device": device,
        "minutes": minutes,
        "machine": asdict(machine),
        "measured": outcome.measured,
        "kept": outcome.kept,
        "left": outcome.left,
        "elapsed_s": round(outcome.elapsed_s, 1),
        "skipped": outcome.skipped,
        "tables": {OPS[name].file: frame.height for name, frame in store.frames.items()},
        "mixed": [asdict(part) | {"ratio": part.ratio} for part in mixed],
        "sm_share": [] if shared is None else [asdict(row) for row in share_slowdowns(shared)],
        "tpot_rise": [] if interference is None else [asdict(rise) for rise in tpot_rise(interference)],
    }


def _print_outcome(summary: Mapping[str, Any], out: Path) -> None:
    print(
        f"\n{summary['measured']} points measured in {summary['elapsed_s']:.0f} s, {summary['kept']} were there, "
        f"{summary['left']} left for another run, {len(summary['skipped'])} could not be measured"
    )
    for reason, count in Counter(summary["skipped"].values()).most_common(5):
        print(f"  not measured ({count}): {reason}")
    for file, rows in summary["tables"].items():
        print(f"  {out / file}: {rows} rows")
    if summary["device"] == "cpu":
        print("a toy on a CPU shows that the command works; the figures that follow say nothing about any GPU:")
    ratios = sorted(row["ratio"] for row in summary["mixed"] if row["ratio"] is not None)
    if ratios:
        print(
            f"attention in mixed steps takes {ratios[len(ratios) // 2]:.2f} times the sum of both alone at the median "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {len(ratios)} steps)"
        )
    for row in summary["sm_share"]:
        beside = "the other phase beside it" if row["beside"] else "alone"
        print(f"{row['phase']} on {row['sm_share']:.0%} of the SMs, {beside}: {row['slowdown']:.2f} times its time")
    for row in summary["tpot_rise"]:
        print(
            f"TPOT of {row['batch']} decodes with one prefill of {row['new']} tokens: distinct prefixes "
            f"{row['distinct_append']:+.1%} (append) and {row['distinct_full']:+.1%} (full); one shared prefix read "
            f"once {row['cascade_append']:+.1%} (append), {row['cascade_lost']:+.1%} (full: the batch shares no more)"
        )


def _next(config: DictConfig, out: Path, shape: ModelShape, machine: Machine, outcome: Outcome) -> None:
    if outcome.left or outcome.skipped:
        print(f"the same command goes on where this one ended: {command(config, out)}")
    if machine.device != "cuda":
        print(f"results: {out}")
        print("next: python -m research.calibrate action=measure device=cuda model=llama-3.1-8b plan=true")
        return
    sheet = gpu_sheet(machine.name, machine.memory_bytes)
    write_recipe(out / RECIPE, shape, machine, sheet or "GPU.yaml", out)
    if sheet is None:
        print(f"no data sheet fits {machine.name}: write one (docs/hardware.md) and name it as gpu in {out / RECIPE}")
    print(f"results: {out}")
    print(f"next: python -m research.calibrate action=fit profile={out / RECIPE}")


def gpu_sheet(device_name: str, memory_bytes: int) -> str | None:
    """The shipped data sheet of a GPU, or None.

    Args:
        device_name: the driver's name of it, such as ``NVIDIA H100 80GB HBM3``.
        memory_bytes: what the driver says it has, a little less than the sheet's.
    """
    from envs.hardware.gpu import gpu_names, load_gpu

    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    found = [name for name in gpu_names() if _is_of(name.split("-"), words)]
    fitting = [name for name in found if 0.9 < memory_bytes / load_gpu(name).memory_bytes <= 1.02]
    return fitting[0] if len(fitting) == 1 else None


def _is_of(sheet: Sequence[str], words: set[str]) -> bool:
    """Whether a sheet, its name in words, is of a GPU: the same model on the same kind of board."""
    model = [word for word in sheet if word not in ("sxm", "pcie", "server") and not re.fullmatch(r"\d+gb", word)]
    if not words.issuperset(model):
        return False
    card = not words.isdisjoint(("pcie", "nvl"))
    return {"pcie": card, "sxm": not card, "server": "server" in words}.get(
        next((word for word in sheet if word in ("sxm", "pcie", "server")), ""), True
    )


def write_recipe(path: Path, shape: ModelShape, machine: Machine, gpu: str, tables: Path) -> None:
    """Write the recipe by which ``action=fit`` makes a profile of the folder ``tables``."""
    from envs.hardware.write import to_yaml

    family = gpu.removesuffix(".yaml").split("-")[0].lower()
    record = {
        "name": f"{shape.name}-bf16-{family}-tp1-torch",
        "model": shape.name,
        "gpu": gpu,
        "tensor_parallel": 1,
        "engine": "torch",
        "engine_version": machine.torch,
        "precision": "bf16",
        "kv_precision": "bf16",
        "adapter": "measured",
        "tables": str(tables),
        "max_new_tokens": 8192,
        "max_seqs": 256,
        "utilisation": 0.9,
    }
    path.write_text(to_yaml(record, "python -m research.calibrate action=measure"), encoding="utf-8")
