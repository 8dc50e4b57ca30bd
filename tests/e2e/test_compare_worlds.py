"""compare worlds=K as a user runs it: the winner flips where the measurements leave that open, and holds where not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from envs.hardware.load import PROFILE_DIR
from research.cli import compose_config
from research.compare import present
from research.errors import ResearchError
from research.study import study_from

BASE = "llama-3.1-8b-bf16-h100-tp1"
ROUTER = """
from policies.contract import LOCAL, route


class Only:
    def __init__(self, worker):
        self.worker = worker

    def route(self, request, view):
        return route(LOCAL, self.worker)
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A log, a router that uses one worker only, and a folder to work in."""
    rng = np.random.default_rng(0)
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    for t, prompt in zip(np.cumsum(rng.exponential(0.02, 1200)), rng.integers(500, 2000, 1200), strict=True):
        lines.append(f"{t:.6f},{prompt},8")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "one_worker_lab.py").write_text(ROUTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_profile(folder, name, slower, common_relative_sd):
    """The base profile, so many times slower, whose law is known to within one factor."""
    record = yaml.safe_load((PROFILE_DIR / f"{BASE}.yaml").read_text())
    record["name"] = name
    record["step"] = {key: float(value) * slower for key, value in record["step"].items()}
    record["fit"]["covariance"]["relative_sd"] = [0.0] * 6
    record["fit"]["common_relative_sd"] = common_relative_sd
    record["fit"]["common_source"] = "measured on this cluster"
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(record))


def words(lab, common_relative_sd, draws=20):
    write_profile(lab, "near", 1.0, common_relative_sd)
    write_profile(lab, "far", 1.15, common_relative_sd)
    cluster = {"workers": [{"role": "mixed", "profile": "near.yaml"}, {"role": "mixed", "profile": "far.yaml"}]}
    (lab / "pair.yaml").write_text(yaml.safe_dump(cluster))
    only = "{name: custom, target: one_worker_lab:Only, params: {worker: %d}}"
    return [
        "trace.path=log.csv", "trace.format=table", "replay=open", "cluster=pair.yaml", "rate_per_s=[45]", "windows=2",
        f"policies=[{only % 0},{only % 1}]", f"reference={only % 0}", "measure.lead_in=0", "robustness=[]",
        f"worlds={draws}", "workers=1", "report=false", "tracking.enabled=false", "requests=false", "out=out",
    ]  # fmt: skip


def compare(lab, common_relative_sd, draws=20):
    present(compose_config("compare", words(lab, common_relative_sd, draws)), "compare")
    return json.loads((lab / "out" / "summary.json").read_bytes())


def test_a_winner_holds_where_the_laws_are_known(lab, capsys):
    found = compare(lab, 0.001)["worlds"]
    assert found["leader"] == "Only(worker=0)"
    assert (found["draws"], found["held"], found["holds"]) == (20, 20, True)
    assert "20 draws x 2 policies x 2 windows = 80 more runs" in " ".join(capsys.readouterr().out.split())
    near = {"relative_sd": 0.001, "source": "the profile: measured on this cluster"}
    assert found["widths"]["laws"]["near"] == near


def test_a_winner_flips_where_the_laws_are_not_known_and_a_longer_study_goes_on_from_there(lab, capsys):
    # One worker is 15 % slower, and either law may be half as fast again: which one wins is nearly a coin.
    short = compare(lab, 0.4, draws=5)
    made = capsys.readouterr().out
    assert "24 runs made, 0 reused" in made  # 2 policies x 2 windows, nominal and in 5 worlds
    found = compare(lab, 0.4)
    assert found["worlds"]["holds"] is False
    assert 0 < found["worlds"]["held"] < 19
    assert set(found["worlds"]["leaders"]) == {"Only(worker=0)", "Only(worker=1)"}
    assert found["worlds"]["rows"][:5] == short["worlds"]["rows"]
    assert any("does not hold in 95%" in line for line in found["words"])
    assert "24 reused" in capsys.readouterr().out


def test_worlds_are_off_unless_asked_for_and_need_two_ranked_policies(lab, capsys):
    given = [word for word in words(lab, 0.4, 0) if not word.startswith("worlds")]
    study = study_from(compose_config("compare", given), "compare")
    assert study.worlds == 0
    with pytest.raises(ResearchError, match=r"worlds=-1: expected a whole number of at least 0"):
        study_from(compose_config("compare", [*given, "worlds=-1"]), "compare")
    with pytest.raises(ResearchError, match=r"worlds=2\.5: expected a whole number"):
        study_from(compose_config("compare", [*given, "worlds=2.5"]), "compare")
