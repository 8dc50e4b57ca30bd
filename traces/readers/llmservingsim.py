"""LLMServingSim workloads: JSON lines of requests, or of agentic sessions.

Schema: casys-kaist/LLMServingSim : workloads/README.md @ 0d3de681adbd9c515fc378e94e3e625b6e250dad; the files at hand
are of 5daddb21a545658d5150b535712d0494584b5278, without token ids. A flat line has ``input_toks``, ``output_toks``,
``arrival_time_ns`` (ns from the start) and perhaps ``input_tok_ids`` and ``output_tok_ids``. A session has
``session_id``, ``arrival_time_ns`` and ``sub_requests``: calls with lengths, perhaps token ids, and
``tool_duration_ns`` from their end to the next call. Both kinds may stand in one file.

What is done to them
* Token ids become prefix chains of full blocks, over prompt and output. Without ids nothing is known of prefixes.
* Sessions are replayed in a closed loop; arrivals of their later calls are nominal, with an assumed service time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import chains, jsonl
from traces.readers.columns import order_of
from traces.readers.format import Format
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace
from traces.transform import gather_chains

_MAX_NS = 10 * 365 * 86_400 * 10**9
_MAX_TOKEN_ID = 2**40
_BLOCK_TOKENS = 16


@dataclass(eq=False)
class _Calls:
    """What the lines say, one entry a request."""

    row: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)  # of its line
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    wait_ns: list[int] = field(default_factory=list)  # from its end to the next call of its session
    blocks: list[NDArray[np.int64]] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    with_ids: int = 0


def read(
    source: Source,
    *,
    sort: bool = False,
    zero_output: str = "error",
    prefix_block_tokens: int | None = None,
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
    implausible: str = "ask",
) -> Trace:
    """Read an LLMServingSim workload.

    Args:
        source: the file.
        sort: repair lines that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them (refused where there are sessions), or count
            them as ``one`` token.
        prefix_block_tokens: tokens of a prefix block, for files with token ids; None: 16.
        assumed_ttft_s: assumed service before the first token, for the nominal arrivals of later calls.
        assumed_tpot_s: assumed service time an output token, likewise.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad line, field, length or option.
    """
    block = _BLOCK_TOKENS if prefix_block_tokens is None else prefix_block_tokens
    calls = _parse(source, block)
    if prefix_block_tokens is not None and not calls.with_ids:
        expected = "a file with token ids (input_tok_ids) with it: nothing is known of prefixes here"
        raise source.error(expected, column="trace.options.prefix_block_tokens", value=block)
    session, turn = np.array(calls.session), np.array(calls.turn)
    agentic = bool((session >= 0).any())
    if agentic and zero_output == "drop":
        expected = "error or one: dropping a call would tear its session"
        raise source.error(expected, column="trace.options.zero_output", value="drop")
    rows, start_ns = np.array(calls.row), np.array(calls.start_ns)
    keep, outputs, zero_note = zero_outputs(pl.Series("output_toks", calls.output), zero_output, (source, rows))
    check_rate((source, rows), start_ns / 1e9, "arrival_time_ns", implausible)
    order = order_of(start_ns, calls.row, "arrival_time_ns", sort, source, calls.start_ns)
    place = np.arange(rows.size) if order.index is None else order.index
    index = place[keep[place]]

    output = outputs.to_numpy()
    later = turn > 1
    think = np.where(later, np.roll(calls.wait_ns, 1) / 1e9, np.nan)
    service = assumed_ttft_s + assumed_tpot_s * output
    behind = np.cumsum(np.where(later, np.roll(service, 1) + np.nan_to_num(think), 0.0))
    arrival = start_ns / 1e9 + behind - behind[np.arange(rows.size) - (turn - 1)]
    offsets, ids = gather_chains(*_chains(calls), index)
    notes = [source.provenance, order.note, zero_note, _prefix_note(calls, block)]
    if agentic:
        notes.append(
            f"{int((session >= 0).sum())} requests in {int(session.max()) + 1} sessions, think time = "
            f"tool_duration_ns; arrivals of later calls are nominal, with an assumed service of {assumed_ttft_s:g} s "
            f"+ {assumed_tpot_s:g} s a token"
        )
    return Trace.build(
        source.stem,
        {
            "arrival_s": arrival[index],
            "session": session[index],
            "turn": turn[index],
            "think_s": pl.Series(think[index]).fill_nan(None),
            "prompt_tokens": np.array(calls.prompt)[index],
            "output_tokens": output[index],
        },
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block if calls.with_ids else 0,
        replay="closed" if agentic else "open",
        provenance=[note for note in notes if note],
        duration_s=float(start_ns.max()) / 1e9,
    )


def _parse(source: Source, block_tokens: int) -> _Calls:
    calls, sessions = _Calls(), 0
    for row, record in jsonl.records(source):
        start = jsonl.whole(record, "arrival_time_ns", 0, _MAX_NS, "ns from the start", row, source)
        if "sub_requests" not in record:
            _add(calls, record, row, start, -1, 1, 0, block_tokens, source)
            continue
        chain = record["sub_requests"]
        if not isinstance(chain, list) or not chain or not all(isinstance(call, dict) for call in chain):
            raise source.error("a list of one or more calls", row=row, column="sub_requests", value=chain)
        for turn, call in enumerate(chain, start=1):
            last = turn == len(chain)
            wait = 0 if last else jsonl.whole(call, "tool_duration_ns", 0, _MAX_NS, "ns", row, source)
            _add(calls, call, row, start, sessions, turn, wait, block_tokens, source)
        sessions += 1
    return calls


def _add(
    calls: _Calls,
    call: jsonl.Record,
    row: int,
    start_ns: int,
    session: int,
    turn: int,
    wait_ns: int,
    block_tokens: int,
    source: Source,
) -> None:
    prompt = jsonl.whole(call, "input_toks", 1, MAX_TOKENS, "tokens", row, source)
    output = jsonl.whole(call, "output_toks", 0, MAX_TOKENS, "tokens", row, source)
    text: list[int] = []
    for column, tokens in (("input_tok_ids", prompt), ("output_tok_ids", output)):
        if call.get(column) is None or (column == "output_tok_ids" and not text):
            break
        part = jsonl.whole_list(call, column, 0, _MAX_TOKEN_ID, row, source)
        if len(part) != tokens:
            raise source.error(f"{tokens} token ids", row=row, column=column, value=f"{len(part)} ids")
        text += part
    calls.row.append(row)
    calls.start_ns.append(start_ns)
    calls.session.append(session)
    calls.turn.append(turn)
    calls.wait_ns.append(wait_ns)
    calls.prompt.append(prompt)
    calls.output.append(output)
    calls.blocks.append(chains.of_tokens(np.array(text, np.int64), block_tokens))
    calls.with_ids += bool(text)


def _chains(calls: _Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    offsets = np.zeros(len(calls.blocks) + 1, np.int64)
    np.cumsum([blocks.size for blocks in calls.blocks], out=offsets[1:])
    return offsets, chains.prefix_ids(offsets, np.concatenate(calls.blocks))


def _prefix_note(calls: _Calls, block_tokens: int) -> str:
    if not calls.with_ids:
        return "no token ids, and so no prefixes known"
    known = f"{calls.with_ids} of {len(calls.row)} requests have ids"
    return f"prefixes from token ids, blocks of {block_tokens} tokens; {known}"


def sniff(name: str, head: bytes) -> bool:
    """True if the first line is a JSON object with this simulator's fields."""
    named = b'"input_toks"' in head and (b'"arrival_time_ns"' in head or b'"input_tok_ids"' in head)
    return head.lstrip().startswith(b"{") and named


FORMAT = Format("llmservingsim", read, sniff, "LLMServingSim JSONL: requests or agentic sessions, stamps in ns")
