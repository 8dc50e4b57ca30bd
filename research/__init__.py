"""The commands people run, ``python -m research.COMMAND key=value ...``, and the evidence they leave."""

import runpy
from pathlib import Path

# By path: where a foreign package called ``envs`` hides ours, it cannot be imported by name.
runpy.run_path(str(Path(__file__).parents[1] / "envs" / "_guard.py"))["check_rooms"]()
