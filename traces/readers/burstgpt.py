"""BurstGPT: CSV of a campus gateway to ChatGPT and GPT-4.

Schema: HPMLL/BurstGPT : README.md @ 7eb2c4f8350f8a6985272386f5c14af1f678b299 (releases v1.1, v1.2, v2.0). ``Timestamp``
(s from 0:00 of the first day), ``Model``, ``Request tokens``, ``Response tokens`` (0: it failed), ``Total tokens``,
``Log Type`` (``Conversation log``, ``API log``). BurstGPT_3 has two more columns: ``Session ID`` (of conversations,
empty for API logs) and ``Elapsed time`` (s from submission to the complete response). No such file was at hand when
this was written.

What is done to them
* The first stamp becomes 0. Stamps are whole seconds, and stay so.
* ``Log Type`` becomes the class (``conversation``, ``api``).
* Turns of a session are counted by arrival. Think time is the gap from the recorded end of a turn (its stamp plus
  ``Elapsed time``) to the next stamp: no service is assumed. Where the elapsed time is absent, it is.
* Prefixes are not recorded; see ``context``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.chains import growing_chains
from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.readers.columns import Table
from traces.readers.format import Format
from traces.readers.log import Labels, Log, Plan, first_line
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.readers.turns import SessionColumn, Turns, none_note, think_times
from traces.source import Source
from traces.trace import Trace

REQUIRED = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Session ID", "Elapsed time", "Model", "Total tokens", "Log Type")
CONTEXTS = ("unknown", "grows")
_BLOCK_TOKENS = 16
_MAX_STAMP_S = 10 * 365 * 86_400.0  # above it is an epoch stamp
_MAX_ELAPSED_S = 7 * 86_400.0


def read(
    source: Source,
    *,
    sort: bool = False,
    zero_output: str = "error",
    replay: str = "open",
    context: str = "unknown",
    prefix_block_tokens: int | None = None,
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
    implausible: str = "ask",
) -> Trace:
    """Read a BurstGPT CSV.

    Args:
        source: the file.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: failed requests, which have no response: ``error``, ``drop`` them, or count them as ``one`` token
            (the column ``status`` then says ``failed``).
        replay: replay mode; closed and clients need sessions.
        context: what later turns of a session share with earlier ones. ``unknown``: no cache hits. ``grows``: see
            :func:`traces.chains.growing_chains`.
        prefix_block_tokens: tokens of a prefix block where the context grows; None: 16.
        assumed_ttft_s: assumed service before the first token where ``Elapsed time`` is absent.
        assumed_tpot_s: assumed service time an output token, likewise.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad header, stamp, length or option.
    """
    log = Log(source)
    _check_options(log, context, prefix_block_tokens)
    kinds, models = Labels(lambda piece: piece.text("Log Type")), Labels(lambda piece: piece.text("Model"))
    sessions = SessionColumn("Session ID")
    data = log.gather([*REQUIRED, *OPTIONAL], _plan(log, kinds, models, sessions))
    stamp = data["stamp"].to_numpy()
    keep, output, zero_note = zero_outputs(data["output"].alias("Response tokens"), zero_output, log)
    empty = keep & (data["prompt"] < 1).to_numpy()
    if empty.any():
        raise log.error("at least 1 request token", int(np.argmax(empty)), "Request tokens")
    check_rate(log, stamp, "Timestamp", implausible)
    order = log.order(stamp, "Timestamp", sort)
    index = np.flatnonzero(keep) if order.index is None else order.index[keep[order.index]]
    start = float(stamp.min())
    prompt, tokens = data["prompt"][index], output[index]
    arrival = stamp[index] - start
    columns: dict[str, object] = {"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": tokens}
    if "kind" in data:
        columns["class"] = (
            kinds.texts(data["kind"][index]).fill_null("unknown").str.to_lowercase().str.strip_suffix(" log")
        )
    if "model" in data:
        columns["model"] = models.texts(data["model"][index])
    failed = (data["output"] == 0).to_numpy()[index]
    if failed.any():
        columns["status"] = pl.select(
            pl.when(pl.Series(failed)).then(pl.lit("failed")).otherwise(pl.lit("ok"))
        ).to_series()
    notes = [source.provenance, order.note, zero_note, _total_note(data), _stamp_note(arrival)]
    growth = None
    if "session" in data:
        session = data["session"][index].to_numpy()
        turns = Turns(session)
        assumed = arrival + assumed_ttft_s + assumed_tpot_s * tokens.to_numpy()
        ends = {f"an assumed service of {assumed_ttft_s:g} s + {assumed_tpot_s:g} s a token": assumed}
        if "elapsed" in data:
            ends = {"Elapsed time": arrival + data["elapsed"][index].fill_null(np.nan).to_numpy(), **ends}
        thinking = think_times(arrival, turns.previous, ends)
        columns |= {"session": session, "turn": turns.turn, "think_s": thinking.think_s}
        share = float((session >= 0).mean())
        notes += [
            f"sessions from Session ID, which {share:.1%} of requests have",
            none_note(sessions.none),
            thinking.note,
        ]
        if context == "grows":
            block = _BLOCK_TOKENS if prefix_block_tokens is None else prefix_block_tokens
            growth = growing_chains(session, turns.turn, _int64(prompt), _int64(tokens), block)
            notes.append(growth.note)
    return Trace.build(
        source.stem,
        columns,
        chain_offsets=growth.offsets if growth else None,
        chain_ids=growth.ids if growth else None,
        prefix_block_tokens=growth.block_tokens if growth else 0,
        replay=replay,
        provenance=[note for note in notes if note],
        duration_s=float(stamp.max()) - start,
    )


def _check_options(log: Log, context: str, prefix_block_tokens: int | None) -> None:
    source, block = log.source, prefix_block_tokens
    for column in REQUIRED:
        if column not in log.columns:
            hint = nearest(column, log.columns) or f" (found: {', '.join(log.columns[:12])})"
            raise source.error(f"this column to be present{hint}", column=column)
    if context not in CONTEXTS:
        expected = f"one of {', '.join(CONTEXTS)}{nearest(str(context), CONTEXTS)}"
        raise source.error(expected, column="trace.options.context", value=context)
    if context == "grows" and "Session ID" not in log.columns:
        raise source.error("a file with Session ID with it", column="trace.options.context", value=context)
    if block is not None:
        option = "trace.options.prefix_block_tokens"
        if context != "grows":
            raise source.error("trace.options.context=grows with it", column=option, value=block)


def _plan(log: Log, kinds: Labels, models: Labels, sessions: SessionColumn) -> Plan:
    """What to make of each piece, of the columns that the file has."""
    plan: dict[str, tuple[str, Callable[[Table], pl.Series]]] = {
        "stamp": ("Timestamp", lambda piece: piece.number("Timestamp", 0, _MAX_STAMP_S, "s from the first day")),
        "prompt": ("Request tokens", lambda piece: _tokens(piece, "Request tokens")),
        "output": ("Response tokens", lambda piece: _tokens(piece, "Response tokens")),
        "total": ("Total tokens", lambda piece: piece.number("Total tokens", 0, 1e12, "tokens", null=True)),
        "session": ("Session ID", sessions),
        "elapsed": ("Elapsed time", lambda piece: piece.number("Elapsed time", 0, _MAX_ELAPSED_S, "s", null=True)),
        "kind": ("Log Type", kinds),
        "model": ("Model", models),
    }
    return {name: make for name, (column, make) in plan.items() if column in log.columns}


def _tokens(piece: Table, column: str) -> pl.Series:
    return piece.whole(column, 0, MAX_TOKENS, "tokens").cast(pl.Int32)


def _int64(values: pl.Series) -> NDArray[np.int64]:
    return values.cast(pl.Int64).to_numpy()


def _total_note(data: dict[str, pl.Series]) -> str | None:
    if "total" not in data:
        return None
    other = int((data["total"] != data["prompt"] + data["output"]).sum())
    return f"{other} rows whose Total tokens are not request + response: the two were taken" if other else None


def _stamp_note(arrival: NDArray[np.float64]) -> str | None:
    shared = float((np.diff(arrival) == 0).mean()) if arrival.size > 1 else 0.0
    if not shared or (arrival % 1).any():
        return None
    return (
        f"stamps are whole seconds, and {shared:.1%} of requests have that of the one before (see the jitter transform)"
    )


def sniff(name: str, head: bytes) -> bool:
    """True if the header has BurstGPT's three columns of stamps and tokens."""
    return set(REQUIRED) <= set(first_line(head))


FORMAT = Format(
    "burstgpt", read, sniff, "BurstGPT CSV: stamps in s, request and response tokens, sessions in release 3"
)
