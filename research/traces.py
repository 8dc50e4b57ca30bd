"""``python -m research.traces``: list, fetch and describe traces, fit and draw them, hash prompts.

python -m research.traces action=list
python -m research.traces action=fetch trace=azure_conv [mirror=URL]
python -m research.traces action=describe trace=mooncake_conversation out=DIR
python -m research.traces action=describe trace.path=my.csv trace.format=table trace.options.context=grows
python -m research.traces action=hash path=prompts.jsonl tokenizer=tokenizer.json out=DIR
python -m research.traces action=fit trace=azure_conv [zone=train] out=DIR
python -m research.traces action=generate path=DIR/fit.yaml duration_s=3600 [rate_per_s=8] [requests=N] out=DIR
python -m research.traces action=default out=DIR [refit=true]
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from research.cli import run_command
from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

ACTIONS = {
    "list": "listing",
    "fetch": "fetching",
    "describe": "describing",
    "convert": "converting",
    "hash": "hashing",
    "fit": "fitting",
    "generate": "generating",
    "default": "default",
}
"""Action -> module of research.trace_actions, loaded when asked for."""

COMMON = ("action", "trace", "data_dir", "out")
"""Settings of every action. The others are null unless given, and each action lists its own as ``KEYS``."""

OF_A_TRACE = ("fetch", "describe", "convert", "fit")
"""Actions that read ``trace``."""

SUMMARY = "Public traces and your own: list, fetch, describe, hash, convert, fit and generate, one action a call."
EXAMPLES = (
    "action=list",
    "action=fetch trace=azure_conv",
    "action=describe trace=mooncake_conversation",
    "action=describe trace.path=my.csv trace.format=table trace.options.columns.prompt_tokens=my_col",
    "action=describe trace=azure_conv 'trace.steps=[{name: thin, keep: 0.5}]' zone=test",
    "action=convert trace=azure_conv 'trace.steps=[{name: rate, factor: 2}]' csv=true out=DIR",
    "action=hash path=prompts.jsonl tokenizer=tokenizer.json out=DIR",
    "action=fit trace=azure_conv out=DIR",
    "action=generate path=DIR/fit.yaml duration_s=3600 rate_per_s=8 out=DIR",
    "action=default out=DIR",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    return run_command("traces", run, summary=SUMMARY, examples=EXAMPLES, argv=argv)


def run(config: DictConfig) -> None:
    """Do one action and leave ``summary.json`` in ``out``."""
    action = str(config.action)
    if action not in ACTIONS:
        raise ResearchError(f"action={action}: expected one of {', '.join(ACTIONS)}{nearest(action, list(ACTIONS))}")
    module = importlib.import_module(f"research.trace_actions.{ACTIONS[action]}")
    _refuse_idle_keys(config, action, module.KEYS)
    with _folder(f"results/traces-{action}" if config.out is None else config.out) as out:
        summary = module.run(config, out)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(f"summary: {out / 'summary.json'}")


@contextmanager
def _folder(given: object) -> Iterator[Path]:
    """The folder of ``out``, made and checked for writing before the work; taken away again if nothing came of it."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ResearchError(f"out={given}: expected a folder")
    try:
        out = Path(str(given)).expanduser()
        made = [path for path in (out, *out.parents) if not path.exists()]
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ResearchError(f"out={given}: expected a folder that can be written to ({why})") from error
    try:
        yield out
    except BaseException:
        with suppress(OSError):  # what was written stays
            for path in made:
                path.rmdir()
        raise


def _refuse_idle_keys(config: DictConfig, action: str, keys: Sequence[str]) -> None:
    """A setting that the action does not read is a mistake, not a wish to be passed over."""
    for key in map(str, config):
        if key not in COMMON and key not in keys and config[key] is not None:
            takes = ", ".join(keys) or "none of its own"
            raise ResearchError(f"{key}={config[key]}: action={action} takes no {key}; settings it takes: {takes}")
    given = config.trace
    if action not in OF_A_TRACE and (
        given.name != "default" or given.path or given.format or given.options or given.steps
    ):
        what = given.path if given.path is not None else given.name
        hint = f"; action=fit trace={what} makes the fit.yaml that it draws from" if action == "generate" else ""
        raise ResearchError(f"trace={what}: action={action} reads no trace{hint}")


if __name__ == "__main__":
    raise SystemExit(main())
