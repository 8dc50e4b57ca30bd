"""Puts a finished study into MLflow: parent = study, child = policy x load over the window set.

One writer, after the runs, in batches. The runs are files already, so a missing or locked MLflow loses nothing, and
the same study put in twice adds nothing: runs are tagged with the hash of what they hold. MLflow is imported here and
only here, since that takes seconds.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.evidence.runs import key_of

PARAMS_PER_BATCH = 100  # limits of MLflow's batch call
METRICS_PER_BATCH = 1000
VALUE_LIMIT = 5000
TAG = "pdgym.key"
STUDY_TAG = "pdgym.study"


def default_uri(folder: Path) -> str:
    """A sqlite file beside the runs; absolute, since a relative one would follow the working directory."""
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}"


def study_key(summary: Mapping[str, Any]) -> str:
    """Hash of a study: its runs and what was made of them."""
    return key_of({"runs": summary["runs"], "reference": summary["reference"], "slo": summary["rows"][0]["slo"]})


def log_study(summary: Mapping[str, Any], out: Path, *, uri: str | None, folder: Path, experiment: str) -> str:
    """Write the study, or what is missing of it.

    Args:
        summary: content of ``summary.json``.
        out: folder of the study; report and figures in it become artifacts of the parent.
        uri: MLflow store; None takes a sqlite file in ``folder``.
        folder: also holds the artifacts.
        experiment: name of the MLflow experiment.

    Returns:
        The store's URI.
    """
    uri = uri or default_uri(folder)
    client = _client(uri)
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        experiment_id = found.experiment_id
    else:
        location = (folder / "mlflow-artifacts").absolute().as_uri()
        local = uri.startswith("sqlite")
        experiment_id = client.create_experiment(experiment, artifact_location=location if local else None)
    group = study_key(summary)
    present = _present(client, experiment_id, group)
    parent = present.get(group) or _write_parent(client, experiment_id, summary, out, group)
    for policy in summary["policies"]:
        for rate in sorted({r["rate_per_s"] for r in summary["rows"] if r["policy"] == policy}):
            key = key_of({"study": group, "policy": policy, "rate_per_s": rate})
            if key not in present:
                _write_child(client, experiment_id, summary, policy, rate, key, group, parent)
    return uri


def _client(uri: str) -> Any:
    """A client whose store is migrated before it is used, quietly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


def _present(client: Any, experiment_id: str, group: str) -> dict[str, str]:
    """Finished runs of a study by key; one that was cut short is deleted, to be written again."""
    present: dict[str, str] = {}
    token = None
    while True:
        page = client.search_runs([experiment_id], f"tags.`{STUDY_TAG}` = '{group}'", page_token=token)
        for run in page:
            key = run.data.tags.get(TAG, "")
            if run.info.status == "FINISHED" and key not in present:
                present[key] = run.info.run_id
            else:
                client.delete_run(run.info.run_id)
        token = page.token
        if not token:
            return present


def _write_parent(client: Any, experiment_id: str, summary: Mapping[str, Any], out: Path, key: str) -> str:
    import yaml

    provenance = summary["provenance"]
    tags = {
        TAG: key,
        STUDY_TAG: key,
        "mlflow.runName": out.name,
        "pdgym.command": provenance["command"][:VALUE_LIMIT],
        "git.sha": str(provenance["code"]["git_sha"]),
        "git.dirty": str(provenance["code"]["git_dirty"]),
        "code.sha256": provenance["code"]["sha256"],
        "trace.sha256": provenance["trace"]["sha256"],
        "mlflow.note.content": "\n\n".join(summary["words"])[:VALUE_LIMIT],
    }
    run_id = str(client.create_run(experiment_id, tags=tags).info.run_id)
    knee = summary["knee"]
    metrics = {"knee_rate_per_s": knee["rate_per_s"]} if knee and knee["rate_per_s"] else {}
    _log(client, run_id, metrics, _flat(summary["config"]))
    client.log_text(run_id, yaml.safe_dump(summary["config"], sort_keys=False), "config.yaml")
    for name in ("summary.json", "report.html"):
        if (out / name).is_file():
            client.log_artifact(run_id, str(out / name))
    for figure in sorted((out / "figures").glob("*.png")):
        client.log_artifact(run_id, str(figure), "figures")
    client.set_terminated(run_id)
    return run_id


def _write_child(
    client: Any,
    experiment_id: str,
    summary: Mapping[str, Any],
    policy: str,
    rate: float,
    key: str,
    group: str,
    parent: str,
) -> None:
    rows = [r for r in summary["rows"] if r["policy"] == policy and r["rate_per_s"] == rate]
    load = rows[0]["load"]
    params = {
        "policy": policy,
        "load": load,
        "rate_per_s": rate,
        "slo": rows[0]["slo"],
        "trace": summary["provenance"]["trace"]["name"],
        "cluster": summary["provenance"]["cluster"]["name"],
        "windows": summary["windows"],
        "seeds": summary["seeds"],
        **{f"policy.{k}": v for k, v in summary["given"].get(policy, {}).items()},
    }
    metrics = {}
    for row in rows:
        if row["estimate"] is not None and row["estimate"] == row["estimate"]:
            metrics[row["metric"]] = row["estimate"]
            if row["low"] is not None and row["low"] == row["low"]:
                metrics[f"{row['metric']}.low"] = row["low"]
                metrics[f"{row['metric']}.high"] = row["high"]
    tags = {
        TAG: key,
        "mlflow.parentRunId": parent,
        "mlflow.runName": f"{policy} @ {rate:.3g}/s",
        STUDY_TAG: group,
        "code.sha256": summary["provenance"]["code"]["sha256"],
        "trace.sha256": summary["provenance"]["trace"]["sha256"],
    }
    run_id = client.create_run(experiment_id, tags=tags).info.run_id
    _log(client, run_id, metrics, params)
    client.set_terminated(run_id)


def _log(client: Any, run_id: str, metrics: Mapping[str, float], params: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric, Param

    now = int(time.time() * 1000)
    m = [Metric(name, float(value), now, 0) for name, value in metrics.items()]
    p = [Param(name, str(value)[:VALUE_LIMIT]) for name, value in params.items()]
    for i in range(0, max(len(m), 1), METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=m[i : i + METRICS_PER_BATCH])
    for i in range(0, len(p), PARAMS_PER_BATCH):
        client.log_batch(run_id, params=p[i : i + PARAMS_PER_BATCH])


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out
