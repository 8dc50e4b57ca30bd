"""Reads ``policy.json`` and loads the rule from its own source files, privately.

The files under ``rule/`` are byte for byte those that the simulator compiled, so they say ``from policies.contract
import ...``. They are loaded under names of their own, with an ``__import__`` that resolves such lines inside the
folder: no other package of that name is touched or found, and two exported policies live in one process.
"""

from __future__ import annotations

import builtins
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from .ties import Ties, better
from .values import decode

SCHEMA = 1
CONTRACT = "policies.contract"
EXPANDED = "expanded.py"
"""The rule with its helper calls expanded in place, generated from the sources: equal answers, less time."""
_copies = itertools.count()


class ExportError(ValueError):
    """The exported folder, or how the router was set up, is not what it should be."""


class Rulebook:
    """A rule, ready to be asked, and what its folder says about it.

    Every copy has modules of its own, since the table of tie hashes belongs to one router. ``expanded`` False asks the
    verbatim source where the folder also has an expanded text of it.

    Attributes:
        manifest: ``policy.json``.
        contract: the contract module that the rule was written against.
        ties: the table of tie hashes behind the rule's ``tie_hash``.
        decide, bind, shares: the rule's functions; ``bind`` and ``shares`` only where it has them.
        params: parameters as the rule reads them.
        Request, Worker: records with the contract's fields as slots, quick to read and to change in place.
    """

    def __init__(self, policy_dir: str | Path, expanded: bool = True) -> None:
        self.folder = Path(policy_dir)
        self.manifest = read_manifest(self.folder)
        rule = self.manifest["rule"]
        flat = rule["expanded"] if expanded else None
        sources = Sources(self.folder / "rule", {**rule["files"], **(flat or {})})
        self.contract = sources.load(CONTRACT)
        self.ties = Ties()
        vars(self.contract)["tie_hash"] = self.ties.tie_hash
        vars(self.contract)["better"] = better
        self.decide: Callable[..., Any] = sources.find("expanded:decide" if flat else rule["decide"])
        self.bind: Callable[..., Any] | None = sources.find(rule["bind"]) if rule["bind"] else None
        self.shares: Callable[..., Any] | None = sources.find(rule["shares"]) if rule["shares"] else None
        self.params = {name: _param(value) for name, value in self.manifest["params"].items()}
        self.memory = {name: decode(value) for name, value in self.manifest["memory"].items()}
        self.reasons: list[str] = self.manifest["reasons"]
        self.worker_fields = tuple(name for name, _, _ in self.contract.WORKER_FIELDS)
        self.request_fields = tuple(name for name, _, _ in self.contract.REQUEST_FIELDS)
        self.Request: Any = type("Request", (), {"__slots__": self.request_fields})
        self.Worker: Any = type("Worker", (), {"__slots__": (*self.worker_fields, *_OWN_SLOTS)})

    def namespace(self) -> Any:
        """The parameters as the rule reads them: attributes."""
        return SimpleNamespace(**self.params)


# What the board keeps with a worker besides the contract's fields (see board.py).
_OWN_SLOTS = ("base_decode", "base_prefill", "expired", "key", "objectives", "scraped_at", "started_s")


def _param(value: Any) -> float | tuple[float, ...]:
    return tuple(float(decode(item)) for item in value) if isinstance(value, list) else float(decode(value))


def read_manifest(folder: Path) -> dict[str, Any]:
    """``policy.json`` of an exported folder.

    Raises:
        ExportError: there is none, it cannot be read, or it is of another schema.
    """
    path = folder / "policy.json"
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ExportError(f"{path}: not there; expected the folder of an exported policy") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise ExportError(f"{path}: schema {schema!r}: this runtime reads schema {SCHEMA}")
    return dict(manifest)


class Sources:
    """The rule's source files: checked against their hashes, loaded on demand."""

    def __init__(self, folder: Path, hashes: Mapping[str, str]) -> None:
        self.folder = folder
        self.prefix = f"_pdgym_rule_{next(_copies)}."
        self.files: dict[str, Path] = {}
        self.loaded: dict[str, ModuleType] = {}
        for name, expected in hashes.items():
            path = folder / name
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                raise ExportError(f"{path}: cannot be read: {error}") from None
            if found != expected:
                raise ExportError(f"{path}: sha256 {found}: policy.json expects {expected}; the rule was changed")
            parts = name.removesuffix(".py").split("/")
            self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.tops = {name.split(".")[0] for name in self.files}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def find(self, dotted: str) -> Any:
        """The function ``package.module:function``."""
        module, _, name = dotted.partition(":")
        return getattr(self.load(module), name)

    def load(self, name: str) -> ModuleType:
        """The module that the rule's sources call ``name``."""
        if name in self.loaded:
            return self.loaded[name]
        path = self.files.get(name)
        private = self.prefix + name
        if path is None:  # a package without a file of its own
            module = ModuleType(private)
            module.__path__ = []
            self.loaded[name] = module
            return module
        package = path.name == "__init__.py"
        loader = SourceFileLoader(private, str(path))
        spec = ModuleSpec(private, loader, origin=str(path), is_package=package)
        spec.has_location = True
        spec.cached = cache_from_source(str(path))
        module = module_from_spec(spec)
        vars(module)["__builtins__"] = self.builtins
        self.loaded[name] = module
        # dataclasses look their module up while they are made; afterwards nothing of ours stays registered.
        sys.modules[private] = module
        try:
            loader.exec_module(module)
        except ImportError as error:
            raise ExportError(f"{path}: {error}") from None
        finally:
            del sys.modules[private]
        return module

    def _import(
        self,
        name: str,
        scope: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """``import`` as the rule's modules see it."""
        if level:
            package = str((scope or {})["__package__"]).removeprefix(self.prefix).split(".")
            base = package[: len(package) - level + 1]
            name = ".".join([*base, *([name] if name else [])])
        if name.split(".")[0] not in self.tops:
            return __import__(name, scope, local, wanted or (), level)
        if not self._exists(name):
            raise ImportError(f"{name} is not among the exported sources")
        parts = name.split(".")
        for end in range(1, len(parts) + 1):  # a.b becomes an attribute of a
            child = self.load(".".join(parts[:end]))
            if end > 1:
                setattr(self.load(".".join(parts[: end - 1])), parts[end - 1], child)
        module = self.load(name)
        for item in wanted or ():
            if not hasattr(module, item) and self._exists(f"{name}.{item}"):
                setattr(module, item, self.load(f"{name}.{item}"))
        return module if wanted else self.load(parts[0])

    def _exists(self, name: str) -> bool:
        return any(file == name or file.startswith(f"{name}.") for file in self.files)
