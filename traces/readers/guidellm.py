"""GuideLLM ``benchmarks.json``: one report, a benchmark a rate, every request with its stamps.

Source: vllm-project/guidellm : src/guidellm/schemas/{info,request,request_stats,response}.py,
src/guidellm/benchmark/schemas/{report,benchmark,base,metrics}.py, src/guidellm/scheduler/strategies.py
@ ee7a77457ba668b4b5ccb40f110518829893b36a (report version 2), the same fields in v0.4.0
@ f6175cdd8a88f0931bd46822ed7a71787dcd7cee and v0.5.0 @ adfa108ab1df6f2a1452d1037a71817a493303a8 (version 1).

``benchmarks[i].requests.{successful, incomplete, errored}[j]``: ``info.timings`` has ``targeted_start`` (the
schedule), ``request_start`` (sent), ``first_token_iteration``, ``last_token_iteration``, ``request_end`` (s since
1970); a time a token is from the first to the last. ``input_metrics.text_tokens`` and ``output_metrics.text_tokens``
are the server's where it sent usage and ``config.prefer_response_metrics`` is true, which is the default, else the
client's. ``incomplete`` requests were cut off when the benchmark ended: cancelled. ``config.strategy`` is the
protocol: ``concurrent`` (``streams``), ``synchronous`` and ``throughput`` with ``max_concurrency`` are closed loops;
``constant``, ``poisson`` and ``trace`` are open. ``config.sample_size`` keeps a random part of the requests: such a
file is no trace of what was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.readers.clock import choose_clock, one_of
from traces.readers.columns import Table
from traces.readers.fields import documents, table_of
from traces.readers.format import Format
from traces.readers.outcomes import CANCELLED, ERROR, OK
from traces.readers.plausible import check_rate
from traces.readers.protocol import paced
from traces.readers.serving import Handling, ServingLog, build
from traces.source import Source
from traces.trace import Trace

SAMPLED = ("error", "keep")
STATUS = {"successful": OK, "incomplete": CANCELLED, "errored": ERROR}
_PATHS = (
    "info.timings.targeted_start",
    "info.timings.request_start",
    "info.timings.first_token_iteration",
    "info.timings.last_token_iteration",
    "info.timings.request_end",
    "input_metrics.text_tokens",
    "output_metrics.text_tokens",
    "output_metrics.text_words",
    "info.conversation_id",
    "info.turn_index",
    "status",
)
_SCHEDULE, _SENT, _FIRST, _LAST, _END, _PROMPT, _OUTPUT, _WORDS, _SESSION, _TURN, _STATUS = _PATHS
_MAX_S = 1e11
_FEW_WORDS = 10
_Object = dict[str, Any]


def read(
    source: Source,
    *,
    benchmark: int | str | None = None,
    clock: str = "sent",
    replay: str | None = None,
    failures: str = "drop",
    zero_output: str = "error",
    sampled: str = "error",
    implausible: str = "ask",
) -> Trace:
    """Read a benchmark of a GuideLLM report.

    Args:
        source: the report, JSON.
        benchmark: which of several: its place from 0, or its strategy as GuideLLM prints it (``constant@4.00``,
            ``concurrent@16``, ``throughput``).
        clock: ``sent``, or ``scheduled`` (``targeted_start``): latencies then include the lag.
        replay: ``open``, ``clients``, or, with conversations of several turns, ``closed``; None: by the protocol.
        failures: ``errored`` requests: ``drop`` or ``keep`` them with their status.
        zero_output: requests that ended well without output: ``error``, ``drop``, or ``one`` token.
        sampled: a report that kept a sample of its requests: ``error``, or ``keep`` it as a thinned load.
        implausible: rates, latencies and counts that no server has: ``ask`` or ``keep``.

    Raises:
        TraceError: no report, several benchmarks and none chosen, a sample, a bad value.
    """
    one, notes = _benchmark(source, benchmark)
    config = _object(one.get("config"))
    unsent = [0]
    table = table_of(_requests(source, one, unsent), _PATHS, source)
    if unsent[0]:
        notes.append(f"{unsent[0]:,} requests were never sent: left out")
    one_of(table, "sampled", sampled, SAMPLED)
    notes.append(_sample_note(source, one, config, sampled))
    sent = table.number(_SENT, 0, _MAX_S, "s since 1970").to_numpy()
    base = float(sent.min())

    def since(path: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        if path not in table.frame.columns:
            return np.full(sent.size, np.nan)
        return table.number(path, 0, _MAX_S, "s since 1970", null=True).fill_null(np.nan).to_numpy() - base

    arrival, note = choose_clock(table, clock, sent - base, since(_SCHEDULE), "targeted_start")
    notes.append(note)
    strategy, users, protocol = _protocol(config)
    notes.append(protocol)
    turns = table.whole(_TURN, 0, 2**31, "turn", null=True) if _TURN in table.frame.columns else None
    several = turns is not None and bool((turns > 0).any())
    mode, users, note = paced(table, replay, users, several)
    notes.append(note)
    if users is None and strategy != "throughput":
        check_rate(table, arrival, _SENT, implausible)
    output, first, last, end = _counts(table, _OUTPUT), since(_FIRST), since(_LAST), since(_END)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = (last - first) / (output.cast(pl.Float64).fill_null(np.nan).to_numpy() - 1)
    _check_words(table, output, implausible)
    prefer = config.get("prefer_response_metrics", True)
    notes.append(
        f"token counts: {'of the server' if prefer else 'of the client'} where it gave one, else of the "
        "other side (the file keeps one of the two and does not say which)"
    )
    log = ServingLog(
        table=table,
        arrival_s=arrival,
        first_s=first,
        end_s=np.where(np.isnan(end), last, end),
        prompt=_counts(table, _PROMPT),
        output=output,
        status=table.text(_STATUS),
        names=(_SENT, _FIRST, _END),
        tpot_s=(np.where(np.isfinite(tpot) & (tpot >= 0), tpot, np.nan), _LAST),
        session=table.text(_SESSION) if several and _SESSION in table.frame.columns else None,
    )
    how = Handling(failures=failures, zero_output=zero_output, implausible=implausible, replay=mode, users=users)
    return build(source, log, how, notes)


def _object(value: Any) -> _Object:
    return value if isinstance(value, dict) else {}


def _benchmark(source: Source, chosen: int | str | None) -> tuple[_Object, list[str | None]]:
    report = documents(source)[0]
    found = report.get("benchmarks")
    if not isinstance(found, list) or not found or not all(isinstance(b, dict) for b in found):
        expected = f"a list of benchmarks{nearest('benchmarks', report)}"
        raise source.error(expected, column="benchmarks", value=type(found).__name__)
    names = [_name(_object(b.get("config"))) for b in found]
    each = ", ".join(f"{i}: {name}" for i, name in enumerate(names[:20]))
    if chosen is None and len(found) == 1:
        return found[0], [f"benchmark {names[0]}"]
    if chosen is None:
        raise source.error(
            f"one benchmark, but the report holds {len(found)}; choose with trace.options.benchmark= ({each})",
            column="trace.options.benchmark",
        )
    index = names.index(chosen) if isinstance(chosen, str) and names.count(chosen) == 1 else chosen
    if isinstance(index, str) or index >= len(found):
        raise source.error(f"one of {each}", column="trace.options.benchmark", value=chosen)
    return found[index], [f"benchmark {index} of {len(found)}, {names[index]}"]


def _name(config: _Object) -> str:
    """A strategy as GuideLLM prints it."""
    strategy = _object(config.get("strategy"))
    kind = str(strategy.get("type_"))
    if isinstance(strategy.get("rate"), int | float):
        return f"{kind}@{strategy['rate']:.2f}"
    return f"{kind}@{strategy['streams']}" if "streams" in strategy else kind


def _protocol(config: _Object) -> tuple[str, int | None, str]:
    strategy = _object(config.get("strategy"))
    kind = str(strategy.get("type_"))
    users = {"synchronous": 1, "concurrent": strategy.get("streams"), "throughput": strategy.get("max_concurrency")}
    count = users.get(kind)
    known = count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None
    what = f"a closed loop of {known} users" if known else "an open loop"
    if kind == "throughput" and known is None:
        what = "as many requests as it could send"
    return kind, known, f"protocol as recorded: strategy {_name(config)}, {what}"


def _requests(source: Source, one: _Object, unsent: list[int]) -> Iterator[tuple[int, _Object]]:
    """(number from 1 over the three lists, request) of those that were sent; the others are counted."""
    lists = one.get("requests")
    if not isinstance(lists, dict):
        raise source.error("requests by status", column="requests", value=type(lists).__name__)
    row = 0
    for status, word in STATUS.items():
        some = lists.get(status) or []
        if not isinstance(some, list):
            raise source.error("a list of requests", column=f"requests.{status}", value=type(some).__name__)
        for request in some:
            row += 1
            if not isinstance(request, dict):
                raise source.error("an object", row=row, column=f"requests.{status}", value=request)
            if _object(_object(request.get("info")).get("timings")).get("request_start") is None:
                unsent[0] += 1
                continue
            kept = {key: request[key] for key in ("info", "input_metrics", "output_metrics") if key in request}
            yield row, kept | {"status": word}


def _counts(table: Table, path: str) -> pl.Series:
    if path not in table.frame.columns:
        return pl.Series(path, [None] * table.frame.height, pl.Int64())
    return table.whole(path, 0, MAX_TOKENS, "tokens", null=True)


def _check_words(table: Table, output: pl.Series, implausible: str) -> None:
    """Ask where every answer has exactly as many tokens as words: a stand-in server, or words counted."""
    if _WORDS not in table.frame.columns or implausible == "keep":
        return
    words = table.whole(_WORDS, 0, MAX_TOKENS, "words", null=True)
    long = ((words >= _FEW_WORDS) & output.is_not_null()).fill_null(False)
    if int(long.sum()) >= _FEW_WORDS and (words.filter(long) == output.filter(long)).all():
        raise table.error(
            "more tokens than words, but they are equal in every answer: were words counted as tokens? Set "
            "trace.options.implausible=keep if that is right",
            int(np.argmax(long.to_numpy())),
            _OUTPUT,
        )


def _sample_note(source: Source, one: _Object, config: _Object, sampled: str) -> str | None:
    kept = sum(len(v) for v in _object(one.get("requests")).values() if isinstance(v, list))
    made = _object(_object(one.get("scheduler_metrics")).get("requests_made")).get("total")
    if not isinstance(made, int) or made <= kept:
        return None
    if sampled == "error":
        raise source.error(
            f"all {made:,} requests that were made, but the report kept {kept:,} (sample_size="
            f"{config.get('sample_size')}): set trace.options.sampled=keep to take them as a thinned load",
            column="requests",
        )
    return f"sampled=keep: {kept:,} of {made:,} requests are in the report; rates are thinned by that"


def sniff(name: str, head: bytes) -> bool:
    """True if it begins as a report does."""
    start = head.lstrip()
    if not start.startswith(b"{"):
        return False
    return b'"guidellm_version"' in head or (start.startswith(b'{"args":') and b'"profile"' in head)


FORMAT = Format("guidellm", read, sniff, "GuideLLM benchmarks.json, one benchmark of it")
