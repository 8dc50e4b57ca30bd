"""Prefix chains from a table's own block hashes: a column of lists (Parquet), or of text such as ``12 34 56``.

A list names the blocks of a prompt in order, whole blocks and perhaps the last, partial one, which is left out.
``prefix`` hashes name everything up to the end of their block, ``block`` hashes their block alone; those are chained
here. Parquet metadata ``pdgym.hash`` say the tokens of a block, so that no option has to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import nearest
from traces.readers import chains
from traces.readers.columns import Table, sound_parquet
from traces.readers.log import Log

KEY = "pdgym.hash"
VERSION = 1
KINDS = ("prefix", "block")
ANSWERS = "prompt and output"
_EXAMPLE = "block hashes, whole numbers below 2**64 such as [12, 34] or 12 34"


@dataclass(frozen=True, slots=True)
class Hashing:
    """How a table's hashes were made.

    Attributes:
        block_tokens: tokens of a block.
        kind: ``prefix`` or ``block``.
        answers: whether a list goes on into the answer, as far as that is known.
    """

    block_tokens: int
    kind: str
    answers: bool = False


def hashing(log: Log, block_tokens: int | None, kind: str | None) -> Hashing:
    """How the hashes were made, by the options, else by the file's metadata.

    Raises:
        TraceError: neither says it, or they say different things.
    """
    if kind is not None and kind not in KINDS:
        expected = f"one of {', '.join(KINDS)}{nearest(str(kind), KINDS)}"
        raise log.source.error(expected, column="trace.options.hash_kind", value=kind)
    noted = _metadata(log)
    if noted is not None:
        for option, given, found in (
            ("prefix_block_tokens", block_tokens, noted.block_tokens),
            ("hash_kind", kind, noted.kind),
        ):
            if given not in (None, found):
                raise log.source.error(
                    f"{found}, as the file's own {KEY} says, or none", column=f"trace.options.{option}", value=given
                )
        return noted
    if block_tokens is None:
        expected = "the tokens that each of its hashes stands for: trace.options.prefix_block_tokens=16"
        raise log.source.error(expected, column="hash_ids")
    return Hashing(block_tokens, kind or "prefix")


def _metadata(log: Log) -> Hashing | None:
    if not log.parquet:
        return None
    with sound_parquet(log.source) as file:
        text = pl.read_parquet_metadata(file).get(KEY)
    if text is None:
        return None
    try:
        head = json.loads(text)
        block, kind, version = head["block_tokens"], head.get("kind", "prefix"), head.get("version")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise log.source.error("JSON with version and block_tokens", column=KEY, value=text) from error
    if version != VERSION or type(block) is not int or block < 1 or kind not in KINDS:
        raise log.source.error(f"version {VERSION}, block_tokens of 1 or more, a known kind", column=KEY, value=text)
    return Hashing(block, kind, head.get("covers") == ANSWERS)


def read_hashes(piece: Table, name: str) -> pl.Series:
    """Lists of hashes of a piece, List(Int64): 64 bits whatever their sign; null where there is none."""
    raw = piece.frame[name]
    if raw.dtype.base_type() == pl.Array:
        raw = raw.cast(pl.List(raw.dtype.inner))  # type: ignore[attr-defined]
    if raw.dtype == pl.String:
        plain = raw.str.replace_all(r"[\[\](),;\s]+", " ").str.strip_chars(" ")
        lists = plain.str.split(" ").list.eval(pl.element().cast(pl.UInt64, strict=False))
        lists = pl.select(pl.when(plain != "").then(lists).when(raw.str.strip_chars() != "").then([])).to_series()
    elif raw.dtype.base_type() == pl.List and raw.dtype.inner.is_integer():  # type: ignore[attr-defined]
        lists = raw if raw.dtype.inner.is_unsigned_integer() else raw.cast(pl.List(pl.Int64))  # type: ignore[attr-defined]
    else:
        raise piece.source.error(_EXAMPLE, column=name, value=str(raw.dtype))
    items = lists.filter(lists.list.len() > 0).explode()
    if items.null_count() or (items.dtype.is_signed_integer() and items.len() and items.min() < 0):  # type: ignore[operator]
        wrong = lists.list.eval(pl.element().is_null() | (pl.element() < 0)).list.any().fill_null(False)
        raise piece.error(_EXAMPLE, int(wrong.arg_max()), name)  # type: ignore[arg-type]
    if lists.dtype.inner == pl.UInt64:  # type: ignore[attr-defined]
        lists = lists.list.eval(pl.element().reinterpret(signed=True))
    return lists.cast(pl.List(pl.Int64)).alias(name)


@dataclass(frozen=True, slots=True)
class PromptChains:
    """Chains of full prompt blocks.

    Attributes:
        offsets: (n+1,) CSR offsets.
        ids: ids, each of which names the whole prefix up to its block.
        note: for the provenance.
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    note: str


def prompt_chains(
    log: Log,
    lists: pl.Series,
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    made: Hashing,
    name: str,
) -> PromptChains:
    """Chains from lists of hashes, in the order of the file.

    Args:
        log: the table, for errors.
        lists: (n,) as :func:`read_hashes` gives them.
        prompt_tokens: (n,) prompt lengths.
        output_tokens: (n,) output lengths.
        made: how the hashes were made.
        name: column of the file.

    Raises:
        TraceError: too few or too many hashes for a prompt, or ``prefix`` hashes that do not name prefixes.
    """
    offsets = np.zeros(lists.len() + 1, np.int64)
    np.cumsum(lists.list.len().fill_null(0).to_numpy(), out=offsets[1:])
    hashes = lists.filter(lists.list.len() > 0).explode().cast(pl.Int64).to_numpy()
    full = prompt_tokens // made.block_tokens
    most = (prompt_tokens + output_tokens) // made.block_tokens if made.answers else full
    given = np.diff(offsets)
    unknown = lists.is_null().to_numpy()
    bad = ~unknown & ((given < full) | (given > most + 1))
    if bad.any():
        at = int(np.argmax(bad))
        few, many = int(full[at]), int(most[at]) + 1
        expected = (
            f"{few} {'or' if many == few + 1 else 'to'} {many} hashes: one for each block of {made.block_tokens} of "
            f"{prompt_tokens[at]} tokens (here are {given[at]})"
        )
        raise log.error(expected, at, name)
    partial = int((given > most).sum())
    offsets, hashes = chains.cut(offsets, hashes, most)
    if made.kind == "block":
        ids = chains.prefix_ids(offsets, hashes)
    else:
        ids = _checked_prefixes(log, offsets, hashes, name)
    said = f"prefixes from {name}: {made.kind} hashes of {made.block_tokens} tokens"
    parts = [said, f"{partial} partial last blocks left out"]
    if made.answers:
        parts.append(f"{int((given > full).sum())} go on into their answer")
    if unknown.any():
        parts.append(f"{int(unknown.sum())} requests without hashes, whose prefixes are not known")
    return PromptChains(offsets, ids, ", ".join(parts))


def _checked_prefixes(log: Log, offsets: NDArray[np.int64], hashes: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """The hashes as ids from 0; raises at the first that follows another hash than before."""
    if not hashes.size:
        return hashes
    ids = np.unique(hashes, return_inverse=True)[1].reshape(-1).astype(np.int64, copy=False)
    parent = np.empty(ids.size, np.int64)
    parent[0], parent[1:] = -1, ids[:-1]
    parent[offsets[:-1][np.diff(offsets) > 0]] = -1
    known = np.empty(ids.size, np.int64)
    known[ids[::-1]] = parent[::-1]  # the last write is the first appearance
    bad = known[ids] != parent
    if bad.any():
        row = int(np.searchsorted(offsets, int(np.argmax(bad)), side="right")) - 1
        expected = (
            "a hash that names the whole prefix: always at the same place, after the same hash; "
            "trace.options.hash_kind=block chains hashes that name their block alone"
        )
        raise log.error(expected, row, name)
    return ids
