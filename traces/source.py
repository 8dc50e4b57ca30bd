"""An input as bytes: a file, a compressed file, a tar archive or a folder; found, unpacked, hashed, or one clear error.

gzip, zstd and tar are recognised by their first bytes, whatever the file is called. A member of an archive, or a folder
in it, is named by a path that goes on inside it (``traces.tar.zst/trace_0001.json``). An archive of one file is that
file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from traces.errors import TraceError, nearest

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
TAR_MAGIC = (257, b"ustar")
HEAD_BYTES = 4096
_ZSTD_WINDOW = 2**31  # archives written with --long need windows above the default
_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class Source:
    """One input. Nothing is read before it is asked for.

    Attributes:
        path: as given: a file, a folder, or a path that goes on inside an archive.
        file: the file on disk (the archive, where ``path`` names a member), or the folder.
        member: name inside the archive, or None.
    """

    path: Path
    file: Path
    member: str | None = None

    @property
    def stem(self) -> str:
        """File name without folders and endings: ``conv.csv.gz`` -> ``conv``."""
        return self.path.name.split(".")[0] or self.path.name

    @cached_property
    def head(self) -> bytes:
        """The first :data:`HEAD_BYTES` bytes, decompressed; of the first member of an archive or a folder."""
        if not self.holds_many:
            with self.open() as stream:
                return stream.read(HEAD_BYTES)
        return next((data[:HEAD_BYTES] for _, data in self.members()), b"")

    @cached_property
    def data(self) -> bytes:
        """All bytes, decompressed.

        Raises:
            TraceError: an archive or a folder of several files, or a damaged file.
        """
        if not self.holds_many:
            with self.open() as stream:
                return stream.read()
        if self.file.is_dir():
            raise self.error("a file (this format reads one)", value="a directory")
        found = []
        for member in self.members():
            found.append(member)
            if len(found) > 1:
                expected = f"one file; name it by a path that goes on inside, such as {self.path / found[0][0]}"
                raise self.error(expected, value="several files")
        return found[0][1]

    @cached_property
    def holds_many(self) -> bool:
        """True for a tar archive, a folder, and a folder inside an archive."""
        if self.member is not None:
            names = [name for name, _ in self._archived(lambda name: False)]
            return self.member not in names and any(name.startswith(f"{self.member}/") for name in names)
        if self.file.is_dir():
            return True
        with _unpacked(self.file) as stream:
            head = stream.read(TAR_MAGIC[0] + len(TAR_MAGIC[1]))
        if len(head) == TAR_MAGIC[0] + len(TAR_MAGIC[1]) and not any(head):  # a tar's end mark is zeros
            raise self.error("at least one file in it", value="an empty tar archive, or zeros only")
        return head[TAR_MAGIC[0] :] == TAR_MAGIC[1]

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The decompressed bytes of a single file as a stream; what is damaged is met while reading.

        Raises:
            TraceError: a truncated or damaged file, a member that is not there.
        """
        if self.member is None:
            with _unpacked(self.file) as stream:
                yield stream
            return
        names = []
        for name, data in self._archived(lambda name: name == self.member):
            names.append(name)
            if data is not None:
                yield io.BytesIO(data)
                return
        raise self.error(f"a member of {self.file.name}{nearest(self.member, names)}")

    def members(self, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, bytes]]:
        """(name, bytes) of every file in an archive, in its order, or in a folder, sorted, subfolders included.

        Members that are compressed themselves are decompressed. Links, devices and hidden files are passed over.

        Args:
            wanted: names to read; others are skipped.

        Raises:
            TraceError: a damaged archive, or none with such a name.
        """
        some = False
        inside = "" if self.member is None else f"{self.member}/"
        found = self._in_folder(wanted) if self.file.is_dir() else self._archived(lambda n: _under(n, inside, wanted))
        for name, data in found:
            if data is not None:
                some = True
                yield name.removeprefix(inside), data
        if not some:
            raise self.error("at least one file that this format reads in it", value="none")

    def _in_folder(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes | None]]:
        for path in sorted(self.file.rglob("*")):
            name = path.relative_to(self.file).as_posix()
            if path.is_file() and not _hidden(name):
                yield name, _read(path) if wanted(name) else None

    def _archived(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes | None]]:
        try:
            with _unpacked(self.file) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                for info in archive:
                    name = info.name.removeprefix("./")
                    if not info.isfile() or _hidden(name):
                        continue
                    part = archive.extractfile(info) if wanted(name) else None
                    inside = self.file / name
                    yield name, None if part is None else _whole(io.BytesIO(part.read()), inside)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise self.error("a sound tar archive", value=f"a damaged one ({error})") from error

    @cached_property
    def sha256(self) -> str:
        """Hash of the bytes on disk; of a folder: of every name and its file's hash, in order."""
        if not self.file.is_dir():
            return _file_sha256(self.file)
        digest = hashlib.sha256()
        for path in sorted(self.file.rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(self.file).as_posix()}\0{_file_sha256(path)}\n".encode())
        return digest.hexdigest()

    @property
    def provenance(self) -> str:
        """One line for a trace's provenance."""
        what = self.file.name if self.member is None else f"{self.member} in {self.file.name}"
        return f"read from {what}, sha256 {self.sha256}"

    def error(
        self, expected: str, *, row: int | None = None, column: str | None = None, value: object = None
    ) -> TraceError:
        """A :class:`TraceError` about this file."""
        return TraceError(file=self.path, row=row, column=column, value=value, expected=expected)


def read_source(path: str | Path) -> Source:
    """Find an input.

    Raises:
        TraceError: a missing file (names the nearest one in its folder), an empty or an unreadable one.
    """
    path = Path(path)
    try:
        path = path.expanduser()
        archive = next((parent for parent in path.parents if parent.is_file()), None)
        if archive is not None:
            source = Source(path, archive, path.relative_to(archive).as_posix())
            if not Source(archive, archive).holds_many:
                raise TraceError(file=path, value=str(archive), expected="a tar archive or a folder before the name")
            return source
        if not path.exists():
            folder = path.parent
            hint = nearest(path.name, [p.name for p in folder.iterdir() if p.is_file()]) if folder.is_dir() else ""
            raise TraceError(file=path, expected=f"an existing file{hint}")
        if path.is_file():
            with path.open("rb") as stream:
                empty = not stream.read(1)
            if empty:
                raise TraceError(file=path, value="an empty file", expected="at least one request")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the home of a user who is none
        if isinstance(error, TraceError):
            raise
        raise TraceError(file=path, value=str(error), expected="a readable file") from error
    return Source(path, path)


def _under(name: str, folder: str, wanted: Callable[[str], bool]) -> bool:
    return name.startswith(folder) and wanted(name.removeprefix(folder))


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _read(path: Path) -> bytes:
    with _unpacked(path) as stream:
        return stream.read()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    try:
        raw = path.open("rb")
    except OSError as error:
        raise TraceError(file=path, value=str(error), expected="a readable file") from error
    with raw:
        yield _decompressed(raw, path)


def _whole(raw: BinaryIO, path: Path) -> bytes:
    return _decompressed(raw, path).read()


def _decompressed(raw: BinaryIO, path: Path) -> BinaryIO:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(GZIP_MAGIC):
        return io.BufferedReader(_Pieces(_gunzip(raw), "gzip", path), _PIECE)
    if magic.startswith(ZSTD_MAGIC):
        return io.BufferedReader(_Pieces(_unzstd(raw), "zstd", path), _PIECE)
    return raw


class _Pieces(io.RawIOBase):
    """An iterator of bytes as a raw stream; errors of the decompressors become the project's own."""

    def __init__(self, pieces: Iterator[bytes], kind: str, path: Path) -> None:
        self._pieces, self._kind, self._path = pieces, kind, path
        self._left = memoryview(b"")  # a view: a piece may be hundreds of times what is taken at a time

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._left:
            piece = self._next()
            if piece is None:
                return 0
            self._left = memoryview(piece)
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n

    def _next(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except EOFError as error:
            what = f"a truncated {self._kind} file"
            raise TraceError(file=self._path, value=what, expected="a complete one") from error
        except (OSError, zlib.error) as error:
            what = f"a damaged {self._kind} file ({error})"
            raise TraceError(file=self._path, value=what, expected="a sound one") from error


def _gunzip(raw: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=raw) as stream:
        while piece := stream.read(_PIECE):
            yield piece


def _unzstd(raw: BinaryIO) -> Iterator[bytes]:
    """Frame by frame: the library's own stream reader takes an early end for the end."""
    import zstandard

    data = raw.read(_PIECE)
    while data:
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        try:
            while data:
                yield frame.decompress(data)
                data = frame.unused_data if frame.eof else raw.read(_PIECE)
                if frame.eof:
                    break
        except zstandard.ZstdError as error:
            raise OSError(error) from error
        if not frame.eof:
            raise EOFError
        data = data or raw.read(_PIECE)
        if data and not data.startswith(ZSTD_MAGIC):
            return  # skippable frames and padding carry no data
