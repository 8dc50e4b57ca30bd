"""Print a constraints file from pip's JSON report of a resolve (`make constraints` runs this)."""

from __future__ import annotations

import json
import sys

HEADER = """\
# Every package of every extra, as one resolve gave them. Written by `make constraints`; edit pyproject.toml instead.
# Read by the Makefile: pip install -c constraints.txt -e '.[dev]'.
# torch: the pin holds for the CPU and the CUDA build alike; CONTRIBUTING.md says how to choose.
"""


def main(report: str) -> None:
    """Write the pins of ``report`` to standard output, sorted by name."""
    with open(report, encoding="utf-8") as file:
        found = [item["metadata"] for item in json.load(file)["install"]]
    pins = {item["name"].lower(): item["version"].partition("+")[0] for item in found}  # +cpu is a build, no version
    del pins["pdgym"]
    print(HEADER, end="")
    for name in sorted(pins):
        print(f"{name}=={pins[name]}")


if __name__ == "__main__":
    main(sys.argv[1])
