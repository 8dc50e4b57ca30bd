"""``python -m research.evaluate``: one policy in detail, beside the reference policy."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from research.cli import run_command
from research.compare import present

SUMMARY = "Serve a trace on a cluster under one routing policy; every figure with its interval."
EXAMPLES = (
    "trace=azure_conv cluster=1p3d policy=deflect policy.alpha=1.3",
    "trace.path=my.csv trace.format=azure cluster=2p2d policy=custom policy.target=my_lab.router:MyPolicy",
)


def run(config: DictConfig) -> int:
    """Conduct the study of one policy."""
    present(config, "evaluate")
    return 0


def main() -> int:
    """Entry point."""
    return run_command("evaluate", run, summary=SUMMARY, examples=EXAMPLES)


if __name__ == "__main__":
    sys.exit(main())
