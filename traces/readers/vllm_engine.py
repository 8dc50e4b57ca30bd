"""Per-request stamps of a vLLM engine, ``requests.jsonl`` of LLMServingSim's bench.

Source: casys-kaist/LLMServingSim : bench/core/recorder.py @ 4aeaae425df70b4dd2270a29ffed817c7b12b45d; files of
bench/examples @ 5daddb21a545658d5150b535712d0494584b5278 (vLLM 0.19.0).

``arrival_time`` is the front end's, s since 1970. ``queued_ts``, ``scheduled_ts``, ``first_token_ts`` and
``last_token_ts`` are the engine's, s of a monotonic clock: two origins, so that no difference between the two means
anything but how it varies. Latencies are taken on the engine's clock, from ``queued_ts``.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traces.check import MAX_TOKENS
from traces.readers import jsonl
from traces.readers.clock import choose_clock
from traces.readers.fields import table_of
from traces.readers.format import Format
from traces.readers.outcomes import OK
from traces.readers.plausible import check_rate
from traces.readers.serving import Handling, ServingLog, build
from traces.source import Source
from traces.trace import Trace

FIELDS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_MAX_S = 1e11


def read(
    source: Source,
    *,
    clock: str = "sent",
    zero_output: str = "error",
    implausible: str = "ask",
) -> Trace:
    """Read an engine's log.

    Args:
        source: the file.
        clock: ``sent``: arrivals are ``queued_ts``, when the engine saw them. ``scheduled``: ``arrival_time``, when
            the front end did, with the smallest difference between the two taken as no wait.
        zero_output: requests without output: ``error``, ``drop``, or ``one`` token.
        implausible: rates and latencies that no server has: ``ask`` stops with a question, ``keep`` takes them.

    Raises:
        TraceError: a bad line or field, stamps that cannot be.
    """
    table = table_of(jsonl.records(source), FIELDS, source)
    table.need(FIELDS)
    arrived, queued, first, last = (table.number(name, 0, _MAX_S, "s").to_numpy() for name in FIELDS[2:])
    base = float(queued.min())
    offset = float((queued - arrived).min())
    arrival, note = choose_clock(table, clock, queued - base, arrived + offset - base, "arrival_time")
    check_rate(table, arrival, "queued_ts", implausible)
    log = ServingLog(
        table=table,
        arrival_s=arrival,
        first_s=first - base,
        end_s=last - base,
        prompt=table.whole("input_toks", 0, MAX_TOKENS, "tokens"),
        output=table.whole("output_toks", 0, MAX_TOKENS, "tokens"),
        status=pl.Series("status", np.full(arrival.size, OK)),
        names=("queued_ts", "first_token_ts", "last_token_ts"),
    )
    notes = [note, f"arrival_time and queued_ts count from different origins, {-offset:,.3f} s apart at the least"]
    return build(source, log, Handling(zero_output=zero_output, implausible=implausible), [*notes, _COUNTS])


_COUNTS = "token counts: the engine's"


def sniff(name: str, head: bytes) -> bool:
    """True if the first line is a JSON object with these fields."""
    first = head.split(b"\n", 1)[0]
    return first.lstrip().startswith(b"{") and all(f'"{field}"'.encode() in first for field in FIELDS)


FORMAT = Format("vllm_engine", read, sniff, "per-request stamps of a vLLM engine, JSONL (LLMServingSim bench)")
