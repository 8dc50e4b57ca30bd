"""MLflow gets each study once, whole, from one writer."""

from __future__ import annotations

import warnings

import pytest

from research.evidence import tracking
from research.evidence.runs import write_json
from tests.research.studies import study_summary


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A study put in twice, and a client to look at it."""
    folder = tmp_path_factory.mktemp("tracked")
    made = study_summary({"round_robin": 5.0, "guard": 8.0})
    out = folder / "study"
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "goodput.png").write_bytes(b"png")
    write_json(out / "summary.json", made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        uri = tracking.log_study(made, out, uri=None, folder=folder, experiment="tests")
        first = runs(uri)
        tracking.log_study(made, out, uri=None, folder=folder, experiment="tests")
    return folder, made, uri, first


def runs(uri):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return list(client.search_runs([client.get_experiment_by_name("tests").experiment_id]))


def test_the_store_is_a_sqlite_file_by_absolute_path(tracked):
    folder, _, uri, _ = tracked
    assert uri == f"sqlite:///{folder}/mlflow.db"
    assert (folder / "mlflow.db").is_file()


def test_a_study_is_a_parent_and_its_policies_at_each_load_are_children(tracked):
    *_, first = tracked
    parents = [r for r in first if "mlflow.parentRunId" not in r.data.tags]
    children = [r for r in first if "mlflow.parentRunId" in r.data.tags]
    assert len(parents) == 1
    assert {r.data.tags["mlflow.parentRunId"] for r in children} == {parents[0].info.run_id}
    assert {(r.data.params["policy"], r.data.params["load"]) for r in children} == {
        (p, load) for p in ("round_robin", "guard") for load in ("0.8", "1.0")
    }
    assert {r.info.status for r in first} == {"FINISHED"}


def test_children_carry_estimates_with_their_intervals_and_hashes(tracked):
    _, made, _, first = tracked
    child = next(r for r in first if r.data.params.get("policy") == "guard" and r.data.params["load"] == "1.0")
    row = next(r for r in made["rows"] if (r["policy"], r["load"], r["metric"]) == ("guard", 1.0, "goodput_per_s"))
    assert child.data.metrics["goodput_per_s"] == pytest.approx(row["estimate"])
    assert child.data.metrics["goodput_per_s.low"] == pytest.approx(row["low"])
    assert "tbt_p99_s" not in child.data.metrics  # nothing was measured: nothing is logged
    assert child.data.tags["trace.sha256"] == "0" * 64
    assert child.data.tags["code.sha256"] == "1" * 64


def test_the_parent_holds_configuration_summary_and_pictures(tracked):
    from mlflow.tracking import MlflowClient

    folder, _, uri, first = tracked
    parent = next(r for r in first if "mlflow.parentRunId" not in r.data.tags)
    names = {f.path for f in MlflowClient(tracking_uri=uri).list_artifacts(parent.info.run_id)}
    assert names == {"config.yaml", "summary.json", "figures"}
    assert parent.data.params["slo.tpot_s"] == "0.025"
    assert (folder / "mlflow-artifacts").is_dir()


def test_the_same_study_again_adds_nothing(tracked):
    *_, uri, first = tracked
    assert {r.info.run_id for r in runs(uri)} == {r.info.run_id for r in first}


def test_a_run_that_was_cut_short_is_written_again(tracked):
    from mlflow.tracking import MlflowClient

    folder, made, uri, first = tracked
    client = MlflowClient(tracking_uri=uri)
    child = next(r for r in first if r.data.params.get("policy") == "guard")
    client.update_run(child.info.run_id, status="RUNNING")
    tracking.log_study(made, folder / "study", uri=None, folder=folder, experiment="tests")
    after = runs(uri)
    assert len(after) == len(first)
    assert child.info.run_id not in {r.info.run_id for r in after}
