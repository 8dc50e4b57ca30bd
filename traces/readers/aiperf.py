"""NVIDIA AIPerf ``profile_export.jsonl``: a line a request, with its metrics and their units.

Source: ai-dynamo/aiperf : docs/tutorials/working-with-profile-exports.md
@ 13992dbd96879c76e9584f2e8dc05db49bee6cf2, src/aiperf/common/models/record_models.py
@ 017c63d230ace93f323d5e423e95a6bb9aad1335, src/aiperf/metrics/types/usage_diff_metrics.py
@ ec5c03dfca128d77ffd48532be7e20bfd6232f26, aiperf/common/config/{loadgen,input}_config.py
@ db4f6397d11ee2d4cfbb41f70b2327315163dcf0, src/aiperf/config/phases.py @ 0205ea144a6298c69e6acce607c31345fd885347,
docs/reference/json-export-schema.md @ 1554b478d4eec073cb23365b2c1e1b6dbece2e62.

``metadata``: ``request_start_ns`` (sent), ``credit_issued_ns`` (scheduled; newer), ``request_end_ns`` (ns since 1970),
``x_correlation_id`` (a session), ``turn_index``, ``benchmark_phase``, ``was_cancelled``, ``cancellation_time_ns``.
``metrics``: value and unit; ``usage_prompt_tokens`` and ``usage_completion_tokens`` are the server's counts,
``input_sequence_length`` and ``output_sequence_length`` AIPerf's own. The file does not say how requests were paced:
``profile_export_aiperf.json`` beside it does (``input_config.loadgen``, newer
``input_config.phases``), and is read for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import jsonl
from traces.readers.clock import choose_clock
from traces.readers.columns import Table
from traces.readers.counts import COUNTS, check_counts, choose_counts
from traces.readers.fields import documents, table_of
from traces.readers.format import Format
from traces.readers.outcomes import CANCELLED, ERROR, OK
from traces.readers.plausible import check_rate
from traces.readers.protocol import paced, users_of
from traces.readers.serving import Handling, ServingLog, build
from traces.source import Source, read_source
from traces.trace import Trace

RECORDS, SUMMARY = "profile_export.jsonl", "profile_export_aiperf.json"
_PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_TIMES = ("metrics.time_to_first_token", "metrics.inter_token_latency")
_COUNTS = {
    "prompt": (("metrics.usage_prompt_tokens",), ("metrics.input_sequence_length", "metrics.error_isl")),
    "output": (("metrics.usage_completion_tokens",), ("metrics.output_sequence_length",)),
}
_META = (
    "request_start_ns",
    "request_end_ns",
    "credit_issued_ns",
    "cancellation_time_ns",
    "was_cancelled",
    "benchmark_phase",
    "x_correlation_id",
    "turn_index",
)
_START, _END, _ISSUED, _CANCEL, _WAS, _PHASE, _SESSION, _TURN = (f"metadata.{name}" for name in _META)
_METRICS = (*_TIMES, *(name for sides in _COUNTS.values() for side in sides for name in side))
_PATHS = (*(f"{m}.{k}" for m in _METRICS for k in ("value", "unit")), *(f"metadata.{m}" for m in _META), "error.type")
_MAX_NS = 2**62
_Times = NDArray[np.float64]


def read(
    source: Source,
    *,
    clock: str = "sent",
    counts: str | None = None,
    concurrency: int | None = None,
    replay: str | None = None,
    failures: str = "drop",
    zero_output: str = "error",
    implausible: str = "ask",
) -> Trace:
    """Read the records of an AIPerf run.

    Args:
        source: ``profile_export.jsonl``, or the folder that holds it.
        clock: ``sent``, or ``scheduled`` (``credit_issued_ns``): latencies then include the lag.
        counts: ``server`` or ``client`` token counts; None: the server's, unless the two cannot be of one text.
        concurrency: users of a closed loop, 0 for an open one; None: as ``profile_export_aiperf.json`` says.
        replay: ``open``, ``clients``, or, with conversations of several turns, ``closed``; None: by the protocol.
        failures: failed requests: ``drop`` or ``keep`` them with their status.
        zero_output: requests that ended well without output: ``error``, ``drop``, or ``one`` token.
        implausible: rates and latencies that no server has: ``ask`` stops with a question, ``keep`` takes them.

    Raises:
        TraceError: a bad line, field or unit; a run that looks like a closed loop and nothing says so.
    """
    part = read_source(source.path / RECORDS) if source.holds_many else source
    warm = [0]
    table = table_of(_records(part, warm), _PATHS, part)
    table.need([_START, _END])
    notes: list[str | None] = [f"{warm[0]:,} records of the warm-up left out" if warm[0] else None]
    start = table.whole(_START, 0, _MAX_NS, "ns since 1970").to_numpy()
    base = int(start.min())
    sent = (start - base) / 1e9
    arrival, note = choose_clock(table, clock, sent, _since(table, _ISSUED, base), "credit_issued_ns")
    notes.append(note)
    cancelled = (table.frame[_WAS] == "true").fill_null(False).to_numpy()
    end, cancel = _since(table, _END, base), _since(table, _CANCEL, base)
    end = np.where(cancelled & ~np.isnan(cancel), cancel, end)
    tokens = {}
    found = {side: any(_count(table, s[i]) is not None for s in _COUNTS.values()) for i, side in enumerate(COUNTS)}
    check_counts(part, counts, [side for side, some in found.items() if some])
    for what, sides in _COUNTS.items():
        server, client = (_count(table, side) for side in sides)
        tokens[what], note = choose_counts(table, what, server, client, counts)
        notes.append(note)
    failed = np.zeros(sent.size, np.bool_)
    if "error.type" in table.frame.columns:
        failed = table.frame["error.type"].is_not_null().to_numpy()
    users, told = _protocol(part)
    notes.append(told)
    turns = table.whole(_TURN, 0, 2**31, "turn", null=True) if _TURN in table.frame.columns else None
    several = turns is not None and bool((turns > 0).any())
    if not several and replay != "open" and (concurrency is not None or told is None):
        users = users_of(part, concurrency, sent, end, SUMMARY)
    mode, users, note = paced(table, replay, users, several, concurrency)
    notes.append(note)
    if users is None:
        check_rate(table, arrival, _START, implausible)
    ttft, tpot = (_seconds(table, name) for name in _TIMES)
    log = ServingLog(
        table=table,
        arrival_s=arrival,
        first_s=sent + ttft,
        end_s=end,
        prompt=tokens["prompt"],
        output=tokens["output"],
        status=pl.Series("status", np.where(cancelled, CANCELLED, np.where(failed, ERROR, OK))),
        names=(_START, f"{_TIMES[0]}.value", _END),
        session=table.text(_SESSION) if several and _SESSION in table.frame.columns else None,
        tpot_s=(tpot, f"{_TIMES[1]}.value"),
    )
    how = Handling(failures=failures, zero_output=zero_output, implausible=implausible, users=users, replay=mode)
    return build(source, log, how, notes)


def _records(part: Source, warm: list[int]) -> Iterator[tuple[int, jsonl.Record]]:
    """Records of the measured phase."""
    for row, record in jsonl.records(part):
        meta = record.get("metadata")
        if not isinstance(meta, dict):
            raise part.error("an object", row=row, column="metadata", value=meta)
        if meta.get("benchmark_phase") == "warmup":
            warm[0] += 1
            continue
        yield row, record


def _since(table: Table, path: str, base: int) -> _Times:
    """(n,) seconds since ``base``, exact to the nanosecond before they are; NaN where there is none."""
    if path not in table.frame.columns:
        return np.full(table.frame.height, np.nan)
    values = table.whole(path, 0, _MAX_NS, "ns since 1970", null=True) - base
    return np.asarray(values.cast(pl.Float64).fill_null(np.nan).to_numpy() / 1e9)


def _count(table: Table, names: tuple[str, ...]) -> pl.Series | None:
    """Counts from the first of ``names`` that a record has."""
    some = [f"{name}.value" for name in names if f"{name}.value" in table.frame.columns]
    if not some:
        return None
    return pl.select(
        pl.coalesce([table.whole(name, 0, MAX_TOKENS, "tokens", null=True) for name in some]).alias(some[0])
    ).to_series()


def _seconds(table: Table, name: str) -> _Times:
    """A metric in seconds, by the unit that stands beside each value."""
    value, unit = f"{name}.value", f"{name}.unit"
    if value not in table.frame.columns:
        return np.full(table.frame.height, np.nan)
    values = table.number(value, 0, 1e18, "a time", null=True).fill_null(np.nan).to_numpy()
    table.need([unit])
    units = table.frame[unit].to_list()
    scale = np.array([_PER_SECOND.get(str(u), np.nan) for u in units])
    bad = np.isnan(scale) & ~np.isnan(values)
    if bad.any():
        raise table.error(f"a unit of time, one of {', '.join(_PER_SECOND)}", int(np.argmax(bad)), unit)
    return np.asarray(values / scale)


def _protocol(part: Source) -> tuple[int | None, str | None]:
    """Users of a closed loop and what the run's summary says of its protocol; None if there is no summary."""
    if part.member is not None or not (part.path.parent / SUMMARY).is_file():
        return None, None
    summary = documents(read_source(part.path.parent / SUMMARY))[0]
    config = _object(summary.get("input_config"))
    load = _object(config.get("loadgen"))
    phases = [
        p for p in config.get("phases") or [] if isinstance(p, dict) and "warmup" not in (p.get("kind"), p.get("name"))
    ]
    if len(phases) == 1:
        load = phases[0]
    elif not load:
        return None, None
    kind, users = load.get("type"), load.get("concurrency")
    rate = load.get("rate", load.get("request_rate"))
    schedule = _object(config.get("input")).get("fixed_schedule") or load.get("user_centric_rate")
    paced = rate is not None or schedule or kind not in (None, "concurrency")
    closed = isinstance(users, int) and not isinstance(users, bool) and users > 0 and not paced
    what = f"a closed loop of {users} users" if closed else "an open loop"
    told = f"protocol as {SUMMARY} has it: {kind or 'load'}, rate={rate}, concurrency={users}, {what}"
    return (users if closed else None), told


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def sniff(name: str, head: bytes) -> bool:
    """True if the first line has AIPerf's metadata and metrics."""
    first = head.split(b"\n", 1)[0]
    return b'"request_start_ns"' in first and b'"benchmark_phase"' in first


FORMAT = Format("aiperf", read, sniff, "NVIDIA AIPerf profile_export.jsonl, or its folder")
