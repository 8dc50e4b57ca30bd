"""The learning curve as CSV, as a picture, and in MLflow."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from research.training.learn import Point


def write_curve(path: Path, curve: Sequence[Point]) -> None:
    """One line a point; empty where nothing was measured."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(curve[0])])
        for point in curve:
            writer.writerow(["" if math.isnan(value) else f"{value:.6g}" for value in asdict(point).values()])


def draw_curve(path: Path, curve: Sequence[Point], others: Mapping[str, float]) -> None:
    """Attainment over decisions, on train episodes and on validation windows.

    Args:
        path: PNG file.
        curve: the points.
        others: attainment of other policies on the same validation windows, drawn as levels.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, label in (
        ("train_attainment", "train episodes, actions sampled"),
        ("validation_attainment", "validation windows, best action"),
    ):
        known = [(p.decisions / 1e6, getattr(p, name)) for p in curve if not math.isnan(getattr(p, name))]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", markersize=3, label=label)
    for i, (name, value) in enumerate(others.items()):
        axes.axhline(value, color="0.4", linestyle=("--", ":", "-.")[i % 3], linewidth=1, label=f"{name}, validation")
    axes.set_xlabel("decisions, millions")
    axes.set_ylabel("share of requests within SLO")
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def log_training(
    curve: Sequence[Point],
    summary: Mapping[str, Any],
    out: Path,
    *,
    uri: str | None,
    folder: Path,
    experiment: str,
) -> None:
    """Put the training run into MLflow, in batches: settings, the curve, the policy file."""
    from mlflow.entities import Metric, Param

    from research.evidence import tracking

    client = tracking._client(uri or tracking.default_uri(folder))
    found = client.get_experiment_by_name(experiment)
    if found is None:
        location = (folder / "mlflow-artifacts").absolute().as_uri()
        local = uri is None or uri.startswith("sqlite")
        experiment_id = client.create_experiment(experiment, artifact_location=location if local else None)
    else:
        experiment_id = found.experiment_id
    training = summary["training"]
    tags = {"mlflow.runName": f"train {out.name}", "trace.sha256": summary["provenance"]["trace"]["sha256"]}
    run_id = client.create_run(experiment_id, tags=tags).info.run_id
    now = int(time.time() * 1000)
    metrics = [
        Metric(f"train/{name}", float(value), now, point.decisions)
        for point in curve
        for name, value in asdict(point).items()
        if name != "decisions" and not math.isnan(value)
    ]
    for i in range(0, len(metrics), tracking.METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=metrics[i : i + tracking.METRICS_PER_BATCH])
    params = [Param(key, str(value)) for key, value in tracking._flat(training["settings"]).items()]
    client.log_batch(run_id, params=params)
    for name in ("policy.json", "curve.csv", "curve.png"):
        client.log_artifact(run_id, str(out / name))
    client.set_terminated(run_id)
