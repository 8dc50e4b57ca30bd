"""Coding-agent sessions as published: one JSON object a session, in a tar archive, a folder or a file of its own.

Source: callanjfox/kv-cache-tester : traces/trace_*.json @ 94f6046dfd9c0c8bc0cdb24a5aa6579bac8669bf; the fields are
described in docs/trace_replay_tester.md @ 19c263bd21cfab667b2e87406ac6701e8d452f18, and as far as they are not, were
found from the 533 files. A session has ``id, block_size`` (64), ``hash_id_scope`` (``local``: ids mean something
inside the session only; ``global``), ``tool_tokens, system_tokens, requests``. A request has ``t`` (s since the start),
``type`` (``s`` streamed, ``n`` not), ``model, in, out`` (tokens), ``hash_ids`` (one for each *full* block of the
prompt; an id names the whole prefix) and, mostly, ``api_time, think_time``, and, on a tenth, ``ttft`` (s).
``type: subagent`` holds a stream of its own in ``requests``, whose ``t`` start again at 0.

What is done to them
* The session's own requests are one stream, each sub-agent is another; a stream is a session here, closed loop.
* Session starts are not in the files: they are drawn, a Poisson process of ``session_rate_per_s`` over the sessions in
  random order.
* A sub-agent's entry is stamped when it *ended* if it has ``duration_ms``, else when it was launched
  (``async_launched``). So its start is known: 31 of the 33 begin within a second of the end of a turn that called a
  tool. It is placed as long after the nominal end of the parent's turn before it as recorded. It does not follow the
  parent's pace in a replay, and a change of the session rate moves it like a session of its own.
  ``subagents=drawn`` starts them like sessions.
* Think times: :mod:`traces.readers.agentic_streams`. A parent's think time holds the wait for its sub-agents.
* Chains are the recorded ids, coarsened to ``prefix_block_tokens``: a coarse block's id is that of its last block.
  Blocks that an output completes have the ids of the next turn, where that repeats the whole prompt and grew by the
  output, give or take a block of 64 tokens (a tenth grew by less: the counts of both sides disagree by some tokens,
  or something was dropped). Thinking seems to stay: turns after one with ``thinking`` in its ``output_types`` grew by
  less no more often (9.5 %) than others (11.2 %).
* Sharing inside a session, sub-agents included, is exact. Sharing *between* sessions is lost with local ids.
  ``share_prompts`` models it: sessions of one model whose ``tool_tokens`` and ``system_tokens`` are both equal share
  their first ``tool_tokens + system_tokens``. That is an assumption. What speaks for it: of 42 pairs of sub-agents of
  one session with equal counts, whose ids can be compared, 36 share that many blocks, and all at least 80 % of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import nearest
from traces.readers.agentic_parse import Session, parse_session
from traces.readers.agentic_streams import (
    FILE_BLOCK_TOKENS,
    capped,
    check_options,
    drawn_starts,
    service,
    since_start,
    think_times,
    trace_columns,
)
from traces.readers.format import Format
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace

SUBAGENTS = ("recorded", "drawn")
DUPLICATES = ("keep", "exact")
_SHARED = 2**60  # ids from here on are those of shared prompts


def read(
    source: Source,
    *,
    zero_output: str = "error",
    duplicates: str = "exact",
    subagents: str = "recorded",
    share_prompts: bool = False,
    session_rate_per_s: float = 0.1,
    seed: int = 0,
    prefix_block_tokens: int = 512,
    max_context_tokens: int | None = None,
    max_think_s: float | None = None,
    max_turns: int | None = None,
) -> Trace:
    """Read agentic sessions.

    Args:
        source: an archive or a folder of JSON files, or one.
        zero_output: requests without output: ``error``, or count them as ``one`` token (``drop`` would tear a
            session).
        duplicates: leave out ``exact`` copies of an earlier session, or ``keep`` them.
        subagents: when they start: as ``recorded`` in their session, or ``drawn`` as sessions are.
        share_prompts: let sessions whose tool and system tokens are equal share them.
        session_rate_per_s: rate of the drawn session starts.
        seed: of the starts and of the order of sessions.
        prefix_block_tokens: prefix block of the trace, a multiple of 64.
        max_context_tokens: a stream ends before its first turn whose prompt + output is longer.
        max_think_s: longer think times, and waits before a sub-agent, are cut to this.
        max_turns: turns kept of a stream.

    Raises:
        TraceError: a bad file, field, value or option.
    """
    check_options(source, zero_output, prefix_block_tokens)
    for column, value, known in (("subagents", subagents, SUBAGENTS), ("duplicates", duplicates, DUPLICATES)):
        if value not in known:
            expected = f"one of {', '.join(known)}{nearest(str(value), known)}"
            raise source.error(expected, column=f"trace.options.{column}", value=value)
    sessions, copies = _sessions(source, prefix_block_tokens, duplicates)
    frame, chains, zero_note = _frame(sessions, zero_output)
    think, think_note = think_times(frame)
    frame, cap_notes = capped(frame.with_columns(think=think), max_context_tokens, max_think_s, max_turns, source)
    starts = _starts(frame, sessions, subagents == "recorded", max_think_s, session_rate_per_s, seed)
    frame = frame.filter(starts.keep)
    prompts_note = _share_prompts(sessions, chains, prefix_block_tokens) if share_prompts else None
    offsets, ids, output_note = _chains(frame, chains, prefix_block_tokens)
    notes = [
        source.provenance,
        f"duplicates=exact: {copies} sessions left out" if copies else None,
        zero_note,
        think_note,
        *cap_notes,
        *starts.notes,
        f"chains as recorded, {FILE_BLOCK_TOKENS} -> {prefix_block_tokens} tokens a block",
        _shrunk_note(sessions),
        output_note,
        prompts_note or "sharing of tools and system prompts between sessions is lost: their ids are local",
    ]
    return Trace.build(
        source.stem,
        trace_columns(frame, starts.arrival_s)
        | ({"ttft_s": frame["ttft"]} if frame["ttft"].null_count() < frame.height else {}),
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=prefix_block_tokens,
        replay="closed",
        provenance=[note for note in notes if note],
        duration_s=starts.duration_s,
    )


def _sessions(source: Source, block: int, duplicates: str) -> tuple[list[Session], int]:
    """Every session that is no copy of an earlier one, and the number of copies."""
    found: dict[bytes, Session] = {}
    count = 0
    for member, data in _files(source):
        session = parse_session(member, data, block)
        if found and session.local != next(iter(found.values())).local:
            raise member.error("the scope of the files before", column="hash_id_scope")
        key = session.digest if duplicates == "exact" else hashlib.sha256(str(count).encode()).digest()
        found.setdefault(key, session)
        count += 1
    return list(found.values()), count - len(found)


def _files(source: Source) -> Iterator[tuple[Source, bytes]]:
    if not source.holds_many:
        yield source, source.data
        return
    for name, data in source.members(lambda name: name.endswith((".json", ".json.gz", ".json.zst"))):
        yield Source(source.path / name, source.file, name), data


def _frame(sessions: list[Session], zero_output: str) -> tuple[pl.DataFrame, list[NDArray[np.int64]], str | None]:
    """One row a request, sorted by (stream, turn), and their chains; ids are made unique to their session."""
    streams = [stream for session in sessions for stream in session.streams if stream.t]
    lengths = [len(stream.t) for stream in streams]
    number = np.repeat(np.arange(len(streams)), lengths)
    begins = np.cumsum([0, *lengths])
    output = pl.Series("out", [tokens for stream in streams for tokens in stream.output], pl.Int64)
    turn = np.arange(number.size) - begins[number]
    rows = np.array([row for stream in streams for row in stream.rows])
    zero = int(np.argmin(output.to_numpy()))  # the first request without output, if there is one
    file = next(session.source for session in sessions if streams[number[zero]] in session.streams)
    _, output, zero_note = zero_outputs(output, zero_output, (file, rows))
    columns = {name: [v for stream in streams for v in getattr(stream, name)] for name in ("t", "api", "think", "ttft")}
    frame = pl.DataFrame(
        {
            "stream": number,
            "turn": turn,
            "t": columns["t"],
            "input": [tokens for stream in streams for tokens in stream.prompt],
            "output": output,
            "api": columns["api"],
            "recorded_think": columns["think"],
            "ttft": columns["ttft"],
            "model": [model for stream in streams for model in stream.models],
            "repeats": [repeats for stream in streams for repeats in stream.repeats],
            "row": np.arange(number.size),
        }
    ).with_columns(pl.col("api", "recorded_think", "ttft").fill_nan(None))
    chains = [chain for stream in streams for chain in stream.chains]
    at = base = 0
    for session in sessions:
        own = sum(len(stream.t) for stream in session.streams)
        if session.local:
            high = max((int(chain.max()) for chain in chains[at : at + own] if chain.size), default=-1)
            chains[at : at + own] = [chain + base for chain in chains[at : at + own]]
            base += high + 1
        at += own
    return frame, chains, zero_note


@dataclass(frozen=True, slots=True)
class _Starts:
    """When requests arrive nominally: ``keep`` (n,) rows, ``arrival_s`` of those kept, and the rest as in a trace."""

    keep: NDArray[np.bool_]
    arrival_s: NDArray[np.float64]
    duration_s: float
    notes: list[str]


def _starts(
    frame: pl.DataFrame, sessions: list[Session], recorded: bool, max_think_s: float | None, rate: float, seed: int
) -> _Starts:
    """Draw session starts, and place sub-agents."""
    streams = [(i, stream) for i, session in enumerate(sessions) for stream in session.streams if stream.t]
    number, since = frame["stream"].to_numpy(), since_start(frame)
    there, first, length = np.unique(number, return_index=True, return_counts=True)
    unit = np.array([streams[s][0] if recorded else s for s in there])  # what gets a start of its own
    starts = drawn_starts(np.unique(unit).size, rate, seed)
    start = starts[np.unique(unit, return_inverse=True)[1]]
    note = f"session starts drawn: Poisson, {rate:g} sessions a second, seed {seed}, random order"
    agents = [k for k, s in enumerate(there) if streams[s][1].agent]
    keep = np.ones(frame.height, np.bool_)
    if recorded:
        end = since + frame.select(service()).to_series().to_numpy()
        roots = {streams[s][0]: k for k, s in enumerate(there) if not streams[s][1].agent}
        lost = 0
        for k in agents:
            session, agent = streams[there[k]]
            parent = sessions[session].streams[0]
            turn = int(np.searchsorted(parent.t, agent.launched_s, side="right")) - 1
            if turn < 0:
                start[k] += agent.launched_s
            elif session in roots and turn < length[roots[session]]:
                row = first[roots[session]] + turn
                wait = max(agent.launched_s - parent.t[turn] - (end[row] - since[row]), 0.0)
                start[k] += end[row] + (wait if max_think_s is None else min(wait, max_think_s))
            else:  # a limit cut off the turn that launched it
                keep[first[k] : first[k] + length[k]] = False
                lost += 1
        note += f"; {len(agents) - lost} sub-agents start where they did in their session"
        note += f", {lost} are left out with the turn that launched them" if lost else ""
    else:
        note += f"; so are those of {len(agents)} sub-agents"
    arrival = (np.repeat(start, length) + since)[keep]
    turns = frame["turn"].to_numpy()[keep]
    return _Starts(keep, arrival, max(float(starts.max()) + 1 / rate, float(arrival[turns == 0].max())), [note])


def _share_prompts(sessions: list[Session], chains: list[NDArray[np.int64]], block: int) -> str:
    """Rename the leading ids of streams with equal model, tool and system tokens to common ones, in place.

    What a session recorded wins: two of its prompts share what their ids say, whatever their counts.
    """
    names: dict[tuple[str, int, int, int], int] = {}
    users: dict[tuple[str, int, int], set[int]] = {}
    at = 0
    for i, session in enumerate(sessions):
        begin, renamed, taken = at, dict[int, int](), set[int]()
        for stream in filter(lambda stream: stream.t, session.streams):
            group = (stream.models[0], stream.tool_tokens, stream.system_tokens)
            for depth, old in enumerate(chains[at][: (stream.tool_tokens + stream.system_tokens) // block].tolist()):
                new = names.setdefault((*group, depth), _SHARED + len(names))
                if renamed.get(old, new) != new or (new in taken and old not in renamed):
                    break
                renamed[old] = new
                taken.add(new)
                users.setdefault(group, set()).add(i)
            at += len(stream.t)
        for k in range(begin, at):
            head = []
            for old in chains[k][: len(renamed)].tolist():
                if old not in renamed:
                    break
                head.append(renamed[old])
            chains[k] = np.concatenate([np.array(head, np.int64), chains[k][len(head) :]])
    shared = len(set().union(*(found for found in users.values() if len(found) > 1)))
    return (
        f"share_prompts: assumed that sessions of one model with equal tool_tokens and equal system_tokens share them; "
        f"{shared} of {len(sessions)} sessions share theirs with another"
    )


def _chains(
    frame: pl.DataFrame, prompts: list[NDArray[np.int64]], block: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """CSR chains of prompt and output."""
    stream, repeats, row = (frame[name].to_numpy() for name in ("stream", "repeats", "row"))
    prompt, total = frame["input"].to_numpy(), (frame["input"] + frame["output"]).to_numpy()
    chains = [prompts[r] for r in row]
    known = less = 0
    for k in range(frame.height - 1):
        if stream[k + 1] != stream[k] or not repeats[k + 1]:
            continue
        if prompt[k + 1] < total[k] - FILE_BLOCK_TOKENS:
            less += 1
        else:
            known += 1
            chains[k] = max(chains[k], prompts[row[k + 1]][: total[k] // block], key=len)
    offsets = np.zeros(len(chains) + 1, np.int64)
    np.cumsum([chain.size for chain in chains], out=offsets[1:])
    note = (
        f"{known} outputs reappear in the next prompt, whose ids their blocks take; {less} do not: that prompt grew "
        f"by less than the output, by over {FILE_BLOCK_TOKENS} tokens"
    )
    return offsets, np.concatenate(chains), note


def _shrunk_note(sessions: list[Session]) -> str | None:
    pairs = [stream.shrunk_blocks for session in sessions for stream in session.streams]
    before, kept = (sum(pair[i] for pair in pairs) for i in (0, 1))
    return f"where a prompt shrank (compaction) {kept / before:.1%} of the blocks before were kept" if before else None


def sniff(name: str, head: bytes) -> bool:
    """True if it begins as a published session does."""
    return head.lstrip().startswith(b"{") and all(
        word in head for word in (b'"block_size"', b'"requests"', b'"tool_tokens"')
    )


FORMAT = Format("agentic_json", read, sniff, "coding-agent sessions, original JSON or an archive of them, closed loop")
