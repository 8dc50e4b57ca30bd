"""Strict reading of small YAML files: what keys there must be, of which type, in which range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml  # type: ignore[import-untyped, unused-ignore]

from envs.hardware.errors import ProfileError, nearest


class Kind(Protocol):
    """Anything that can check one value."""

    def read(self, path: Path, name: str, value: Any) -> Any:
        """The checked value; raises ProfileError."""
        ...


def _wrong(path: Path, name: str, value: Any, expected: str) -> ProfileError:
    return ProfileError(f"{path}: {name} = {value!r}: expected {expected}")


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in a range; integers count."""

    unit: str
    low: float = 0.0
    high: float = math.inf

    def read(self, path: Path, name: str, value: Any) -> float:
        """The value as a float."""
        between = f"from {self.low:g} to {self.high:g}" if self.high < math.inf else f"of at least {self.low:g}"
        expected = f"a number {between} ({self.unit})"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _wrong(path, name, value, expected)
        if not self.low <= value <= self.high:
            raise _wrong(path, name, value, f"{expected}; is it in another unit?" if value > self.high else expected)
        return float(value)


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number in a range."""

    unit: str
    low: int = 0
    high: int = 2**53

    def read(self, path: Path, name: str, value: Any) -> int:
        """The value as an int."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise _wrong(path, name, value, f"a whole number of at least {self.low} ({self.unit})")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not empty."""

    def read(self, path: Path, name: str, value: Any) -> str:
        """The value as it is."""
        if not isinstance(value, str) or not value:
            raise _wrong(path, name, value, "a text (quote it if it looks like a number)")
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def read(self, path: Path, name: str, value: Any) -> bool:
        """The value as it is."""
        if not isinstance(value, bool):
            raise _wrong(path, name, value, "true or false")
        return value


class Words:
    """One of a few words."""

    def __init__(self, *known: str) -> None:
        """Keep the words."""
        self.known = known

    def read(self, path: Path, name: str, value: Any) -> str:
        """The value as it is."""
        if value not in self.known:
            raise _wrong(path, name, value, f"one of {', '.join(self.known)}{nearest(str(value), self.known)}")
        return str(value)


@dataclass(frozen=True, slots=True)
class Free:
    """A mapping whose keys are for readers, some of them required."""

    required: tuple[str, ...] = ()

    def read(self, path: Path, name: str, value: Any) -> dict[str, Any]:
        """The value as a dict."""
        if not isinstance(value, Mapping):
            raise _wrong(path, name, value, "a mapping")
        for key in self.required:
            if key not in value:
                raise ProfileError(f"{path}: {name}.{key} is missing")
        return dict(value)


@dataclass(frozen=True, slots=True)
class Many:
    """A list of at least one item of one kind."""

    item: Kind

    def read(self, path: Path, name: str, value: Any) -> list[Any]:
        """Every item, checked."""
        if not isinstance(value, list) or not value:
            raise _wrong(path, name, value, "a list of at least one item")
        return [self.item.read(path, f"{name}[{index}]", item) for index, item in enumerate(value)]


@dataclass(frozen=True, slots=True)
class Record:
    """A mapping with exactly these keys, those in ``optional`` excepted."""

    fields: Mapping[str, Kind]
    optional: tuple[str, ...] = ()

    def read(self, path: Path, name: str, value: Any) -> dict[str, Any]:
        """Every field, checked."""
        if not isinstance(value, Mapping):
            raise _wrong(path, name or "the file", value, f"a mapping with the keys {', '.join(self.fields)}")
        dot = f"{name}." if name else ""
        for key in value:
            if key not in self.fields:
                raise ProfileError(
                    f"{path}: unknown key {dot}{key}{nearest(str(key), self.fields)}: expected {', '.join(self.fields)}"
                )
        for key in self.fields:
            if key not in value and key not in self.optional:
                raise ProfileError(f"{path}: {dot}{key} is missing")
        return {key: self.fields[key].read(path, dot + key, value[key]) for key in self.fields if key in value}


def read_record(path: Path, data: Any, record: Record) -> dict[str, Any]:
    """The file's content, checked against ``record``."""
    return record.read(path, "", data)


def find_file(name_or_path: str | Path, folder: Path, known: Sequence[str], what: str) -> Path:
    """The file that a name stands for in ``folder``, or the given path of a YAML file.

    Raises:
        ProfileError: neither a known name nor a file.
    """
    text = str(name_or_path)
    if text in known:
        return folder / f"{text}.yaml"
    path = Path(text).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise ProfileError(f"{what} file {text}: no such file")
    raise ProfileError(
        f"unknown {what} {text!r}{nearest(text, known)}: expected one of {', '.join(known)}, "
        f"or the path of a .yaml file"
    )


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """Safe YAML, with two traps closed: ``1e-5`` is a number, and a key given twice is an error."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_yaml(path: Path) -> Any:
    """Parse one YAML file.

    Raises:
        ProfileError: the file cannot be read or parsed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, TypeError) as error:
        raise ProfileError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
