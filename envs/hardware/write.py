"""Profiles and links as YAML text: short rows inline, the same bytes for the same content on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from envs.hardware.tables import StepTables

WIDTH = 116


class _Dumper(yaml.SafeDumper):  # type: ignore[misc, unused-ignore]
    """Block style, but rows of numbers (and mappings inside a table) on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never write anchors: equal rows are written out."""
        return True


def _represent_list(dumper: Any, data: list[Any]) -> Any:
    scalars = all(not isinstance(item, list | dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=scalars)


def _represent_dict(dumper: Any, data: dict[str, Any]) -> Any:
    row = "mape" in data
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=row)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def to_yaml(record: Mapping[str, Any], command: str) -> str:
    """The file's text.

    Args:
        record: plain values, in the order in which they are written.
        command: what regenerates the file, named in its first line.
    """
    body = yaml.dump(dict(record), Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
    return f"# Written by: {command}\n{body}"


def tables_record(tables: StepTables) -> dict[str, Any]:
    """Tables as written into a profile (key ``tables``): knots as they are, times with five digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return value if isinstance(value, int) else float(f"{value:.5g}")

    return {field.name: plain(getattr(tables, field.name)) for field in fields(tables)}
