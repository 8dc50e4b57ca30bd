"""Prefix chains of drawn requests. A *text* is a run of blocks that goes on from a cut in another text.

A session's first turn starts a text that goes on from a document, which goes on from a system prompt. A turn that
goes on from the whole turn before adds to its text; one that does not (an edit, a compaction) starts a new text, cut
from the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_PIECE = 4_000_000  # blocks resolved at a time


def resolve(text: Ints, length: Ints, parent: Ints, cut: Ints, extent: Ints) -> tuple[Ints, NDArray[Any]]:
    """CSR chains (offsets, ids).

    Args:
        text: (n,) text of each request.
        length: (n,) blocks of its chain.
        parent: (t,) text that a text goes on from, -1 for none. Parents have smaller numbers.
        cut: (t,) blocks it shares with its parent: at most the parent's extent; 0 without a parent.
        extent: (t,) blocks of the longest chain in a text, those before the cut included.
    """
    base = np.cumsum(extent - cut) - (extent - cut) - cut  # id of block d of a text is base + d
    offsets = np.zeros(length.size + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    total = int(offsets[-1])
    ids = np.empty(total, np.int32 if (extent - cut).sum() < 2**31 else np.int64)
    start = 0
    while start < length.size:
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + _PIECE, side="right")) - 1)
        size = length[start:end]
        of = np.repeat(text[start:end], size)
        depth = np.arange(of.size) - np.repeat(offsets[start:end] - offsets[start], size)
        at = np.flatnonzero(depth < cut[of])
        while at.size:
            of[at] = parent[of[at]]
            at = at[depth[at] < cut[of[at]]]
        ids[offsets[start] : offsets[end]] = base[of] + depth
        start = end
    return offsets, ids


def longest(text: Ints, length: Ints, texts: int) -> Ints:
    """(texts,) the longest chain of each text, 0 for none."""
    extent = np.zeros(texts, np.int64)
    np.maximum.at(extent, text, length)
    return extent
