"""The run store: one folder a run, named by what went into it, complete or absent.

``key = sha256(canonical JSON of everything that decides the result)``: resolved settings, hash of the trace, hash of
the sources that compute. A run is written into a scratch folder, ``result.json`` last, and renamed into place, so
that a process killed at any moment leaves either a whole run or nothing. A rerun reads what is there; a folder that
does not read back whole is made again.

Layout: ``<store>/<first 2 of key>/<key>/{result.json, requests.parquet}``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from research.errors import ResearchError

FORMAT = 1
COMPUTING_PACKAGES = ("envs", "policies", "traces")
MEASURING_MODULES = ("choices.py", "trace_choice.py", "execute.py", "knee.py", "evidence/metrics.py")
_SOURCES = (".py", ".yaml", ".json", ".npz", ".parquet")


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no spaces, floats as Python writes them, no NaN."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if hasattr(value, "item"):  # numpy scalar
        return _plain(value.item())
    raise TypeError(f"not a plain value: {value!r}")


def key_of(identity: Mapping[str, Any]) -> str:
    """The content address of a run."""
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


@cache
def code_version() -> str:
    """Hash of the sources that decide a result, committed or not: what simulates, and what measures."""
    import envs

    root = Path(envs.__file__).resolve().parent.parent
    files = [(p.relative_to(root), p) for package in COMPUTING_PACKAGES for p in (root / package).rglob("*")]
    here = Path(__file__).resolve().parent.parent
    files += [(Path("research") / name, here / name) for name in MEASURING_MODULES]
    digest = hashlib.sha256()
    for name, path in sorted(files):
        if path.suffix in _SOURCES and "__pycache__" not in path.parts and path.is_file():
            digest.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def git_state() -> dict[str, Any]:
    """Commit and whether the tree differs from it; both None outside a repository. Recorded, not in the key."""
    root = Path(__file__).resolve().parent.parent.parent

    def git(*words: str) -> str | None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
            return done.stdout.strip() if done.returncode == 0 else None
        return None

    sha = git("rev-parse", "HEAD")
    status = git("status", "--porcelain", "--untracked-files=no") if sha else None
    return {"git_sha": sha, "git_dirty": None if status is None else bool(status)}


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` in one step; NaN becomes null."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.write_text(json.dumps(_no_nan(value), indent=1, sort_keys=False, allow_nan=False) + "\n")
    os.replace(scratch, path)


def _no_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: _no_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_no_nan(v) for v in value]
    return value


@dataclass(frozen=True, slots=True)
class RunStore:
    """Folder of finished runs; safe for any number of processes at once."""

    root: Path

    @classmethod
    def open(cls, root: str | Path) -> RunStore:
        """Make the folder where needed, check that it can be written, and clear what dead processes left.

        Raises:
            ResearchError: the folder cannot be made or written.
        """
        store = cls(Path(root).expanduser().absolute())
        make_folder(store.root)
        store._clear_scratch()
        return store

    def folder(self, key: str) -> Path:
        """Where the run of this key is, or would be."""
        return self.root / key[:2] / key

    def read(self, key: str) -> dict[str, Any] | None:
        """The result of a finished run; None if there is none that reads back whole."""
        try:
            result = json.loads((self.folder(key) / "result.json").read_bytes())
            whole = result["format"] == FORMAT and result["key"] == key and isinstance(result["metrics"], dict)
            whole = whole and result["sha256"] == _digest(result)
            for name, size in result["files"].items():
                whole = whole and (self.folder(key) / name).stat().st_size == size
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return result if whole else None

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Keys without a whole run, in order, each once."""
        return [key for key in dict.fromkeys(keys) if self.read(key) is None]

    def write(
        self,
        key: str,
        identity: Mapping[str, Any],
        metrics: Mapping[str, Any],
        *,
        about: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> dict[str, Any]:
        """Store a finished run, whole or not at all; an earlier whole run of the same key stays.

        Args:
            key: :func:`key_of` the identity.
            identity: what the key was made from.
            metrics: the result.
            about: said about the run, not part of its identity (time, commit).
            files: further files, by name.
        """
        files = files or {}
        result: dict[str, Any] = {
            "format": FORMAT,
            "key": key,
            "metrics": _no_nan(metrics),
            "identity": _plain(identity),
            "about": _no_nan(dict(about or {})),
            "files": {name: len(data) for name, data in files.items()},
        }
        result["sha256"] = _digest(result)
        scratch = self.root / f".tmp-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            scratch.mkdir()
            for name, data in files.items():
                _write_bytes(scratch / name, data)
            _write_bytes(scratch / "result.json", json.dumps(result, indent=1, allow_nan=False).encode())
            self._place(key, scratch)
        except OSError as error:
            raise ResearchError(f"cannot write results to {self.root}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return result

    def _place(self, key: str, scratch: Path) -> None:
        target = self.folder(key)
        target.parent.mkdir(exist_ok=True)
        for _ in range(10):
            try:
                os.rename(scratch, target)
                return
            except OSError:
                if self.read(key) is not None:
                    return  # another process was faster, with the same result
                # A broken folder: move it out of the way in one step, then try again.
                if target.exists():
                    aside = self.root / f"{scratch.name}-broken-{os.urandom(4).hex()}"
                    with contextlib.suppress(OSError):
                        os.rename(target, aside)
                        if aside.is_dir():
                            shutil.rmtree(aside, ignore_errors=True)
                        else:
                            aside.unlink()
                elif not target.parent.is_dir():
                    raise
        os.rename(scratch, target)

    def _clear_scratch(self) -> None:
        host = socket.gethostname()
        for path in self.root.glob(".tmp-*"):
            owner, _, pid = path.name[len(".tmp-") :].partition(f"{host}-")
            digits = pid.split("-")[0]
            if owner == "" and digits.isdigit() and not _alive(int(digits)):
                shutil.rmtree(path, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder and check that it can be written.

    Raises:
        ResearchError: it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ResearchError(
            f"cannot write to {path}: {error.strerror or error} (set out=DIR to another folder)"
        ) from None


def _digest(result: Mapping[str, Any]) -> str:
    return key_of({name: result[name] for name in ("key", "metrics", "identity", "about", "files")})


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
