"""Bytes of an input file: found, decompressed, hashed, or one clear error."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

from traces.errors import TraceError, nearest

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW = 2**31  # archives written with --long need windows above the default


@dataclass(frozen=True, slots=True)
class Source:
    """One file as read.

    Attributes:
        path: where it lies.
        data: its bytes, decompressed.
        sha256: hash of the bytes on disk.
    """

    path: Path
    data: bytes
    sha256: str

    @property
    def stem(self) -> str:
        """File name without folders and endings: ``conv.csv.gz`` -> ``conv``."""
        return self.path.name.split(".")[0] or self.path.name

    @property
    def provenance(self) -> str:
        """One line for a trace's provenance."""
        return f"read from {self.path.name}, sha256 {self.sha256}"

    def error(
        self, expected: str, *, row: int | None = None, column: str | None = None, value: object = None
    ) -> TraceError:
        """A :class:`TraceError` about this file."""
        return TraceError(file=self.path, row=row, column=column, value=value, expected=expected)


def read_source(path: str | Path) -> Source:
    """Read a file; gzip and zstd are recognised by their first bytes, whatever the file is called.

    Raises:
        TraceError: a missing file (names the nearest one in its folder), a directory, an empty, truncated or
            damaged file.
    """
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            raise TraceError(file=path, value="a directory", expected="a file")
        if not path.exists():
            folder = path.parent
            hint = nearest(path.name, [p.name for p in folder.iterdir() if p.is_file()]) if folder.is_dir() else ""
            raise TraceError(file=path, expected=f"an existing file{hint}")
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(file=path, value=str(error), expected="a readable file") from error
    if not raw:
        raise TraceError(file=path, value="an empty file", expected="at least one request")
    return Source(path, _decompress(raw, path), hashlib.sha256(raw).hexdigest())


def _decompress(raw: bytes, path: Path) -> bytes:
    if raw.startswith(GZIP_MAGIC):
        try:
            return gzip.decompress(raw)
        except EOFError as error:
            raise TraceError(file=path, value="a truncated gzip file", expected="a complete one") from error
        except (OSError, zlib.error) as error:
            raise TraceError(file=path, value=f"a damaged gzip file ({error})", expected="a sound one") from error
    if raw.startswith(ZSTD_MAGIC):
        import zstandard

        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(
            io.BytesIO(raw), read_across_frames=True
        )
        try:
            data = reader.read()
        except zstandard.ZstdError as error:
            raise TraceError(file=path, value=f"a damaged zstd file ({error})", expected="a sound one") from error
        if not _zstd_complete(raw):
            raise TraceError(file=path, value="a truncated zstd file", expected="a complete one")
        return data
    return raw


def _zstd_complete(raw: bytes) -> bool:
    """The stream reader takes an early end for the end, so frames are walked once more with their end marks."""
    import zstandard

    rest = raw
    while rest:
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        frame.decompress(rest)
        if not frame.eof:
            return False
        rest = frame.unused_data
        if rest and not rest.startswith(ZSTD_MAGIC):
            return True  # skippable frames and padding carry no data
    return True
