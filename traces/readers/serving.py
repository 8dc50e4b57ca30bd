"""From what a serving log says of each request to a trace: failures, cancels, sessions, think times, replay.

Shared by the readers of serving systems' and benchmark tools' logs. They write a line when a request *ends*, so lines
are in no order of arrival; they are sorted by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.readers.chains import with_outputs
from traces.readers.clock import check_stages, one_of, per_token
from traces.readers.columns import Table
from traces.readers.outcomes import FAILURES, MISSING, Outcomes
from traces.readers.turns import none_note, says_none
from traces.readers.users import streams_of
from traces.source import Source
from traces.trace import Trace
from traces.transform import gather_chains

_MANY_LATE = 0.05
_SAME_S = 1e-6


@dataclass(frozen=True, slots=True)
class ServingLog:
    """Requests of a log, in the order of the file. Seconds on one clock; NaN or null where unknown.

    Attributes:
        table: for errors.
        arrival_s: (n,) arrivals.
        first_s: (n,) first tokens.
        end_s: (n,) ends.
        prompt: (n,) prompt tokens.
        output: (n,) output tokens.
        status: (n,) ``ok``, ``cancelled`` (by the client), ``error``, or null.
        names: columns of arrival, first token and end, for errors.
        session: (n,) session key, null for none; None if the log has no sessions.
        tpot_s: (n,) time an output token as recorded, and its column; None if the log has none.
        columns: further columns of the trace.
        chain_offsets: (n+1,) CSR offsets into ``chain_ids``; None if the log has no prefixes.
        chain_ids: prefix ids of the full prompt blocks.
        block_tokens: tokens of a prefix block.
    """

    table: Table
    arrival_s: NDArray[np.float64]
    first_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    prompt: pl.Series
    output: pl.Series
    status: pl.Series
    names: tuple[str, str, str]
    session: pl.Series | None = None
    tpot_s: tuple[NDArray[np.float64], str] | None = None
    columns: Mapping[str, pl.Series] = field(default_factory=dict)
    chain_offsets: NDArray[np.int64] | None = None
    chain_ids: NDArray[np.int64] | None = None
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Handling:
    """What to do with it.

    Attributes:
        failures: requests with an error: ``drop`` or ``keep`` them.
        missing: requests that ended well without a token count: ``error`` or ``drop``; None: an error, no option.
        zero_output: those that ended well without an output: ``error``, ``drop`` or ``one``.
        implausible: ``ask`` or ``keep``.
        replay: replay mode.
        users: how many users kept a request in flight; None: it was no such benchmark.
        assumed_ttft_s: where a request has no end: service before the first token.
        assumed_tpot_s: and a token.
    """

    failures: str = "drop"
    missing: str | None = None
    zero_output: str = "error"
    implausible: str = "ask"
    replay: str = "open"
    users: int | None = None
    assumed_ttft_s: float = 1.0
    assumed_tpot_s: float = 0.03


def build(source: Source, log: ServingLog, how: Handling, notes: list[str | None]) -> Trace:
    """A trace of a log. ``notes`` go before those of this function.

    Raises:
        TraceError: counts, stamps or latencies that cannot be; no request that is left.
    """
    table, notes = log.table, [source.provenance, *notes]
    one_of(table, "failures", how.failures, FAILURES)
    if how.missing is not None:
        one_of(table, "missing", how.missing, MISSING)
    start = float(log.arrival_s.min())
    observed_s = float(log.arrival_s.max()) - start
    ended = Outcomes(table, log.prompt, log.output, log.status)
    ended.failures(how.failures)
    ended.missing(how.missing)
    ended.outputs(how.zero_output)
    keep, output, outcome_notes = ended.keep, ended.output, ended.notes
    first, end = (np.where(keep, stamps, np.nan) for stamps in (log.first_s, log.end_s))
    first, end = check_stages(table, log.arrival_s, first, end, log.names)
    cancel_s = ended.cancels(end - log.arrival_s)
    whole = keep & (first >= end - _SAME_S) & (output.fill_null(0) > 1).to_numpy()
    if whole.any():
        first = np.where(whole, np.nan, first)
        outcome_notes.append(f"{whole.sum():,} answers came whole, not as a stream: no ttft_s")
    recorded, name = log.tpot_s or (None, log.names[2])
    normal = keep & np.isnan(cancel_s)
    ttft, e2e = first - log.arrival_s, end - log.arrival_s
    tokens = output.fill_null(0).to_numpy()
    tpot, latency_note = per_token(
        table,
        np.where(normal, ttft, np.nan),
        np.where(normal, e2e, np.nan),
        tokens,
        None if recorded is None else np.where(normal, recorded, np.nan),
        name,
        how.implausible,
    )
    index = np.flatnonzero(keep)
    index = index[np.argsort(log.arrival_s[index], kind="stable")]
    if (np.diff(index) < 0).any():
        outcome_notes.append("lines stand in no order of arrival: sorted by it")
    arrival, end, tokens = log.arrival_s[index] - start, end[index] - start, tokens[index]
    unknown = np.isnan(end)
    end = np.where(unknown, arrival + how.assumed_ttft_s + how.assumed_tpot_s * tokens, end)
    columns: dict[str, pl.Series] = {
        "arrival_s": pl.Series(arrival),
        "prompt_tokens": log.prompt[index],
        "output_tokens": pl.Series(tokens),
        **{name: values[index] for name, values in log.columns.items()},
        "ttft_s": pl.Series(ttft[index]).fill_nan(None),
        "tpot_s": pl.Series(tpot[index]).fill_nan(None),
        "cancel_after_s": pl.Series(cancel_s[index]).fill_nan(None),
        "status": log.status[index],
    }
    sessions, child, session_notes = _sessions(log, how, index, arrival, end, unknown)
    columns |= sessions
    for optional in ("ttft_s", "tpot_s", "cancel_after_s", "status"):
        if columns[optional].null_count() == index.size:
            del columns[optional]
    offsets = ids = None
    if log.chain_offsets is not None and log.chain_ids is not None:
        offsets, ids = gather_chains(log.chain_offsets, log.chain_ids, index)
        prompt = log.prompt[index].to_numpy()
        offsets, ids, known = with_outputs(offsets, ids, prompt, tokens, child, log.block_tokens, whole_answer=True)
        session_notes.append(
            f"prefix chains as recorded, full blocks of {log.block_tokens} tokens; blocks that an output completes are "
            f"known for {known:,} of {index.size:,} requests, from the prompt of the next turn"
        )
    return Trace.build(
        source.stem,
        columns,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=log.block_tokens,
        replay=how.replay,
        provenance=[note for note in (*notes, *outcome_notes, latency_note, *session_notes) if note],
        duration_s=observed_s if how.replay == "open" else 0.0,
    )


def _sessions(
    log: ServingLog,
    how: Handling,
    index: NDArray[np.int64],
    arrival: NDArray[np.float64],
    end: NDArray[np.float64],
    unknown: NDArray[np.bool_],
) -> tuple[dict[str, pl.Series], NDArray[np.int64], list[str | None]]:
    """Columns session, turn and think_s, the row of each one's next turn (-1), and notes."""
    n, child = index.size, np.full(index.size, -1, np.int64)
    if how.users:
        users = streams_of(arrival, end, how.users)
        if users.late > _MANY_LATE * n:
            raise log.table.source.error(
                f"at most {how.users} requests in flight, one a user, but {users.late:,} of {n:,} begin while all are "
                "busy: set trace.options.replay=open",
                column="trace.options.concurrency",
                value=how.users,
            )
        note = (
            f"closed loop: {how.users} users, {int(users.stream.max()) + 1} of them seen, each sends when its last "
            f"request has ended; think times from recorded ends, median {_median(users.think_s) * 1e3:.3g} ms"
        )
        return _columns(users.stream, users.turn, users.think_s), _next(users.parent, child), [note]
    if log.session is None:
        return {}, child, []
    key = log.session[index]
    none = says_none(key).fill_null(False)
    key = pl.select(pl.when(~none).then(key)).to_series()
    inside = np.flatnonzero(key.is_not_null().to_numpy())
    codes = key.drop_nulls().rank("dense").to_numpy().astype(np.int64)
    one = streams_of(arrival[inside], end[inside], group=codes)
    session, turn, think = np.full(n, -1, np.int64), np.ones(n, np.int64), np.full(n, np.nan)
    session[inside], turn[inside], think[inside] = one.stream, one.turn, one.think_s
    follows = one.parent >= 0
    child[inside[one.parent[follows]]] = inside[follows]
    keys = int(np.unique(codes).size)
    split = int(np.unique(one.stream).size) - keys
    later = turn > 1
    guessed = int(unknown[child >= 0].sum())
    notes: list[str | None] = [
        f"sessions: {keys:,} keys, {(session >= 0).mean():.1%} of requests; think time = end of the turn "
        f"before to this arrival, {int(later.sum()) - guessed:,} from recorded ends"
        + (
            f", {guessed:,} from assumed ones ({how.assumed_ttft_s:g} s + {how.assumed_tpot_s:g} s a token)"
            if guessed
            else ""
        )
    ]
    notes.append(none_note(int(none.sum())))
    if split:
        notes.append(
            f"parallel calls: requests that began before the last one of their session had ended are {split:,} more "
            "streams, each a session of its own"
        )
    return _columns(session, turn, think), child, notes


def _columns(session: NDArray[np.int64], turn: NDArray[np.int64], think: NDArray[np.float64]) -> dict[str, pl.Series]:
    return {"session": pl.Series(session), "turn": pl.Series(turn), "think_s": pl.Series(think).fill_nan(None)}


def _next(parent: NDArray[np.int64], child: NDArray[np.int64]) -> NDArray[np.int64]:
    later = np.flatnonzero(parent >= 0)
    child[parent[later]] = later
    return child


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else 0.0
