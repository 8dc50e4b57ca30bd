"""NVIDIA Dynamo request trace, schema ``dynamo.request.trace.v1``: JSON lines, no text.

Source: ai-dynamo/dynamo : lib/llm/src/request_trace/{types,record,replay,integration}.rs
@ 0366e63a174690d2a15822bc404467a3f067485e, agent_context.rs @ 043da0d98bb4dc2aa945a36709eb147c5a5336b0,
lib/llm/src/protocols/common/timing.rs @ 0353adc805d52a06863b73895a737e5c9458cc17,
lib/llm/src/telemetry/jsonl.rs @ 03b4145380cb5d8e2877a294a78acdce6e1c1230.

A line is a record, or ``{"timestamp": ..., "event": record}`` as Dynamo's file sinks write it. ``request_end`` records
are the requests: ``request_received_ms`` (since 1970), ``total_time_ms``, ``ttft_ms``, ``avg_itl_ms`` = (finish - first
token) / (output - 1), worker ids and data-parallel ranks, finish reasons, and under ``replay`` the prompt length,
``trace_block_size`` and ``input_sequence_hashes``: one a block, the last one partial, each naming the whole prefix.
Requests without a session header have only arrival, end, lengths and hashes. Dynamo writes no record for multimodal
requests and several choices. ``tool_*`` records are counted, ``request_payload`` records (they hold text) passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import jsonl
from traces.readers.chains import prefix_ids
from traces.readers.clock import one_of
from traces.readers.columns import Table
from traces.readers.format import Format
from traces.readers.outcomes import CANCELLED, ERROR, OK
from traces.readers.plausible import check_rate
from traces.readers.routes import number_routes
from traces.readers.serving import Handling, ServingLog, build
from traces.sessions import link_by_prefix
from traces.source import Source, read_source
from traces.trace import Trace

SCHEMA = "dynamo.request.trace.v1"
_MAX_MS = 4_102_444_800_000  # the year 2100
_MAX_TIME_MS = 1e12
_MAX_HASH = 2**64 - 1
_ALONE_TOKENS = 1024  # shorter shared prefixes are system prompts
_TIMES = ("total_time_ms", "ttft_ms", "avg_itl_ms", "kv_transfer_estimated_latency_ms")
_SEGMENTS = (".jsonl", ".jsonl.gz")
_ENDS = ("stop", "length", "tool_calls", "content_filter", "function_call", "eos")


def read(
    source: Source,
    *,
    zero_output: str = "error",
    failures: str = "drop",
    implausible: str = "ask",
    replay: str = "open",
    infer_sessions: bool = True,
    min_blocks: int | None = None,
    tolerance_tokens: int = 64,
    max_gap_s: float = 3600.0,
) -> Trace:
    """Read a Dynamo request trace.

    Args:
        source: a file of JSON lines, or a folder or archive of such files (Dynamo's segments), ``.jsonl`` or
            ``.jsonl.gz``.
        zero_output: requests that ended well without output: ``error``, ``drop``, or ``one`` token.
        failures: requests that ended in an error: ``drop`` or ``keep`` them with their status.
        implausible: rates and latencies that no server has: ``ask`` stops with a question, ``keep`` takes them.
        replay: ``open``, or ``closed``: later turns follow the end of the one before.
        infer_sessions: link requests without a session id by their prefixes.
        min_blocks: see :mod:`traces.sessions`; None: as many as hold 1,024 tokens.
        tolerance_tokens: see :mod:`traces.sessions`.
        max_gap_s: see :mod:`traces.sessions`.

    Raises:
        TraceError: a bad line, field, hash or option; two block sizes.
    """
    found = _Found()
    for part, row, record in _records(source):
        found.add(part, row, record)
    if not found.rows:
        raise source.error(f"a request_end record of schema {SCHEMA}", value="none")
    table = _Segments(pl.DataFrame(found.shown), source, found.parts, found.rows)
    received = np.array(found.received, np.int64)
    base = int(received.min())
    arrival = (received - base) / 1e3
    one_of(table, "replay", replay, ("open", "closed"))
    check_rate(table, arrival, "request_received_ms", implausible)
    times = {name: np.array(found.times[name], np.float64) / 1e3 for name in _TIMES}
    ended = (np.array(found.ended, np.int64) - base) / 1e3
    end = np.where(np.isnan(times["total_time_ms"]), ended, arrival + times["total_time_ms"])
    prompt, output = np.array(found.prompt, np.int64), np.array(found.output, np.int64)
    offsets, ids = _chains(found)
    keys: list[str | None] = list(found.session)
    columns, worker_note = found.columns()
    notes = [*found.notes(times["kv_transfer_estimated_latency_ms"]), worker_note]
    if infer_sessions and None in keys:
        link = (min_blocks, tolerance_tokens, max_gap_s)
        note = _infer(keys, found.block, offsets, ids, prompt, output, arrival, end, link)
        notes.append(note)
    elif None in keys:
        notes.append(f"infer_sessions=false: {keys.count(None):,} requests have no session")
    log = ServingLog(
        table=table,
        arrival_s=arrival,
        first_s=arrival + times["ttft_ms"],
        end_s=end,
        prompt=pl.Series("replay.input_length", prompt),
        output=pl.Series("output_tokens", output),
        status=pl.Series("finish_reason_metadata", found.status, pl.String()),
        names=("request_received_ms", "ttft_ms", "total_time_ms"),
        session=pl.Series("session", keys, pl.String()),
        tpot_s=(times["avg_itl_ms"], "avg_itl_ms"),
        columns=columns,
        chain_offsets=offsets if found.block else None,
        chain_ids=ids if found.block else None,
        block_tokens=found.block,
    )
    how = Handling(failures=failures, zero_output=zero_output, implausible=implausible, replay=replay)
    return build(source, log, how, notes)


def _records(source: Source) -> Iterator[tuple[Source, int, jsonl.Record]]:
    for path in _segments(source):
        part = read_source(path)  # for errors; what is read below is let go with its segment
        for row, record in jsonl.records(read_source(path)):
            event = record.get("event", record)
            if not isinstance(event, dict) or event.get("schema") != SCHEMA:
                value = event.get("schema") if isinstance(event, dict) else event
                raise part.error(f"schema {SCHEMA}", row=row, column="schema", value=value)
            yield part, row, event


def _segments(source: Source) -> list[Path]:
    """The file, or those of a folder or an archive."""
    if not source.holds_many:
        return [source.path]
    if source.file.is_dir():
        names = [path.relative_to(source.file).as_posix() for path in sorted(source.file.rglob("*")) if path.is_file()]
    else:
        names = [name for name, _ in source.members(lambda name: name.endswith(_SEGMENTS))]
    names = [name for name in names if name.endswith(_SEGMENTS)]
    if not names:
        raise source.error(f"at least one file called *{' or *'.join(_SEGMENTS)}", value="none")
    return [source.path / name for name in names]


class _Segments(Table):
    """Rows of one or several files; an error names the one that it is about."""

    def __init__(self, frame: pl.DataFrame, source: Source, parts: list[Source], rows: list[int]) -> None:
        super().__init__(frame, source, 1, rows.__getitem__)
        object.__setattr__(self, "parts", parts)

    def error(self, expected: str, at: int, column: str) -> Exception:
        part: Source = self.__dict__["parts"][at]
        return Table(self.frame, part, 1, self.line_of).error(expected, at, column)


class _Found:
    """Columns, filled record by record."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.parts: list[Source] = []
        self.received: list[int] = []
        self.ended: list[int] = []
        self.prompt: list[int] = []
        self.output: list[int] = []
        self.session: list[str | None] = []
        self.status: list[str | None] = []
        self.model: list[str | None] = []
        self.workers: dict[str, list[str | None]] = {"prefill_worker": [], "decode_worker": []}
        self.times: dict[str, list[float]] = {name: [] for name in _TIMES}
        self.hashes: list[NDArray[np.uint64]] = []
        self.block = 0
        self.events: Counter[str] = Counter()
        self.children = self.cached = 0

    @property
    def shown(self) -> dict[str, list[Any]]:
        """What an error may show."""
        return {
            "request_received_ms": self.received,
            "output_tokens": self.output,
            "replay.input_length": self.prompt,
            **self.times,
        }

    def add(self, part: Source, row: int, record: jsonl.Record) -> None:
        """Take one record."""
        event = str(record.get("event_type"))[:40]
        self.events[event] += 1
        if event != "request_end":
            return
        request = _object(record, "request", part, row)
        received = jsonl.whole(request, "request_received_ms", 0, _MAX_MS, "ms since 1970", row, part)
        self.rows.append(row)
        self.parts.append(part)
        self.received.append(received)
        self.ended.append(jsonl.whole(record, "event_time_unix_ms", 0, _MAX_MS, "ms since 1970", row, part))
        self.output.append(jsonl.whole(request, "output_tokens", 0, MAX_TOKENS, "tokens", row, part))
        for name, stamps in self.times.items():
            absent = request.get(name) is None
            stamps.append(np.nan if absent else jsonl.number(request, name, 0, _MAX_TIME_MS, "ms", row, part))
        if request.get("cached_tokens") is not None:
            self.cached += jsonl.whole(request, "cached_tokens", 0, MAX_TOKENS, "tokens", row, part)
        self._add_prompt(part, row, request)
        self._add_context(part, row, record)
        model = request.get("model")
        self.model.append(None if model is None else str(model)[:200])
        worker = _object(request, "worker", part, row, {})
        for side, values in self.workers.items():
            worker_id, rank = worker.get(f"{side}_id"), worker.get(f"{side.removesuffix('_worker')}_dp_rank")
            values.append(None if worker_id is None else f"{worker_id}" + (f".{rank}" if rank else ""))
        self.status.append(_status(_object(request, "finish_reason_metadata", part, row, {})))

    def _add_prompt(self, part: Source, row: int, request: jsonl.Record) -> None:
        hashes: list[int] = []
        if request.get("replay") is None:
            length = jsonl.whole(request, "input_tokens", 1, MAX_TOKENS, "tokens", row, part)
        else:
            replay = _object(request, "replay", part, row)
            block = jsonl.whole(replay, "trace_block_size", 1, MAX_TOKENS, "tokens", row, part)
            length = jsonl.whole(replay, "input_length", 1, MAX_TOKENS, "tokens", row, part)
            hashes = jsonl.whole_list(replay, "input_sequence_hashes", 0, _MAX_HASH, row, part)
            if self.block not in (0, block):
                expected = f"one block size, {self.block} tokens as before: read the two captures apart"
                raise part.error(expected, row=row, column="trace_block_size", value=block)
            self.block = block
            if len(hashes) != -(-length // block):
                expected = f"{-(-length // block)} hashes: one for each {block} of {length} tokens"
                raise part.error(expected, row=row, column="input_sequence_hashes", value=f"{len(hashes)} hashes")
            hashes = hashes[: length // block]
        self.prompt.append(length)
        self.hashes.append(np.array(hashes, np.uint64))

    def _add_context(self, part: Source, row: int, record: jsonl.Record) -> None:
        context = _object(record, "agent_context", part, row, {})
        ids = [str(context[k]) for k in ("session_id", "trajectory_id", "program_id") if context.get(k) is not None]
        self.session.append("/".join(ids)[:400] if ids else None)
        parents = ("parent_session_id", "parent_trajectory_id", "parent_program_id")
        self.children += any(context.get(k) is not None for k in parents)

    def columns(self) -> tuple[dict[str, pl.Series], str | None]:
        """Further columns of the trace, and the numbers of the workers."""
        routes, note = number_routes(self.workers)
        model = {"model": pl.Series(self.model, dtype=pl.String())} if any(self.model) else {}
        return {**model, **routes}, note

    def notes(self, transfer_s: NDArray[np.float64]) -> list[str | None]:
        """What was found, for the provenance."""
        others = {event: n for event, n in self.events.items() if event != "request_end"}
        notes: list[str | None] = [f"{SCHEMA}: {len(self.rows):,} request_end records, arrivals in ms since 1970"]
        if others:
            counts = ", ".join(f"{n:,} {event}" for event, n in sorted(others.items()))
            notes.append(f"other records passed over: {counts}; time in tools is part of think times")
        if self.children:
            notes.append(f"{self.children:,} requests are of sub-agents: sessions of their own, without their parent")
        if self.cached:
            share = self.cached / sum(self.prompt)
            notes.append(f"recorded prefix hits: {share:.1%} of prompt tokens (observed there, not used)")
        known = transfer_s[~np.isnan(transfer_s)]
        if known.size:
            notes.append(f"KV transfer as Dynamo estimated it: median {np.median(known) * 1e3:.3g} ms (not used)")
        bare = sum(not h.size for h in self.hashes)
        if self.block and bare:
            notes.append(f"{bare:,} requests have no full block of {self.block} tokens, or no hashes")
        return notes


def _object(record: jsonl.Record, key: str, part: Source, row: int, absent: Any = None) -> jsonl.Record:
    value = record.get(key)
    if value is None and absent is not None:
        return dict(absent)
    if not isinstance(value, dict):
        raise part.error("an object", row=row, column=key, value=value)
    return value


def _status(finish: jsonl.Record) -> str | None:
    """Outcome of a request; None where Dynamo recorded no finish reason (it does so with a session header only)."""
    reasons = [str(finish[k]).lower() for k in ("backend_finish_reason", "finish_reason") if finish.get(k) is not None]
    if any(reason.startswith("cancel") for reason in reasons):
        return CANCELLED
    if any(reason.startswith("error") for reason in reasons):
        return ERROR
    return OK if any(reason in _ENDS for reason in reasons) else None


def _chains(found: _Found) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    offsets = np.zeros(len(found.hashes) + 1, np.int64)
    np.cumsum([len(h) for h in found.hashes], out=offsets[1:])
    flat = np.concatenate(found.hashes)
    return offsets, prefix_ids(offsets, flat.view(np.int64))


def _infer(
    keys: list[str | None],
    block: int,
    offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    arrival: NDArray[np.float64],
    end: NDArray[np.float64],
    link: tuple[int | None, int, float],
) -> str | None:
    """Give keys to requests without one, by prefix."""
    if not block:
        return "no prefix hashes: sessions cannot be inferred"
    min_blocks, tolerance, max_gap_s = link
    least = -(-_ALONE_TOKENS // block) if min_blocks is None else min_blocks
    rows = np.array([i for i, key in enumerate(keys) if key is None], np.int64)
    rows = rows[np.argsort(arrival[rows], kind="stable")]
    links = link_by_prefix(
        [ids[offsets[i] : offsets[i + 1]].tolist() for i in rows],
        prompt[rows].tolist(),
        output[rows].tolist(),
        arrival[rows].tolist(),
        min_blocks=least,
        tolerance_tokens=tolerance,
        max_gap_s=max_gap_s,
        end_s=end[rows].tolist(),
    )
    for i, session in zip(rows, links.session, strict=True):
        keys[i] = f"inferred {session}"
    return (
        f"sessions inferred by longest prefix chain for the {rows.size:,} requests without an id (min_blocks={least}, "
        f"tolerance_tokens={tolerance}, max_gap_s={max_gap_s:g}, after the recorded end): {links.linked_share:.1%} of "
        f"them linked to an earlier turn, {links.in_sessions_share:.1%} in sessions of two or more turns"
    )


def sniff(name: str, head: bytes) -> bool:
    """True if the schema's name is in the first line."""
    return SCHEMA.encode() in head.split(b"\n", 1)[0]


FORMAT = Format("dynamo", read, sniff, "NVIDIA Dynamo request trace, dynamo.request.trace.v1, JSONL or its segments")
