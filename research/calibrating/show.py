"""What ``research.calibrate`` prints about a profile and the fit behind it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from research.calibrating import show_tables

if TYPE_CHECKING:
    from rich.table import Table

    from envs.hardware.fit import Errors, StepFit
    from envs.hardware.profile import Profile
    from envs.hardware.steps import StepPoint

TERMS = (
    ("floor_s", "least matrix products: reading the weights", 1e3, "ms"),
    ("c0_s", "constant", 1e3, "ms"),
    ("c_tok_s", "a new token", 1e6, "us"),
    ("c_attn_s", "a new token attending to 1,000 tokens", 1e9, "us"),
    ("c_seq_s", "a decoding sequence", 1e6, "us"),
    ("c_kv_s", "1,000 KV tokens attended", 1e9, "us"),
)


def summary(profile: Profile) -> dict[str, Any]:
    """What is printed about a profile, units in the keys."""
    fit = profile.fit
    return {
        "name": profile.name,
        "engine": profile.engine,
        "engine_version": profile.engine_version,
        "step_ms": {key.removesuffix("_s") + "_ms": getattr(profile.step, key) * 1e3 for key, *_ in TERMS},
        "kv_bytes_per_token": int(profile.kv.bytes_per_token),
        "kv_capacity_tokens": profile.kv.capacity_tokens,
        "source": {key: value for key, value in profile.source.items() if key != "files"},
        "range": fit.get("range", {}),
        "errors_percent": fit.get("errors_percent", {}),
        "phases_alone_percent": fit.get("phases_alone_percent", {}),
    }


def print_profile(profile: Profile) -> None:
    """Law, origin, fit range, errors; a table law as well where the profile has one."""
    from rich.console import Console
    from rich.table import Table

    kv, source, fit = profile.kv, profile.source, profile.fit
    print(f"{profile.name}: {source['kind']}, {source['name']}")
    print("\n".join(show_tables.origin_words(profile)))
    print("\nstep = max(least matrix products, constant + new tokens) + attention + sequences + KV:")
    for key, meaning, scale, unit in TERMS:
        print(f"  {meaning:<40} {getattr(profile.step, key) * scale:10.4g} {unit}")
    for line in show_tables.words(profile):
        print(line)
    print(f"\nKV: {kv.bytes_per_token:,.0f} bytes a token, {kv.capacity_tokens:,} tokens fit")
    if "kv" in source:
        print(f"  {source['kv']}")
    for name, (low, high) in fit.get("range", {}).items():
        print(f"  fitted {name.replace('_', ' ')}: {low:,} to {high:,}")
    if "errors_percent" in fit:
        console = Console(file=sys.stdout, width=110)
        title = "relative error of the plane, percent" if profile.tables else "relative error of the law, percent"
        console.print(_error_table(Table(title=title), fit["errors_percent"]))
    if "phases_alone_percent" in fit:
        alone = ", ".join(
            f"{kind} {row['mape']} % with a constant of {row['constant_s'] * 1e3:.3g} ms"
            for kind, row in fit["phases_alone_percent"].items()
        )
        print(f"a law for each phase alone would reach: {alone}")


def _error_table(table: Table, errors: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = {
        "points": "points",
        "mape": "mean",
        "median": "median",
        "max": "max",
        "bias": "bias",
        "held_out_mape": "held out",
        "held_out_max": "its max",
    }
    table.add_column("steps")
    for title in columns.values():
        table.add_column(title, justify="right")
    for region, row in errors.items():
        table.add_row(region, *(f"{row[key]:g}" for key in columns))
    return table


def beside_words(errors: Mapping[str, Errors], fit: StepFit) -> list[str]:
    """The table law's errors beside the plane's, by region."""
    lines = ["", "the table law on the same steps, straight from the ops, beside the plane (percent, mean / largest):"]
    for region, row in errors.items():
        plane = fit.errors[region]
        lines.append(
            f"  {region:<20} tables {row.mape:4.1f} / {row.worst:4.1f}   plane {plane.mape:4.1f} / {plane.worst:4.1f}"
        )
    return lines


def cached_tokens(point: StepPoint) -> float:
    """Tokens that a step's prompt tokens find cached, on the mean: their attention is new * (cached + new / 2)."""
    return max(0.0, point.attention / point.new - point.new / 2.0) if point.new else 0.0


def worst_words(fit: StepFit) -> list[str]:
    """The five steps that the law misses most."""
    from envs.hardware.fit import predict_s

    predicted = predict_s(fit.law, fit.points)
    ranked = sorted(zip(fit.points, predicted, strict=True), key=lambda pair: -abs(pair[1] / pair[0].time_s - 1.0))
    lines = ["", "worst steps (all in residuals.csv):"]
    for point, seconds in ranked[:5]:
        lines.append(
            f"  {point.kind:<8} {point.new:>5} new over {cached_tokens(point):>6.0f} cached, {point.seqs:>3} decodes "
            f"over {point.kv:>7} tokens: {point.time_s * 1e3:8.2f} ms, law {seconds * 1e3:8.2f} ms "
            f"({(seconds / point.time_s - 1) * 100:+.1f} %)"
        )
    return lines


def residuals(fit: StepFit) -> str:
    """Every step of the fit as CSV: what it did, its time and the law's."""
    from envs.hardware.fit import predict_s

    lines = ["kind,new_tokens,cached_tokens,attention_tokens2,sequences,kv_tokens,time_ms,law_ms,error_percent"]
    for point, seconds in zip(fit.points, predict_s(fit.law, fit.points), strict=True):
        cached = f"{cached_tokens(point):.0f}"
        values = (point.kind, point.new, cached, f"{point.attention:.0f}", point.seqs, point.kv)
        error = (seconds / point.time_s - 1.0) * 100.0
        times = (f"{point.time_s * 1e3:.5g}", f"{seconds * 1e3:.5g}", f"{error:.2f}")
        lines.append(",".join(str(value) for value in (*values, *times)))
    return "\n".join(lines) + "\n"
