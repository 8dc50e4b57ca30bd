"""What a prefix cache of a given size would hit: exact stack distances over blocks, the least recently used out first.

One shared cache; a request looks up all of its prompt's full blocks at its arrival and then uses its whole chain, the
deepest block first, so that a block is never evicted before those that follow it: what is held are always whole
prefixes, and a request's hits are a beginning of its prompt. Under that rule one pass gives the hits at *every* size
(Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal 9(2), 1970): a block is hit in a
cache of C blocks if at most C blocks, itself among them, were used since it was. The curve is monotone by that, and its
end is what an endless cache hits.

A request's blocks found in one earlier request are neighbours in the stack, so the work is by such runs, not by blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traces.trace import Trace


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hits against the size of a cache.

    Attributes:
        block_tokens: tokens of a block.
        lookups: full prompt blocks of all requests.
        hits: (sizes + 1,) of these, hits in a cache of so many blocks; the last is that of an endless one.
    """

    block_tokens: int
    lookups: int
    hits: NDArray[np.int64]

    def share(self, blocks: float) -> float:
        """Share of full prompt blocks hit in a cache of ``blocks`` blocks (``inf``: endless)."""
        at = self.hits.size - 1 if blocks >= self.hits.size - 1 else int(blocks)
        return float(self.hits[at] / max(1, self.lookups))

    def blocks_for(self, part: float) -> int:
        """The smallest cache, in blocks, that reaches ``part`` of what an endless one hits."""
        return int(np.searchsorted(self.hits, part * self.hits[-1] - 1e-9))

    def points(self, n: int = 200) -> dict[str, list[float]]:
        """``cache_blocks``, ``cache_tokens`` and ``hit_share`` at up to ``n`` sizes, evenly spread in the logarithm."""
        top = max(self.hits.size - 1, 1)
        sizes = np.unique(np.r_[0, np.round(np.geomspace(1, top, n))].astype(np.int64))
        return {
            "cache_blocks": [int(size) for size in sizes],
            "cache_tokens": [int(size) * self.block_tokens for size in sizes],
            "hit_share": [self.share(int(size)) for size in sizes],
        }


def hit_curve(trace: Trace, *, outputs: bool = True) -> HitCurve:
    """The curve of a trace; of one without prefix chains a curve without hits.

    Args:
        trace: requests are served in order of arrival, in closed replay of nominal arrival.
        outputs: blocks that outputs complete enter the cache as well, at their request's arrival (really at its end:
            an upper bound for overlapping requests).
    """
    n = len(trace)
    block = trace.prefix_block_tokens
    full = trace.frame["prompt_tokens"].to_numpy() // block if block else np.zeros(n, np.int64)
    offsets = trace.chain_offsets
    lookups = np.minimum(full, np.diff(offsets))
    jumps = np.zeros(trace.n_prefix_ids + 2, np.int64)  # hits by distance, as differences
    owner = np.full(trace.n_prefix_ids, -1, np.int64)  # request that used a block last
    taken = np.zeros(n, np.int64)  # leading blocks of a request's chain that later ones have used
    tree = [0] * (n + 1)  # Fenwick tree: blocks by the request that used them last
    held = 0
    for request in range(n):
        begin = int(offsets[request])
        end = int(offsets[request + 1]) if outputs else begin + int(lookups[request])
        if begin == end:
            continue
        chain = trace.chain_ids[begin:end]
        users = owner[chain]
        edges = np.flatnonzero(users[1:] != users[:-1]) + 1
        bounds = [0, *edges.tolist(), end - begin]
        limit = int(lookups[request])
        for start, stop in pairwise(bounds):
            user = int(users[start])
            if user < 0:
                break
            if start < limit:
                newer = held - _sum(tree, user + 1)
                distance = newer + start - int(taken[user]) + 1
                jumps[distance] += 1
                jumps[distance + min(stop, limit) - start] -= 1
        for start, stop in pairwise(bounds):
            user = int(users[start])
            if user >= 0:
                taken[user] = stop
                _add(tree, user, start - stop)
                held -= stop - start
        owner[chain] = request
        _add(tree, request, end - begin)
        held += end - begin
    hits = np.cumsum(np.cumsum(jumps))[:-1]
    return HitCurve(block, int(lookups.sum()), hits)


def _add(tree: list[int], at: int, value: int) -> None:
    at += 1
    while at < len(tree):
        tree[at] += value
        at += at & -at


def _sum(tree: list[int], count: int) -> int:
    """Of the first ``count`` entries."""
    total = 0
    while count:
        total += tree[count]
        count &= count - 1
    return total
