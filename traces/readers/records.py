"""A CSV cut between records: pieces of bounded size, each with the line on which it begins.

A record ends at a line break outside of quotes. A piece holds whole records only, is UTF-8, and does not end in blank
lines: those at the end of a file are no records, those in its middle are, and lack every field.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from traces.source import Source

PIECE_BYTES = 8 << 20
LONGEST_RECORD_BYTES = 64 << 20
_SEPARATORS = {b"\t": "tabs", b";": "semicolons", b"|": "bars"}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records of a CSV.

    Attributes:
        header: the bytes of the header record, without its line break.
        data: one or more records, without a line break at the end.
        line: line of the file on which the first record begins.
    """

    header: bytes
    data: bytes
    line: int

    def line_of(self, record: int) -> int:
        """Line on which a record of this piece (from 0) begins; a quoted field may hold line breaks."""
        return self.line + next(islice(self.records(), record, None), (record, b""))[0]

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(line from 0 on which it begins, bytes) of each record."""
        begin, record = 0, b""
        for number, line in enumerate(self.data.split(b"\n")):
            record = record + b"\n" + line if number > begin else line
            if record.count(b'"') % 2 == 0:
                yield begin, record
                begin = number + 1


def fields(record: bytes) -> int:
    """Number of fields of a record: commas outside of quotes, and one."""
    return 1 + sum(part.count(b",") for part in record.split(b'"')[::2])


def other_separator(record: bytes) -> str | None:
    """What parts the fields of a header that has no commas: ``;``, a tab or ``|``, by name; None for nothing."""
    plain = b"".join(record.split(b'"')[::2])
    if b"," in plain:
        return None
    return next((name for byte, name in _SEPARATORS.items() if byte in plain), None)


def pieces(source: Source) -> Iterator[Piece]:
    """Pieces of a CSV in order; none if there is no record after the header.

    Raises:
        TraceError: not UTF-8, no header, or a quote that does not close; the error names the line.
    """
    with stream(source) as file:
        header, line, rest = _header(source, file)
        while True:
            read = file.read(PIECE_BYTES)
            rest += read
            if not read:
                break
            cut = _last_break(rest)
            if cut < 0:
                if len(rest) > LONGEST_RECORD_BYTES:
                    raise _open_quote(source, rest, line)
                continue
            whole = rest[:cut].rstrip()
            if not whole:
                continue
            yield _checked(source, Piece(header, whole, line))
            line += whole.count(b"\n") + 1
            rest = rest[rest.index(b"\n", len(whole)) + 1 :]
    whole = rest.rstrip()
    if whole.count(b'"') % 2:
        raise _open_quote(source, whole, line)
    if whole:
        yield _checked(source, Piece(header, whole, line))


@contextmanager
def stream(source: Source) -> Iterator[BinaryIO]:
    """The decompressed bytes; of the one file in an archive, if it holds one."""
    if source.holds_many:
        yield io.BytesIO(source.data)
    else:
        with source.open() as file:
            yield file


def _header(source: Source, file: BinaryIO) -> tuple[bytes, int, bytes]:
    """The header record, the line after it, and what was read beyond it. Blank lines before it are passed over."""
    data = b""
    while read := file.read(PIECE_BYTES):
        data = (data + read).removeprefix(_BOM)
        start = len(data) - len(data.lstrip())
        end = data.find(b"\n", start)
        while end >= 0 and data.count(b'"', start, end) % 2:
            end = data.find(b"\n", end + 1)
        if end >= 0 and start < end:
            header = Piece(b"", data[start:end].rstrip(), data.count(b"\n", 0, start) + 1)
            return _checked(source, header).data, data.count(b"\n", 0, end) + 2, data[end + 1 :]
        if len(data) > LONGEST_RECORD_BYTES:
            break
    data = data.strip()
    if not data:
        raise source.error("a header and at least one request", value="an empty file")
    if data.count(b'"') % 2:
        raise _open_quote(source, data, 1)
    return _checked(source, Piece(b"", data, 1)).data, 2, b""


def _last_break(data: bytes) -> int:
    """Where the last line break outside of quotes is, -1 if there is none."""
    cut = data.rfind(b"\n")
    odd = data.count(b'"', 0, cut) % 2 if cut >= 0 else 0
    while cut >= 0 and odd:
        before = data.rfind(b"\n", 0, cut)
        odd = (odd - data.count(b'"', max(before, 0), cut)) % 2
        cut = before
    return cut


def _checked(source: Source, piece: Piece) -> Piece:
    if not piece.data.isascii():
        try:
            piece.data.decode("utf-8")
        except UnicodeDecodeError as error:
            row = piece.line + piece.data.count(b"\n", 0, error.start)
            raise source.error("UTF-8 text", row=row, value=piece.data[error.start : error.start + 4]) from error
    return piece


def _open_quote(source: Source, data: bytes, line: int) -> Exception:
    """An error about the first line with an odd number of quotes: from there on every break is inside of one."""
    for number, text in enumerate(data.split(b"\n"), start=line):
        if text.count(b'"') % 2:
            shown = text.decode("utf-8", "replace").strip()
            return source.error("quotes that close on their line", row=number, value=shown)
    return source.error("records of less than 64 MB", row=line)
