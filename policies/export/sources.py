"""Which source files a rule is made of: its own module, and every module of its kind that those import."""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies import contract
from policies.errors import PolicyError
from policies.rulepolicy import RulePolicy

CARRIED = {"numpy"}
"""Third-party packages that an exported rule may import."""


@dataclass(frozen=True, slots=True)
class RuleSources:
    """The files that an export carries, verbatim.

    Attributes:
        files: relative path (``policies/guard.py``) -> text.
        decide, bind, shares: ``package.module:function``; None where the rule has none.
        worker_reads, request_reads: fields of the contract whose names occur as attributes in the files.
    """

    files: dict[str, str]
    decide: str
    bind: str | None
    shares: str | None
    worker_reads: tuple[str, ...]
    request_reads: tuple[str, ...]

    def hashes(self) -> dict[str, str]:
        """sha256 of each file."""
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.files.items()}


def collect(policy: RulePolicy) -> RuleSources:
    """The sources of ``policy``.

    Raises:
        PolicyError: a function of the rule has no file, is no module-level function, or a module of it imports
            something that an exported rule may not.
    """
    shares = getattr(policy, "shares", None)
    functions = [f for f in (policy.decide, policy.spec.bind, shares) if f is not None]
    own = {"policies", *(_module_of(policy.name, f).split(".")[0] for f in functions)}
    files: dict[str, str] = {}
    pending = [contract.__name__, *(_module_of(policy.name, f) for f in functions)]
    while pending:
        name = pending.pop()
        path, text = _source(policy.name, name)
        if path in files:
            continue
        files[path] = text
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        pending += _imports(policy.name, ast.parse(text), path, package, own)
    attributes = {
        node.attr
        for path, text in files.items()
        if path != "policies/contract.py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
    }
    return RuleSources(
        files=dict(sorted(files.items())),
        decide=_dotted(policy.decide),
        bind=_dotted(policy.spec.bind) if policy.spec.bind else None,
        shares=_dotted(shares) if shares else None,
        worker_reads=tuple(name for name, _, _ in contract.WORKER_FIELDS if name in attributes),
        request_reads=tuple(name for name, _, _ in contract.REQUEST_FIELDS if name in attributes),
    )


def _dotted(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__name__}"


def _module_of(policy: str, function: Callable[..., Any]) -> str:
    name = function.__module__
    found = sys.modules.get(name)
    if name == "__main__" or getattr(found, function.__name__, None) is not function:
        raise PolicyError(
            f"policy {policy}: {name}.{function.__qualname__} cannot be exported: expected a module-level function of "
            "an importable module"
        )
    return name


def _source(policy: str, name: str) -> tuple[str, str]:
    """(relative path, text) of a module."""
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        raise PolicyError(f"policy {policy}: module {name} cannot be exported: it has no Python source file")
    path = name.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
    return path, Path(file).read_text("utf-8")


def _imports(policy: str, tree: ast.AST, path: str, package: str, own: Set[str]) -> Iterator[str]:
    """Modules of the rule's kind that a file imports."""
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            wanted: list[tuple[str, tuple[str, ...]]] = [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            wanted = [(name, tuple(alias.name for alias in node.names))]
        else:
            continue
        for name, items in wanted:
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top in CARRIED:
                continue
            if top not in own and _is_installed(top):
                raise PolicyError(
                    f"policy {policy}: {path} imports {name}: an exported rule may import the standard library, "
                    "numpy and modules of its own kind"
                )
            yield from _with_parents(name)
            module = importlib.import_module(name)
            for item in items:
                if not hasattr(module, item) or getattr(module, item) is sys.modules.get(f"{name}.{item}"):
                    yield f"{name}.{item}"


def _with_parents(name: str) -> Iterator[str]:
    """The module, and the packages around it that say anything."""
    yield name
    parts = name.split(".")
    for end in range(1, len(parts)):
        parent = sys.modules[".".join(parts[:end])]
        file = getattr(parent, "__file__", None)
        if file and any(not _is_docstring(node) for node in ast.parse(Path(file).read_text("utf-8")).body):
            yield parent.__name__


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """As ``ast.walk``, without what only type checkers run."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield from _walk(child)


def _is_installed(top: str) -> bool:
    """Whether a package comes from an installed distribution and not from a source tree of the user's."""
    module = importlib.import_module(top)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return any(part in Path(place).parts for place in places for part in _INSTALLED)


_INSTALLED = ("site-packages", "dist-packages")
