"""One published coding-agent session, a JSON object, as checked arrays: see :mod:`traces.readers.agentic_json`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import jsonl
from traces.readers.agentic_streams import FILE_BLOCK_TOKENS
from traces.source import Source

_MAX_ID = 2**40
_MAX_S = 1e10
_TYPES = ("s", "n")
_SUBAGENT = "subagent"


@dataclass(eq=False)
class Stream:
    """The requests of a session, or of one of its sub-agents.

    Attributes:
        agent: empty for the session itself.
        launched_s: when a sub-agent started, seconds from the start of its session; 0 for the session itself.
        tool_tokens: tokens of its tool definitions, 0 if unknown.
        system_tokens: tokens of its system prompt, 0 if unknown.
        rows: (n,) place of each request in its list, from 1; for errors.
        t, prompt, output: (n,) seconds from its start, tokens, tokens.
        api, think, ttft: (n,) seconds, NaN where not recorded.
        models: (n,) names.
        chains: n arrays of ids, coarsened.
        repeats: (n,) whether a prompt begins with every full block of the prompt before it.
        shrunk_blocks: full blocks of those prompts that a shorter one follows, and how many of them that one keeps.
    """

    agent: str
    launched_s: float
    tool_tokens: int
    system_tokens: int
    rows: list[int] = field(default_factory=list)
    t: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    api: list[float] = field(default_factory=list)
    think: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    chains: list[NDArray[np.int64]] = field(default_factory=list)
    repeats: list[bool] = field(default_factory=list)
    shrunk_blocks: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Session:
    """A session.

    Attributes:
        source: its file, for errors.
        local: whether its ids mean something inside it only.
        streams: its own requests first (possibly none), then each sub-agent's.
        digest: equal for exact copies.
    """

    source: Source
    local: bool
    streams: list[Stream]
    digest: bytes


def parse_session(source: Source, data: bytes, block_tokens: int) -> Session:
    """Check and take apart one file.

    Args:
        source: the file, for errors.
        data: its bytes.
        block_tokens: block of the trace, a multiple of the file's.

    Raises:
        TraceError: no such JSON object; names the file, the request (row, from 1, as listed; those of a sub-agent are
            counted inside it) and the field.
    """
    try:
        session = jsonl.sound(json.loads(data), data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise source.error(f"a JSON object ({error})", value=data[:40]) from error
    if not isinstance(session, dict) or not isinstance(session.get("requests"), list):
        raise source.error("a JSON object with a list of requests", column="requests", value=type(session).__name__)
    block = jsonl.whole(session, "block_size", 1, MAX_TOKENS, "tokens of a block", None, source)
    if block != FILE_BLOCK_TOKENS:
        raise source.error(f"blocks of {FILE_BLOCK_TOKENS} tokens", column="block_size", value=block)
    scope = session.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise source.error("local or global", column="hash_id_scope", value=scope)
    taker = _Taker(source, block_tokens // FILE_BLOCK_TOKENS)
    streams = [Stream("", 0.0, *_head_tokens(session, None, source))]
    for row, request in enumerate(session["requests"], start=1):
        if not isinstance(request, dict):
            raise source.error("a JSON object", row=row, column="requests", value=request)
        if request.get("type") != _SUBAGENT:
            taker.take(streams[0], request, row)
            continue
        if not isinstance(request.get("requests"), list) or not request["requests"]:
            raise source.error("the requests of the sub-agent", row=row, column="requests")
        tokens = _head_tokens(request, row, source)
        agent = f"{request.get('agent_id', 'subagent')} (row {row})"
        streams.append(Stream(agent, _launched(request, row, source), *tokens))
        for at, inner in enumerate(request["requests"], start=1):
            if not isinstance(inner, dict):
                raise source.error("a JSON object", row=at, column=f"{agent}.requests", value=inner)
            taker.take(streams[-1], inner, at)
    if not any(stream.t for stream in streams):
        raise source.error("at least one request", column="requests", value="none")
    taker.check_ids()
    return Session(source, scope == "local", streams, taker.digest.digest())


def _head_tokens(record: dict[str, Any], row: int | None, source: Source) -> tuple[int, int]:
    tools, system = (
        jsonl.whole(record, name, 0, MAX_TOKENS, "tokens", row, source) if record.get(name) is not None else 0
        for name in ("tool_tokens", "system_tokens")
    )
    return tools, system


def _launched(record: dict[str, Any], row: int, source: Source) -> float:
    """A sub-agent's start: its stamp is its end where it has a duration, else its launch."""
    stamp = jsonl.number(record, "t", 0, _MAX_S, "s", row, source)
    if record.get("duration_ms") is None:
        return stamp
    return max(stamp - jsonl.number(record, "duration_ms", 0, _MAX_S, "ms", row, source) / 1000, 0.0)


class _Taker:
    """Takes the requests of one session, in order of the file."""

    def __init__(self, source: Source, fold: int) -> None:
        self.source, self.fold = source, fold
        self._before: dict[str, NDArray[np.int64]] = {}  # ids of the prompt before, by stream
        self.digest = hashlib.sha256()
        self._ids: list[NDArray[np.int64]] = []
        self._places: list[tuple[str, int]] = []

    def take(self, stream: Stream, record: dict[str, Any], row: int) -> None:
        source = self.source
        if record.get("type") not in _TYPES:
            expected = f"one of {', '.join(_TYPES)}" + ("" if stream.agent else f", {_SUBAGENT}")
            raise source.error(expected, row=row, column="type", value=record.get("type"))
        t = jsonl.number(record, "t", 0, _MAX_S, "s", row, source)
        if stream.t and t < stream.t[-1]:
            raise source.error("requests in order of time", row=row, column="t", value=t)
        prompt = jsonl.whole(record, "in", 1, MAX_TOKENS, "tokens", row, source)
        output = jsonl.whole(record, "out", 0, MAX_TOKENS, "tokens", row, source)
        ids = self._hashes(record, prompt, row)
        self.digest.update(repr((stream.agent, t, prompt, output)).encode())
        self.digest.update(ids.tobytes())
        before = self._before.get(stream.agent, ids[:0])
        kept = _common(before, ids)
        if stream.t and prompt < stream.prompt[-1]:
            blocks, of_them = stream.shrunk_blocks
            stream.shrunk_blocks = (blocks + before.size, of_them + kept)
        stream.repeats.append(bool(stream.t) and kept == before.size)
        stream.rows.append(row)
        stream.t.append(t)
        stream.prompt.append(prompt)
        stream.output.append(output)
        for values, name in ((stream.api, "api_time"), (stream.think, "think_time"), (stream.ttft, "ttft")):
            there = record.get(name) is not None
            values.append(jsonl.number(record, name, 0, _MAX_S, "s", row, source) if there else np.nan)
        stream.models.append(str(record.get("model", "")))
        stream.chains.append(ids[self.fold - 1 :: self.fold])
        self._ids.append(ids)
        self._places.append((stream.agent, row))
        self._before[stream.agent] = ids

    def _hashes(self, record: dict[str, Any], prompt: int, row: int) -> NDArray[np.int64]:
        values = record.get("hash_ids")
        ids = _whole(values) if isinstance(values, list) else None
        if ids is None or (ids.size and not 0 <= ids.min() <= ids.max() <= _MAX_ID):
            ids = np.array(jsonl.whole_list(record, "hash_ids", 0, _MAX_ID, row, self.source), np.int64)
        full = prompt // FILE_BLOCK_TOKENS
        if not full <= ids.size <= full + 1:
            expected = f"{full} ids: one for each full block of {FILE_BLOCK_TOKENS} tokens of {prompt}"
            raise self.source.error(expected, row=row, column="hash_ids", value=f"{ids.size} ids")
        return ids[:full].astype(np.int64, copy=False)

    def check_ids(self) -> None:
        """Raise unless an id always stands behind the same id: it must name the whole prefix."""
        ids = np.concatenate(self._ids)
        if not ids.size:
            return
        behind = np.concatenate([np.r_[np.int64(-1), chain[:-1]][: chain.size] for chain in self._ids])
        names, place = np.unique(ids, return_inverse=True)
        first = np.empty(names.size, np.int64)
        first[place[::-1]] = behind[::-1]
        bad = first[place] != behind
        if bad.any():
            at = int(np.argmax(bad))
            ends = np.cumsum([chain.size for chain in self._ids])
            agent, row = self._places[int(np.searchsorted(ends, at, side="right"))]
            column = f"{agent}.hash_ids" if agent else "hash_ids"
            expected = "an id to name the whole prefix: always behind the same id"
            raise self.source.error(expected, row=row, column=column, value=int(ids[at]))


def _whole(values: list[object]) -> NDArray[np.int64] | None:
    """A list as an array, None if it is not one of whole numbers: much faster than to look at each."""
    try:
        array = np.array(values or [0])
    except (ValueError, OverflowError):
        return None
    return array[: len(values)] if array.dtype == np.int64 and array.ndim == 1 else None


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Number of leading ids that two chains have in common."""
    n = min(one.size, other.size)
    differ = one[:n] != other[:n]
    return int(np.argmax(differ)) if differ.any() else n
