"""Prompts as salted block hashes: what a prefix cache can see of them, without the text.

The id of a block is a keyed hash (BLAKE2b, the salt is the key) of the hash of the block before it and of the block's
token ids: it names the whole prefix up to its end. The chain runs on full 256-bit hashes; an id is 63 bits of one, so
that among 10^8 blocks two share an id by accident with a probability of 5e-4.

A salt is a file that its owner alone can read, never in a folder that is shared. Without it nobody can test a guess;
with it anybody can. What the ids still show by design is which prompts begin alike, and lengths.

The key is derived from the salt by scrypt (32 MiB and some tenths of a second each time), and the salt's id from the
key. Who has a hashed file can test guesses at the salt by its id, or by a prompt that they know, at that price for
each: out of reach for random salts, not for a phrase that others use. A salt that is short, repeats or counts up is
refused (:func:`get_salt`); a phrase of common words cannot be told from a good salt.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from traces.errors import TraceError

VERSION = 1
MIN_SALT_BYTES = 32
MAX_SALT_BYTES = 4096
_MIN_PACKED_BYTES = 16
_PACKING_BYTES = 8  # what zlib adds to anything
_KEY_BYTES = 64  # BLAKE2b takes keys of up to 64 bytes
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 1 << 26}
_ID_MASK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Salt:
    """A salt from a file.

    Attributes:
        path: the file.
        key: what blocks are hashed with.
        id: tells whether two files were hashed with one salt; a guess at the salt can be tested by it.
        made: whether the file was made just now.
    """

    path: Path
    key: bytes = field(repr=False)
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

    A salt has 32 to 4,096 bytes, blanks around it aside, and neither they nor the steps between them may compress to
    less than 16: that refuses repeats (``passwordpassword...``) and sequences (``123456...``).

    Raises:
        TraceError: a file that cannot be made or read, that others can read, or that holds no such salt.
    """
    try:
        made = not path.exists()
        if made:
            _make(path)
        data = _read(path)
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        expected = "a file that can be read, or a place where one can be made"
        raise TraceError(file=path, value=str(error), expected=expected) from error
    key = hashlib.scrypt(data, salt=b"pdgym-key", dklen=_KEY_BYTES, **_SCRYPT)
    name = hashlib.blake2b(b"", digest_size=8, key=key, person=b"pdgym-salt").hexdigest()
    return Salt(path, key, name, made)


def _read(path: Path) -> bytes:
    """The bytes of a salt; a file is looked at before anything is read from it."""
    how = path.stat()
    if not stat.S_ISREG(how.st_mode):
        raise TraceError(file=path, value="a folder or a device", expected="a plain file with a salt")
    if os.name == "posix" and how.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        expected = f"a salt that only its owner can read: chmod 600 {path}"
        raise TraceError(file=path, value=oct(stat.S_IMODE(how.st_mode)), expected=expected)
    with path.open("rb") as file:
        data = file.read(MAX_SALT_BYTES + 1).strip()
    if not MIN_SALT_BYTES <= len(data) <= MAX_SALT_BYTES:
        expected = f"a salt of {MIN_SALT_BYTES} to {MAX_SALT_BYTES:,} random bytes; a good one is made where none is"
        raise TraceError(file=path, value=f"{how.st_size:,} bytes", expected=expected)
    steps = bytes((after - before) % 256 for before, after in pairwise(data))
    if min(len(zlib.compress(some, 9)) for some in (data, steps)) < _MIN_PACKED_BYTES + _PACKING_BYTES:
        expected = "a salt that nobody can guess: random bytes; a good one is made where none is"
        raise TraceError(file=path, value="a salt that repeats itself or counts up", expected=expected)
    return data


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")
