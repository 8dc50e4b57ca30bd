"""Any CSV or Parquet through a column map: ``columns={"prompt_tokens": "my_col"}``.

Columns are found by :mod:`traces.readers.naming`; ``arrival_s``, ``prompt_tokens`` and ``output_tokens`` must be
there. Other columns of the file are ignored, and named in the provenance. A file of any size is read piece by piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import BY_NAME
from traces.readers import durations, hash_lists, stamps, table_chains
from traces.readers.columns import PARQUET_MAGIC
from traces.readers.format import Format
from traces.readers.inputs import read_inputs
from traces.readers.log import Log, first_line
from traces.readers.naming import Field, fields, recognised
from traces.readers.plausible import FEW
from traces.readers.repair import zero_outputs
from traces.readers.turns import Turns, apart, think_times
from traces.source import Source
from traces.trace import Trace


def read(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    arrival_unit: str = "auto",
    latency_unit: str = "auto",
    sort: bool = False,
    zero_output: str = "error",
    replay: str = "open",
    context: str = "unknown",
    prefix_block_tokens: int | None = None,
    hash_kind: str | None = None,
    assumed_ttft_s: float | None = None,
    assumed_tpot_s: float | None = None,
) -> Trace:
    """Read a table.

    Args:
        source: a CSV with a header, or a Parquet file.
        columns: input -> column of the file. Inputs are the columns of a trace, ``end_s`` (when a request ended,
            on the clock of the arrivals), ``e2e_s`` (how long it took) and ``hash_ids`` (prefix block hashes).
        arrival_unit: unit of the stamps, see :mod:`traces.readers.stamps`.
        latency_unit: unit of ``ttft_s``, ``tpot_s`` and ``e2e_s``; ``auto``: what their names say, else seconds.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them, or count them as ``one`` token.
        replay: replay mode; ``closed`` needs sessions with think times.
        context: what later turns of a session share with earlier ones, where the table has no hashes. ``unknown``:
            no prefix is known, and no cache hits. ``grows``: a prompt begins with the whole turn before it, see
            :func:`traces.sessions.growing_chains`.
        prefix_block_tokens: tokens of a prefix block; None: what the file says, 16 where the context grows.
        hash_kind: what a hash names: the whole ``prefix`` up to its block, or its ``block`` alone; None: prefix.
        assumed_ttft_s: service before the first token, assumed for think times where no end of a turn is logged.
        assumed_tpot_s: service time an output token, likewise.

    Raises:
        TraceError: an unknown or missing column, a bad value, a time that is implausible in its unit.
    """
    stamps.check_unit(source, "arrival_unit", arrival_unit)
    stamps.check_unit(source, "latency_unit", latency_unit, durations.UNITS)
    log = Log(source)
    where = fields(log, dict(columns or {}))
    table_chains.check_options(source, context, prefix_block_tokens, where)
    service = _service(source, where, assumed_ttft_s, assumed_tpot_s)
    prompts, made = None, None
    if "hash_ids" in where:
        made = hash_lists.hashing(log, prefix_block_tokens, hash_kind)
    elif hash_kind is not None:
        raise source.error("a column hash_ids with it", column="trace.options.hash_kind", value=hash_kind)
    inputs = read_inputs(log, where, arrival_unit, latency_unit)
    rows = inputs.rows
    order = log.order(inputs.stamps.keys, where["arrival_s"].name, sort)
    named = rows["output_tokens"].alias(where["output_tokens"].name)
    keep, rows["output_tokens"], zero_note = zero_outputs(named, zero_output, log)
    if made is not None:
        prompt, output = (rows[name].to_numpy().astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
        prompts = hash_lists.prompt_chains(log, rows.pop("hash_ids"), prompt, output, made, where["hash_ids"].name)

    index = _take(rows, None, order.index)
    turns = None
    if "session" in where:
        index = _take(rows, index, _ties(rows))
        turns = Turns(rows["session"].to_numpy())
        if "turn" in where:
            _check_turns(log, rows, turns, index, where["turn"].name)
    if not keep.all() and turns is not None:
        _check_torn(log, rows, turns, keep, index, where, service)
    if not keep.all():
        index = _take(rows, index, np.flatnonzero(keep if index is None else keep[index]))
        turns = None if turns is None else Turns(rows["session"].to_numpy())
    think_note = split_note = None
    if turns is None:
        rows.pop("turn", None)
    else:
        ends = _ends(rows)
        if "turn" not in where and "think_s" not in rows:
            turns, split_note = _apart(log, rows, turns, ends, index, where, latency_unit)
        rows["turn"] = pl.Series("turn", turns.turn)
        think_note = _think(rows, turns, ends, service)
    if replay != "open":
        _need_think(source, rows, turns, replay)
    if prompts is not None and made is not None:
        chains = table_chains.recorded(prompts, made, index, rows, turns)
    else:
        chains = table_chains.assumed(source, context, prefix_block_tokens, rows, turns)
    used = {field.name for field in where.values()}
    ignored = [name for name in log.columns if name not in used]
    notes = (
        source.provenance,
        f"columns {', '.join(f'{name}={field.name}' for name, field in sorted(where.items()))}",
        f"columns ignored: {', '.join(ignored)}" if ignored else None,
        *inputs.notes,
        order.note,
        zero_note,
        split_note,
        think_note,
        chains.note,
    )
    return Trace.build(
        source.stem,
        {name: values for name, values in rows.items() if name in BY_NAME},
        chain_offsets=chains.offsets,
        chain_ids=chains.ids,
        prefix_block_tokens=chains.block_tokens,
        replay=replay,
        provenance=[note for note in notes if note],
        duration_s=float(inputs.stamps.arrival_s.max()) if replay == "open" else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _Service:
    """Service that is assumed where no end of a request is logged."""

    ttft_s: float
    tpot_s: float


def _service(source: Source, where: Mapping[str, Field], ttft_s: float | None, tpot_s: float | None) -> _Service | None:
    """The assumed service, or None; both numbers or none, and only where think times are to be found."""
    if ttft_s is None and tpot_s is None:
        return None
    given = {"assumed_ttft_s": ttft_s, "assumed_tpot_s": tpot_s}
    for name, value in given.items():
        option = f"trace.options.{name}"
        if "session" not in where:
            raise source.error("a session column with it, as think times are between turns", column=option, value=value)
        if "think_s" in where:
            raise source.error("none, as the table has think times", column=option, value=value)
        if value is None:
            raise source.error("both assumed_ttft_s and assumed_tpot_s, or neither", column=option, value="nothing")
    return _Service(float(ttft_s or 0.0), float(tpot_s or 0.0))


def _take(
    rows: dict[str, pl.Series], index: NDArray[np.int64] | None, chosen: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """Bring every column into the order ``chosen``, one by one, so that one copy at a time is held.

    ``index`` are the rows of the file that ``rows`` are, None for all as they stand; returns that of the result.
    """
    if chosen is None:
        return index
    for name in rows:
        rows[name] = rows[name][chosen]
    return chosen if index is None else index[chosen]


def _ties(rows: Mapping[str, pl.Series]) -> NDArray[np.int64] | None:
    """The order by session of requests that arrive at the same time, as a trace has it; None if they are in it."""
    arrival, session = rows["arrival_s"].to_numpy(), rows["session"].to_numpy()
    same = arrival[1:] == arrival[:-1]
    if not (same & (session[1:] < session[:-1])).any():
        return None
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    order = np.arange(arrival.size)
    order[tied] = tied[np.lexsort((session[tied], arrival[tied]))]
    return order


def _check_turns(
    log: Log, rows: Mapping[str, pl.Series], turns: Turns, index: NDArray[np.int64] | None, name: str
) -> None:
    """Turns of the file must be 1, 2, 3, ... of each session in order of arrival."""
    given, session = rows["turn"].to_numpy(), turns.session
    bad = (given != turns.turn) & (session >= 0)
    if not bad.any():
        return
    at = int(np.argmax(bad))
    twice = bool(((session[:at] == session[at]) & (given[:at] == given[at])).any())
    expected = "each turn of a session once" if twice else "turns 1, 2, 3, ... of a session in order of arrival"
    raise log.error(expected, at if index is None else int(index[at]), name)


def _check_torn(
    log: Log,
    rows: Mapping[str, pl.Series],
    turns: Turns,
    keep: NDArray[np.bool_],
    index: NDArray[np.int64] | None,
    where: Mapping[str, Field],
    service: _Service | None,
) -> None:
    """Raise where a turn would be dropped from which the think time of the next one counts."""
    torn = ~(keep if index is None else keep[index]) & (turns.following >= 0)
    if not torn.any() or not ("think_s" in rows or service is not None or _ends(rows)):
        return
    at = int(np.argmax(torn))
    expected = (
        "trace.options.zero_output=error or =one: dropping this turn would tear its session, as the think time of its "
        "next turn counts from it"
    )
    raise log.error(expected, at if index is None else int(index[at]), where["output_tokens"].name)


def _ends(rows: Mapping[str, pl.Series]) -> dict[str, NDArray[np.float64]]:
    """(n,) ends of requests by how they are recorded, the best first, NaN where they are not."""
    arrival, ends = rows["arrival_s"].to_numpy(), {}
    if "end_s" in rows:
        ends["logged end stamps"] = rows["end_s"].to_numpy()
    if "e2e_s" in rows:
        ends["arrival + logged latency"] = arrival + _filled(rows["e2e_s"])
    if "ttft_s" in rows and "tpot_s" in rows:
        output = rows["output_tokens"].to_numpy()
        tail = np.where(output > 1, _filled(rows["tpot_s"]), 0.0) * (output - 1)
        ends["arrival + logged ttft + tpot x (output - 1)"] = arrival + _filled(rows["ttft_s"]) + tail
    return ends


def _apart(
    log: Log,
    rows: dict[str, pl.Series],
    turns: Turns,
    ends: Mapping[str, NDArray[np.float64]],
    index: NDArray[np.int64] | None,
    where: Mapping[str, Field],
    latency_unit: str,
) -> tuple[Turns, str | None]:
    """Parallel calls of a session as sessions of their own; a question where that would be most of its turns."""
    split, over = apart(turns, rows["arrival_s"].to_numpy(), ends.values())
    if not over.size:
        return turns, None
    later = int((turns.turn > 1).sum())
    if "e2e_s" in where and "end_s" not in where and latency_unit == "auto" and later >= FEW and over.size > later / 2:
        at = int(turns.previous[over[0]])
        expected = (
            f"latencies that end before the next turn of the session, but {over.size:,} of {later:,} do not: are they "
            "in another unit? trace.options.latency_unit=ms, or =s if calls are parallel"
        )
        raise log.error(expected, at if index is None else int(index[at]), where["e2e_s"].name)
    rows["session"] = pl.Series("session", split.session)
    note = (
        f"parallel calls: {over.size:,} of {later:,} later turns begin before the one before has ended; the sessions "
        f"concerned are {int(split.session.max()) - int(turns.session.max()):,} streams, each a session of its own"
    )
    return split, note


def _think(
    rows: dict[str, pl.Series], turns: Turns, ends: Mapping[str, NDArray[np.float64]], service: _Service | None
) -> str | None:
    """Think times as given, or from the ends of turns: logged, of logged latencies, or assumed."""
    if "think_s" in rows:  # loggers write 0 on a first turn, where there is nothing to think about
        first = pl.Series(turns.turn == 1)
        rows["think_s"] = pl.select(pl.when(~first).then(rows["think_s"])).to_series()
        return None
    arrival, output = rows["arrival_s"].to_numpy(), rows["output_tokens"].to_numpy()
    ends = dict(ends)
    if service is not None:
        how = f"an assumed service of {service.ttft_s:g} s + {service.tpot_s:g} s a token"
        ends[how] = arrival + service.ttft_s + service.tpot_s * output
    if not ends:
        return None
    thinking = think_times(arrival, turns.previous, ends)
    rows["think_s"] = thinking.think_s
    return thinking.note


def _filled(values: pl.Series) -> NDArray[np.float64]:
    return values.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _need_think(source: Source, rows: Mapping[str, pl.Series], turns: Turns | None, replay: str) -> None:
    """Say what would give think times where a replay needs them and the table has nothing of the kind."""
    if turns is None or "think_s" in rows or not (turns.turn > 1).any():
        return
    expected = (
        f"think times, which replay={replay} needs: a column think_s, or the ends of turns (end_s, e2e_s, or ttft_s "
        "and tpot_s), or trace.options.assumed_ttft_s and trace.options.assumed_tpot_s to assume a service time"
    )
    raise source.error(expected, column="think_s")


def sniff(name: str, head: bytes) -> bool:
    """True for a header with the three columns that a trace needs, under their own names, and for any Parquet."""
    return head.startswith(PARQUET_MAGIC) or recognised(first_line(head))


FORMAT = Format("table", read, sniff, "any CSV or Parquet through a column map")
