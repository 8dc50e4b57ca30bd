"""Numbers from outside: what a router or a scrape hands over becomes a number within bounds, or the default."""

from __future__ import annotations

import operator
from hashlib import blake2b
from typing import Any
from zlib import crc32

INF = float("inf")
NAN = float("nan")
MOST = 1 << 53  # whole numbers up to here are exact as floats: memory fields of a rule are floats


def number(value: Any, default: float, low: float = 0.0) -> float:
    """``value`` as a finite float of at least ``low``, else ``default``."""
    if value is None:  # the usual case of a field that is not given
        return default
    try:
        x = float(value)
    except Exception:
        return default
    return x if low <= x < INF else default


def whole(value: Any, default: int, low: int = 0) -> int:
    """``value`` as a whole number from ``low`` to 2**53 (a fraction is cut off), else ``default``."""
    if value is None:
        return default
    try:
        x = int(value)
    except Exception:
        return default
    return x if low <= x <= MOST else default


def key_number(key: Any) -> int:
    """The number that stands for an id: a small whole number itself, anything else by a 48-bit hash of its text.

    The hash is the same in every process, so router replicas break ties alike.
    """
    try:
        x = operator.index(key)
        if 0 <= x <= MOST:
            return x
    except TypeError:
        pass
    return int.from_bytes(blake2b(str(key).encode("utf-8", "replace"), digest_size=6).digest(), "big")


def request_number(key: Any) -> int:
    """As :func:`key_number` by a quicker hash of 32 bits: a request's number does nothing but break ties."""
    if type(key) is str:
        return crc32(key.encode("utf-8", "replace"))
    return key_number(key)


def encode(value: float) -> float | str:
    """A float for JSON: NaN and the infinities, which JSON lacks, as text."""
    if value != value:
        return "nan"
    if value in (INF, -INF):
        return "inf" if value > 0 else "-inf"
    return value


def decode(value: Any) -> Any:
    """The inverse of :func:`encode`; other values pass."""
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value
