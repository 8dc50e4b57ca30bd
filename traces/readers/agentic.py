"""Coding-agent sessions, one row a request: the derived Parquet table of callanjfox/kv-cache-tester traces.

Columns: ``trace_id, subagent, turn`` (from 0), ``t, api_time, think_time`` (s), ``model, input_length,
output_length`` (tokens), ``n_blocks, lcp_prev_blocks, prefix_seen_blocks`` (full blocks of 64 tokens), ``family``.

What is done to them
* A stream, (trace_id, subagent), is a session. Closed loop: ``think_time`` is the gap from the end of the previous
  turn (``t`` + ``api_time``, to the file's rounding of about 0.7 s). Where it is missing, and after a turn without
  ``api_time``, it is taken from ``t`` and a service time (:mod:`traces.readers.agentic_streams` says why).
* The file has no absolute session starts: they are drawn, a Poisson process of ``session_rate_per_s``, over the
  sessions in random order. Sub-agents start on their own, for their start in the parent is not in the file.
* Block ids were local to a trace and are not in the table; ``lcp_prev_blocks`` and ``prefix_seen_blocks`` give
  the chains back: a turn shares ``prefix_seen_blocks`` leading blocks with an earlier turn of its stream, the
  previous one if that equals ``lcp_prev_blocks`` (99.7 % of turns), else the latest that agrees with both
  numbers. Sharing between streams (sub-agents of one session, tools and system prompt between sessions) is lost;
  the original JSON (:mod:`traces.readers.agentic_json`) keeps the first. Against its hashes, streams apart, the
  rebuilt chains are right for 99.0 % of turns and 99.92 % of prompt blocks: 7 of 566 streams differ somewhere.
* Chains are coarsened to ``prefix_block_tokens``: the id of a coarse block names the whole prefix up to its end.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.readers.agentic_streams import (
    FILE_BLOCK_TOKENS,
    capped,
    check_options,
    drawn_starts,
    since_start,
    think_times,
    trace_columns,
)
from traces.readers.columns import Table, parquet_table
from traces.readers.format import Format
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace

COLUMNS = (
    "trace_id",
    "subagent",
    "turn",
    "t",
    "input_length",
    "output_length",
    "lcp_prev_blocks",
    "prefix_seen_blocks",
    "api_time",
    "think_time",
    "model",
    "family",
)
DUPLICATES = ("keep", "exact", "families")


def read(
    source: Source,
    *,
    zero_output: str = "error",
    duplicates: str = "families",
    session_rate_per_s: float = 0.1,
    seed: int = 0,
    prefix_block_tokens: int = 512,
    max_context_tokens: int | None = None,
    max_think_s: float | None = None,
    max_turns: int | None = None,
) -> Trace:
    """Read agentic sessions.

    Args:
        source: the Parquet file.
        zero_output: requests without output: ``error``, or count them as ``one`` token (``drop`` would tear a
            session).
        duplicates: which copies to leave out: ``exact`` ones, or all but the first of each near-duplicate
            ``families``, or none (``keep``).
        session_rate_per_s: rate of the drawn session starts.
        seed: of the starts and of the order of sessions.
        prefix_block_tokens: prefix block of the trace, a multiple of 64.
        max_context_tokens: a session ends before its first turn whose prompt + output is longer.
        max_think_s: longer think times are cut to this.
        max_turns: turns kept of a session.

    Raises:
        TraceError: a bad column, value or option.
    """
    if duplicates not in DUPLICATES:
        expected = f"one of {', '.join(DUPLICATES)}{nearest(str(duplicates), DUPLICATES)}"
        raise source.error(expected, column="trace.options.duplicates", value=duplicates)
    check_options(source, zero_output, prefix_block_tokens)
    table = parquet_table(source)
    table.need(COLUMNS)
    recorded = table.whole("output_length", 0, MAX_TOKENS, "tokens")
    _, output, zero_note = zero_outputs(recorded, zero_output, table)
    notes = [source.provenance, zero_note]
    frame = _typed(table).with_columns(output.alias("output"), row=pl.int_range(pl.len()))
    frame = frame.with_columns(stream=pl.col("row").first().over("trace_id", "subagent"))
    _check_turns(frame, table)
    frame = frame.sort("stream", "turn")

    copies = _copies(frame, duplicates)
    if copies:
        frame = frame.filter(~pl.col("stream").is_in(copies))
        notes.append(f"duplicates={duplicates}: {len(copies)} sessions left out")
    think, think_note = think_times(frame)
    frame = frame.with_columns(think=think)
    frame, cap_notes = capped(frame, max_context_tokens, max_think_s, max_turns, source)
    offsets, ids, unsure = _chains(frame, prefix_block_tokens // FILE_BLOCK_TOKENS)
    notes += [
        think_note,
        *cap_notes,
        f"sub-agent streams are sessions of their own; {int(frame['subagent'].is_not_null().sum())} requests",
        f"session starts drawn: Poisson, {session_rate_per_s:g} sessions a second, seed {seed}, random order",
        f"chains rebuilt from shared block counts, {FILE_BLOCK_TOKENS} -> {prefix_block_tokens} tokens a block; "
        f"{unsure} turns share more with an earlier turn than with the last one",
    ]
    streams, number = np.unique(frame["stream"].to_numpy(), return_inverse=True)
    start = drawn_starts(streams.size, session_rate_per_s, seed)
    return Trace.build(
        source.stem,
        trace_columns(frame, start[number] + since_start(frame)),
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=prefix_block_tokens,
        replay="closed",
        provenance=[note for note in notes if note],
        duration_s=float(start.max()) + 1 / session_rate_per_s,
    )


def _typed(table: Table) -> pl.DataFrame:
    blocks = MAX_TOKENS // FILE_BLOCK_TOKENS
    return pl.DataFrame(
        [
            table.whole("turn", 0, 10_000_000, "turn, from 0"),
            table.number("t", 0, 1e10, "s"),
            table.whole("input_length", 1, MAX_TOKENS, "tokens").alias("input"),
            table.whole("lcp_prev_blocks", 0, blocks, "blocks").alias("lcp"),
            table.whole("prefix_seen_blocks", 0, blocks, "blocks").alias("seen"),
            table.number("api_time", 0, 1e10, "s", null=True).alias("api"),
            table.number("think_time", 0, 1e10, "s", null=True).alias("recorded_think"),
            table.text("trace_id"),
            table.text("subagent"),
            table.text("model"),
            table.text("family"),
        ]
    )


def _check_turns(frame: pl.DataFrame, table: Table) -> None:
    twice = ~frame.select(pl.struct("stream", "turn").is_first_distinct()).to_series().to_numpy()
    if twice.any():
        raise table.error("each turn of a stream once", int(np.argmax(twice)), "turn")
    ordered = frame.sort("stream", "turn")
    gap = ordered["turn"].to_numpy() != ordered.select(pl.int_range(pl.len()).over("stream")).to_series().to_numpy()
    if gap.any():
        raise table.error("turns 0, 1, 2, ... of each stream", int(ordered["row"][int(np.argmax(gap))]), "turn")
    shared = ordered.with_columns(last=pl.col("input").shift(1).over("stream").fill_null(0) // FILE_BLOCK_TOKENS)
    most = pl.min_horizontal(pl.col("input") // FILE_BLOCK_TOKENS, pl.max_horizontal("last", "lcp"))
    for column, bad in (
        ("lcp_prev_blocks", (pl.col("lcp") > pl.min_horizontal(most, "last"))),
        (
            "prefix_seen_blocks",
            (pl.col("seen") < pl.col("lcp")) | (pl.col("seen") > pl.col("input") // FILE_BLOCK_TOKENS),
        ),
    ):
        rows = shared.filter(bad)["row"]
        if rows.len():
            raise table.error("no more blocks than both prompts have", int(rows[0]), column)


def _copies(frame: pl.DataFrame, duplicates: str) -> list[int]:
    """Streams that copy an earlier one."""
    if duplicates == "keep":
        return []
    heads = frame.group_by("stream", maintain_order=True).agg(
        pl.col("trace_id").first(),
        pl.col("family").first(),
        pl.col("subagent").first(),
        pl.struct("t", "input", "output", "seen").hash(seed=1).alias("content"),
    )
    if duplicates == "exact":
        seen: dict[tuple[int, ...], int] = {}
        return [
            stream
            for stream, content in zip(heads["stream"], heads["content"], strict=True)
            if seen.setdefault(tuple(content), stream) != stream
        ]
    first = heads.group_by("family", maintain_order=True).agg(pl.col("trace_id").first().alias("kept"))
    joined = heads.join(first, on="family", how="left", maintain_order="left")
    copies = joined.filter(pl.col("family").is_not_null() & (pl.col("trace_id") != pl.col("kept")))
    return copies["stream"].to_list()


def _chains(frame: pl.DataFrame, fold: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """CSR chains of prompt and output in blocks of ``fold`` file blocks, and how many turns have another source."""
    stream, lcp, seen = (frame[c].to_numpy() for c in ("stream", "lcp", "seen"))
    prompt, total = frame["input"].to_numpy(), (frame["input"] + frame["output"]).to_numpy()
    block = fold * FILE_BLOCK_TOKENS
    chains: list[NDArray[np.int64]] = []
    begin = fresh = unsure = 0
    for k in range(frame.height):
        if k and stream[k] != stream[k - 1]:
            begin = k
        shared, length = int(seen[k]) // fold, int(prompt[k]) // block
        head = chains[k - 1][:shared] if k > begin else chains[k:]
        if seen[k] > lcp[k]:
            unsure += 1
            head = _other_source(chains, begin, k, lcp, int(seen[k]), prompt)[:shared]
        new = length - len(head)
        chains.append(
            np.concatenate([head, np.arange(fresh, fresh + new)]) if len(head) else np.arange(fresh, fresh + new)
        )
        fresh += new
    whole = list(chains)
    for k in range(frame.height - 1):  # blocks that the output completes have the next turn's ids
        own, following = len(chains[k]), chains[k + 1]
        full = int(total[k]) // block
        if stream[k + 1] == stream[k] and full > own and int(lcp[k + 1]) // fold >= own:
            whole[k] = following[:full]
    offsets = np.zeros(len(whole) + 1, np.int64)
    np.cumsum([chain.size for chain in whole], out=offsets[1:])
    return offsets, np.concatenate(whole), unsure


def _other_source(
    chains: list[NDArray[np.int64]],
    begin: int,
    k: int,
    lcp: NDArray[np.int64],
    seen: int,
    prompt: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Chain of the latest earlier turn j that turn k may share ``seen`` > ``lcp[k]`` blocks with.

    j is long enough, and shares no more than lcp[k] with turn k - 1 (else k would share more with k - 1 too).
    """
    with_last = np.iinfo(np.int64).max
    for j in range(k - 2, begin - 1, -1):
        with_last = min(with_last, int(lcp[j + 1]))  # blocks that j and k - 1 have in common, at least
        if with_last <= lcp[k] and prompt[j] // FILE_BLOCK_TOKENS >= seen:
            return chains[j]
    return chains[k - 1]


def sniff(name: str, head: bytes) -> bool:
    """True if it is a Parquet file called as the derived table is."""
    return head.startswith(b"PAR1") and name.endswith("requests.derived.parquet")


FORMAT = Format("agentic", read, sniff, "coding-agent sessions, derived Parquet, closed loop")
