"""inference-perf ``per_request_lifecycle_metrics.json``, llm-d's load generator: one JSON array, an object a request.

Source: kubernetes-sigs/inference-perf : inference_perf/apis/base.py @ 03e89d4a5badf37093c96dab524801ab420a0b18,
inference_perf/reportgen/base.py @ 370914fa826a58779a1ab409b116aed2447cac5b (the export).

``start_time`` and ``end_time`` (s of one clock), ``info.response_metrics`` with ``chunk_times`` or
``output_token_times`` (s, the same clock) and ``server_usage``, ``info.request_metrics.text.input_tokens`` and
``info.response_metrics.output_tokens`` (counted by the client, which tokenizes the answer again), ``error``. Older
files have ``input_tokens``, ``output_tokens`` and ``output_token_times`` in ``info`` itself. ``request`` and
``response`` hold text: not looked at. The schedule, the stage of the load and the session are not in the file, nor how
it was paced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from traces.check import MAX_TOKENS
from traces.readers.columns import Table
from traces.readers.counts import COUNTS, check_counts, choose_counts
from traces.readers.fields import array, table_of
from traces.readers.format import Format
from traces.readers.outcomes import ERROR, OK
from traces.readers.plausible import check_rate
from traces.readers.protocol import paced, users_of
from traces.readers.serving import Handling, ServingLog, build
from traces.source import Source
from traces.trace import Trace

_USAGE = "info.response_metrics.server_usage"
_TOKENS = {
    "prompt": ((f"{_USAGE}.prompt_tokens",), ("info.request_metrics.text.input_tokens", "info.input_tokens")),
    "output": ((f"{_USAGE}.completion_tokens",), ("info.response_metrics.output_tokens", "info.output_tokens")),
}
_STAMPS = ("start_time", "first_token", "last_token", "end_time")
_PATHS = (*_STAMPS, "error.error_type", *(p for sides in _TOKENS.values() for side in sides for p in side))
_TIMES = ("output_token_times", "chunk_times")
_MAX_S = 1e11


def read(
    source: Source,
    *,
    counts: str | None = None,
    concurrency: int | None = None,
    replay: str | None = None,
    failures: str = "drop",
    zero_output: str = "error",
    implausible: str = "ask",
) -> Trace:
    """Read the requests of an inference-perf run.

    Args:
        source: the file.
        counts: ``server`` or ``client`` token counts; None: the server's, unless the two cannot be of one text.
        concurrency: users of a closed loop, 0 for an open one; None: open, unless the stamps look closed.
        replay: ``open`` or ``clients``; None: by ``concurrency``.
        failures: failed requests: ``drop`` or ``keep`` them with their status.
        zero_output: requests that ended well without output: ``error``, ``drop``, or ``one`` token.
        implausible: rates and latencies that no server has: ``ask`` stops with a question, ``keep`` takes them.

    Raises:
        TraceError: no such file, a bad value, a run that looks like a closed loop and nothing says so.
    """
    table = table_of(_requests(source), _PATHS, source)
    table.need(("start_time", "end_time"))
    start = table.number("start_time", -_MAX_S, _MAX_S, "s").to_numpy()
    base = float(start.min())
    first, last, end = (_since(table, name, base) for name in _STAMPS[1:])
    sides = {what: tuple(_count(table, names) for names in both) for what, both in _TOKENS.items()}
    found = [side for i, side in enumerate(COUNTS) if any(both[i] is not None for both in sides.values())]
    check_counts(source, counts, found)
    prompt, prompt_note = choose_counts(table, "prompt", sides["prompt"][0], sides["prompt"][1], counts)
    output, output_note = choose_counts(table, "output", sides["output"][0], sides["output"][1], counts)
    failed = np.zeros(start.size, np.bool_)
    if "error.error_type" in table.frame.columns:
        failed = table.frame["error.error_type"].is_not_null().to_numpy()
    users = None if replay == "open" else users_of(source, concurrency, start - base, end, "its config.yaml")
    mode, users, _ = paced(table, replay, users, False)
    if users is None:
        check_rate(table, start - base, "start_time", implausible)
    tokens = output.cast(pl.Float64).fill_null(np.nan).to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = (last - first) / (tokens - 1)
    log = ServingLog(
        table=table,
        arrival_s=start - base,
        first_s=first,
        end_s=end,
        prompt=prompt,
        output=output,
        status=pl.Series("status", np.where(failed, ERROR, OK)),
        names=("start_time", "first_token", "end_time"),
        tpot_s=(np.where(np.isfinite(tpot) & (tpot > 0), tpot, np.nan), "last_token"),
    )
    how = Handling(failures=failures, zero_output=zero_output, implausible=implausible, replay=mode, users=users)
    stages = "stages of the load follow one another without a mark: a window of the trace is one of them"
    return build(source, log, how, [prompt_note, output_note, stages])


def _requests(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, request), with the first and last token's time instead of all of them."""
    for row, request in array(source):
        info = request.get("info")
        info = info if isinstance(info, dict) else {}
        response = info.get("response_metrics")
        places = [place for place in (response, info) if isinstance(place, dict)]
        times = next((place[name] for name in _TIMES for place in places if place.get(name)), None)
        if times is not None and not isinstance(times, list):
            raise source.error("a list of times", row=row, column="output_token_times", value=times)
        ends = {"first_token": times[0], "last_token": times[-1]} if times else {}
        yield row, {key: request.get(key) for key in ("start_time", "end_time", "info", "error")} | ends


def _since(table: Table, name: str, base: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    if name not in table.frame.columns:
        return np.full(table.frame.height, np.nan)
    return np.asarray(table.number(name, -_MAX_S, _MAX_S, "s", null=True).fill_null(np.nan).to_numpy() - base)


def _count(table: Table, names: tuple[str, ...]) -> pl.Series | None:
    name = next((n for n in names if n in table.frame.columns), None)
    return None if name is None else table.whole(name, 0, MAX_TOKENS, "tokens", null=True)


def sniff(name: str, head: bytes) -> bool:
    """True if it is an array of objects that begins as the export does, or is called so."""
    start = head.lstrip()
    return start.startswith(b"[") and (
        name.startswith("per_request_lifecycle_metrics") or b'"output_token_times"' in head
    )


FORMAT = Format("inference_perf", read, sniff, "inference-perf per_request_lifecycle_metrics.json")
