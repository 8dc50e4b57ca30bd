"""Recipes: which measurements a profile is made of. ``build`` makes the profile; the same bytes every time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError
from envs.hardware.fit import Errors, StepFit, fit_step_law
from envs.hardware.gpu import load_gpu
from envs.hardware.model_shape import activation_reserve_bytes, kv_law, load_model
from envs.hardware.profile import KvLaw
from envs.hardware.schema import Count, Number, Record, Text, Words, find_file, read_record, read_yaml
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.files import Origin
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.op_tables import AICONFIGURATOR, load_op_tables
from envs.hardware.sources.splitwise import SPLITWISE, splitwise_steps
from envs.hardware.steps import KINDS, StepPoint, check_plausible
from envs.hardware.uncertainty import COEFFICIENTS, COMMON_RELATIVE_SD, COMMON_SOURCE, covariance_record

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
        "precision": Words("bf16", "fp16", "fp8"),
        "kv_precision": Words("bf16", "fp16", "fp8"),
        "adapter": Words("op_tables", "splitwise"),
        "tables": Text(),
        "max_new_tokens": Count("tokens", low=1),
        "max_seqs": Count("sequences", low=1),
        "utilisation": Number("share of the GPU's memory", low=0.1, high=1.0),
    }
)


@dataclass(frozen=True, slots=True)
class Built:
    """A profile as it is written, and the fit behind it."""

    record: dict[str, Any]
    fit: StepFit


def recipe_names() -> list[str]:
    """Names of the profiles that the project can regenerate."""
    return sorted(path.stem for path in RECIPE_DIR.glob("*.yaml"))


def load_recipe(name_or_path: str | Path) -> dict[str, Any]:
    """A recipe by name, or from a YAML file.

    Raises:
        ProfileError: unknown name, unknown or missing key, wrong type, value out of range.
    """
    path = find_file(name_or_path, RECIPE_DIR, recipe_names(), "recipe")
    return read_record(path, read_yaml(path), RECIPE)


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
    shape, gpu = load_model(recipe["model"]), load_gpu(recipe["gpu"])
    tp, precision, kv_precision = recipe["tensor_parallel"], recipe["precision"], recipe["kv_precision"]
    kv = kv_law(shape, gpu, tp, precision, kv_precision, recipe["utilisation"])
    if recipe["adapter"] == "op_tables":
        ops = load_op_tables(data_dir, recipe["tables"], recipe["engine"], recipe["engine_version"])
        composer = Composer(ops, shape, gpu, tp, precision, kv_precision)
        points = compose_steps(composer, recipe["max_new_tokens"], recipe["max_seqs"], kv.capacity_tokens)
        origin, files, kind = AICONFIGURATOR, ops.files(), "estimated"
        method = "engine steps composed layer by layer from op times measured on the GPU (envs/hardware/sources)"
    else:
        all_points, table = splitwise_steps(data_dir, recipe["tables"], tp)
        points = [p for p in all_points if p.new <= recipe["max_new_tokens"] and p.seqs <= recipe["max_seqs"]]
        origin, files, kind = SPLITWISE, [(table.relative, table.sha256)], "measured"
        method = "whole prompt and token steps measured on the machine"
    check_plausible(points, shape, gpu, tp, precision, kv_precision)
    fit = fit_step_law(points)
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
        "kv": _kv_record(kv),
        "source": {
            "kind": kind,
            **origin_record(origin),
            "method": method,
            "files": [{"path": path, "sha256": digest} for path, digest in files],
            "kv": (
                f"{kv_precision} cache; {recipe['utilisation']:g} of {gpu.memory_bytes / 1e9:.1f} GB a GPU "
                f"less weights ({shape.weight_bytes(precision) / tp / 1e9:.1f} GB) and reserve ({reserve / 1e9:.1f} GB)"
            ),
        },
        "fit": fit_record(fit),
    }
    return Built(record, fit)


def origin_record(origin: Origin) -> dict[str, str]:
    """Where measurements come from, as written into a profile."""
    return {
        "name": origin.name,
        "repository": origin.repository,
        "commit": origin.commit,
        "licence": origin.licence,
        "attribution": origin.attribution,
    }


def fit_record(fit: StepFit) -> dict[str, Any]:
    """Range, errors and covariance of a fit, as written into a profile."""
    return {
        "method": "non-negative least squares of relative error, kinds of step weighted equally",
        "points": {kind: count for kind in KINDS if (count := sum(p.kind == kind for p in fit.points))},
        "range": _range(fit.points),
        "errors_percent": {
            region: _error_record(errors, fit.held_out[region]) for region, errors in fit.errors.items()
        },
        "phases_alone_percent": {
            kind: {"mape": round(mape, 1), "constant_s": float(f"{constant:.4g}")}
            for kind, (mape, constant) in fit.by_kind.items()
        },
        "covariance": covariance_record(fit.law, fit.covariance),
        "common_relative_sd": COMMON_RELATIVE_SD,
        "common_source": COMMON_SOURCE,
    }


def _error_record(errors: Errors, held_out: Errors) -> dict[str, Any]:
    return {
        "points": errors.points,
        "mape": round(errors.mape, 1),
        "median": round(errors.median, 1),
        "max": round(errors.worst, 1),
        "bias": round(errors.bias, 1),
        "held_out_mape": round(held_out.mape, 1),
        "held_out_max": round(held_out.worst, 1),
    }


def _range(points: tuple[StepPoint, ...]) -> dict[str, list[int]]:
    """Smallest and largest value of each axis among the points that use it."""
    axes = {
        "new_tokens": [p.new for p in points if p.new],
        "context_tokens": [round(p.attention / p.new + p.new / 2) for p in points if p.kind in ("append", "mixed")],
        "sequences": [p.seqs for p in points if p.seqs],
        "kv_tokens": [p.kv for p in points if p.kv],
    }
    return {name: [min(values), max(values)] for name, values in axes.items() if values}


def _kv_record(kv: KvLaw) -> dict[str, Any]:
    return {
        "bytes_per_token": int(kv.bytes_per_token),
        "capacity_tokens": kv.capacity_tokens,
        "block_tokens": kv.block_tokens,
    }
