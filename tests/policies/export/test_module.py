"""The exported folder: what it holds, that it stands alone, and what is refused by name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from policies.contract import LOCAL, Action, route, rule
from policies.errors import PolicyError
from policies.export.module import export_module
from policies.export.runtime.golden import Replay
from policies.export.runtime.router import Router
from policies.export.runtime.rulebook import ExportError, Rulebook
from policies.export.targets import MODULE, check_needs, find_target
from policies.registry import load, names
from policies.rulepolicy import RulePolicy
from tests.policies.export.folders import SETTING, folder_of, pd

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", names())
def test_every_registered_policy_exports_and_decides(name: str) -> None:
    folder = folder_of(name)
    manifest = json.loads((folder / "policy.json").read_text("utf-8"))
    policy = load(name)
    assert manifest["rule"]["source_sha256"] == policy.source_sha256
    assert manifest["params"] == {k: list(v) if isinstance(v, tuple) else v for k, v in policy.params.items()}
    for path in manifest["rule"]["files"]:
        assert (folder / "rule" / path).read_bytes() == (ROOT / path).read_bytes()
    router = Router(folder, pd(2, 3))
    kinds = {router.decide({"id": i, "prompt_tokens": 500}).kind for i in range(5)}
    assert kinds == {"route"}
    assert "pdgym_fallbacks_total{" not in router.metrics_text()


def test_export_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b", "a"):
        export_module(load("deflect"), tmp_path / name, SETTING)
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_rules_are_loaded_in_private() -> None:
    before = set(sys.modules)
    one, two = Rulebook(folder_of("guard")), Rulebook(folder_of("ppd"))
    assert set(sys.modules) == before
    assert one.contract is not two.contract
    assert one.contract is not sys.modules["policies.contract"]
    verbatim = Rulebook(folder_of("guard"), expanded=False)
    assert verbatim.decide.__module__ == "policies.guard" or verbatim.decide.__module__.endswith(".policies.guard")


def test_a_changed_rule_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(folder_of("guard"), folder)
    source = folder / "rule/policies/predict.py"
    source.write_text(source.read_text("utf-8") + "\n# harmless\n", "utf-8")
    with pytest.raises(ExportError, match=r"predict\.py: sha256 .* policy\.json expects"):
        Router(folder)
    source.unlink()
    with pytest.raises(ExportError, match=r"predict\.py: cannot be read"):
        Router(folder)
    (folder / "policy.json").write_text('{"schema": 99}', "utf-8")
    with pytest.raises(ExportError, match="schema 99: this runtime reads schema 1"):
        Router(folder)
    with pytest.raises(ExportError, match="expected the folder of an exported policy"):
        Router(tmp_path)


def test_objects_are_refused(tmp_path: Path) -> None:
    class MyPolicy:
        def route(self, request: Any, view: Any) -> Action:
            return route(LOCAL, 0)

    with pytest.raises(PolicyError, match=r"MyPolicy cannot be exported.*marked with policies\.contract\.rule"):
        export_module(MyPolicy(), tmp_path / "out", SETTING)
    assert list(tmp_path.iterdir()) == []


@rule(name="nested")
def in_here(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Its module imports pytest, which no router has."""
    return route(LOCAL, view[0].id)


def test_sources_that_a_router_cannot_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"tests/policies/export/test_module\.py imports pytest"):
        export_module(RulePolicy.of(in_here), tmp_path / "out", SETTING)

    @rule(name="inner")
    def inner(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
        return route(LOCAL, view[0].id)

    with pytest.raises(PolicyError, match="inner cannot be exported: expected a module-level function"):
        export_module(RulePolicy.of(inner), tmp_path / "out", SETTING)


def test_needs_that_a_target_lacks_are_refused_by_name() -> None:
    poor = replace(MODULE, name="poor", actions=MODULE.actions - {"chunk"}, signals=MODULE.signals - {"last_decode"})
    with pytest.raises(PolicyError, match=r"policy deflect needs chunk \(.*\), which target poor lacks"):
        check_needs(load("deflect"), poor)
    with pytest.raises(PolicyError, match="policy ppd needs the signal last_decode, which target poor does not have"):
        check_needs(load("ppd"), poor)
    check_needs(load("guard"), poor)
    guard = load("guard")
    odd = replace(guard, spec=replace(guard.spec, needs=("local_prefil",)))
    with pytest.raises(PolicyError, match=r"'local_prefil'.*did you mean 'local_prefill'"):
        check_needs(odd, MODULE)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(PolicyError, match="target=dynamo: unknown: expected one of module"):
        find_target("dynamo")
    with pytest.raises(PolicyError, match="did you mean 'module'"):
        find_target("modul")


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(PolicyError, match="holds something else"):
        export_module(load("guard"), tmp_path, SETTING)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_rule_of_ones_own_with_a_package_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = tmp_path / "my_lab"
    lab.mkdir()
    (lab / "__init__.py").write_text("SCALE = 2.0\n")
    (lab / "numbers.py").write_text("def twice(x):\n    return 2.0 * x\n")
    (lab / "shortest.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport numpy as np\n"
        "import my_lab.numbers as numbers\nfrom my_lab import SCALE\nfrom . import numbers as same\n"
        "from policies.contract import route, rule\nif TYPE_CHECKING:\n    import hydra\n"
        "@rule(name='Shortest first!', params={'weights': (1.0, 2.0)}, needs=('order_key',))\n"
        "def decide(request, view, params, memory, seed):\n"
        "    assert same is numbers\n"
        "    key = numbers.twice(request.prompt_tokens) * SCALE * params.weights[1]\n"
        "    return route(view[0].id, view[1].id, float(np.sqrt(key)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from importlib import import_module

    manifest = export_module(RulePolicy.of(import_module("my_lab.shortest").decide), tmp_path / "out", SETTING)
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        del sys.modules[name]
    monkeypatch.undo()
    assert sorted(manifest["rule"]["files"]) == [
        "my_lab/__init__.py", "my_lab/numbers.py", "my_lab/shortest.py", "policies/contract.py",
    ]  # fmt: skip
    assert manifest["package"] == "pdgym_shortest_first"
    router = Router(tmp_path / "out", pd(1, 1))
    assert router.decide({"id": 1, "prompt_tokens": 32}).order_key == 16.0
    assert "my_lab" not in sys.modules


def test_golden_needs_its_head(tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    golden.write_text('{"cell": "x"}\n')
    with pytest.raises(ExportError, match="expected a golden file of schema 1"):
        Replay().run(folder_of("guard"), golden)
    golden.write_text('{"golden": 1}\nnonsense\n')
    with pytest.raises(ExportError, match="cannot be read"):
        Replay().run(folder_of("guard"), golden)


USE = """
import sys
sys.path[:0] = sys.argv[1:]
from pdgym_guard import Router
import pdgym_guard
assert pdgym_guard.__file__.startswith(sys.argv[1])
print(Router(workers=[{"id": "a", "role": "prefill"}, {"id": "b", "role": "decode"}]).decide({"id": 1}).decode)
"""


def numpy_home() -> str:
    import numpy

    return str(Path(numpy.__file__).parents[1])


def use(place: Path) -> str:
    command = [sys.executable, "-I", "-S", "-c", USE, str(place), numpy_home()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_folder_and_wheel_work_without_this_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of("guard")
    assert use(folder) == "b"
    backend = ModuleType("wheel_backend")
    exec((folder / "wheel_backend.py").read_text("utf-8"), vars(backend))
    monkeypatch.chdir(folder)
    wheel = tmp_path / backend.build_wheel(str(tmp_path))
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    assert use(tmp_path / "installed") == "b"


@pytest.mark.slow
def test_pip_installs_the_folder_without_a_network(tmp_path: Path) -> None:
    copy = tmp_path / "guard"
    shutil.copytree(folder_of("guard"), copy)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(tmp_path / "lib"),
    ]
    done = subprocess.run([*pip, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert use(tmp_path / "lib") == "b"
