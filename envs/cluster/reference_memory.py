"""KV memory of one worker in the reference simulator: blocks, prefix nodes, LRU eviction.

Written from ``docs/engine.md`` ("KV memory and the prefix cache"), for clarity and not for speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Holding:
    """What one request holds on one worker: its first ``held`` chain nodes and some private blocks."""

    held: int = 0
    private: int = 0


class KvMemory:
    """Blocks of one worker. A node (cached prefix block) is held by requests, or evictable."""

    def __init__(self, total_blocks: int, block_tokens: int, node_blocks: int, prefix_block_tokens: int) -> None:
        """``prefix_block_tokens`` 0: this worker keeps no prefix cache."""
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.node_blocks = node_blocks
        self.prefix_block_tokens = prefix_block_tokens
        self.private = 0
        self.holders: dict[int, int] = {}  # node id -> requests that hold it
        self.lru: dict[int, None] = {}  # evictable nodes, oldest first (dicts keep insertion order)
        self.log: list[tuple[int, int, bool]] = []  # (time, node id, inserted?) for late KV events
        self.evictions = 0
        self.peak_used = 0

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return self.total_blocks - self.private - len(self.holders) * self.node_blocks

    @property
    def evictable(self) -> int:
        """Blocks of nodes that nobody holds."""
        return len(self.lru) * self.node_blocks

    def blocks(self, tokens: int) -> int:
        """Blocks that ``tokens`` occupy."""
        return -(-tokens // self.block_tokens)

    def owned(self, holding: Holding) -> int:
        """Blocks that a request has, nodes included."""
        return holding.private + holding.held * self.node_blocks

    def lookup(self, chain: Sequence[int], most_tokens: int) -> int:
        """Longest run of leading chain ids present, of at most ``most_tokens`` tokens."""
        if self.prefix_block_tokens == 0:
            return 0
        most = min(len(chain), most_tokens // self.prefix_block_tokens)
        run = 0
        while run < most and chain[run] in self.holders:
            run += 1
        return run

    def fits(self, chain: Sequence[int], run: int, tokens: int) -> bool:
        """Can ``tokens`` be held, the first ``run`` nodes of them by holding what is cached?"""
        own_evictable = sum(1 for node in chain[:run] if node in self.lru) * self.node_blocks
        return self.blocks(tokens) - run * self.node_blocks <= self.free + self.evictable - own_evictable

    def reserve(self, chain: Sequence[int], run: int, tokens: int, now: int) -> Holding:
        """Hold the first ``run`` nodes and take private blocks for the rest of ``tokens``."""
        for node in chain[:run]:
            self.lru.pop(node, None)
            self.holders[node] += 1
        holding = Holding(held=run)
        self.take(holding, self.blocks(tokens) - run * self.node_blocks, now)
        return holding

    def take(self, holding: Holding, blocks: int, now: int) -> None:
        """Give ``blocks`` more private blocks, evicting the oldest nodes as needed."""
        while self.free < blocks:
            node = next(iter(self.lru))
            del self.lru[node]
            assert self.holders.pop(node) == 0
            self.log.append((now, node, False))
            self.evictions += 1
        holding.private += blocks
        self.private += blocks
        self.note_peak()

    def complete(self, holding: Holding, chain: Sequence[int], tokens: int, now: int) -> None:
        """``tokens`` are computed: whole prefix blocks among them move from private blocks into nodes."""
        if self.prefix_block_tokens == 0:
            return
        for node in chain[holding.held : tokens // self.prefix_block_tokens]:
            self.private -= self.node_blocks
            holding.private -= self.node_blocks
            holding.held += 1
            if node in self.holders:  # somebody else computed it too: the private copy is freed
                self.lru.pop(node, None)
                self.holders[node] += 1
            else:
                self.holders[node] = 1
                self.log.append((now, node, True))
        assert holding.private >= 0
        self.note_peak()

    def release(self, holding: Holding, chain: Sequence[int]) -> None:
        """Give everything back; nodes from the last to the first, so that chains are evicted from the tail."""
        for node in reversed(chain[: holding.held]):
            self.holders[node] -= 1
            if self.holders[node] == 0:
                self.lru[node] = None
        self.private -= holding.private
        holding.held = holding.private = 0

    def note_peak(self) -> None:
        """Check capacity and remember the most blocks in use (evictable ones not counted)."""
        assert self.free >= 0, "more KV blocks in use than the worker has"
        assert self.private >= 0
        self.peak_used = max(self.peak_used, self.total_blocks - self.free - self.evictable)
