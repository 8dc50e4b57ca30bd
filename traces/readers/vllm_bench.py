"""``vllm bench serve --save-result --save-detailed``: one JSON object a run, several in a file with --append-result.

Source: vllm-project/vllm : vllm/benchmarks/serve.py @ 009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1,
vllm/benchmarks/lib/endpoint_request_func.py @ 02cfb534df5674737558730b10f23d1b7aef9b7c.

Lists over the requests, in the order of sending: ``input_lens`` (the server's ``usage.prompt_tokens`` where it sent
one, else the client's count: which, the file does not say), ``output_lens`` (0 for a failure), ``ttfts`` and ``itls``
(s), ``latencies`` (s, newer), ``start_times`` (s of the client's monotonic clock, when a request was *sent*),
``queue_times`` (s it had waited for a slot before, newer), ``errors`` (a text, empty
for success; a request without output is a failure too, as vLLM counts it).

The protocol is recorded: ``max_concurrency`` with ``request_rate`` "inf" is a closed loop of so many users, and read
as such; a finite ``request_rate`` is an open loop, with ``max_concurrency`` one that a cap may have bent.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.readers.clock import choose_clock, one_of
from traces.readers.columns import Table
from traces.readers.fields import documents
from traces.readers.format import Format
from traces.readers.outcomes import ERROR, OK
from traces.readers.plausible import ANSWER, FEW, check_rate
from traces.readers.protocol import paced
from traces.readers.serving import Handling, ServingLog, build
from traces.readers.users import in_flight
from traces.source import Source
from traces.trace import Trace

_LISTS = ("input_lens", "output_lens", "ttfts", "itls")
_OPTIONAL = ("latencies", "start_times", "queue_times", "errors")
_MAX_S = 1e9
_MOST_GAPS = 1.5  # gaps a token: a client that counts tokens anew may differ from the chunks it saw, but not by so much


def read(
    source: Source,
    *,
    benchmark: int | None = None,
    clock: str = "sent",
    replay: str | None = None,
    failures: str = "drop",
    implausible: str = "ask",
) -> Trace:
    """Read a run of vLLM's serving benchmark.

    Args:
        source: the result file.
        benchmark: which run of a file that holds several, from 0.
        clock: ``sent``, or ``scheduled``: before the wait for a slot (``queue_times``); latencies then include it.
        replay: ``open`` or ``clients`` against the recorded protocol; None: by it.
        failures: failed requests: ``drop`` or ``keep`` them with their status.
        implausible: rates and latencies that no server has: ``ask`` stops with a question, ``keep`` takes them.

    Raises:
        TraceError: no detailed result, lists of different lengths, several runs and none chosen, no start times.
    """
    run, note = _run(source, benchmark)
    table = _table(source, run)
    prompt = table.whole("input_lens", 0, MAX_TOKENS, "tokens")
    output = table.whole("output_lens", 0, MAX_TOKENS, "tokens")
    ttft = table.number("ttfts", 0, _MAX_S, "s").to_numpy()
    e2e = table.number("latencies", 0, _MAX_S, "s").to_numpy()
    failed = (table.frame["errors"] != "").to_numpy() | (output == 0).to_numpy()
    ttft, e2e = np.where(failed, np.nan, ttft), np.where(failed, np.nan, e2e)
    if implausible == "ask":
        _check_summary(table, run, ttft, output.to_numpy())
    users, closed, cap = _protocol(source, run)
    notes: list[str | None] = [note, closed]
    if "start_times" in table.frame.columns:
        sent = table.number("start_times", -_MAX_S, _MAX_S, "s").to_numpy()
        schedule = None
        if "queue_times" in table.frame.columns:
            schedule = sent - table.number("queue_times", -_MAX_S, _MAX_S, "s").to_numpy()
        arrival, clock_note = choose_clock(
            table, clock, sent, schedule, "start_times - queue_times", capped=cap is not None
        )
        notes.append(clock_note)
    elif users is None or replay == "open":
        expected = "start times, which newer versions write: without them an open loop's arrivals are not known"
        raise source.error(expected, column="start_times")
    else:
        one_of(table, "clock", clock, ("sent",))
        sent = arrival = _replayed(e2e, users)
        notes.append("no start times in the file: rebuilt, since each request began when a slot became free")
    if cap is not None and users is None:
        order = np.argsort(sent)
        full = in_flight(sent[order], np.where(failed, sent, sent + e2e)[order]) >= cap
        notes.append(
            f"max_concurrency={cap}: {full.mean():.1%} of requests filled the last slot; where many do, arrivals "
            "follow the server that was measured, and trace.options.replay=clients is the truer replay"
        )
    mode, users, _ = paced(table, replay, users or (cap if replay == "clients" else None), False)
    if users and clock == "scheduled":
        expected = "sent: in a closed loop the wait for a slot is the protocol"
        raise source.error(expected, column="trace.options.clock", value=clock)
    if users is None and run.get("request_rate") != "inf":
        check_rate(table, arrival, "start_times", implausible)
    log = ServingLog(
        table=table,
        arrival_s=arrival,
        first_s=sent + ttft,
        end_s=sent + e2e,
        prompt=prompt,
        output=output,
        status=pl.Series("errors", np.where(failed, ERROR, OK)),
        names=("start_times", "ttfts", "latencies"),
        columns={"model": pl.Series([str(run["model_id"])[:200]] * len(arrival))} if run.get("model_id") else {},
    )
    notes.append("prompt tokens: the server's usage where it sent one, else the client's count (the file does not say)")
    how = Handling(failures=failures, implausible=implausible, replay=mode, users=users)
    return build(source, log, how, notes)


def _run(source: Source, benchmark: int | None) -> tuple[dict[str, Any], str | None]:
    runs = documents(source)
    if benchmark is None and len(runs) > 1:
        each = ", ".join(
            f"{i}: rate {r.get('request_rate')}, concurrency {r.get('max_concurrency')}"
            for i, r in enumerate(runs[:12])
        )
        raise source.error(
            f"one run, but there are {len(runs)}; choose with trace.options.benchmark= ({each})",
            column="trace.options.benchmark",
        )
    index = 0 if benchmark is None else benchmark
    if index >= len(runs):
        raise source.error(f"a run from 0 to {len(runs) - 1}", column="trace.options.benchmark", value=benchmark)
    run = runs[index]
    for name in _LISTS:
        if run.get(name) is None:
            hint = ("" if name in run else nearest(name, run)) or "; vllm bench serve writes it with --save-detailed"
            raise source.error(f"this list to be present{hint}", column=name)
    return run, f"run {index} of {len(runs)}" if len(runs) > 1 else None


def _table(source: Source, run: dict[str, Any]) -> Table:
    """The lists as columns. ``row`` in errors is the request, from 1."""
    lists = {name: run[name] for name in (*_LISTS, *_OPTIONAL) if run.get(name) is not None}
    for name, values in lists.items():
        if not isinstance(values, list):
            raise source.error("a list, one entry a request", column=name, value=values)
        if len(values) != len(run["input_lens"]):
            expected = f"{len(run['input_lens'])} entries, as input_lens has"
            raise source.error(expected, column=name, value=f"{len(values)} entries")
    if not lists["input_lens"]:
        raise source.error("at least one request", column="input_lens", value=[])
    itls = lists.pop("itls")
    gaps = [_total(source, i, itl) for i, itl in enumerate(itls, start=1)]
    columns: dict[str, pl.Series] = {}
    for name, values in lists.items():
        for i, value in enumerate(values, start=1):
            if name != "errors" and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise source.error("a number", row=i, column=name, value=value)
        if name in ("input_lens", "output_lens") and all(isinstance(v, int) and abs(v) < 2**62 for v in values):
            columns[name] = pl.Series(name, values, pl.Int64())
        elif name == "errors":
            columns[name] = pl.Series(name, ["" if v is None else str(v)[:200] for v in values])
        else:
            columns[name] = pl.Series(name, [float(v) if abs(v) < 1e300 else np.inf for v in values])
    columns["itls"] = pl.Series("itls", [len(itl) if isinstance(itl, list) else 1 for itl in itls])
    if "errors" not in columns:
        columns["errors"] = pl.Series("errors", [""] * len(gaps))
    if "latencies" not in columns:
        columns["latencies"] = (columns["ttfts"] + pl.Series(gaps)).alias("latencies")
    return Table(pl.DataFrame(list(columns.values())), source, 1)


def _total(source: Source, row: int, itl: object) -> float:
    values = itl if isinstance(itl, list) else [itl]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_S:
            raise source.error("a list of gaps between tokens, s", row=row, column="itls", value=value)
    return float(sum(values))


def _check_summary(
    table: Table, run: dict[str, Any], ttft_s: NDArray[np.float64], output_tokens: NDArray[np.int64]
) -> None:
    """Raise where the lists contradict what the run says of itself: of first tokens and of gaps."""
    known = ~np.isnan(ttft_s)
    said = run.get("mean_ttft_ms")
    took = run.get("duration")
    longest = float(np.nanmax(ttft_s, initial=0.0))
    if isinstance(took, int | float) and 0 < took < _MAX_S and longest > 2 * took:
        expected = f"times to first token within the run, which took {took:g} s, but one is {longest:g} s"
        raise table.error(f"{expected} (another unit?): {ANSWER}", int(np.nanargmax(ttft_s)), "ttfts")
    if known.any() and isinstance(said, int | float) and 0 < said < _MAX_S * 1e3:
        ratio = float(np.mean(ttft_s[known])) * 1e3 / said
        if not 1 / 3 <= ratio <= 3:
            expected = f"times to first token, s, whose mean is mean_ttft_ms={said:g}; it is {ratio:,.3g} times that"
            raise table.error(f"{expected} (another unit?): {ANSWER}", int(np.argmax(known)), "ttfts")
    some = known & (output_tokens > 1)
    gaps = table.frame["itls"].to_numpy()
    if some.sum() >= FEW and np.median(gaps[some] / (output_tokens[some] - 1)) > _MOST_GAPS:
        at = int(np.argmax(some))
        expected = f"about one gap a token after the first, as there are {output_tokens[at]:,} output tokens: {ANSWER}"
        raise table.error(expected, at, "itls")


def _protocol(source: Source, run: dict[str, Any]) -> tuple[int | None, str, int | None]:
    """Users of a closed loop, what the run was, and the cap on requests in flight."""
    rate, cap = run.get("request_rate"), run.get("max_concurrency")
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise source.error("a number of requests in flight, or null", column="max_concurrency", value=cap)
    if rate == "inf" and cap is not None:
        return cap, f"protocol as recorded: request_rate=inf, max_concurrency={cap}, a closed loop", cap
    ramp = f", ramp-up {run['ramp_up_strategy']}" if run.get("ramp_up_strategy") else ""
    what = "all at once" if rate == "inf" and not ramp else "open loop"
    return None, f"protocol as recorded: request_rate={rate}, max_concurrency={cap}{ramp}: {what}", cap


def _replayed(e2e: NDArray[np.float64], users: int) -> NDArray[np.float64]:
    """Starts of a closed loop: each request, in order, takes the slot that is free first. A failure takes no time."""
    free: list[float] = [0.0] * users
    starts = np.empty(e2e.size)
    for i, service in enumerate(np.nan_to_num(e2e)):
        starts[i] = heappop(free)
        heappush(free, starts[i] + service)
    return starts


def sniff(name: str, head: bytes) -> bool:
    """True if it begins as vLLM writes its result."""
    return head.lstrip().startswith(b'{"date":') and b'"num_prompts"' in head and b'"request_rate"' in head


FORMAT = Format("vllm_bench", read, sniff, "vllm bench serve results with --save-detailed, JSON")
