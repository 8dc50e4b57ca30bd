"""Prefix chains of a plain table: from its own hashes, assumed to grow with a session, or not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import nearest
from traces.readers.chains import with_outputs
from traces.readers.hash_lists import Hashing, PromptChains
from traces.readers.turns import Turns
from traces.sessions import growing_chains
from traces.source import Source
from traces.transform import gather_chains

CONTEXTS = ("unknown", "grows")
MOST_IDS = 100_000_000
"""Most prefix blocks that are made up for contexts that grow: they take about 5 GB while they are made."""

_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of whole requests, as a trace takes them.

    Attributes:
        offsets: (n+1,) CSR offsets, None for no chains.
        ids: prefix ids, None for no chains.
        block_tokens: tokens of a block, 0 for no chains.
        note: for the provenance.
    """

    offsets: NDArray[np.int64] | None
    ids: NDArray[np.int64] | None
    block_tokens: int
    note: str | None


def check_options(source: Source, context: str, block_tokens: object, where: Mapping[str, object]) -> None:
    """Raise where ``context`` and ``prefix_block_tokens`` do not fit what the table has."""
    option = "trace.options.context"
    if context not in CONTEXTS:
        expected = f"one of {', '.join(CONTEXTS)}{nearest(str(context), CONTEXTS)}"
        raise source.error(expected, column=option, value=context)
    if context == "grows" and "hash_ids" in where:
        raise source.error("unknown, as the table has hashes that say it", column=option, value=context)
    if context == "grows" and "session" not in where:
        expected = "a session column with it, or one mapped with trace.options.columns.session=NAME"
        raise source.error(expected, column=option, value=context)
    if block_tokens is None:
        return
    option = "trace.options.prefix_block_tokens"
    if context != "grows" and "hash_ids" not in where:
        raise source.error(
            "trace.options.context=grows with it, or a column hash_ids", column=option, value=block_tokens
        )


def recorded(
    prompts: PromptChains,
    made: Hashing,
    index: NDArray[np.int64] | None,
    rows: Mapping[str, pl.Series],
    turns: Turns | None,
) -> Chains:
    """Chains from the table's own hashes, completed by the next turn's prompt where that repeats this one.

    Args:
        prompts: chains of prompts in the order of the file.
        made: how their hashes were made.
        index: (n,) rows of the file in order of arrival, None for all as they stand.
        rows: (n,) columns in order of arrival.
        turns: sessions, None without.
    """
    offsets, ids = prompts.offsets, prompts.ids
    if index is not None:
        offsets, ids = gather_chains(offsets, ids, index)
    if turns is None:
        return Chains(offsets, ids, made.block_tokens, prompts.note)
    prompt, output = (rows[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    offsets, ids, known = with_outputs(
        offsets, ids, prompt, output, turns.following.astype(np.int64), made.block_tokens, whole_answer=True
    )
    note = f"{prompts.note}; blocks of {known} outputs are known, from the next turn's prompt"
    return Chains(offsets, ids, made.block_tokens, note)


def assumed(
    source: Source, context: str, block_tokens: int | None, rows: Mapping[str, pl.Series], turns: Turns | None
) -> Chains:
    """Chains of a table without hashes: none, or of contexts that grow.

    Raises:
        TraceError: more than :data:`MOST_IDS` of them.
    """
    if turns is None:
        return Chains(None, None, 0, None)
    if context == "unknown":
        note = (
            "no prefixes known, so later turns hit no cache: trace.options.context=grows takes each turn's prompt to "
            "begin with the whole turn before"
        )
        return Chains(None, None, 0, note)
    prompt, output = (rows[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    block = block_tokens or _BLOCK_TOKENS
    count = int((prompt // block).sum())
    if count > MOST_IDS:
        expected = (
            f"at most {MOST_IDS:,} prefix blocks, but blocks of {block} tokens make {count:,}, more than memory may "
            f"hold: trace.options.prefix_block_tokens={block * -(-count // MOST_IDS)} makes fewer"
        )
        raise source.error(expected, column="trace.options.context", value=context)
    growth = growing_chains(turns.session.astype(np.int64), turns.turn, prompt, output, block)
    return Chains(growth.offsets, growth.ids, block, growth.note)
