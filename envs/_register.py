"""Makes ``PDRouting-v0`` known to gymnasium without importing gymnasium, which every simulation would pay for.

Where gymnasium is loaded already, the environment is registered at once; else when it is first imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

ENV_ID = "PDRouting-v0"


def register() -> None:
    """Register the environment with gymnasium; again is harmless."""
    from gymnasium.envs.registration import register as add
    from gymnasium.envs.registration import registry

    if ENV_ID not in registry:
        add(ENV_ID, entry_point="envs.routing:PDRoutingEnv", vector_entry_point="envs.vector:PDRoutingVectorEnv")


class _WhenImported(MetaPathFinder):
    """Lets the import system find gymnasium as ever, and registers once its module has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                register()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_lazily() -> None:
    """Called by ``import envs``."""
    if "gymnasium" in sys.modules:
        register()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())
