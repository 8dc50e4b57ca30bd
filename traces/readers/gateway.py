"""A gateway's log of OpenAI-style requests: JSON lines, whatever the gateway calls its fields.

Accepted names stand in :mod:`traces.readers.gateway_names`, with their sources; of each quantity the first that the
file has counts, and the provenance says which it was. Texts of prompts and answers are not looked at.

* Stamps: date-times, or numbers of any unit (:mod:`traces.readers.stamps`); start, schedule, first token and end must
  be on one clock. Without an end, a duration; without a first token, a time to it. Their unit is what the name ends in
  (``_ms``), else told apart by the time that a token takes, else asked (``latency_unit``).
* Of the outcome every sign counts. A status of 400 and above is an error; 499, an abort as finish reason, or Envoy's
  flag DC is the client's cancel, and the request is kept with ``cancel_after_s``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.readers import jsonl
from traces.readers.clock import choose_clock
from traces.readers.columns import Table
from traces.readers.counts import check_counts, choose_counts
from traces.readers.fields import first_of, table_of
from traces.readers.format import Format
from traces.readers.gateway_names import ABORTS, CACHED_APART, DURATIONS, NAMES, STAMPS
from traces.readers.gateway_times import LATENCY_UNITS, durations, one_clock
from traces.readers.outcomes import CANCELLED, ERROR, OK
from traces.readers.routes import number_routes
from traces.readers.serving import Handling, ServingLog, build
from traces.readers.stamps import UNITS, check_unit
from traces.source import Source
from traces.trace import Trace

_QUANTITIES = {**STAMPS, **DURATIONS, **NAMES}
_GOOD = ("ok", "success", "succeeded", "completed", "complete", "stop", "length", "tool_calls", "function_call")
_BAD = ("error", "failure", "failed", "timeout", "rejected")
_COUNTED = ("prompt_server", "prompt_client", "output_server", "output_client")
_WORKERS = ("prefill_worker", "decode_worker")


def read(
    source: Source,
    *,
    columns: Mapping[str, str | None] | None = None,
    arrival_unit: str = "auto",
    latency_unit: str = "auto",
    clock: str = "sent",
    counts: str | None = None,
    failures: str = "drop",
    missing: str = "error",
    zero_output: str = "error",
    replay: str = "open",
    implausible: str = "ask",
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
) -> Trace:
    """Read a gateway's log.

    Args:
        source: the file, JSON lines.
        columns: quantity -> dotted path, where the log calls it otherwise, or null to leave it out; the quantities are
            the keys of :mod:`traces.readers.gateway_names`.
        arrival_unit: unit of the stamps, see :mod:`traces.readers.stamps`.
        latency_unit: unit of durations whose name does not say it: ``auto``, ``s``, ``ms``, ``us``, ``ns``.
        clock: ``sent``, or ``scheduled`` where the log has it: latencies then include the lag.
        counts: ``server`` or ``client`` token counts; None: the server's, unless the two cannot be of one text.
        failures: failed requests: ``drop`` or ``keep`` them with their status.
        missing: requests that ended well without a token count: ``error`` or ``drop``.
        zero_output: those without output: ``error``, ``drop``, or ``one`` token.
        replay: ``open``, or ``closed``: later turns of a session follow the end of the one before.
        implausible: latencies that no server has: ``ask`` stops with a question, ``keep`` takes them.
        assumed_ttft_s: where a request has no end: service before the first token, for think times.
        assumed_tpot_s: and an output token, likewise.

    Raises:
        TraceError: no name for what is needed, a bad value, two clocks, an implausible unit.
    """
    names = _names(source, columns)
    check_unit(source, "arrival_unit", arrival_unit, UNITS)
    check_unit(source, "latency_unit", latency_unit, LATENCY_UNITS)
    if replay not in ("open", "closed"):
        raise source.error("open or closed", column="trace.options.replay", value=replay)
    paths = {path for some in names.values() for path in some} | {p for some in CACHED_APART.values() for p in some}
    table = table_of(jsonl.records(source), paths, source)
    at = {quantity: path for quantity, some in names.items() if (path := first_of(table, some)) is not None}
    for quantity, path in (columns or {}).items():
        if path is not None and quantity not in at:
            expected = "a path that a record has a value at, keys joined by dots"
            raise source.error(expected, column=f"trace.options.columns.{quantity}", value=path)
    if "start" not in at:
        raise source.error(_wanted("start", names), column="start")
    sent, others, clock_note = one_clock(table, at, arrival_unit)
    arrival, lag_note = choose_clock(table, clock, sent, others.get("scheduled"), at.get("scheduled", "scheduled"))
    tokens, count_notes = _tokens(table, at, names, counts)
    output = tokens["output"].fill_null(0).to_numpy()
    first, end, unit_note = durations(table, at, sent, others, output, latency_unit)
    routes, worker_note = number_routes({role: table.text(at[role]).to_list() for role in _WORKERS if role in at})
    limit = table.whole(at["max_output_tokens"], 0, 2**62, "tokens", null=True) if "max_output_tokens" in at else None
    log = ServingLog(
        table=table,
        arrival_s=arrival,
        first_s=first,
        end_s=end,
        prompt=tokens["prompt"],
        output=tokens["output"],
        status=_status(table, names),
        names=(at["start"], at.get("first", at.get("ttft", "first")), at.get("end", at.get("e2e", "end"))),
        session=table.text(at["session"]) if "session" in at else None,
        columns={
            **{name: table.text(at[name]) for name in ("tenant", "model") if name in at},
            **({} if limit is None else {"max_output_tokens": limit.replace(0, None)}),
            **routes,
        },
    )
    how = Handling(
        failures=failures,
        missing=missing,
        zero_output=zero_output,
        implausible=implausible,
        replay=replay,
        assumed_ttft_s=assumed_ttft_s,
        assumed_tpot_s=assumed_tpot_s,
    )
    found = "fields: " + ", ".join(f"{quantity}={path}" for quantity, path in at.items())
    return build(source, log, how, [found, clock_note, lag_note, *count_notes, unit_note, worker_note])


def _names(source: Source, columns: Mapping[str, str | None] | None) -> dict[str, tuple[str, ...]]:
    """Quantity -> names to look for."""
    for quantity, path in (columns or {}).items():
        if quantity not in _QUANTITIES:
            expected = f"one of {', '.join(_QUANTITIES)}{nearest(str(quantity), _QUANTITIES)}"
            raise source.error(expected, column=f"trace.options.columns.{quantity}", value=path)
    return {**_QUANTITIES, **{q: () if path is None else (path,) for q, path in (columns or {}).items()}}


def _wanted(quantity: str, names: Mapping[str, tuple[str, ...]]) -> str:
    some = ", ".join(names[quantity][:8])
    return f"one of {some}, ... in the file; or name it: trace.options.columns.{quantity}=PATH"


def _tokens(
    table: Table, at: Mapping[str, str], names: Mapping[str, tuple[str, ...]], counts: str | None
) -> tuple[dict[str, pl.Series], list[str | None]]:
    """Prompt and output tokens, and notes."""
    tokens: dict[str, pl.Series] = {}
    notes: list[str | None] = []
    check_counts(table.source, counts, [q.rsplit("_", 1)[1] for q in at if q in _COUNTED])
    for what in ("prompt", "output"):
        sides = {}
        for side in ("server", "client"):
            path = at.get(f"{what}_{side}")
            sides[side] = None if path is None else table.whole(path, 0, MAX_TOKENS, "tokens", null=True)
        if sides["server"] is None and sides["client"] is None:
            raise table.source.error(_wanted(f"{what}_server", names), column=f"{what}_tokens")
        tokens[what], note = choose_counts(table, what, sides["server"], sides["client"], counts)
        notes.append(note)
    apart = [p for p in CACHED_APART.get(tokens["prompt"].name, ()) if p in table.frame.columns]
    for path in apart:
        name = tokens["prompt"].name
        tokens["prompt"] = (
            tokens["prompt"] + table.whole(path, 0, MAX_TOKENS, "tokens", null=True).fill_null(0)
        ).alias(name)
    if apart:
        notes.append(f"prompt tokens: {', '.join(apart)} added, which this usage counts apart")
    if "cached" in at:
        hits = table.whole(at["cached"], 0, MAX_TOKENS, "tokens", null=True).fill_null(0).sum()
        whole = max(int(tokens["prompt"].sum()), 1)
        notes.append(f"recorded prefix hits ({at['cached']}): {hits / whole:.1%} of prompt tokens (observed, not used)")
    return tokens, notes


def _status(table: Table, names: Mapping[str, tuple[str, ...]]) -> pl.Series:
    """Outcome of each request, by every sign that the log has: cancelled before error before ok, else null."""
    n = table.frame.height
    cancelled, bad, good = (np.zeros(n, np.bool_) for _ in range(3))
    signs = [(q, name) for q in ("status", "finish", "error") for name in names[q] if name in table.frame.columns]
    for quantity, name in signs:
        words = table.text(name).str.to_lowercase().str.strip_chars()
        code = words.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        cancelled |= words.is_in(list(ABORTS)).fill_null(False).to_numpy() | (code == 499)
        if quantity == "error":
            bad |= words.is_not_null().to_numpy()
        else:
            bad |= words.is_in(list(_BAD)).fill_null(False).to_numpy() | (code >= 400) | (code == 0)
            good |= words.is_in(list(_GOOD)).fill_null(False).to_numpy() | ((code >= 200) & (code < 400))
    for name in names["flags"]:
        if name in table.frame.columns:
            cancelled |= table.text(name).str.split(",").list.contains("DC").fill_null(False).to_numpy()
    outcome = np.where(cancelled, CANCELLED, np.where(bad, ERROR, np.where(good, OK, "")))
    return pl.Series("status", outcome).replace("", None)


def sniff(name: str, head: bytes) -> bool:
    """True if the first line is a JSON object with token counts of a server and a start, under accepted names."""
    first = head.split(b"\n", 1)[0].lstrip()
    if not first.startswith(b"{"):
        return False

    def has(quantity: str) -> bool:
        return any(f'"{part}"'.encode() in first for path in NAMES[quantity] for part in (path, path.split(".")[-1]))

    stamped = any(f'"{path}"'.encode() in first for path in STAMPS["start"])
    return stamped and has("prompt_server") and has("output_server")


FORMAT = Format(
    "gateway", read, sniff, "OpenAI-style gateway log, JSONL: LiteLLM, Envoy AI Gateway, OpenTelemetry GenAI"
)
