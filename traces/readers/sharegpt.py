"""Conversations as text: ShareGPT-style JSON, or OpenAI-style ``messages``; a list, or one object a line.

Sources: the ShareGPT_V3 files that serving benchmarks use, ``[{"id": ..., "conversations": [{"from": "human",
"value": ...}, ...]}, ...]``, read by vllm-project/vllm : vllm/benchmarks/datasets.py @
f2e97ddaf5902a9727f48b70d001b6117b8b8b12 (which takes the first two messages, whoever speaks, as prompt and answer);
LMSYS-Chat-1M and WildChat call the list ``conversation`` and its fields ``role`` and ``content``. The text is counted,
hashed and let go.

What is done to them
* A conversation is a session. Each answer is a turn: its prompt is everything before it, its output the answer (answers
  in a row are one). An answer that nothing precedes is no request, only context; nor is a question without an answer.
* ShareGPT_V3 cut long conversations into parts (``id`` ends in ``_0``, ``_17``, ...): each is a session of its own.
* There are no times: session starts are drawn, a Poisson process of ``rate_per_s``, in the order of the file; every
  think time is ``think_s``.
* Lengths and prefix chains come from the tokens (:mod:`traces.tokens`): one for the role of each message, then its
  text. So what conversations share, such as a system prompt, is found; an answer's blocks are those of the next
  prompt, since the text is all there is: reasoning that a model produced besides is not in it.
* Halves of surrogate pairs become U+FFFD, counted. Errors give places, known fields and types, nothing of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.hashing import block_hashes
from traces.prompts import json_object
from traces.readers.columns import check_utf8
from traces.readers.format import Format
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.tokens import ESTIMATE, Conversation, Tokenizer, load_tokenizer, placed, text_parts, well_formed
from traces.trace import Trace

LISTS = ("conversations", "conversation", "messages")
ROLES = {
    "user": ("human", "user"),
    "assistant": ("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call"),
    "system": ("system", "developer"),
    "tool": ("tool", "function", "function_response", "observation"),
}
_ROLE = {name: role for role, names in ROLES.items() for name in names}


def read(
    source: Source,
    *,
    tokenizer: str = ESTIMATE,
    rate_per_s: float | None = None,
    think_s: float | None = None,
    seed: int = 0,
    zero_output: str = "drop",
    max_turns: int | None = None,
    prefix_block_tokens: int = 16,
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
) -> Trace:
    """Read conversations.

    Args:
        source: the file.
        tokenizer: see :mod:`traces.tokens`.
        rate_per_s: rate of the drawn session starts; there is no default, as the file has no times.
        think_s: think time before every later turn; needed where a conversation has several.
        seed: of the starts.
        zero_output: turns whose answer is empty: ``drop`` them, ``error``, or count them as ``one`` token.
        max_turns: turns kept of a conversation; 1 makes single requests of them.
        prefix_block_tokens: tokens of a prefix block.
        assumed_ttft_s: assumed service before the first token, for nominal arrivals of later turns only.
        assumed_tpot_s: assumed service time an output token, likewise.

    Raises:
        TraceError: a bad conversation, message or option.
    """
    if rate_per_s is None:
        expected = "sessions a second: the file has no times, so arrivals are drawn at the rate that you give"
        raise source.error(expected, column="trace.options.rate_per_s")
    tokens = load_tokenizer(tokenizer, f"{source.path}: trace.options.tokenizer")
    turns = _Turns(source, tokens, prefix_block_tokens)
    for row, record in _conversations(source):
        with placed(source, row, "trace.options.tokenizer"):
            turns.take(record, row, max_turns)
    if not turns.prompt:
        raise source.error("a conversation with an answer", value="none")
    rows = np.array(turns.rows)
    keep, output, zero_note = zero_outputs(pl.Series("output", turns.output, pl.Int64), zero_output, (source, rows))
    frame = pl.DataFrame(
        {"session": turns.session, "prompt_tokens": turns.prompt, "output_tokens": output, "model": turns.model}
    ).with_row_index("row")
    frame = frame.filter(pl.Series(keep)).with_columns(
        turn=pl.int_range(1, pl.len() + 1).over("session"), start=pl.col("session").rank("dense") - 1
    )
    later = frame["turn"] > 1
    if later.any() and think_s is None:
        expected = (
            f"seconds to think before each of {int(later.sum())} later turns, which the file does not say; "
            "trace.options.max_turns=1 makes do without"
        )
        raise source.error(expected, column="trace.options.think_s")
    starts = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, int(frame["start"].n_unique())))
    starts -= starts[0]
    service = assumed_ttft_s + assumed_tpot_s * pl.col("output_tokens")
    step = pl.when(pl.col("turn") > 1).then(service.shift(1).over("session") + (think_s or 0.0)).otherwise(0.0)
    since = frame.select(step.cum_sum().over("session")).to_series().to_numpy()
    chains = [turns.chains[i] for i in frame["row"]]
    offsets = np.zeros(len(chains) + 1, np.int64)
    np.cumsum([chain.size for chain in chains], out=offsets[1:])
    closed = bool(later.any())
    notes = (
        source.provenance,
        f"{tokens.note}; one token a message for its role",
        f"repair: {tokens.mended} texts had halves of surrogate pairs, now U+FFFD" if tokens.mended else None,
        turns.note,
        zero_note,
        f"arrivals drawn: Poisson, {rate_per_s:g} sessions a second, seed {seed}, in the order of the file",
        f"every think time is {think_s:g} s, as given" if closed else None,
        f"prefixes from the text, blocks of {prefix_block_tokens} tokens",
    )
    return Trace.build(
        source.stem,
        {
            "arrival_s": starts[frame["start"].to_numpy()] + since,
            "session": frame["session"],
            "turn": frame["turn"],
            "think_s": pl.select(pl.when(later).then(pl.lit(think_s, pl.Float64))).to_series(),
            "prompt_tokens": frame["prompt_tokens"],
            "output_tokens": frame["output_tokens"],
            **({"model": frame["model"]} if frame["model"].null_count() < frame.height else {}),
        },
        chain_offsets=offsets,
        chain_ids=np.concatenate(chains),
        prefix_block_tokens=prefix_block_tokens,
        replay="closed" if closed else "open",
        provenance=[note for note in notes if note],
        duration_s=float(starts[-1]) + 1 / rate_per_s,
    )


def _conversations(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place in the list or line, from 1; object) of every conversation; one object is held at a time."""
    check_utf8(source)
    text = source.data.decode("utf-8").removeprefix("\ufeff")
    begin = len(text) - len(text.lstrip())
    if not text.startswith("[", begin):
        for row, line in enumerate(source.data.split(b"\n"), start=1):
            if line.strip():
                yield row, json_object(line, row, source)
        return
    decoder, at, row = json.JSONDecoder(), begin + 1, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if text.startswith("]", at):
            break
        row += 1
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            where = f" ({error})" if isinstance(error, json.JSONDecodeError) else ""
            raise source.error(f"a JSON list of conversations{where}", row=row) from None
        if not isinstance(record, dict):
            raise source.error("a conversation, which is a JSON object", row=row, value=type(record).__name__)
        yield row, record
    if not row:
        raise source.error("at least one conversation", value="an empty list")


class _Turns:
    """Turns of all conversations, one list a column."""

    def __init__(self, source: Source, tokenizer: Tokenizer, block_tokens: int) -> None:
        self.source, self.tokenizer, self.block_tokens = source, tokenizer, block_tokens
        self.rows: list[int] = []
        self.session: list[int] = []
        self.prompt: list[int] = []
        self.output: list[int] = []
        self.model: list[str | None] = []
        self.chains: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._conversations = self._unasked = self._unanswered = self._empty = 0

    @property
    def note(self) -> str:
        """One line for the provenance."""
        return (
            f"{self._conversations} conversations, {self._empty} of them without a turn; {self._unasked} begin with an "
            f"answer, which is context only, {self._unanswered} end with a question that has none"
        )

    def take(self, record: dict[str, Any], row: int, max_turns: int | None) -> None:
        """The turns of one conversation."""
        self._conversations += 1
        name, messages = self._messages(record, row)
        model = record.get("model")
        talk, before, spans = Conversation(self.tokenizer.encode), "", list[tuple[int, int]]()
        asked = unasked = False
        for place, message in enumerate(messages, start=1):
            role, texts = self._message(message, row, f"{name}[{place}]")
            if role == "assistant" and before == role and spans:
                begin = spans.pop()[0]  # answers in a row are one
            elif max_turns is not None and len(spans) == max_turns:
                break
            else:
                talk.open(role)
                begin = len(talk.tokens)
            for text in texts:
                talk.add(text)
            if role == "assistant" and asked:
                spans.append((begin, len(talk.tokens)))
            unasked |= role == "assistant" and not asked
            asked |= role != "assistant" and role != "system"
            before = role
        self._unasked += unasked
        self._unanswered += before not in ("", "assistant")
        self._empty += not spans
        hashes = np.array(block_hashes(talk.tokens, self.block_tokens), np.int64)
        for begin, end in spans:
            if end > MAX_TOKENS:
                raise self.source.error(f"at most {MAX_TOKENS:,} tokens", row=row, column=name, value=end)
            self.rows.append(row)
            self.session.append(self._conversations)
            self.prompt.append(begin)
            self.output.append(end - begin)
            self.model.append(well_formed(model) if isinstance(model, str) and model else None)
            self.chains.append(hashes[: end // self.block_tokens])

    def _messages(self, record: dict[str, Any], row: int) -> tuple[str, list[Any]]:
        name = next((name for name in LISTS if name in record), None)
        if name is None:
            hint = next((h for h in (nearest(word, LISTS) for word in record) if h), "")
            raise self.source.error(f"one of {', '.join(LISTS)}{hint}", row=row, column="conversations")
        if not isinstance(record[name], list):
            raise self.source.error("a list of messages", row=row, column=name, value=type(record[name]).__name__)
        return name, record[name]

    def _message(self, message: object, row: int, place: str) -> tuple[str, list[str]]:
        if not isinstance(message, Mapping):
            expected = "a message, which is a JSON object"
            raise self.source.error(expected, row=row, column=place, value=type(message).__name__)
        said = message.get("role", message.get("from"))
        role = _ROLE.get(said.lower()) if isinstance(said, str) else None
        if role is None:
            expected = f"one of {', '.join(_ROLE)}{nearest(str(said), _ROLE)}"
            found = "another text" if isinstance(said, str) else type(said).__name__
            column = f"{place}.{'role' if 'role' in message else 'from'}"
            raise self.source.error(expected, row=row, column=column, value=found)
        key = "content" if "content" in message else "value"
        texts = text_parts(message.get(key))
        if texts is None:
            found = type(message.get(key)).__name__
            raise self.source.error("text", row=row, column=f"{place}.{key}", value=found)
        return role, list(texts)


def sniff(name: str, head: bytes) -> bool:
    """True for JSON with ShareGPT's fields, or with messages and no times (a log with times has other readers)."""
    if not head.lstrip().startswith((b"[", b"{")):
        return False
    if b'"conversations"' in head and b'"from"' in head:
        return True
    named = b'"messages"' in head or b'"conversation"' in head
    return named and b'"role"' in head and not any(word in head for word in (b'"timestamp"', b'"arrival', b'"created"'))


FORMAT = Format("sharegpt", read, sniff, "conversations as text: ShareGPT JSON or OpenAI messages, without times")
