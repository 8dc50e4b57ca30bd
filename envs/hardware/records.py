"""What a fit and its source are written as, in a profile."""

from __future__ import annotations

from typing import Any

from envs.hardware.fit import Errors, StepFit
from envs.hardware.profile import KvLaw
from envs.hardware.sources.files import Origin
from envs.hardware.steps import KINDS, StepPoint
from envs.hardware.uncertainty import COMMON_RELATIVE_SD, COMMON_SOURCE, covariance_record


def origin_record(origin: Origin) -> dict[str, str]:
    """Where measurements come from, as written into a profile."""
    return {
        "name": origin.name,
        "repository": origin.repository,
        "commit": origin.commit,
        "licence": origin.licence,
        "attribution": origin.attribution,
    }


HOST_RELATIVE_SD = 0.5


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


def tables_errors(errors: dict[str, Errors]) -> dict[str, Any]:
    """What the table law misses, as written into a profile."""
    return {
        region: {
            "points": row.points,
            "mape": round(row.mape, 1),
            "max": round(row.worst, 1),
            "bias": round(row.bias, 1),
        }
        for region, row in errors.items()
    }


def tables_doubt(errors: dict[str, Errors], host_s: float) -> dict[str, float]:
    """Relative standard deviation of each part of a table law, from what it misses of the steps it was made of.

    How far those steps are from real ones is the common factor's part (``common_relative_sd``). Host time was
    measured on two machines only, and they differ by as much as their mean: :data:`HOST_RELATIVE_SD`.
    """

    def share(*kinds: str) -> float:
        found = [row.mape for region, row in errors.items() if region.split()[0] in kinds]
        return round(max(found or [errors["all"].mape]) / 100, 4)

    host = HOST_RELATIVE_SD if host_s > 0.0 else 0.0
    return {"matrices": share("all"), "decode": share("decode"), "prefill": share("prefill", "append"), "host": host}


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


def kv_record(kv: KvLaw) -> dict[str, Any]:
    """A KV law, as written into a profile."""
    return {
        "bytes_per_token": int(kv.bytes_per_token),
        "capacity_tokens": kv.capacity_tokens,
        "block_tokens": kv.block_tokens,
    }
