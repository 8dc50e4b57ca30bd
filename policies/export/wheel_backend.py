"""Builds the wheel of an exported policy with the standard library alone, so that ``pip install DIR`` needs no network.

A PEP 517 backend: pip calls ``build_wheel`` in the folder of the export.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any


class UnsupportedOperation(Exception):  # noqa: N818  # the name that PEP 517 asks for
    """There is no source distribution: the folder is one."""


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Write the wheel into ``wheel_directory``; returns its file name."""
    manifest = json.loads(Path("policy.json").read_text("utf-8"))
    package, version = manifest["package"], manifest["version"]
    info = f"{package}-{version}.dist-info"
    files = {f"{package}/{path.name}": path for path in sorted(Path(package).glob("*.py"))}
    files |= {f"{package}/{path.as_posix()}": path for path in sorted(Path("rule").rglob("*.py"))}
    files[f"{package}/policy.json"] = Path("policy.json")
    content = {name: path.read_bytes() for name, path in files.items()}
    content[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: Routing policy {manifest['policy']}, exported by {manifest['exported_by']}\n"
        "Requires-Python: >=3.11\nRequires-Dist: numpy>=1.24\n"
    ).encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: pdgym\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return wheel


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Not offered."""
    raise UnsupportedOperation


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
