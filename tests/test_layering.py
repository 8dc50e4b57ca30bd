"""The floors hold: nothing looks up, what is exported needs numpy only, heavy packages load when they are used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("traces", "policies", "envs", "research", "conf")
HEAVY = {"torch", "stable_baselines3", "mlflow", "matplotlib", "sqlalchemy", "pandas"}

# What each room may import of the rooms; a dotted name allows that module only.
FLOORS = {
    "traces": {"traces"},
    "policies": {"policies"},
    "envs": {"envs", "traces", "policies.contract", "policies.predict", "policies.features"},
}


def modules(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every dotted name that ``path`` imports, anywhere in it; ``from a import b`` is a.b where that is a module."""
    package = dotted(path).split(".") if path.name == "__init__.py" else dotted(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            base = base if node.level else str(node.module)
            for alias in node.names:
                inner = ROOT.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                yield f"{base}.{alias.name}" if is_module else base


def allowed(name: str, floor: set[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in floor)


def is_rule_module(path: Path) -> bool:
    """True if a function of this module carries the marker ``rule``: an exporter copies such modules."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                target = mark.func if isinstance(mark, ast.Call) else mark
                if (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")) == "rule":
                    return True
    return False


def exported() -> list[str]:
    shared = {f"policies/{name}.py" for name in ("contract", "predict", "features")}
    runtime = "policies/export/runtime/"
    return [
        dotted(path)
        for path in modules("policies")
        if label(path) in shared or label(path).startswith(runtime) or is_rule_module(path)
    ]


def run(code: str, *arguments: str) -> str:
    """Standard output of ``code`` in a fresh interpreter at the checkout's root."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", modules(*FLOORS), ids=label)
def test_nothing_looks_up(path: Path) -> None:
    floor = FLOORS[path.relative_to(ROOT).parts[0]]
    ours = {name for name in imports(path) if name.split(".")[0] in (*ROOMS, "tests")}
    assert {name for name in ours if not allowed(name, floor)} == set()


def test_no_room_imports_the_tests() -> None:
    assert [
        label(path) for path in modules(*ROOMS) if any(name.split(".")[0] == "tests" for name in imports(path))
    ] == []


def test_policies_init_imports_nothing() -> None:
    assert list(imports(ROOT / "policies/__init__.py")) == []


LOADED = """
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""


def test_exported_modules_load_numpy_only() -> None:
    """Also through what they import: a router runs them where numba, polars and this project are absent."""
    names = exported()
    assert "policies.contract" in names
    assert set(json.loads(run(LOADED, *names))) <= {"numpy", "policies"}


def test_heavy_packages_load_only_when_used() -> None:
    """Importing every module below research, and the commands for rules, loads no learning or plotting stack."""
    commands = [f"research.{name}" for name in ("compare", "evaluate") if (ROOT / f"research/{name}.py").is_file()]
    names = [dotted(path) for path in modules("traces", "policies", "envs")] + commands
    assert set(json.loads(run(LOADED, *names))) & HEAVY == set()


GUARD = """
import runpy, sys
sys.path[:0] = sys.argv[2:]
runpy.run_path(sys.argv[1])["check_rooms"]()
"""


def guard(*first_on_path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", GUARD, str(ROOT / "envs/_guard.py"), *map(str, first_on_path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["envs", "traces"])
def test_a_package_that_hides_ours_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    done = guard(tmp_path, ROOT)
    assert done.returncode == 1
    assert f"{name!r} comes from {tmp_path / name}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_guard_is_silent_in_a_sound_install() -> None:
    done = guard(ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
