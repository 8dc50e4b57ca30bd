"""``research.export``: recorded views are answered the same by the exported folder alone, and mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.cluster.slo import LOOSE
from envs.hardware.load import load_handover, load_profile
from policies.export.module import export_module
from policies.export.runtime import verify as replay
from policies.registry import names
from policies.rulepolicy import RulePolicy
from research import export
from research.recording import Plan, record
from tests.envs.cluster.rules import chaos, watchful
from tests.policies.export.folders import SETTING
from traces import load_trace

SMALL = ["latency_decisions=0", "utilisation=[1.1]"]


def run(*words: str) -> int:
    return export.main([*words])


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "guard"
    words = ["views=480", "utilisation=[0.7,1.2]", "latency_decisions=200"]
    assert run("policy=guard", "clusters=[2p2d,1p3d,8p8d,16p48d]", f"out={out}", *words) == 0
    return out


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
    return found


def test_guard_is_exported_and_checked(guard: Path) -> None:
    held = {path.name for path in guard.iterdir()}
    assert held == {
        "README.md", "REPRESENTABILITY.md", "golden.jsonl", "pdgym_guard", "policy.json", "pyproject.toml", "rule",
        "summary.json", "wheel_backend.py",
    }  # fmt: skip
    told = summary(guard)["verify"]
    assert (told["views"], told["mismatches"], told["mismatches_verbatim"], told["illegal_answers"]) == (480, 0, 0, 0)
    assert told["foreign_modules"] == []
    assert told["passed"] is True
    assert set(told["rule_us"]) == {"4", "16", "64"}
    assert told["decide_us"]["decisions"] == 200
    manifest = json.loads((guard / "policy.json").read_text("utf-8"))
    profile = manifest["profiles"][manifest["default_profile"]]
    assert profile["kv_bytes_per_token"] == 163840.0
    assert profile["c_tok_s"] > 0.0
    assert profile["handover_s"] > 0.0
    assert manifest["roles"]["prefill"]["can_decode"] == 0
    assert manifest["slo"] == {"ttft_base_s": 0.25, "ttft_per_token_s": 0.0001, "tpot_s": 0.025}


def test_the_recording_has_variety(guard: Path) -> None:
    lines = [json.loads(line) for line in (guard / "golden.jsonl").read_text("utf-8").splitlines()]
    answers = [line["answer"] for line in lines if "answer" in line]
    assert len({a[1] for a in answers}) > 8
    assert len({a[2] for a in answers}) > 20
    local = sum(a[1] == -1 for a in answers)
    assert 0.02 < local / len(answers) < 0.98
    requests = [line["request"] for line in lines if "request" in line]
    assert {r[3] for r in requests} == {0, 1}  # replicas
    assert any(r[9] != "nan" for r in requests)  # later turns of sessions
    queued = [v for line in lines for v in _as_list(line.get("workers", {}).get("prefill_tokens", 0))]
    assert max(queued) > 2000


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_verify_replays_what_is_there(guard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("action=verify", f"path={guard}", f"out={tmp_path}", "latency_decisions=0") == 0
    told = summary(tmp_path)
    assert (told["action"], told["verify"]["views"], told["verify"]["passed"]) == ("verify", 480, True)
    printed = capsys.readouterr().out
    assert "100.00 %" in printed
    assert "next: pip install" in printed


def test_a_wrong_answer_is_found(guard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = guard / "golden.jsonl"
    text = golden.read_text("utf-8")
    lines = text.splitlines()
    question = json.loads(lines[5])
    question["answer"][2] += 1
    lines[5] = json.dumps(question)
    try:
        golden.write_text("\n".join(lines) + "\n", "utf-8")
        assert run("action=verify", f"path={guard}", f"out={tmp_path}", "latency_decisions=0") == 1
    finally:
        golden.write_text(text, "utf-8")
    told = summary(tmp_path)["verify"]
    assert (told["mismatches"], told["passed"]) == (1, False)
    assert told["first_mismatches"][0].startswith("line 6, 2p2d at 0.7: route answered")
    assert "does NOT decide as it was simulated" in capsys.readouterr().out


def here(folder: Path, decisions: int) -> dict[str, Any]:
    """The replay without an interpreter of its own."""
    report = replay.verify(folder, folder / "golden.jsonl", decisions)
    return {**report, "foreign_modules": [], "passed": replay.passed(report), "import_ms": 0.0, "numpy_import_ms": 0.0}


@pytest.mark.parametrize("name", [name for name in names() if name != "guard"])
def test_every_policy_replays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "verify", here)
    mixed = name in ("colocated", "time_slice", "multiplicative")
    clusters = "[split2,colocated2]" if mixed else "[2p2d]"
    assert run(f"policy={name}", f"clusters={clusters}", "views=80", f"out={tmp_path / name}", *SMALL) == 0
    told = summary(tmp_path / name)["verify"]
    assert (told["views"], told["passed"]) == (80, True)
    if name == "time_slice":
        assert told["views_by_kind"]["adjust"] > 0


def test_late_bindings_and_memory_replay(tmp_path: Path) -> None:
    trace = load_trace("default").window(0.0, 30.0)
    profile, handover = load_profile("llama-3.1-8b-bf16-h100-tp1"), load_handover("rdma")
    plan = Plan(trace, profile, handover, LOOSE, ("2p2d", "colocated3"), (1.0,), 240)
    for rule in (watchful, chaos):
        policy = RulePolicy.of(rule)
        export_module(policy, tmp_path / policy.name, SETTING, record(policy, plan))
        report = here(tmp_path / policy.name, 0)
        assert report["passed"], report["first_mismatches"]
        assert report["views_by_kind"]["bind"] > 5


def test_export_overwrites_an_export_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "policy"
    for _ in range(2):
        assert run("policy=random", "clusters=2p2d", "views=10", f"out={out}", *SMALL) == 0
    (tmp_path / "notes.txt").touch()
    assert run("policy=random", "clusters=2p2d", "views=10", f"out={tmp_path}", *SMALL) == 2
    assert "holds something else than an exported policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["target=dynamo"], "target=dynamo: unknown: expected one of module"),
        (["target=modul"], "did you mean 'module'?"),
        (["action=verifi"], "(did you mean 'verify'?)"),
        (["action=verify"], "expected path=DIR"),
        (["action=verify", "path=no/such/folder"], "policy.json: not there"),
        (["policy=gard"], "did you mean 'guard'?"),
        (["clusters=[2p2x]"], "clusters: cluster '2p2x': expected"),
        (["views=0"], "views=0: expected a whole number of at least 1"),
        (["utilisation=[-1]"], "utilisation=-1"),
        (["policy=custom", "policy.target=tests.research.test_export:Object"], "Object cannot be exported"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words, f"out={tmp_path / 'out'}") == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


class Object:
    """A policy that is no rule."""

    def route(self, request: Any, view: Any) -> Any:
        """Never asked."""
        raise AssertionError


def test_a_folder_without_its_golden_file_cannot_be_verified(
    guard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = guard / "golden.jsonl"
    golden.rename(tmp_path / "golden.jsonl")
    try:
        assert run("action=verify", f"path={guard}", f"out={tmp_path}", "latency_decisions=0") == 2
    finally:
        (tmp_path / "golden.jsonl").rename(golden)
    assert "golden.jsonl: not there; the export writes it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guard", "learned", "deflect"])
def test_ten_thousand_views(name: str, tmp_path: Path) -> None:
    assert run(f"policy={name}", f"out={tmp_path / name}") == 0
    told = summary(tmp_path / name)["verify"]
    assert (told["views"], told["mismatches"], told["mismatches_verbatim"]) == (10_000, 0, 0)
