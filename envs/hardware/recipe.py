"""Recipes: which measurements a profile is made of. ``build`` makes the profile; the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError, ProfileError, nearest
from envs.hardware.fit import Errors, StepFit, fit_step_law
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import activation_reserve_bytes, kv_law, load_model
from envs.hardware.records import fit_record, kv_record, origin_record, tables_doubt, tables_errors
from envs.hardware.schema import Count, Number, Record, Text, Words, find_file, read_record, read_yaml
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.host_time import host_law
from envs.hardware.sources.measured import measured_composer, measured_steps, op_files
from envs.hardware.sources.op_tables import AICONFIGURATOR, check_engine, load_op_tables
from envs.hardware.sources.plausible import check_ops
from envs.hardware.sources.step_sources import STEP_SOURCES, Asked
from envs.hardware.sources.table_law import HostLaw, compose_tables, misfit
from envs.hardware.steps import check_plausible
from envs.hardware.uncertainty import COEFFICIENTS
from envs.hardware.write import tables_record

RECIPE_DIR = Path(__file__).parent / "recipes"
BOUND_PERCENT = 15.0
"""A profile whose held-out MAPE in any region is larger is not written unless forced."""

RECIPE = Record(
    {
        "name": Text(),
        "model": Text(),
        "gpu": Text(),
        "tensor_parallel": Count("GPUs", low=1),
        "engine": Text(),
        "engine_version": Text(),
        "precision": Words("bf16", "fp16", "fp8", "fp8_dynamic", "fp8_block", "nvfp4"),
        "kv_precision": Words("bf16", "fp16", "fp8"),
        "adapter": Words("op_tables", "measured", *STEP_SOURCES),
        "tables": Text(),
        "max_new_tokens": Count("tokens", low=1),
        "max_seqs": Count("sequences", low=1),
        "utilisation": Number("share of the GPU's memory", low=0.1, high=1.0),
        "law": Words("plane", "tables"),
    },
    optional=("law",),
)


@dataclass(frozen=True, slots=True)
class Built:
    """A profile as it is written, and the fit behind it.

    Attributes:
        record: plain values in order.
        fit: of the plane.
        tables: errors of the table law on the same steps, in percent by region; None where steps were measured whole.
        read: the op tables that were read: folder, engine and its version, which need not be the recipe's; or nothing.
    """

    record: dict[str, Any]
    fit: StepFit
    tables: dict[str, Errors] | None = None
    read: tuple[str, str, str] | None = None


def recipe_names() -> list[str]:
    """Names of the profiles that the project can regenerate."""
    return sorted(path.stem for path in RECIPE_DIR.glob("*.yaml"))


def load_recipe(name_or_path: str | Path) -> dict[str, Any]:
    """A recipe by name, or from a YAML file.

    Raises:
        ProfileError: unknown name, unknown or missing key, wrong type, value out of range, an engine without tables,
            op tables of another GPU than the recipe's.
    """
    path = find_file(name_or_path, RECIPE_DIR, recipe_names(), "recipe")
    recipe = read_record(path, read_yaml(path), RECIPE)
    if recipe["adapter"] == "op_tables":
        check_engine(recipe["engine"], f"{path}: ")
        _check_folder(path, recipe)
    return recipe


def _check_folder(path: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse op tables of another GPU: its times would pass for those of the recipe's."""
    gpu, folder = load_gpu(recipe["gpu"]), recipe["tables"]
    own = {"tables": gpu.tables, "stand_in": gpu.stand_in}
    if folder not in own.values():
        said = " or ".join(f"{value!r} (its `{key}`)" for key, value in own.items() if value)
        raise ProfileError(
            f"{path}: tables = {folder!r}: not the folder of gpu = {recipe['gpu']!r}"
            f"{nearest(folder, filter(None, own.values()))}: expected {said or 'a folder that the GPU file names'}; "
            "keys `tables` and `stand_in` of a GPU's file say whose op times count as its own or stand in for them"
        )


def build(name_or_path: str | Path, data_dir: Path, bound_percent: float = BOUND_PERCENT, force: bool = False) -> Built:
    """Read measurements, fit the law, derive the KV law.

    Args:
        name_or_path: a recipe.
        data_dir: the data folder.
        bound_percent: largest held-out MAPE in any region with which a profile is made.
        force: make it all the same.

    Raises:
        MeasurementError: measurements missing, implausible or contradictory; a held-out error beyond the bound.
        ProfileError: a recipe, model or GPU that cannot be read.
    """
    recipe = load_recipe(name_or_path)
    if recipe["adapter"] in STEP_SOURCES and recipe.get("law") == "tables":
        raise ProfileError(
            f"{name_or_path}: law = 'tables': adapter {recipe['adapter']!r} holds steps, no ops of an engine: "
            "expected plane"
        )
    shape, gpu = load_model(recipe["model"]), load_gpu(recipe["gpu"])
    tp, precision, kv_precision = recipe["tensor_parallel"], recipe["precision"], recipe["kv_precision"]
    kv = kv_law(shape, gpu, tp, precision, kv_precision, recipe["utilisation"])
    extra: dict[str, Any] = {}
    more: Mapping[str, str] = {}
    read = None
    if recipe["adapter"] == "op_tables":
        as_served = recipe.get("law") == "tables"
        ops = load_op_tables(data_dir, recipe["tables"], recipe["engine"], recipe["engine_version"])
        check_ops(ops, gpu)
        read = ops.gpu, ops.engine, ops.version
        composer = Composer(ops, shape, gpu, tp, precision, kv_precision, as_served, recipe["engine_version"])
        limits = (recipe["max_new_tokens"], recipe["max_seqs"], kv.capacity_tokens)
        points = compose_steps(composer, *limits)
        host = host_law(data_dir, recipe["engine"], recipe["engine_version"]) if as_served else HostLaw()
        tables = compose_tables(composer, *limits, host)
        table_errors, launch_s = misfit(tables, points), composer.launch_floor_s
        origin, files, kind = AICONFIGURATOR, ops.files(), "estimated"
        method = "engine steps composed layer by layer from op times measured on the GPU (envs/hardware/sources)"
        if as_served:
            method += ", as the engine launches them"
            extra = {"tables": tables_record(tables)}
    elif recipe["adapter"] == "measured":
        limits = (recipe["max_new_tokens"], recipe["max_seqs"], kv.capacity_tokens)
        folder, what = data_dir / recipe["tables"], (shape, gpu, tp, precision, kv_precision)
        own = measured_steps(folder, *what, limits)
        points, origin, files, kind, method = own.points, own.origin, own.files, own.kind, own.method
        host, table_errors, launch_s = HostLaw(), None, 0.0
        if recipe.get("law") == "tables":
            composer = measured_composer(folder, *what)
            tables = compose_tables(composer, *limits, host)
            table_errors, extra = misfit(tables, points), {"tables": tables_record(tables)}
            files = sorted({*files, *op_files(folder, composer)})
    else:
        held = STEP_SOURCES[recipe["adapter"]](
            Asked(
                data_dir, recipe["tables"], shape, gpu, recipe["engine_version"], tp, precision, kv_precision,
                kv.capacity_tokens,
            )
        )  # fmt: skip
        points = [p for p in held.points if p.new <= recipe["max_new_tokens"] and p.seqs <= recipe["max_seqs"]]
        origin, files, kind, method, more = held.origin, held.files, held.kind, held.method, held.more
        host, table_errors, launch_s = HostLaw(), None, 0.0
    try:
        check_plausible(points, shape, gpu, tp, precision, kv_precision, launch_s)
        fit = fit_step_law(points)
    except MeasurementError as error:
        raise MeasurementError(f"{', '.join(path for path, _ in files)}: {error}") from None
    worst = max((name for name in fit.held_out if name != "all"), key=lambda name: fit.held_out[name].mape)
    if fit.held_out[worst].mape > bound_percent and not force:
        raise MeasurementError(
            f"{recipe['name']}: held-out error of {fit.held_out[worst].mape:.1f} % in region {worst!r}: expected at "
            f"most {bound_percent:g} % (bound_percent); force=true writes the profile all the same"
        )
    reserve = activation_reserve_bytes(shape, gpu, tp, 8192, 256)
    record = {
        "name": recipe["name"],
        "model": recipe["model"],
        "gpu": recipe["gpu"],
        "tensor_parallel": tp,
        "engine": recipe["engine"],
        "engine_version": recipe["engine_version"],
        "precision": precision,
        "step": {name: float(getattr(fit.law, name)) for name in COEFFICIENTS},
        **extra,
        "kv": kv_record(kv),
        "source": {
            "kind": kind,
            **origin_record(origin),
            "method": method,
            **more,
            **({"host_time": host.source} if extra else {}),
            "files": [{"path": path, "sha256": digest} for path, digest in files],
            "kv": (
                f"{kv_precision} cache; {recipe['utilisation']:g} of {gpu.memory_bytes / 1e9:.1f} GB a GPU "
                f"less weights ({shape.weight_bytes(precision) / tp / 1e9:.1f} GB) and reserve ({reserve / 1e9:.1f} GB)"
            ),
        },
        "fit": fit_record(fit),
    }
    if extra and table_errors is not None:
        record["fit"]["tables_errors_percent"] = tables_errors(table_errors)
        record["fit"]["tables_relative_sd"] = tables_doubt(table_errors, host.h0_s)
    return Built(record, fit, table_errors, read)
