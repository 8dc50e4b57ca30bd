"""Text to token ids by a pluggable tokenizer, with a documented estimate where none is at hand.

``tokenizer=`` is one of

* ``estimate``: text is cut into pieces as byte-pair tokenizers do (a word and the space before it, up to three digits,
  a run of punctuation, line breaks), long words into pieces of 8 letters, other scripts into pieces of 4 (up to
  U+06FF: accented Latin, Greek, Cyrillic, Hebrew, Arabic) or 2 characters. A piece is one token; its id is its CRC-32.
  The error of the count is :data:`ESTIMATE_ERROR`. Equal text has equal pieces, so shared prefixes are found; where
  a block ends differs from the real tokenizer's.
* ``PATH/tokenizer.json``: a Hugging Face fast tokenizer, if the package ``tokenizers`` is importable (it is not
  required). Special tokens are not added.
* ``package.module:function``: a function from text to a sequence of token ids (whole numbers from 0 to 2^63 - 1).

JSON may hold halves of surrogate pairs, which are no text and which tokenizers do not take: each becomes U+FFFD,
counted. What a tokenizer says when it fails may hold the text, so errors name its type alone.

A conversation is one token for the role before each message, then the message's tokens. Chat templates add more
(often 3 to 5 a message), which are not counted.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from traces.errors import TraceError
from traces.source import Source

ESTIMATE = "estimate"
ESTIMATE_ERROR = "English -5 to +8 %, code and JSON -17 to 0 %, other languages -63 to +15 %"
"""Bias of the estimated count against four public tokenizers (cl100k, o200k, DeepSeek-V3, an early Claude), over pieces
of 2,000 characters of manuals, source files and translated messages. A single piece is off by some 3 % more."""

_PIECE = re.compile(
    r"[^\r\n0-9A-Za-z\u00c0-\U0010ffff]?[A-Za-z]{1,8}"
    r"|[0-9]{1,3}"
    r"| ?[\u00c0-\u06ff]{1,4}"
    r"| ?[!-/:-@\[-`{-~]{1,3}[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    r"|[^\x00-\u06ff]{1,2}|.",
    re.DOTALL,
)

MAX_ID = 2**63 - 1
Encode = Callable[[str], Sequence[int]]


@dataclass(slots=True)
class Tokenizer:
    """A tokenizer.

    Attributes:
        name: what ``tokenizer=`` was.
        plain: text -> whole numbers, as the tokenizer gives them.
        note: one line for a provenance.
        setting: how errors call the setting.
        mended: texts so far that had halves of surrogate pairs.
    """

    name: str
    plain: Callable[[str], Iterable[Any]]
    note: str
    setting: str = "tokenizer"
    mended: int = 0

    @property
    def exact(self) -> bool:
        """Whether lengths are a tokenizer's, not an estimate."""
        return self.name != ESTIMATE

    def encode(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            TraceError: the tokenizer fails or gives no token ids; neither says anything of the text.
        """
        whole = well_formed(text)
        self.mended += whole is not text
        failed, ids = "", list[int]()
        try:
            ids = [index(i) for i in self.plain(whole)]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and panics of compiled tokenizers, too
            failed = type(error).__name__
        if failed:  # raised out here, so that what the tokenizer said is no part of the error either
            expected = f"{self.name} to take every text and to return token ids, which are whole numbers"
            raise TraceError(file=self.setting, value=failed, expected=expected)
        if ids and not (min(ids) >= 0 and max(ids) <= MAX_ID):
            found = "an id below 0" if min(ids) < 0 else "an id of 2^63 or more"
            raise TraceError(file=self.setting, value=found, expected=f"{self.name} to return ids from 0 to 2^63 - 1")
        return ids


@contextmanager
def placed(source: Source, row: int, column: str) -> Iterator[None]:
    """Errors of a tokenizer get the place in the file at which it failed."""
    found: TraceError | None = None
    try:
        yield
    except TraceError as error:
        if error.row is not None:
            raise
        found = error
    if found is not None:
        raise source.error(found.expected, row=row, column=column, value=found.value)


def well_formed(text: str) -> str:
    """The text itself, or, where it has halves of surrogate pairs, a copy with U+FFFD for each (pairs are joined)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def load_tokenizer(spec: object, setting: str = "tokenizer") -> Tokenizer:
    """The tokenizer that a setting names.

    Args:
        spec: see the module.
        setting: how errors call the setting.

    Raises:
        TraceError: no such module, function, file or package.
    """
    if spec == ESTIMATE:
        return Tokenizer(ESTIMATE, _estimate, f"tokens estimated without a tokenizer: {ESTIMATE_ERROR}")
    expected = "estimate, package.module:function, or the path of a tokenizer.json"
    if not isinstance(spec, str) or not spec:
        raise TraceError(file=setting, value=spec, expected=expected)
    if Path(spec).suffix == ".json":
        note = f"tokens by {Path(spec).name}, without special tokens"
        return Tokenizer(spec, _from_file(spec, setting), note, setting)
    module, colon, function = spec.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise TraceError(file=setting, value=spec, expected=expected)
    return Tokenizer(spec, _from_module(module, function, spec, setting), f"tokens by {spec}", setting)


def _estimate(text: str) -> list[int]:
    return [zlib.crc32(piece.encode()) for piece in _PIECE.findall(text)]


def _from_file(path: str, setting: str) -> Callable[[str], Iterable[Any]]:
    if not Path(path).is_file():
        raise TraceError(file=setting, value=path, expected="an existing tokenizer.json")
    if importlib.util.find_spec("tokenizers") is None:
        expected = "the package `tokenizers`, which reads it, to be installed (pip install tokenizers)"
        raise TraceError(file=setting, value=path, expected=expected)
    tokenizers: Any = importlib.import_module("tokenizers")
    try:
        loaded = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises plain Exception
        where = re.search(r"line \d+ column \d+", str(error))  # the rest may quote the file, which may be a wrong one
        expected = f"a Hugging Face tokenizer.json{f' (another at {where[0]})' if where else ''}"
        raise TraceError(file=setting, value=path, expected=expected) from None
    return lambda text: loaded.encode(text, add_special_tokens=False).ids


def _from_module(module: str, name: str, spec: str, setting: str) -> Callable[[str], Iterable[Any]]:
    try:
        function: Any = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        why = str(error) if isinstance(error, ImportError | SyntaxError) else type(error).__name__
        raise TraceError(file=setting, value=spec, expected=f"an importable module ({why})") from error
    if not callable(function):
        raise TraceError(file=setting, value=spec, expected=f"a function {name!r} in {module}")
    return function  # type: ignore[no-any-return]


class Conversation:
    """Token ids of a growing conversation: each message is encoded once.

    Attributes:
        tokens: ids so far.
    """

    def __init__(self, encode: Encode) -> None:
        self.tokens: list[int] = []
        self._encode = encode
        self._roles: dict[str, int] = {}

    def open(self, role: str) -> None:
        """Begin a message: one token, which names the role."""
        self.tokens.append(self._roles.setdefault(role, zlib.crc32(f"<|{role}|>".encode("utf-8", "surrogatepass"))))

    def add(self, text: str) -> int:
        """The text of the message; returns its tokens."""
        ids = self._encode(text)
        self.tokens.extend(ids)
        return len(ids)


def text_parts(content: object) -> Iterable[str] | None:
    """The texts of a message's content: a string, null, or a list of parts; None if it is nothing of these.

    Parts without text (images, tool calls) are passed over.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    texts = [part.get("text") for part in content]
    return [text for text in texts if isinstance(text, str)]
