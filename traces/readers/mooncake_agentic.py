"""Agentic Mooncake rows of NVIDIA Dynamo: requests that name the requests they wait for.

Schema, two versions of ai-dynamo/dynamo : lib/data-gen/src/mooncake.rs
* @ 0c7705a47eb2d167cc8d2b0ad66719a2e786b876 (no header): Mooncake's fields, ``request_id``, ``wait_for`` (ids of
  requests whose ends it waits for), then ``delay`` + ``tool_wait_ms``; a row that waits for none comes at its
  ``timestamp``.
* version 2, as in the published crate dynamo-data-gen 1.6.0: a header line (``schema``: ``dynamo.agentic_mooncake``,
  ``version``, ``block_size``, ``hash_id_scope``: ``local``), then rows with ``play_id``, ``session_id``,
  ``not_before_ms`` and ``dependencies``: request id, ``trigger`` (``dispatch`` or ``completion``), ``delay_ms``.
  ``recorded_api_time_ms`` is the service time as recorded. Hash ids are local to a play.
No such file was at hand when this was written.

What is done to them
* A trace has sessions whose turns wait for each other, not a graph. All requests are put on a nominal clock, with the
  recorded or an assumed service time. A request continues the request of its ``session_id`` that ended last before it,
  if none has yet; one that overlaps all of them starts a session of its own, at its nominal time. So does a sub-agent.
* Think time is the gap from the end of the turn before. Where that turn is all a request waits for, it is the recorded
  delay; where it waits for others too, or for a time, it is nominal. Both are counted.
* Prompts hold their whole history. Blocks that an output completes have the next turn's ids, where they are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import chains, jsonl
from traces.readers.format import Format
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace

SCHEMA = "dynamo.agentic_mooncake"
VERSION = 2
_MAX_MS = 10 * 365 * 86_400_000.0
_BIG = 2**64 - 1
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
_LENGTHS = (("input_length", "input_tokens"), ("output_length", "output_tokens"))


@dataclass(frozen=True, slots=True)
class _Wait:
    """One request that another waits for: until it ended, or was sent; and how long after."""

    request: str
    ended: bool
    delay_s: float


@dataclass(eq=False)
class _Rows:
    """What the lines say, one entry a request; times in seconds."""

    line: list[int] = field(default_factory=list)
    request: dict[str, int] = field(default_factory=dict)
    session: list[str | None] = field(default_factory=list)
    play: list[str] = field(default_factory=list)
    model: list[str | None] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    hashes: list[list[int]] = field(default_factory=list)
    floor_s: list[float] = field(default_factory=list)
    service_s: list[float] = field(default_factory=list)  # recorded, NaN where it is not
    waits: list[list[_Wait]] = field(default_factory=list)


def read(
    source: Source,
    *,
    zero_output: str = "error",
    block_tokens: int | None = None,
    session_rate_per_s: float | None = None,
    seed: int = 0,
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
    implausible: str = "ask",
) -> Trace:
    """Read agentic Mooncake rows.

    Args:
        source: the file.
        zero_output: requests without output: ``error``, or count them as ``one`` token (``drop`` would tear a session).
        block_tokens: tokens a hash id stands for; None: as the header says, else the power of two that fits every row.
        session_rate_per_s: rate of the Poisson starts of plays (version 2), each with its own times from there; needed
            where all plays start at one time.
        seed: of the starts.
        assumed_ttft_s: assumed service before the first token, where no service time is recorded.
        assumed_tpot_s: assumed service time an output token, likewise.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad header, line, field, dependency or option.
    """
    if zero_output == "drop":
        expected = "error or one: dropping a turn would tear its session"
        raise source.error(expected, column="trace.options.zero_output", value="drop")
    header, rows = _parse(source)
    lines = np.array(rows.line)
    _, outputs, zero_note = zero_outputs(pl.Series("output_length", rows.output), zero_output, (source, lines))
    prompt, output = np.array(rows.prompt), outputs.to_numpy()
    block, block_note = _block(source, rows, header, block_tokens)
    assumed = assumed_ttft_s + assumed_tpot_s * output
    service = np.where(np.isnan(rows.service_s), assumed, rows.service_s)
    start, start_note = _clock(source, rows, service, header is not None, session_rate_per_s, seed)
    check_rate((source, lines), start, "not_before_ms" if header is not None else "timestamp", implausible)
    end = start + service
    parent, session, turn = _streams(rows, start, end)

    later = parent >= 0
    think = np.where(later, start - end[parent], np.nan)
    names = list(rows.request)
    recorded = sum(
        _waits_for_that_alone(rows, at, names[parent[at]], think[at]) for at in np.flatnonzero(later).tolist()
    )
    fixed = sum(bool(waits) for at, waits in enumerate(rows.waits) if not later[at])
    child = np.full(prompt.size, -1, np.int64)
    child[parent[later]] = np.flatnonzero(later)
    offsets, ids, _ = chains.with_outputs(
        *_prompt_chains(rows, prompt // max(block, 1)), prompt, output, child, max(block, 1), whole_answer=True
    )
    known = int((~np.isnan(rows.service_s)).sum())
    notes = (
        source.provenance,
        zero_note,
        block_note,
        start_note,
        f"{int(later.sum())} of {prompt.size} requests continue one of their session; think time is the recorded delay "
        f"for {recorded} of them and nominal for the others, which wait for more than the turn before",
        f"{fixed} requests that wait for others start sessions of their own, at their nominal time",
        f"nominal clock: service as recorded for {known} requests, else assumed ({assumed_ttft_s:g} s + "
        f"{assumed_tpot_s:g} s a token)",
    )
    columns: dict[str, Any] = {
        "arrival_s": start,
        "session": session,
        "turn": turn,
        "think_s": pl.Series(think).fill_nan(None),
        "prompt_tokens": prompt,
        "output_tokens": output,
    }
    if any(model is not None for model in rows.model):
        columns["model"] = pl.Series(rows.model, dtype=pl.String)
    return Trace.build(
        source.stem,
        columns,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block,
        replay="closed",
        provenance=[note for note in notes if note],
        duration_s=float(start[~later].max()),
    )


def _parse(source: Source) -> tuple[jsonl.Record | None, _Rows]:
    header, rows = None, _Rows()
    for line, record in jsonl.records(source):
        if "schema" in record:
            if header is not None or rows.line:
                raise source.error("a header on the first line only", row=line, column="schema")
            header = record
            for name, value in (("schema", SCHEMA), ("version", VERSION), ("hash_id_scope", "local")):
                if record.get(name) != value:
                    raise source.error(repr(value), row=line, column=name, value=record.get(name))
            jsonl.whole(record, "block_size", 1, MAX_TOKENS, "tokens of a block", line, source)
            continue
        _add(rows, record, line, source, header is not None)
    if not rows.line:
        raise source.error("at least one request after the header", value="a header only")
    for at, waits in enumerate(rows.waits):
        for wait in waits:
            if wait.request not in rows.request:
                column = "dependencies" if header is not None else "wait_for"
                raise source.error("the request_id of a row", row=rows.line[at], column=column, value=wait.request)
    return header, rows


def _add(rows: _Rows, record: jsonl.Record, line: int, source: Source, second: bool) -> None:
    name = _text(record, "request_id", line, source)
    if name in rows.request:
        raise source.error("each request_id once", row=line, column="request_id", value=name)
    lengths = []
    for column, other in _LENGTHS:
        used = other if column not in record and other in record else column
        low = 1 if column == "input_length" else 0
        lengths.append(jsonl.whole(record, used, low, MAX_TOKENS, "tokens", line, source))
    waits, floor = _second(record, line, source) if second else _first(record, line, source)
    optional = {
        column: None if record.get(column) is None else _text(record, column, line, source)
        for column in ("session_id", "play_id", "model")
    }
    rows.request[name] = len(rows.line)
    rows.line.append(line)
    rows.session.append(optional["session_id"])
    rows.play.append(optional["play_id"] or "")
    rows.model.append(optional["model"])
    rows.prompt.append(lengths[0])
    rows.output.append(lengths[1])
    absent = record.get("hash_ids") is None
    rows.hashes.append([] if absent else jsonl.whole_list(record, "hash_ids", 0, _BIG, line, source))
    rows.floor_s.append(floor)
    rows.service_s.append(_seconds(record, "recorded_api_time_ms", line, source, np.nan))
    rows.waits.append(waits)


def _first(record: jsonl.Record, line: int, source: Source) -> tuple[list[_Wait], float]:
    """Waits of a row without a header, and its stamp, which counts only if it waits for none."""
    names = record.get("wait_for") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise source.error("a list of request ids", row=line, column="wait_for", value=names)
    delay = _seconds(record, "delay_ms" if "delay_ms" in record else "delay", line, source, 0.0)
    delay += _seconds(record, "tool_wait_ms", line, source, 0.0)
    if names:
        return [_Wait(name, True, delay) for name in names], 0.0
    stamp = "created_time" if "created_time" in record else "timestamp"
    return [], jsonl.number(record, stamp, 0, _MAX_MS, "ms, of a request that waits for none", line, source) / 1000


def _second(record: jsonl.Record, line: int, source: Source) -> tuple[list[_Wait], float]:
    """Waits of a row of version 2, and the earliest time it may come."""
    column, waits = "dependencies", []
    given = record.get(column) or []
    if not isinstance(given, list):
        raise source.error("a list of objects", row=line, column=column, value=given)
    for one in given:
        if not isinstance(one, dict) or one.get("trigger") not in ("dispatch", "completion"):
            raise source.error("objects with a trigger, dispatch or completion", row=line, column=column, value=one)
        name = _text(one, "request_id", line, source)
        waits.append(_Wait(name, one["trigger"] == "completion", _seconds(one, "delay_ms", line, source, 0.0)))
    return waits, jsonl.number(record, "not_before_ms", 0, _MAX_MS, "ms", line, source) / 1000


def _seconds(record: jsonl.Record, name: str, line: int, source: Source, absent: float) -> float:
    if record.get(name) is None:
        return absent
    return jsonl.number(record, name, 0, _MAX_MS, "ms", line, source) / 1000


def _text(record: jsonl.Record, name: str, line: int, source: Source) -> str:
    value = jsonl.get(record, name, line, source)
    if not isinstance(value, str) or not value:
        raise source.error("text", row=line, column=name, value=value)
    return value


def _block(source: Source, rows: _Rows, header: jsonl.Record | None, asked: int | None) -> tuple[int, str | None]:
    """Tokens of a block, 0 without hashes, and a line for the provenance."""
    option = "trace.options.block_tokens"
    if not any(rows.hashes):
        return 0, "no hash_ids, and so no prefixes known"
    if header is not None:
        if asked is not None and asked != header["block_size"]:
            raise source.error(f"none, or {header['block_size']}, as the header says", column=option, value=asked)
        asked = int(header["block_size"])
    prompt, count = np.array(rows.prompt), np.array([len(hashes) for hashes in rows.hashes])
    fits = [b for b in _BLOCKS if (((count == -(-prompt // b)) | (count == prompt // b)) | (count == 0)).all()]
    if asked is None:
        if len(fits) != 1:
            found = ", ".join(map(str, fits)) or "none of " + ", ".join(map(str, _BLOCKS))
            raise source.error(
                f"{option}=N: the tokens of a block, which the file does not say ({found} fit)", column=option
            )
        return fits[0], f"blocks of {fits[0]} tokens, the power of two that fits every row"
    bad = (count != -(-prompt // asked)) & (count != prompt // asked) & (count > 0)
    if bad.any():
        at = int(np.argmax(bad))
        expected = f"{prompt[at] // asked} or {-(-prompt[at] // asked)} ids: a block of {asked} tokens each"
        raise source.error(expected, row=rows.line[at], column="hash_ids", value=f"{count[at]} ids")
    return asked, None


def _clock(
    source: Source,
    rows: _Rows,
    service: NDArray[np.float64],
    second: bool,
    rate: float | None,
    seed: int,
) -> tuple[NDArray[np.float64], str | None]:
    """(n,) nominal starts from the first one, and what was drawn."""
    option = "trace.options.session_rate_per_s"
    floor = np.array(rows.floor_s)
    note = None
    plays = {play: number for number, play in enumerate(dict.fromkeys(rows.play))}
    play = np.array([plays[p] for p in rows.play])
    lowest = np.full(len(plays), np.inf)
    np.minimum.at(lowest, play, floor)
    if rate is not None:
        if not second:
            raise source.error("none: requests that wait for none have stamps", column=option, value=rate)
        begins = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(plays)))
        floor = floor - lowest[play] + begins[play]
        note = f"starts of {len(plays)} plays drawn: Poisson, {rate:g} a second, seed {seed}, in the order of the file"
    elif second and len(plays) > 1 and lowest.min() == lowest.max():
        expected = f"starts of plays, but all {len(plays)} start at one time: {option}=N draws Poisson starts"
        raise source.error(expected, column="not_before_ms")
    start = floor.copy()
    for at in _in_order(source, rows, second):
        for wait in rows.waits[at]:
            before = rows.request[wait.request]
            free = start[before] + (service[before] if wait.ended else 0.0)
            start[at] = max(start[at], free + wait.delay_s)
    return start - start.min(), note


def _in_order(source: Source, rows: _Rows, second: bool) -> list[int]:
    """Rows after all that they wait for."""
    missing = [len(waits) for waits in rows.waits]
    dependents: list[list[int]] = [[] for _ in rows.waits]
    for at, waits in enumerate(rows.waits):
        for wait in waits:
            dependents[rows.request[wait.request]].append(at)
    order = [at for at, count in enumerate(missing) if not count]
    for at in order:
        for after in dependents[at]:
            missing[after] -= 1
            if not missing[after]:
                order.append(after)
    if len(order) < len(missing):
        at = next(at for at, count in enumerate(missing) if count)
        column = "dependencies" if second else "wait_for"
        raise source.error("no ring of requests that wait for each other", row=rows.line[at], column=column)
    return order


def _streams(
    rows: _Rows, start: NDArray[np.float64], end: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(n,) row of the turn before (-1: none), session and turn: of one id's requests, those that do not overlap."""
    open_ends: dict[tuple[str, str], list[int]] = {}
    parent = np.full(start.size, -1, np.int64)
    session, turn = np.arange(start.size), np.ones(start.size, np.int64)
    for at in np.lexsort((end, start)).tolist():
        name = rows.session[at]
        if name is None:
            session[at] = -1
            continue
        waiting = open_ends.setdefault((rows.play[at], name), [])
        done = [q for q in waiting if end[q] <= start[at]]
        if done:
            before = max(done, key=lambda q: end[q])
            waiting.remove(before)
            parent[at], session[at], turn[at] = before, session[before], turn[before] + 1
        waiting.append(at)
    return parent, session, turn


def _waits_for_that_alone(rows: _Rows, at: int, before: str, think_s: float) -> bool:
    waits = rows.waits[at]
    return len(waits) == 1 and waits[0].request == before and waits[0].ended and abs(waits[0].delay_s - think_s) < 1e-6


def _prompt_chains(rows: _Rows, full: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR prefix ids of the full prompt blocks; equal hashes of two plays are not equal blocks."""
    named: dict[tuple[str, int], int] = {}
    offsets = np.zeros(full.size + 1, np.int64)
    parts = []
    for at, (play, hashes) in enumerate(zip(rows.play, rows.hashes, strict=True)):
        kept = hashes[: full[at]]
        parts += [named.setdefault((play, one), len(named)) for one in kept]
        offsets[at + 1] = offsets[at] + len(kept)
    return offsets, chains.prefix_ids(offsets, np.array(parts, np.int64))


def sniff(name: str, head: bytes) -> bool:
    """True for the header of version 2, or a first line that waits or is waited for by name."""
    first = head.lstrip().split(b"\n", 1)[0]
    if not first.startswith(b"{"):
        return False
    return SCHEMA.encode() in first or (b'"request_id"' in first and b'"input_' in first and b'"wait_for"' in head)


FORMAT = Format(
    "mooncake_agentic", read, sniff, "Dynamo's agentic Mooncake JSONL: requests that wait for others by name"
)
