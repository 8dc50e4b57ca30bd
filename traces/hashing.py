"""Prompts as salted block hashes: what a prefix cache can see of them, without the text.

The id of a block is a keyed hash (BLAKE2b, the salt is the key) of the hash of the block before it and of the block's
token ids: it names the whole prefix up to its end. The chain runs on full 256-bit hashes; an id is 63 bits of one, so
that among 10^8 blocks two share an id by accident with a probability of 5e-4.

A salt is a file that its owner alone can read, never in a folder that is shared. Without it nobody can test a guess;
with it anybody can. What the ids still show by design is which prompts begin alike, and lengths.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traces.errors import TraceError

VERSION = 1
MIN_SALT_BYTES = 16
_KEY_BYTES = 64  # BLAKE2b takes keys of up to 64 bytes
_ID_MASK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Salt:
    """A salt from a file.

    Attributes:
        path: the file.
        key: what blocks are hashed with.
        id: tells whether two files were hashed with one salt; says nothing about the salt.
        made: whether the file was made just now.
    """

    path: Path
    key: bytes
    id: str
    made: bool


def block_hashes(tokens: Sequence[int], block_tokens: int, key: bytes = b"") -> list[int]:
    """Chained ids of the full blocks of a text, whole numbers below 2^63.

    Args:
        tokens: token ids, 0 or more.
        block_tokens: tokens of a block.
        key: the salt, at most 64 bytes. Empty: anybody can compute the same ids.
    """
    ids: list[int] = []
    before = b""
    full = len(tokens) - len(tokens) % block_tokens
    packed = array("Q", tokens[:full]).tobytes()
    step = 8 * block_tokens
    for start in range(0, 8 * full, step):
        digest = hashlib.blake2b(before + packed[start : start + step], digest_size=32, key=key, person=b"pdgym-block")
        before = digest.digest()
        ids.append(int.from_bytes(before[:8], "little") & _ID_MASK)
    return ids


def get_salt(path: Path) -> Salt:
    """The salt in a file; a new random one, which its owner alone can read, where there is no such file yet.

    Raises:
        TraceError: a file that cannot be made or read, that is short, or that others can read.
    """
    made = not path.exists()
    if made:
        _make(path)
    key = _read(path)
    name = hashlib.blake2b(b"", digest_size=8, key=key, person=b"pdgym-salt").hexdigest()
    return Salt(path, key, name, made)


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        data = path.read_bytes().strip()
    except OSError as error:
        raise TraceError(file=path, value=str(error), expected="a readable salt file") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        expected = f"a salt that only its owner can read: chmod 600 {path}"
        raise TraceError(file=path, value=oct(stat.S_IMODE(mode)), expected=expected)
    if len(data) < MIN_SALT_BYTES:
        expected = f"a salt of at least {MIN_SALT_BYTES} random bytes"
        raise TraceError(file=path, value=f"{len(data)} bytes", expected=expected)
    return hashlib.blake2b(data, digest_size=_KEY_BYTES, person=b"pdgym-key").digest()


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise TraceError(file=path, value=str(error), expected="a place where a salt can be kept") from error
