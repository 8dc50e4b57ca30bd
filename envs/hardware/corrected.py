"""A corrected profile as it is written: the law, its uncertainty, the runs behind it, and what it was before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from envs.hardware.from_runs import TERMS, Correction, CorrectionFit, law_covariance
from envs.hardware.profile import Profile
from envs.hardware.uncertainty import COEFFICIENTS, covariance_record
from envs.hardware.write import tables_record

SUFFIXES = ("from-runs", "from-log")
"""What the name of a corrected profile or link ends in."""
LICENCE = "yours"
METHOD = "maximum a posteriori of six constants (envs/hardware/from_runs.py), through the simulator in client mode"
LOG_METHOD = "maximum a posteriori of six constants on cells of requests (envs/hardware/from_log.py), log replayed"
LOG_COMMON_SOURCE = "left-out error of the cells' TPOT, 2 % at least: what is left of the law's error between its cells"
SEARCH_METHOD = "coefficients of a plane by search (Nelder-Mead), least mean |log ratio| of TTFT, TPOT and E2E"
COMMON_SOURCE = "left-out error of the runs' TPOT, 2 % at least: what is left of the law's error between its runs"


@dataclass(frozen=True, slots=True)
class RunsSource:
    """The runs' file, and how each of them is told in the record (without times), with its ``version`` if known."""

    file: str
    sha256: str
    rows: Sequence[Mapping[str, Any]]
    key: ClassVar[str] = "from_runs"
    common: ClassVar[str] = COMMON_SOURCE

    @property
    def method(self) -> str:
        """How the law was corrected."""
        return METHOD

    @property
    def name(self) -> str:
        """What the profile was corrected by."""
        return f"{len(self.rows)} serving runs of the user's own cluster"

    def range(self, profile: Profile) -> Mapping[str, Any] | None:
        """Range of the corrected law: that of the profile, whose shape it keeps."""
        return profile.fit.get("range")

    def details(self) -> dict[str, Any]:
        """What else the record holds of this source."""
        return {}

    @property
    def versions(self) -> list[str]:
        """Engine versions that rows name, sorted."""
        return sorted({str(row["version"]) for row in self.rows if row.get("version")})

    @property
    def version(self) -> str | None:
        """The one version that every row names, else None."""
        everywhere = all(row.get("version") for row in self.rows)
        return self.versions[0] if everywhere and len(self.versions) == 1 else None


@dataclass(frozen=True, slots=True)
class LogSource(RunsSource):
    """A request log: ``rows`` are its cells.

    Attributes:
        trace_sha256: of the requests as they were read (``Trace.sha256``).
        requests: in the log, in the fitted part and in the part that was judged.
        law: ``correction`` of the profile, or ``coefficients``: a plane that was found by search.
        log_range: what the fitted part held, as a profile's ``fit.range``.
        held_out: errors on the part that was judged.
    """

    trace_sha256: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)
    law: str = "correction"
    log_range: Mapping[str, Any] = field(default_factory=dict)
    held_out: Mapping[str, Any] = field(default_factory=dict)
    key: ClassVar[str] = "from_log"
    common: ClassVar[str] = LOG_COMMON_SOURCE

    @property
    def method(self) -> str:
        """How the law was corrected or found."""
        return LOG_METHOD if self.law == "correction" else f"{SEARCH_METHOD}; then {LOG_METHOD}"

    @property
    def name(self) -> str:
        """What the profile was corrected by."""
        return f"the first {self.requests['fitted']} of {self.requests['log']} requests of the user's own log"

    def range(self, profile: Profile) -> Mapping[str, Any] | None:
        """A found law knows the log only; a correction keeps the profile's shape, and with it the range."""
        return self.log_range if self.law == "coefficients" else profile.fit.get("range")

    def details(self) -> dict[str, Any]:
        """Counts, kind of law, range of the log, errors on what was not fitted."""
        return {
            "trace_sha256": self.trace_sha256,
            "requests": dict(self.requests),
            "law": self.law,
            "range": dict(self.log_range),
            "held_out": dict(self.held_out),
        }


def corrected_name(name: str, suffix: str) -> str:
    """Name of a corrected profile or link: one suffix, whatever was corrected before."""
    for old in SUFFIXES:
        name = name.removesuffix(f"-{old}")
    return f"{name}-{suffix}"


def corrected_record(profile: Profile, fit: CorrectionFit, source: RunsSource) -> dict[str, Any]:
    """The YAML record of the corrected profile, named ``<profile>-from-runs`` or ``-from-log``."""
    corrected = fit.correction.apply(profile)
    record: dict[str, Any] = {
        "name": corrected_name(profile.name, source.key.replace("_", "-")),
        "model": profile.model,
        "gpu": profile.gpu,
        "tensor_parallel": profile.tensor_parallel,
        "engine": profile.engine,
        "engine_version": source.version or profile.engine_version or "not stated",
        "precision": profile.precision,
        "step": {name: float(f"{getattr(corrected.step, name):.8g}") for name in COEFFICIENTS},
    }
    if corrected.tables is not None:
        record["tables"] = tables_record(corrected.tables)
    record["kv"] = {
        "bytes_per_token": profile.kv.bytes_per_token,
        "capacity_tokens": profile.kv.capacity_tokens,
        "block_tokens": profile.kv.block_tokens,
    }
    record["source"] = {
        "kind": "measured",
        "name": source.name,
        "licence": LICENCE,
        "method": source.method,
        "files": [{"path": source.file, "sha256": source.sha256}],
        "corrects": profile.name,
        "base": dict(profile.source),
    }
    record["fit"] = _fit(profile, corrected, fit, source)
    return record


def constants(fit: CorrectionFit) -> list[dict[str, Any]]:
    """One row a constant: value and standard deviation, in the unit of TERMS (factors as factors), and its prior."""
    rows = []
    sds = [*np.sqrt(np.diag(fit.covariance))[:-1], fit.request_sd_ms()]
    for term, value, sd in zip(TERMS, fit.theta, sds, strict=True):
        factor = term.unit.startswith("ln")
        rows.append(
            {
                "name": term.name,
                "meaning": term.meaning,
                "value": float(f"{np.exp(value) if factor else value:.4g}"),
                "unit": "factor" if factor else term.unit,
                "sd": float(f"{sd:.3g}"),
                "prior_sd": term.prior_sd,
            }
        )
    return rows


def errors(fit: CorrectionFit) -> dict[str, dict[str, float]]:
    """Errors in percent before, after and left out: mean of TPOT's, median of TTFT's, and the other way round."""
    out = {}
    for name in ("before", "after", "left_out"):
        size = np.abs(fit.errors_percent(getattr(fit, name)))
        out[name] = {
            f"{what}_{how}": round(float(reduce(size[:, column])), 1)
            for column, what in enumerate(("ttft", "tpot"))
            for how, reduce in (("mape", np.mean), ("median", np.median))
        }
    return out


def _fit(profile: Profile, corrected: Profile, fit: CorrectionFit, source: RunsSource) -> dict[str, Any]:
    own: dict[str, Any] = {} if (given := source.range(profile)) is None else {"range": dict(given)}
    own |= {
        "method": source.method,
        "covariance": covariance_record(corrected.step, law_covariance(profile, fit)),
        "common_relative_sd": round(fit.common_relative_sd(), 4),
        "common_source": source.common,
    }
    if profile.tables is not None:
        own["tables_relative_sd"] = parts_sd(profile, fit)
    columns = np.column_stack([fit.measured, fit.before, fit.after, fit.left_out])
    names = [f"{what}_{name}_s" for name in ("measured", "before", "after", "left_out") for what in ("ttft", "tpot")]
    own[source.key] = source.details() | {
        "taken_for": fit.candidate,
        "versions": source.versions,
        "corrects_version": profile.engine_version or "not stated",
        "constants": constants(fit),
        "request_s": float(f"{fit.correction.request_s:.4g}"),
        "request_measured": fit.request_measured(),
        "errors_percent": errors(fit),
        ("runs" if source.key == "from_runs" else "cells"): [
            {**row, **{name: float(f"{value:.5g}") for name, value in zip(names, values, strict=True)}}
            for row, values in zip(source.rows, columns, strict=True)
        ],
    }
    return own


def parts_sd(profile: Profile, fit: CorrectionFit) -> dict[str, float]:
    """Relative standard deviation of each part of a table law (:data:`envs.hardware.uncertainty.PARTS`)."""
    tables = profile.tables
    assert tables is not None

    def parts(theta: Any) -> Any:
        now = Correction.of(theta).apply(profile).tables
        assert now is not None
        middle = len(now.seqs) // 2
        host = now.h0_s + now.h1_s * now.seqs[middle]
        decode = now.d0_s[middle] + now.d1_s[middle] * 1000.0
        return np.array([*now.w_s, decode, now.c_attn_s, host])

    base = parts(fit.theta)
    slopes = np.empty((len(base), len(TERMS)))
    for j, term in enumerate(TERMS):
        moved = fit.theta.copy()
        moved[j] += 0.1 * term.step
        slopes[:, j] = (parts(moved) - base) / (0.1 * term.step)
    sd = np.sqrt(np.maximum(0.0, np.einsum("ij,jk,ik->i", slopes, fit.covariance, slopes)))
    relative = np.divide(sd, base, out=np.zeros_like(sd), where=base > 0.0)
    found = {"matrices": float(np.mean(relative[: len(tables.w_s)]))}
    found |= dict(zip(("decode", "prefill", "host"), map(float, relative[-3:]), strict=True))
    return {name: round(min(1.0, value), 4) for name, value in found.items()}
