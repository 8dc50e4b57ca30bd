"""Recorded block hashes as prefix chains, in arrays: files of these have tens of millions of hashes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SALTS = 8


def cut(
    offsets: NDArray[np.int64], items: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first ``lengths``, (n,), items of each of n lists in CSR form, or as many as there are."""
    lengths = np.minimum(np.diff(offsets), lengths)
    new = np.zeros(offsets.size, np.int64)
    np.cumsum(lengths, out=new[1:])
    return new, items[np.repeat(offsets[:-1] - new[:-1], lengths) + np.arange(new[-1])]


def of_tokens(tokens: NDArray[np.int64], block_tokens: int) -> NDArray[np.int64]:
    """63-bit hashes of the full blocks of a text, each of its tokens and their places in the block."""
    blocks = tokens[: tokens.size // block_tokens * block_tokens].astype(np.uint64).reshape(-1, block_tokens)
    place = _mixed(np.arange(block_tokens, dtype=np.uint64) + _GOLDEN)
    return (_mixed(_mixed(blocks + place).sum(axis=1, dtype=np.uint64)) >> np.uint64(1)).astype(np.int64)


def prefix_ids(offsets: NDArray[np.int64], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids that each name the whole list up to their item: what a hash that names a block alone does not do.

    Equal lists of leading hashes get equal ids, and only they: a 64-bit sum over the prefix finds the candidates,
    and each is then compared with its parent and its own hash, so a collision is seen and another sum is taken.
    Small hashes that name prefixes already are returned as they are.

    Args:
        offsets: (n+1,) CSR offsets.
        hashes: (offsets[-1],) hashes of blocks, or of prefixes.
    """
    if not hashes.size:
        return np.zeros(0, np.int64)
    lengths = np.diff(offsets)
    first = np.zeros(hashes.size, np.bool_)
    first[offsets[:-1][lengths > 0]] = True
    if hashes.min() >= 0 and hashes.max() < 2 * hashes.size and _names_prefixes(hashes, hashes, first):
        return hashes
    begins = np.repeat(offsets[:-1], lengths)
    depth = (np.arange(hashes.size) - begins).astype(np.uint64)
    for salt in range(_SALTS):
        with np.errstate(over="ignore"):
            mixed = _mixed(hashes.astype(np.uint64) + _mixed(depth + np.uint64(salt * 2**40) + _GOLDEN))
            total = np.cumsum(mixed)  # modulo 2**64
            total -= (total - mixed)[begins]
        ids = np.unique(total, return_inverse=True)[1].reshape(-1).astype(np.int64, copy=False)
        if _names_prefixes(ids, hashes, first):
            return ids
    raise AssertionError("eight independent 64-bit hashes all collided")


def _names_prefixes(ids: NDArray[np.int64], hashes: NDArray[np.int64], first: NDArray[np.bool_]) -> bool:
    """True if an id always stands for one hash, after one other id: then it names all that is before it too."""
    parent = np.empty_like(ids)
    parent[0], parent[1:] = -1, ids[:-1]
    parent[first] = -1
    one = np.empty(int(ids.max()) + 1, np.int64)
    one[ids] = parent
    if not np.array_equal(one[ids], parent):
        return False
    one[ids] = hashes
    return np.array_equal(one[ids], hashes)


def with_outputs(
    offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    child: NDArray[np.int64],
    block_tokens: int,
    *,
    whole_answer: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """CSR chains of prompt and output: the blocks that an output completes take the next turn's ids.

    They are known as far as the next turn's prompt covers them, and only if it repeats every full prompt block.

    Args:
        offsets: (n+1,) CSR offsets of the chains of full prompt blocks.
        ids: prefix ids, which name the whole prefix.
        prompt_tokens: (n,) prompt lengths.
        output_tokens: (n,) output lengths.
        child: (n,) row of the next turn, -1 for none.
        block_tokens: tokens of a block.
        whole_answer: only if the next prompt is long enough to hold prompt and answer.

    Returns:
        Offsets, ids, and the number of requests whose output has blocks that are known.
    """
    lengths = np.diff(offsets)
    source = np.arange(lengths.size)
    asked = np.flatnonzero((child >= 0) & (lengths > 0))
    then = child[asked]
    repeats = lengths[then] >= lengths[asked]
    asked, then = asked[repeats], then[repeats]
    last = lengths[asked] - 1
    repeats = ids[offsets[then] + last] == ids[offsets[asked] + last]  # an id names all that is before it
    if whole_answer:
        repeats &= prompt_tokens[then] >= prompt_tokens[asked] + output_tokens[asked]
    asked, then = asked[repeats], then[repeats]
    full = np.minimum((prompt_tokens[asked] + output_tokens[asked]) // block_tokens, lengths[then])
    longer = full > lengths[asked]
    source[asked[longer]] = then[longer]
    new_lengths = lengths.copy()
    new_lengths[asked[longer]] = full[longer]
    new = np.zeros(offsets.size, np.int64)
    np.cumsum(new_lengths, out=new[1:])
    take = np.repeat(offsets[:-1][source] - new[:-1], new_lengths) + np.arange(new[-1])
    return new, ids[take], int(longer.sum())


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))
