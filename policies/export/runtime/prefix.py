"""What this router sent where: the prefix match from its own history, for engines that publish no KV events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from .values import MOST

MOST_BLOCKS = 1 << 18
"""Prefix blocks that are remembered; the one not used for longest goes first."""


def chain_hashes(tokens: Sequence[int] | bytes, block: int) -> list[bytes]:
    """One hash for every full block of ``tokens`` (token ids, or the text's bytes), each naming the whole prefix."""
    found = []
    chain = blake2b(digest_size=8)
    for start in range(0, len(tokens) - block + 1, block):
        part = tokens[start : start + block]
        chain.update(part if isinstance(part, bytes) else b"".join(int(t).to_bytes(8, "little") for t in part))
        found.append(chain.digest())
    return found


class PrefixHistory:
    """Prefix blocks by worker, believed for ``ttl_s`` after the last request that carried them went there."""

    def __init__(self, block_tokens: int, ttl_s: float) -> None:
        self.block_tokens = max(1, block_tokens)
        self.ttl_s = ttl_s
        self._sent: OrderedDict[Any, dict[Any, float]] = OrderedDict()  # block -> worker id -> time

    def note(self, hashes: Iterable[Any], prompt_tokens: int, worker: Any, now_s: float) -> None:
        """A request with these blocks went to ``worker``."""
        sent = self._sent
        for block, _ in zip(hashes, range(min(prompt_tokens, MOST) // self.block_tokens), strict=False):
            sent.setdefault(block, {})[worker] = now_s
            sent.move_to_end(block)
        while len(sent) > MOST_BLOCKS:
            sent.popitem(last=False)

    def match(self, hashes: Sequence[Any], prompt_tokens: int, now_s: float) -> dict[Any, int]:
        """Leading prompt tokens by worker that are believed to be cached there; one is always left to compute."""
        found: dict[Any, int] = {}
        alive: set[Any] | None = None
        oldest = now_s - self.ttl_s
        for i in range(min(len(hashes), (prompt_tokens - 1) // self.block_tokens)):
            times = self._sent.get(hashes[i])
            if times is None:
                break
            here = {w for w, time in times.items() if time >= oldest}
            alive = here if alive is None else alive & here
            if not alive:
                break
            for w in alive:
                found[w] = (i + 1) * self.block_tokens
        return found
