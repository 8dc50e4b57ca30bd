"""Downloads of public traces: resumed where they broke off, checked, and put in place in one step.

A download grows in ``.NAME.part`` beside its place; ``.NAME.part.json`` notes where it came from and the server's
mark of that version (ETag or Last-Modified), so that a later call goes on only with the same bytes (up to a piece
before a break is lost). What has its known hash, or is complete where none is known, is renamed to its place; nothing
else ever lies there.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from traces.errors import TraceError

if TYPE_CHECKING:
    from requests import Response

PIECE_BYTES = 1 << 16
TIMEOUT_S = (10.0, 60.0)  # to connect, between two pieces
TRIES = 4
HEAD_BYTES = 1024
LFS_POINTER = b"version https://git-lfs.github.com/spec/"

Progress = Callable[[int, int | None], None]
"""Called with (bytes there, bytes in all or None)."""


class NotThereError(TraceError):
    """The server answers, and has no such file."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A finished download.

    Attributes:
        path: where it lies.
        size_bytes: its size.
        sha256: hash of its bytes.
        verified: True if they have the hash that was expected, False if none was known.
        resumed_bytes: bytes that an earlier try had left.
    """

    path: Path
    size_bytes: int
    sha256: str
    verified: bool
    resumed_bytes: int


def mirrored(mirror: str, saved_as: str) -> str:
    """Address of a file on a mirror, which holds the data folder's own layout."""
    return f"{mirror.rstrip('/')}/{quote(saved_as)}"


def fetch_first(
    places: Mapping[str, str],
    folder: Path,
    sha256: Mapping[str, str],
    *,
    progress: Progress | None = None,
    pause_s: float = 1.0,
) -> tuple[Fetched, str]:
    """Download the first of several files that a server has.

    Args:
        places: path below ``folder`` -> address, in the order in which they are asked for; at least one.
        folder: where it goes.
        sha256: file name -> expected hash, as far as known.
        progress: see :func:`fetch`.
        pause_s: see :func:`fetch`.

    Returns:
        what was downloaded, and its address.

    Raises:
        TraceError: see :func:`fetch`; of the last one where none is there.
    """
    missing: NotThereError | None = None
    for path, url in places.items():
        try:
            known = sha256.get(Path(path).name)
            return fetch(url, folder / path, sha256=known, progress=progress, pause_s=pause_s), url
        except NotThereError as error:
            missing = error
    assert missing is not None
    raise missing


def fetch(
    url: str, path: Path, *, sha256: str | None = None, progress: Progress | None = None, pause_s: float = 1.0
) -> Fetched:
    """Download one file.

    Args:
        url: HTTPS, or HTTP where the caller chose it (a mirror). A redirect from HTTPS to HTTP is refused.
        path: where it goes; its folder is made.
        sha256: expected hash; None: whatever comes, unverified.
        progress: told of every piece.
        pause_s: wait before the second try, doubled for each further one.

    Raises:
        TraceError: no such file, no connection or broken off in every try (what came is kept, and the next call
            goes on from there), a hash that differs, no space, an address that is none.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise TraceError(file=path.name, column="url", value=url, expected="an address that starts with https://")
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = part.stat().st_size if part.exists() else 0
        resumed = _download(url, part, progress, pause_s)
        digest = _sha256(part)
        _refuse_no_data(url, part)
        if sha256 is not None and digest != sha256:
            _forget(part)
            expected = f"bytes with sha256 {sha256}; what came was deleted"
            raise TraceError(file=url, column="sha256", value=digest, expected=expected)
        size = part.stat().st_size
        os.replace(part, path)
        _forget(part)
    except OSError as error:
        raise TraceError(file=path, value=str(error), expected="a folder that can be written, and space") from error
    return Fetched(path, size, digest, sha256 is not None, before if resumed else 0)


def _download(url: str, part: Path, progress: Progress | None, pause_s: float) -> bool:
    """Fill ``part``; True if bytes that lay there were kept."""
    import requests

    kept = False
    problem: Exception | None = None
    with requests.Session() as session:
        session.headers["Accept-Encoding"] = "identity"  # a range of compressed bytes is no range of the file
        for attempt in range(TRIES):
            if attempt:
                time.sleep(pause_s * 2 ** (attempt - 1))
            try:
                resumed = _attempt(session, url, part, progress)
                return resumed or kept
            except requests.exceptions.ConnectionError as error:  # also a body that breaks off
                problem = error
            except (requests.exceptions.Timeout, requests.exceptions.ChunkedEncodingError, _BrokenOffError) as error:
                problem = error
            except (requests.exceptions.RequestException, ValueError) as error:  # ValueError: an address that is none
                if isinstance(error, TraceError):
                    raise
                raise TraceError(file=url, value=str(error), expected="a file that can be fetched") from error
            kept = part.exists()
    there = part.stat().st_size if part.exists() else 0
    expected = f"an unbroken download ({TRIES} tries); {there:,} bytes are kept, the same command goes on from there"
    raise TraceError(file=url, value=str(problem) or type(problem).__name__, expected=expected) from problem


class _BrokenOffError(Exception):
    """The connection ended before the file did, or the server is overloaded."""


def _attempt(session: Any, url: str, part: Path, progress: Progress | None) -> bool:
    there = part.stat().st_size if part.exists() else 0
    mark = _mark(part, url) if there else None
    headers = {"Range": f"bytes={there}-", "If-Range": mark} if mark else {}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S, hooks={"response": _keep_https}) as answer:
        if answer.status_code == 416:  # nothing is left to send, or what lies here is of another version
            _forget(part)
            raise _BrokenOffError("the server has no such range: begun anew")
        if answer.status_code >= 500 or answer.status_code == 429:
            raise _BrokenOffError(f"HTTP {answer.status_code} {answer.reason}")
        if answer.status_code >= 400 or answer.status_code not in (200, 206):
            expected = "an address that can be read (give another place with mirror=URL)"
            kind = NotThereError if answer.status_code in (404, 410) else TraceError
            raise kind(file=url, value=f"HTTP {answer.status_code} {answer.reason}", expected=expected)
        goes_on = answer.status_code == 206 and _range_start(answer) == there
        if answer.status_code == 206 and not goes_on:
            _forget(part)
            raise _BrokenOffError("the server sent another range than asked for")
        length = answer.headers.get("Content-Length", "")
        total = int(length) + (there if goes_on else 0) if length.isdigit() else None
        _note(part, url, answer)
        _receive(answer, part, there if goes_on else 0, total, progress)
    return goes_on


def _receive(answer: Response, part: Path, done: int, total: int | None, progress: Progress | None) -> None:
    with part.open("ab" if done else "wb") as stream:
        if progress is not None:
            progress(done, total)
        for piece in answer.iter_content(PIECE_BYTES):
            stream.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)
        stream.flush()
        os.fsync(stream.fileno())
    if total is not None and done != total:
        raise _BrokenOffError(f"{done:,} of {total:,} bytes came")


def _keep_https(answer: Response, **_: Any) -> None:
    target = answer.headers.get("Location", "")
    if answer.is_redirect and urlsplit(answer.url).scheme == "https" and target.lower().startswith("http:"):
        raise TraceError(file=answer.url, value=target, expected="a redirect that stays on HTTPS")


def _range_start(answer: Response) -> int | None:
    text = answer.headers.get("Content-Range", "")
    start = text.removeprefix("bytes ").split("-")[0]
    return int(start) if start.isdigit() else None


def _note(part: Path, url: str, answer: Response) -> None:
    etag = answer.headers.get("ETag", "")
    # A weak ETag does not promise equal bytes.
    mark = etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")
    _note_file(part).write_text(json.dumps({"url": url, "mark": mark}), encoding="utf-8")


def _mark(part: Path, url: str) -> str | None:
    """The server's mark of the version that ``part`` is a beginning of, None if that is not known."""
    try:
        note = json.loads(_note_file(part).read_text(encoding="utf-8"))
        return str(note["mark"]) if note["url"] == url and note["mark"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_file(part).unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refuse_no_data(url: str, part: Path) -> None:
    """An empty file, a web page or a Git LFS pointer is what a server sends in place of a trace."""
    with part.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    page = head.lstrip().lower()
    what = None
    if not head:
        what = "an empty file"
    elif head.startswith(LFS_POINTER):
        what = "a Git LFS pointer"
    elif page.startswith((b"<!doctype html", b"<html")):
        what = "a web page"
    if what is not None:
        _forget(part)
        raise TraceError(file=url, value=what, expected="the file itself (give its place with mirror=URL)")
