"""The grammar that all commands share: ``python -m research.COMMAND key=value ...``.

Configuration is composed by Hydra from the packaged ``conf`` folder. Around it this module adds what a person
at a prompt needs: one clear line instead of a traceback, the nearest valid name, and clusters by layout
(``cluster=3p5d`` needs no file).
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from research.errors import ResearchError, nearest

USAGE_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143
LAYOUT = re.compile(r"^(\d+p\d+d|colocated\d+|split\d+)$")


def run_command(
    name: str,
    run: Callable[[DictConfig], object],
    *,
    summary: str,
    examples: Sequence[str],
    argv: Sequence[str] | None = None,
) -> int:
    """Compose ``conf/<name>.yaml`` with the command line, call ``run`` and return the exit code.

    Exit codes: 0 done, 2 a mistake of the user's that is told in one line, 130 interrupted, 141 nobody reads the output
    any more, 143 terminated. Other exceptions are ours and keep their traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _show_line_by_line()
    if any(word in ("-h", "--help", "help") for word in words):
        print(help_text(name, summary, examples))
        return 0
    if "" not in sys.path:
        sys.path.insert(0, "")  # my_lab.router next to the prompt is importable
    try:
        show = _take_show_config(words)
        config = compose_config(name, words)
        if show:
            print(OmegaConf.to_yaml(config, resolve=True), end="")
            return 0
        with _terminable():
            code = run(config)
        return code if isinstance(code, int) else 0
    except tuple(user_errors()) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt as stop:
        print("\nstopped: finished runs are kept, the same command goes on from there", file=sys.stderr)
        return TERMINATED if isinstance(stop, _Terminated) else INTERRUPTED
    except BrokenPipeError:
        # Who reads our output has enough of it (`| head`). What is left to flush at exit must go nowhere, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as schedulers, containers and ``kill`` send it."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Within, SIGTERM ends a command as Ctrl-C does: worker processes must not work on without it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def user_errors() -> Iterator[type[Exception]]:
    """Exception types whose message is meant for the user."""
    from envs.hardware.errors import ProfileError
    from policies.errors import PolicyError
    from traces.errors import TraceError

    yield from (ResearchError, ProfileError, PolicyError, TraceError)


def compose_config(name: str, words: Sequence[str]) -> DictConfig:
    """The configuration of command ``name`` under the overrides ``words``.

    Raises:
        ResearchError: a word that is no ``key=value``, an unknown key or group value, a value Hydra cannot read.
    """
    overrides = [_parse(word) for word in words]
    with _hydra():
        try:
            config = compose(config_name=name, overrides=[_rewrite(override) for override in overrides])
        except (HydraException, OmegaConfBaseException) as error:
            _explain(name, overrides)
            raise ResearchError(f"{' '.join(words)}: {_first_line(error)}") from None
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise ResearchError(_first_line(error)) from None
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ResearchError(f"missing value: give {missing[0]}=VALUE")
    return config


def options(group: str) -> list[str]:
    """Names that ``group=`` takes: the YAML files of ``conf/<group>``."""
    folder = resources.files("conf").joinpath(group)
    if not folder.is_dir():
        return []
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def help_text(name: str, summary: str, examples: Sequence[str]) -> str:
    """What ``--help`` prints: purpose, examples, groups with their values, and every setting with its default."""
    with _hydra():
        config = compose(config_name=name)
    lines = [summary.strip(), "", "examples:"]
    lines += [f"  python -m research.{name} {example}" for example in examples]
    groups = _groups(config)
    if groups:
        lines += ["", "groups (key=NAME; a part by key.part=VALUE):"]
        lines += [f"  {group:<10} {' | '.join(_group_words(group))}" for group in groups]
    lines += ["", "settings and their defaults (conf/" + name + ".yaml explains each):"]
    lines += [f"  {key}={_show(config, key)}" for key in _flat_keys(config) if "." not in key and key not in groups]
    lines += ["", "--cfg prints the whole configuration that a command line gives, without running it."]
    return "\n".join(lines)


def _group_words(group: str) -> list[str]:
    if group == "cluster":
        return ["<n>p<m>d", "colocated<n>", "split<n>", "FILE.yaml"]
    if group == "trace":
        from traces.entries import ENTRIES

        return [*ENTRIES, "FILE"]
    return options(group)


def _show(config: DictConfig, key: str) -> str:
    value = OmegaConf.to_container(config, resolve=False)[key]  # type: ignore[index, call-overload]
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _hydra() -> Iterator[None]:
    try:
        with initialize_config_module("conf", version_base="1.3"):
            yield
    except HydraException as error:
        raise ResearchError(_first_line(error)) from None


def _groups(config: DictConfig) -> list[str]:
    """Config groups of a command: the keys that are also folders of ``conf``."""
    return [str(key) for key in config if options(str(key))]


def _parse(word: str) -> Override:
    if word.startswith("-"):
        hint = ": give lists instead, policies=[a,b] load=[0.8,1.0]" if word in ("-m", "--multirun") else ""
        raise ResearchError(f"unknown option {word!r}{hint} (settings are key=value; --help shows them)")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        if "=" not in word:
            raise ResearchError(f"{word!r}: expected key=value") from None
        raise ResearchError(f"cannot read {word!r}: {_first_line(error)}") from None
    if override.is_add() or override.is_delete() or override.is_sweep_override():
        raise ResearchError(f"{word!r}: expected a plain key=value (a list is written key=[a,b])")
    return override


def _rewrite(override: Override) -> str:
    """Clusters and traces without a file become values; keys of open mappings may be new; group values are checked."""
    key, line = override.key_or_group, str(override.input_line)
    names = options(key)
    if not names:
        return f"++{line}" if any(part in OPEN_MAPPINGS for part in key.split(".")) else line
    value = override.value()
    if not isinstance(value, str | int | float | bool):
        raise ResearchError(f"{key}: expected one of {', '.join(_group_words(key))}, got {line!r}")
    text = str(value)
    if text in names:
        return line
    if key == "cluster":
        if LAYOUT.match(text) or text.endswith((".yaml", ".yml")):
            return f"cluster.name={_quote(text)}"
        raise ResearchError(f"cluster={text}: expected {', '.join(_group_words(key))}, with n and m such as in 2p2d")
    if key == "trace":
        from traces.entries import ENTRIES

        names = list(ENTRIES)
        if text in names:
            return f"trace.name={_quote(text)}"
        if "/" in text or Path(text).is_file():
            return f"trace.path={_quote(text)}"
    raise ResearchError(f"unknown {key} {text!r}{nearest(text, names)}: expected one of {', '.join(names)}")


def _explain(name: str, overrides: Sequence[Override]) -> None:
    """Raise the clear form of Hydra's refusal, where an unknown key is the reason."""
    known = compose(config_name=name)
    groups = _groups(known)
    choices = [_rewrite(o) for o in overrides if o.key_or_group in groups]
    keys = _flat_keys(compose(config_name=name, overrides=choices))
    for override in overrides:
        key = override.key_or_group
        if key in keys or any(part in OPEN_MAPPINGS for part in key.split(".")):
            continue
        hint = nearest(key, keys)
        if not hint and "." in key:
            hint = nearest(key.rsplit(".", 1)[1], [k.rsplit(".", 1)[-1] for k in keys])
        parts = [k.split(".", 1)[1] for k in keys if "." in k and k.split(".")[0] == key.split(".")[0]]
        expected = f": {key.split('.')[0]} takes {', '.join(parts)}" if parts else ""
        raise ResearchError(f"unknown setting {key!r}{hint}{expected} (python -m research.{name} --help)")


OPEN_MAPPINGS = ("by_class", "params", "options")
"""Mappings whose keys are the user's, not the configuration's."""


def _flat_keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for key in map(str, config):
        full = f"{prefix}{key}"
        keys.append(full)
        node: Any = None if OmegaConf.is_missing(config, key) else config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none():
            keys += _flat_keys(node, f"{full}.")
    return keys


def _take_show_config(words: list[str]) -> bool:
    """``--cfg`` or ``--cfg job`` (Hydra's spelling): show the configuration instead of running."""
    for flag in ("--cfg", "-c"):
        if flag in words:
            at = words.index(flag)
            del words[at : at + (2 if words[at + 1 : at + 2] in (["job"], ["all"]) else 1)]
            return True
    return False


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _show_line_by_line() -> None:
    """A pipe buffers whole blocks; a person who watches a log wants lines."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
