"""Qwen-Bailian traces: JSON lines of a cloud provider's chat service, with links to the turn before.

Schema: alibaba-edu/qwen-bailian-usagetraces-anon : README.md @ 03a51e31087dcb16445b5ae002cadf7aa4637bc3 and
docs/qa-context-growth-pattern.md @ 3d3d2b3c12636b253925d04f4c11d553cd4dc24a. ``chat_id``, ``parent_chat_id`` (-1: no
turn before), ``timestamp`` (s from the start of the trace), ``input_length``, ``output_length`` (tokens), ``type``
(text, search, image, file, ...), ``turn``, ``hash_ids`` (one salted hash for each 16 tokens of the input, the last
block padded). No such file was at hand when this was written.

What is done to them
* A request continues its parent. Where several requests name one parent, the first continues it and each other one is
  a branch, which starts a session of its own: a session is a line of turns that wait for each other. So does a
  request whose parent is not in the file, or does not come before it. Turns are counted anew.
* Prompts hold their whole history, so ``input_length`` and ``hash_ids`` are of the whole prompt. Hashes may name a
  block alone: they become ids that name the whole prefix. Full blocks only.
* Blocks that an output completes have the next turn's ids, if its prompt repeats this turn's full blocks and is long
  enough to hold the answer. Where thinking is dropped from the history the prompt is too short, and they stay
  unknown.
* There are no end stamps: think times assume a service time.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import chains
from traces.readers.columns import order_of
from traces.readers.format import Format
from traces.readers.json_table import Field, JsonTable, read_json
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.sessions import think_times
from traces.source import Source
from traces.trace import Trace
from traces.transform import gather_chains

_BIG = 2**62
_MAX_STAMP_S = 10 * 365 * 86_400.0  # above it is an epoch stamp
FIELDS = (
    Field("chat_id", "whole", 0, _BIG, "chat identifier"),
    Field("parent_chat_id", "whole", -1, _BIG, "chat_id of the turn before, -1 for none"),
    Field("timestamp", "number", 0, _MAX_STAMP_S, "seconds from the start of the trace"),
    Field("input_length", "whole", 1, MAX_TOKENS, "tokens"),
    Field("output_length", "whole", 0, MAX_TOKENS, "tokens"),
    Field("type", "text", meaning="request type", optional=True),
    Field("turn", "whole", 0, 2**31 - 1, "turn of the conversation", optional=True),
    Field("hash_ids", "whole_list", 0, _BIG, "block hashes"),
)


def read(
    source: Source,
    *,
    sort: bool = False,
    zero_output: str = "error",
    block_tokens: int = 16,
    replay: str = "open",
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
    implausible: str = "ask",
) -> Trace:
    """Read a Qwen-Bailian trace; ``type`` becomes the class.

    Args:
        source: the file.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them (their next turn then continues the turn before
            them), or count them as ``one`` token.
        block_tokens: tokens a hash stands for.
        replay: replay mode.
        assumed_ttft_s: assumed service before the first token, for think times: the trace has no end stamps.
        assumed_tpot_s: assumed service time an output token, likewise.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad line, field, length, hash list, parent or option.
    """
    table = read_json(source, FIELDS)
    keep, outputs, zero_note = zero_outputs(table.frame["output_length"], zero_output, (source, table.rows))
    stamp = table.column("timestamp")
    order = order_of(stamp, table.rows.tolist(), "timestamp", sort, source, table.frame["timestamp"])
    check_rate(table, stamp, "timestamp", implausible)
    place = np.arange(stamp.size) if order.index is None else order.index
    parent, link_note = _parents(table, place, keep)
    index = place[keep[place]]

    prompt, output = table.column("input_length")[index], outputs.to_numpy()[index]
    arrival = stamp[index] - stamp.min()
    session, turn, child, branch_note = _sessions(parent, table.column("turn") if table.has("turn") else None, index)
    linked = np.where(turn > 1, parent, -1)
    think, negative = think_times(arrival, output.tolist(), linked, assumed_ttft_s, assumed_tpot_s)
    offsets, ids = gather_chains(*_prompt_chains(table, block_tokens), index)
    offsets, ids, known = chains.with_outputs(offsets, ids, prompt, output, child, block_tokens, whole_answer=True)
    later = int((turn > 1).sum())
    notes = (
        source.provenance,
        order.note,
        zero_note,
        f"sessions from parent_chat_id: {later / index.size:.1%} of requests continue an earlier one, "
        f"{float((child >= 0).mean()):.1%} are continued; {link_note}{branch_note}",
        f"think time = start-to-start gap - assumed service ({assumed_ttft_s:g} s + {assumed_tpot_s:g} s a token); "
        f"{negative:.1%} of gaps were shorter and count as 0",
        f"blocks that an output completes are known for {known} of {int((child >= 0).sum())} continued requests",
    )
    return Trace.build(
        source.stem,
        {
            "arrival_s": arrival,
            "session": session,
            "turn": turn,
            "think_s": pl.Series(think).fill_nan(None),
            "prompt_tokens": prompt,
            "output_tokens": output,
            "class": _classes(table)[index],
        },
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block_tokens,
        replay=replay,
        provenance=[note for note in notes if note],
        duration_s=float(stamp.max() - stamp.min()),
    )


def _classes(table: JsonTable) -> pl.Series:
    kind = table.frame["type"]
    return pl.select(pl.when(kind == "").then(None).otherwise(kind).fill_null("default").alias("class")).to_series()


def _parents(table: JsonTable, place: NDArray[np.int64], keep: NDArray[np.bool_]) -> tuple[NDArray[np.int64], str]:
    """Of each kept request in order of arrival: the place of the one it continues, -1 for none; and what was cut."""
    chat, named = table.column("chat_id")[place], table.column("parent_chat_id")[place]
    by_chat = np.argsort(chat, kind="stable")
    twice = chat[by_chat][1:] == chat[by_chat][:-1]
    if twice.any():
        at = int(place[by_chat[1:][twice]].min())
        raise table.error("each chat_id once", at, "chat_id")
    found = np.minimum(np.searchsorted(chat[by_chat], named), chat.size - 1)
    parent = np.where(chat[by_chat[found]] == named, by_chat[found], -1)
    absent = int(((named >= 0) & (parent < 0)).sum())
    late = parent >= np.arange(parent.size)
    parent[late] = -1
    if not keep.all():  # what continued a request that was dropped continues the one before it
        kept = keep[place]
        for at in np.flatnonzero(parent >= 0).tolist():
            while parent[at] >= 0 and not kept[parent[at]]:
                parent[at] = parent[parent[at]]
        parent = np.where(parent >= 0, np.cumsum(kept)[parent] - 1, -1)[kept]
    cut = f"{absent} name a parent that is not in the file"
    return parent, cut + (f", {int(late.sum())} one that does not come before them" if late.any() else "")


def _sessions(
    parent: NDArray[np.int64], recorded: NDArray[np.int64] | None, index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], str]:
    """Session and turn of each request, the place of its next turn (-1: none), and how many are branches."""
    linked = np.flatnonzero(parent >= 0)
    _, first = np.unique(parent[linked], return_index=True)
    child = np.full(parent.size, -1, np.int64)
    child[parent[linked[first]]] = linked[first]
    session, turn = np.arange(parent.size), np.ones(parent.size, np.int64)
    ahead = linked[first]
    pointer = np.full(parent.size, -1, np.int64)
    pointer[ahead] = parent[ahead]
    while (pointer >= 0).any():  # pointer doubling: as many rounds as the longest session's turns have bits
        at = np.flatnonzero(pointer >= 0)
        target = pointer[at]
        turn[at], session[at], pointer[at] = turn[at] + turn[target], session[target], pointer[target]
    note = f", {linked.size - first.size} are branches and start sessions of their own"
    if recorded is not None:
        other = int((recorded[index] != turn).sum())
        note += f"; turns counted anew, {other} differ from the file's" if other else ""
    return session, turn, child, note


def _prompt_chains(table: JsonTable, block_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Recorded hashes of every request in the file as prefix ids; their number must be that of the prompt's blocks."""
    offsets, recorded = table.lists("hash_ids")
    full = table.column("input_length") // block_tokens
    count = np.diff(offsets)
    bad = (count < full) | (count > full + 1)
    if bad.any():
        at = int(np.argmax(bad))
        expected = f"{full[at]} or {full[at] + 1} hashes: one for each {block_tokens} tokens of the input"
        raise table.error(expected, at, "hash_ids", f"{count[at]} hashes")
    offsets, recorded = chains.cut(offsets, recorded, full)
    return offsets, chains.prefix_ids(offsets, recorded)


def sniff(name: str, head: bytes) -> bool:
    """True if the first line is a JSON object with chat links."""
    first = head.split(b"\n", 1)[0]
    return first.lstrip().startswith(b"{") and b'"parent_chat_id"' in first and b'"chat_id"' in first


FORMAT = Format("bailian", read, sniff, "Qwen-Bailian JSONL: chat links, 16-token block hashes, stamps in seconds")
