"""What ``action=show`` says of a table law: its values at a few points, host time, misfit and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.hardware.profile import Profile
    from envs.hardware.tables import StepTables

TOKENS = (1, 16, 64, 256, 512, 1024, 2048, 8192, 16384)
SEQS = (1, 4, 16, 64, 128, 256, 512)
CONTEXT_TOKENS = 2048
"""Mean context at which the decode attention of a batch is shown as one figure."""


def summary(profile: Profile) -> dict[str, Any]:
    """The table law of a profile, times in ms and us; empty where it has none.

    Returns:
        ``w_ms``: of W at some numbers of tokens; ``decode``: D0, D1 and their sum over CONTEXT_TOKENS at some batches;
        ``least_ms``: W(1); ``host_step_ms, host_seq_us, prefill_step_ms, attention_ns``; ``errors_percent`` by region.
    """
    tables = profile.tables
    if tables is None:
        return {}
    return {
        "knots": {"tokens": len(tables.tokens), "sequences": len(tables.seqs)},
        "least_ms": tables.w_s[0] * 1e3,
        "w_ms": {str(n): _w_s(tables, n) * 1e3 for n in _within(TOKENS, tables.tokens[-1])},
        "decode": [_decode(tables, n) for n in _within(SEQS, tables.seqs[-1])],
        "attention_ns": tables.c_attn_s * 1e9,
        "prefill_step_ms": tables.a0_s * 1e3,
        "host_step_ms": tables.h0_s * 1e3,
        "host_seq_us": tables.h1_s * 1e6,
        "errors_percent": dict(profile.fit.get("tables_errors_percent", {})),
        "relative_sd": dict(profile.fit.get("tables_relative_sd", {})),
    }


def words(profile: Profile) -> list[str]:
    """The same for people; empty where the profile has no tables."""
    found = summary(profile)
    if not found:
        return []
    assert profile.tables is not None
    lines = [
        "",
        f"the simulator takes step times from tables of {found['knots']['tokens']} x {found['knots']['sequences']} "
        "knots; the plane above is what policies predict with:",
        "  step = W(new + B) + [new > 0] * (a0 + attention) + D0(B) + D1(B) * KV tokens + h0 + h1 * B, B decodes",
        f"  {'W, tokens of the step:':<26}" + " ".join(f"{n:>8}" for n in found["w_ms"]),
        f"  {'ms':<26}" + " ".join(f"{value:8.3g}" for value in found["w_ms"].values()),
        f"  {'D, decodes:':<26}" + " ".join(f"{row['sequences']:>8}" for row in found["decode"]),
    ]
    for key, title in (
        ("d0_ms", "D0, ms"),
        ("d1_ns", "D1, ns a KV token"),
        ("ms", f"ms over {CONTEXT_TOKENS:,} tokens each"),
    ):
        lines.append(f"  {title:<26}" + " ".join(f"{row[key]:8.3g}" for row in found["decode"]))
    lines += [
        f"  floor: no step takes less than W(1) = {found['least_ms']:.3g} ms and host time",
        f"  prompts: {found['attention_ns']:.3g} ns a token * context token, {found['prefill_step_ms']:.3g} ms (a0) a "
        "step that has any",
        f"  host: {found['host_step_ms']:.3g} ms (h0) a step, {found['host_seq_us']:.3g} us (h1) a decode"
        + (f"; {said}" if (said := profile.source.get("host_time")) else ""),
    ]
    if found["errors_percent"]:
        lines.append("  misfit of the tables on the steps they were made of (percent, mean / largest, signed mean):")
        lines += [
            f"    {region:<20} {row['mape']:5.1f} / {row['max']:5.1f}  {row['bias']:+5.1f}   {row['points']:>4} steps"
            for region, row in found["errors_percent"].items()
        ]
    if found["relative_sd"]:
        shares = ", ".join(f"{part} {100 * share:.1f} %" for part, share in found["relative_sd"].items())
        lines.append(f"  doubt of its parts (standard deviation): {shares}")
    return lines


def origin_words(profile: Profile) -> list[str]:
    """What the profile stands for, and for a corrected one what it corrects and by what."""
    engine = " ".join(part for part in (profile.engine, profile.engine_version) if part)
    lines = [f"  {profile.model} on {profile.gpu} x {profile.tensor_parallel}, {engine}, {profile.precision}"]
    source = profile.source
    lines += [f"  {key}: {source[key]}" for key in ("repository", "commit", "licence", "method") if key in source]
    files = source.get("files", [])
    if len(files) == 1:
        lines.append(f"  file: {files[0]['path']}, sha256 {str(files[0]['sha256'])[:16]}")
    base: Mapping[str, Any] = source.get("base", {})
    if "corrects" in source:
        told = ", ".join(str(base[key]) for key in ("name", "commit", "licence") if key in base)
        lines.append(f"  corrects: {source['corrects']}" + (f" ({told})" if told else ""))
    for key, what in (("from_runs", "runs"), ("from_log", "cells of requests")):
        own = profile.fit.get(key, {})
        for name, errors in own.get("errors_percent", {}).items():
            lines.append(
                f"  {key}, {name.replace('_', ' ')}: TPOT {errors['tpot_mape']:g} % mean, TTFT "
                f"{errors['ttft_median']:g} % median over its {what}"
            )
        held = [row for row in own.get("held_out", {}).get("quantiles", []) if row["quantile"] < 99]
        if held:
            told = ", ".join(f"{r['metric'].upper()} p{r['quantile']} {r['after_error_percent']:+.1f} %" for r in held)
            lines.append(f"  {key}, on the {held[0]['requests']} requests that were not fitted: {told}")
    return lines


def _within(points: Sequence[int], last: int) -> list[int]:
    return [*[n for n in points if n < last], last]


def _w_s(tables: StepTables, tokens: int) -> float:
    from envs.hardware.tables import interpolate

    return interpolate(tables.tokens, tables.w_s, tokens)


def _decode(tables: StepTables, batch: int) -> dict[str, float]:
    own_s = tables.seconds(0, 0.0, batch, 0.0)
    d0_s = own_s - _w_s(tables, batch) - tables.h0_s - tables.h1_s * batch
    d1_s = (tables.seconds(0, 0.0, batch, 1e6) - own_s) / 1e6
    whole_s = d0_s + d1_s * batch * CONTEXT_TOKENS
    return {"sequences": batch, "d0_ms": d0_s * 1e3, "d1_ns": d1_s * 1e9, "ms": whole_s * 1e3}
