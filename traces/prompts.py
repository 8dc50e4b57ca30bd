"""A prompt log becomes a table of lengths and block hashes: the text is read, counted, hashed and let go.

One JSON object a line (gzip and zstd are opened):

* ``prompt``: text, or token ids; or ``messages``: OpenAI-style ``[{"role": ..., "content": ...}, ...]``.
* ``output``, ``completion`` or ``response``: the answer's text (``response`` may be an OpenAI response object); or
  ``output_tokens`` or ``completion_tokens``: its length. With both, the recorded length counts.
* ``arrival_s`` (``_ms``, ``_us``, ``_ns``), ``arrival``, ``timestamp`` (``timestamp_ms``, ...), ``time``, ``ts``,
  ``created`` or ``created_at``: seconds or epoch stamps, or ISO 8601. Absent: drawn, if a rate is given.
* ``session``, ``session_id``, ``conversation_id`` or ``chat_id``; ``tenant`` or ``user``: become numbers by first
  appearance. ``model`` (a name without blanks), ``max_output_tokens`` (``max_tokens``), ``ttft_s``, ``tpot_s``,
  ``e2e_s``: kept as they are.

Other fields are not read and not written. Any value, and any name of a field that is not listed here, may be text of a
prompt or a user's name: errors and notes give rows, fields listed here, types and counts, and nothing else.

An answer's blocks are in the chain if its text is all that was produced. A recorded length beyond the text's (by more
than the end token; by more than a quarter, where lengths are estimated) says that thinking or tool calls came with it,
which stand before or between what is there: then the cache holds no block that a later prompt can use, and the chain
ends with the prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.hashing import block_hashes
from traces.readers.naming import unit_of
from traces.readers.turns import NO_SESSION, none_note
from traces.source import Source
from traces.tokens import MAX_ID, Conversation, Tokenizer, placed, text_parts

_STEMS = ("arrival", "timestamp", "time", "ts", "created", "created_at")
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_IN_UNITS = tuple(f"{stem}_{unit}" for stem in ("arrival", "timestamp", "ts") for unit in ("ms", "us", "ns"))
ARRIVAL = ("arrival_s", *_STEMS, *_IN_UNITS)
OUTPUT_TEXT = ("output", "completion", "response")
OUTPUT_TOKENS = ("output_tokens", "completion_tokens")
SESSION = ("session", "session_id", "conversation_id", "chat_id")
TENANT = ("tenant", "user")
LIMIT = ("max_output_tokens", "max_tokens")
TIMES = ("ttft_s", "tpot_s", "e2e_s")
_MODEL = ("model",)
_MODEL_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")  # no blanks: a text that got here by mistake is refused
_KNOWN = ("prompt", "messages", *ARRIVAL, *OUTPUT_TEXT, *OUTPUT_TOKENS, *SESSION, *TENANT, *LIMIT, *TIMES, *_MODEL)
_MAX_STAMP = 2**63 - 1
_EPOCH_S = (631_152_000, 4_102_444_800)  # 1990 to 2100
_MAX_SPAN_S = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is kept of a request.

    Attributes:
        arrival: stamp as recorded, None if there is none; date-times as seconds since 1970.
        unit: unit that the stamp's name says, or None.
        prompt_tokens: length.
        output_tokens: length.
        hash_ids: ids of the full blocks of the prompt, and of the answer if its text is all that was produced.
        others: columns by their name in a table.
    """

    arrival: float | int | None
    unit: str | None
    prompt_tokens: int
    output_tokens: int
    hash_ids: list[int]
    others: dict[str, Any]


@dataclass
class PromptLog:
    """Reads a prompt log, line by line.

    Attributes:
        source: the file.
        tokenizer: counts and cuts.
        block_tokens: tokens of a block.
        key: the salt.
        requests: read so far.
        unread: fields that were passed over so far, and the requests that had any.
        nameless: sessions so far that were called null, NaN, or so: they are none.
        broken_off: answers so far that are longer than their text, whose blocks are left out.
    """

    source: Source
    tokenizer: Tokenizer
    block_tokens: int
    key: bytes = field(repr=False)
    requests: int = 0
    unread: tuple[int, int] = (0, 0)
    nameless: int = 0
    broken_off: int = 0
    _sessions: dict[str, int] = field(default_factory=dict, repr=False)
    _tenants: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def notes(self) -> list[str]:
        """Lines on what was passed over, left out or mended so far."""
        found = []
        if self.unread[0]:
            fields, requests = self.unread
            found.append(
                f"{fields:,} fields not read, on {requests:,} of {self.requests:,} requests "
                "(not named here, as names of fields may hold text, too)"
            )
        if note := none_note(self.nameless):
            found.append(note)
        if self.broken_off:
            found.append(
                f"{self.broken_off:,} of {self.requests:,} answers are longer than their text (thinking or tool calls "
                "that are not in the log): their blocks are left out"
            )
        if self.tokenizer.mended:
            found.append(f"repair: {self.tokenizer.mended:,} texts had halves of surrogate pairs, now U+FFFD")
        return found

    def rows(self, read_bytes: Callable[[int], None] = lambda n: None) -> Iterator[Prompt]:
        """Every request, in order.

        Args:
            read_bytes: told the bytes of each line.

        Raises:
            TraceError: a bad line or field, named by line; never with its text.
        """
        with self.source.open() as stream:
            for row, line in enumerate(stream, start=1):
                read_bytes(len(line))
                if line.strip():
                    self.requests += 1
                    with placed(self.source, row, self.tokenizer.setting):
                        prompt = self._row(json_object(line, row, self.source), row)
                    yield prompt
        if not self.requests:
            raise self.source.error("at least one request", value="an empty file")

    def _row(self, record: dict[str, Any], row: int) -> Prompt:
        unread = sum(name not in _KNOWN for name in record)
        self.unread = (self.unread[0] + unread, self.unread[1] + bool(unread))
        tokens = self._prompt(record, row)
        prompt_tokens = len(tokens)
        if not 1 <= prompt_tokens <= MAX_TOKENS:
            name = "messages" if "messages" in record else "prompt"
            raise self.source.error(
                f"1 to {MAX_TOKENS:,} tokens", row=row, column=name, value=f"{prompt_tokens} tokens"
            )
        text, output_tokens = self._output(record, row)
        if text is not None:
            answer = self.tokenizer.encode(text)
            output_tokens = len(answer) if output_tokens is None else output_tokens
            if output_tokens <= 1 + len(answer) + (0 if self.tokenizer.exact else len(answer) // 4):
                tokens = [*tokens, *answer][: prompt_tokens + output_tokens]
            else:
                self.broken_off += 1
        if output_tokens is None:
            expected = f"one of {', '.join(OUTPUT_TEXT + OUTPUT_TOKENS)}"
            raise self.source.error(expected, row=row, column="output_tokens")
        hash_ids = block_hashes(tokens, self.block_tokens, self.key)
        arrival, unit = self._arrival(record, row)
        return Prompt(arrival, unit, prompt_tokens, output_tokens, hash_ids, self._others(record, row))

    def _prompt(self, record: dict[str, Any], row: int) -> list[int]:
        """Token ids."""
        if ("prompt" in record) == ("messages" in record):
            names = ("prompt", "messages")
            there = "both" if "prompt" in record else f"neither, in {len(record)} fields"
            hint = "" if "prompt" in record else next((h for h in (nearest(name, names) for name in record) if h), "")
            raise self.source.error(f"a prompt or messages, one of them{hint}", row=row, column="prompt", value=there)
        encode = self.tokenizer.encode
        if "messages" in record:
            talk = Conversation(encode)
            for at, message in enumerate(self._list(record["messages"], row)):
                role, texts = _message(message)
                if role is None or texts is None:
                    expected = "messages with a role, and a content that is text or a list of parts"
                    raise self.source.error(expected, row=row, column="messages", value=f"message {at + 1} is another")
                talk.open(role)
                for text in texts:
                    talk.add(text)
            talk.open("assistant")
            return talk.tokens
        prompt = record["prompt"]
        if isinstance(prompt, str):
            return encode(prompt)
        whole = isinstance(prompt, list) and all(type(i) is int and 0 <= i <= MAX_ID for i in prompt)
        if not whole:
            found = type(prompt).__name__
            raise self.source.error("text, or a list of token ids", row=row, column="prompt", value=found)
        return list(prompt)

    def _list(self, messages: object, row: int) -> list[Any]:
        if not isinstance(messages, list) or not messages:
            found = type(messages).__name__ if not isinstance(messages, list) else "an empty list"
            raise self.source.error("a list of messages", row=row, column="messages", value=found)
        return messages

    def _output(self, record: dict[str, Any], row: int) -> tuple[str | None, int | None]:
        """The answer's text and its recorded length, as far as they are there."""
        name, value = _first(record, OUTPUT_TEXT)
        counted: Any = None
        if isinstance(value, dict):  # an OpenAI response
            usage = value.get("usage")
            counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
            value = _answer(value)
        if value is not None and not isinstance(value, str):
            raise self.source.error("the answer's text", row=row, column=name, value=type(value).__name__)
        count_name, given = _first(record, OUTPUT_TOKENS)
        count = counted if given is None else given
        if count is not None and (type(count) is not int or not 0 <= count <= MAX_TOKENS):
            column = count_name or f"{name}.usage.completion_tokens"
            expected = f"a whole number of tokens up to {MAX_TOKENS:,}"
            raise self.source.error(expected, row=row, column=column, value=_kind(count))
        return value, count

    def _arrival(self, record: dict[str, Any], row: int) -> tuple[float | int | None, str | None]:
        name, value = _first(record, ARRIVAL)
        if value is None:
            return None, None
        expected = "a time: a number of 0 or more, or such as 2026-01-31T23:59:59.5Z"
        if isinstance(value, str):
            try:
                return _number(value), unit_of(name)
            except ValueError:
                pass
            try:
                stamp = datetime.fromisoformat(value)
                return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp(), "s"
            except (ValueError, OverflowError):
                raise self.source.error(expected, row=row, column=name, value="text that is no time") from None
        if type(value) not in (int, float) or not 0 <= value <= _MAX_STAMP:
            raise self.source.error(expected, row=row, column=name, value=_kind(value))
        return value, unit_of(name)

    def _others(self, record: dict[str, Any], row: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for column, names, numbers in (("session", SESSION, self._sessions), ("tenant", TENANT, self._tenants)):
            name, key = _first(record, names)
            if key is None or key in ("", -1):
                continue
            if isinstance(key, str) and key.strip().lower() in NO_SESSION:
                self.nameless += column == "session"
                continue
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise self.source.error("text or a number", row=row, column=name, value=type(key).__name__)
            number = numbers.setdefault(str(key), len(numbers))
            found[column] = number if column == "session" else f"tenant_{number}"
        name, model = _first(record, _MODEL)
        if model is not None:
            if not isinstance(model, str) or not _MODEL_NAME.fullmatch(model):
                expected = "a name of up to 128 letters, digits and ._:/@+- (it is written as it is), or none"
                found_kind = "text of another kind" if isinstance(model, str) else _kind(model)
                raise self.source.error(expected, row=row, column=name, value=found_kind)
            found["model"] = model
        for column in ("max_output_tokens", *TIMES):
            name, value = _first(record, LIMIT if column == "max_output_tokens" else (column,))
            if value is None:
                continue
            limit = column == "max_output_tokens"
            right = isinstance(value, int if limit else int | float) and not isinstance(value, bool)
            if not right or not int(limit) <= value <= 1e10:
                expected = f"a {'whole ' if limit else ''}number from {int(limit)} to 1e10"
                raise self.source.error(expected, row=row, column=name, value=_kind(value))
            found[column] = value if limit else float(value)
        return found


def seconds_from_start(
    stamps: Sequence[float | int], unit: str | None, source: Source
) -> tuple[NDArray[np.float64], str]:
    """(n,) seconds from the earliest of ``stamps``, and a line on what they were taken for.

    Args:
        stamps: as recorded.
        unit: what their name says; None: epoch stamps by their size, else seconds.
        source: for errors.
    """
    low, high = min(stamps), max(stamps)
    epoch = next((u for u, per_s in _UNITS.items() if _EPOCH_S[0] <= low / per_s <= _EPOCH_S[1]), None)
    if epoch and unit not in (None, epoch):
        expected = f"epoch stamps in {unit}, as their name says; these are such in {epoch}: rename the field"
        raise source.error(expected, column="arrival")
    unit = epoch or unit or "s"
    if high - low > _MAX_SPAN_S * _UNITS[unit]:
        expected = f"a span of at most ten years, in {unit}: name the field after its unit (arrival_ms)"
        raise source.error(expected, column="arrival", value=f"{(high - low) / _UNITS[unit]:.3g} s")
    kind = f"epoch stamps in {unit}" if epoch else unit
    seconds = np.array([(stamp - low) / _UNITS[unit] for stamp in stamps])
    return seconds, f"arrivals: {kind}, from the earliest"


def json_object(line: bytes, row: int, source: Source) -> dict[str, Any]:
    """The JSON object on a line; errors hold nothing of the line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        where = f" ({error.msg} at character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else ""
        raise source.error(f"one JSON object a line, in UTF-8{where}", row=row) from None
    if not isinstance(record, dict):
        raise source.error("one JSON object a line", row=row, value=type(record).__name__)
    return record


def _message(message: object) -> tuple[str | None, list[str] | None]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None, None
    texts = text_parts(message.get("content"))
    return message["role"], None if texts is None else list(texts)


def _answer(response: dict[str, Any]) -> object:
    """The text in an OpenAI response: ``choices[0].message.content`` or ``choices[0].text``."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return None
    message = first.get("message")
    return message.get("content") if isinstance(message, dict) else first.get("text")


def _first(record: dict[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    """The first of ``names`` that has a value, and the value; the empty name and None if none has."""
    return next(((name, record[name]) for name in names if record.get(name) is not None), ("", None))


def _number(text: str) -> float | int:
    value = float(text)
    if not 0 <= value <= _MAX_STAMP:
        raise ValueError
    return int(text) if text.strip().isdigit() else value


def _kind(value: object) -> str:
    """What an error may say of a value."""
    return "another number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
