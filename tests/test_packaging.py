"""What a user installs is what the checkout holds: the wheel, the pins, the two commands."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ("traces", "policies", "envs", "research", "conf")
SHIPPED = {".py", ".yaml", ".parquet", ".html", ".json", ".csv", ".j2"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Needed though no line of ours imports them: mlflow-skinny reaches its sqlite store through these two.
BEHIND_MLFLOW = {"alembic", "sqlalchemy"}
# numba accepts one minor version of it, so a requirement of our own could only contradict.
PART_OF_NUMBA = {"llvmlite"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def shipped_files() -> set[str]:
    """Files of the rooms that belong into the wheel, as paths from the root."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in SHIPPED)
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def third_party_imports() -> dict[str, set[str]]:
    """Distribution -> files that import it, over the rooms."""
    owners = importlib.metadata.packages_distributions()
    found: dict[str, set[str]] = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
                if isinstance(node, ast.Import):
                    tops = {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    tops = {node.module.split(".")[0]}
                else:
                    continue
                for top in tops - set(sys.stdlib_module_names) - {*ROOMS, "tests"}:
                    # mlflow and mlflow-skinny both own `mlflow`: the slim one is what we ask for
                    dists = {canonicalize_name(name) for name in owners.get(top, [top])}
                    dist = "mlflow-skinny" if "mlflow-skinny" in dists else min(dists)
                    found.setdefault(dist, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_every_import_is_declared() -> None:
    declared = names(PROJECT["dependencies"]) | names(EXTRAS["rl"])
    undeclared = {dist: files for dist, files in third_party_imports().items() if dist not in declared | PART_OF_NUMBA}
    assert undeclared == {}


def test_every_dependency_is_used() -> None:
    declared = names(PROJECT["dependencies"]) | names(EXTRAS["rl"])
    assert declared - BEHIND_MLFLOW - set(third_party_imports()) == set()


def test_constraints_pin_every_declared_package() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pairs}
    asked = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    for requirement in (Requirement(text) for text in asked if not text.startswith("pdgym")):
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"
    assert pins["torch"] == "2.13.0"


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_wheel_holds_the_rooms_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in (*ROOMS, "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "-w", str(tmp_path), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("pdgym-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == shipped_files()


def test_readme_names_the_two_commands_and_ci_runs_the_second() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for command in ("compare", "test"):
        assert re.search(rf"^\s*make {command}\b", readme, re.MULTILINE)
    ci = ROOT / ".ci/run"
    assert os.access(ci, os.X_OK)
    assert re.search(r"^exec make test$", ci.read_text("utf-8"), re.MULTILINE)


def dry_make(*arguments: str, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "PDGYM_DATA"}
    command = ["make", "--dry-run", "--always-make", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_compare_passes_overrides_on_and_needs_no_extra() -> None:
    lines = dry_make("compare", "ARGS=trace=azure_conv load=1.2")
    assert "-m research.compare trace=azure_conv load=1.2" in lines
    assert "[dev]" not in lines
    assert "--constraint constraints.txt" in lines
