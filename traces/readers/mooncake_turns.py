"""Mooncake rows with session ids: a session's rows are its turns, in the order of the file.

As ai-dynamo/dynamo reads them (lib/mocker/src/loadgen/trace.rs @ dc6d631daee560579fdaab505c5166c783529600): the first
turn comes at its ``timestamp``, a later one ``delay`` ms after the turn before *ended*. Where a later turn has a stamp
and no delay, Dynamo waits the gap between the two stamps after the end, so that service counts twice; here the think
time is the gap less an assumed service time. A later turn with neither follows at once.

What a later turn's length and hashes are of differs: the whole prompt (Dynamo ``mooncake``), or what it adds to the
turns and outputs before it (``mooncake-delta``, and AIPerf's default).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.chains import growing_chains
from traces.errors import nearest
from traces.readers import chains
from traces.readers.columns import order_of
from traces.readers.json_table import JsonTable
from traces.readers.plausible import check_rate
from traces.readers.turns import none_note, says_none
from traces.trace import Trace
from traces.transform import gather_chains

LATER_TURNS = ("whole", "delta")
_MOSTLY = 0.75  # of lengths that each count what a turn adds, half exceed the one before by chance


@dataclass(frozen=True, slots=True)
class Options:
    """Reader options; see :func:`traces.readers.mooncake.read`."""

    sort: bool
    block_tokens: int
    seed: int
    assumed_ttft_s: float
    assumed_tpot_s: float
    later_turns: str | None
    session_rate_per_s: float | None
    replay: str | None
    implausible: str


def build(
    table: JsonTable,
    output: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    options: Options,
    zero_note: str | None,
) -> Trace:
    """A trace of rows with session ids.

    Args:
        table: the rows.
        output: (n,) output lengths, 1 or more.
        offsets: (n+1,) CSR offsets of the full prompt blocks.
        ids: their prefix ids.
        options: of the reader.
        zero_note: what was done to requests without output.

    Raises:
        TraceError: turns that run back in time, stamps that are missing, or an option that does not fit.
    """
    source = table.source
    stamped = table.frame["timestamp"].is_not_null().to_numpy()
    check_rate(table, table.frame["timestamp"].fill_null(np.nan).to_numpy() / 1000, "timestamp", options.implausible)
    order = None
    if stamped.all():
        found = table.frame["timestamp"]
        order = order_of(found.to_numpy(), table.rows.tolist(), "timestamp", options.sort, source, found)
    place = np.arange(output.size) if order is None or order.index is None else order.index
    prompt, output = table.column("input_length")[place], output[place]
    offsets, ids = gather_chains(offsets, ids, place)
    keys = table.frame["session_id"][place]
    none = says_none(keys).fill_null(False)
    previous, session, turn = _turns(pl.select(pl.when(~none).then(keys)).to_series())
    whole, turns_note = _whole(table, place, previous, prompt, offsets, ids, options)
    if not whole:
        prompt = _summed(prompt, output, previous)
    arrival, think, notes = _times(table, place, previous, output, options)
    chain_offsets, chain_ids, block = offsets, ids, options.block_tokens
    if not whole:
        chain_offsets, chain_ids = _grown(session, turn, prompt, output, offsets, ids, block)
    elif table.has("hash_ids"):
        child = np.full(output.size, -1, np.int64)
        child[previous[previous >= 0]] = np.flatnonzero(previous >= 0)
        chain_offsets, chain_ids, _ = chains.with_outputs(offsets, ids, prompt, output, child, block, whole_answer=True)
    else:
        block, turns_note = 0, f"{turns_note}; no hash_ids, and so no prefixes known"
    notes.append(none_note(int(none.sum())) or "")
    closed = not stamped.all() or bool(table.frame["delay"].is_not_null().any())
    start = np.where(previous < 0, arrival, 0.0).max()
    replay = options.replay or ("closed" if closed else "open")
    return Trace.build(
        source.stem,
        {
            "arrival_s": arrival,
            "session": session,
            "turn": turn,
            "think_s": pl.Series(think).fill_nan(None),
            "prompt_tokens": prompt,
            "output_tokens": output,
        },
        chain_offsets=chain_offsets,
        chain_ids=chain_ids,
        prefix_block_tokens=block,
        replay=replay,
        provenance=[n for n in (source.provenance, order and order.note, zero_note, turns_note, *notes) if n],
        duration_s=float(arrival.max() if replay == "open" else start),
    )


def _turns(keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(n,) place of the turn before (-1: none), session number (-1: none) and turn of each row."""
    last: dict[str, int] = {}
    previous, turn = np.full(keys.len(), -1, np.int64), np.ones(keys.len(), np.int64)
    session = np.full(keys.len(), -1, np.int64)
    for at, key in enumerate(keys.to_list()):
        if key is None:
            continue
        before = last.get(key, -1)
        previous[at], last[key] = before, at
        session[at], turn[at] = (at, 1) if before < 0 else (session[before], turn[before] + 1)
    return previous, session, turn


def _whole(
    table: JsonTable,
    place: NDArray[np.int64],
    previous: NDArray[np.int64],
    prompt: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    options: Options,
) -> tuple[bool, str]:
    """Whether later turns count the whole prompt, as said or as the file shows; and a line for the provenance."""
    column = "trace.options.later_turns"
    if options.later_turns is not None and options.later_turns not in LATER_TURNS:
        expected = f"one of {', '.join(LATER_TURNS)}{nearest(str(options.later_turns), LATER_TURNS)}"
        raise table.source.error(expected, column=column, value=options.later_turns)
    later = np.flatnonzero(previous >= 0)
    note = f"sessions from session_id: {later.size} of {place.size} requests are later turns"
    if options.later_turns is not None or not later.size:
        how = options.later_turns or "whole"
        return how == "whole", f"{note}, later_turns={how}"
    before = previous[later]
    repeats = prompt[later] >= prompt[before]
    lengths = np.diff(offsets)
    known = (lengths[before] > 0) & repeats & (lengths[later] >= lengths[before])
    last = lengths[before[known]] - 1
    same = ids[offsets[later[known]] + last] == ids[offsets[before[known]] + last]
    repeats[known] = same
    share = float(repeats.mean())
    if share < _MOSTLY:
        at = int(place[later[~repeats][0]])
        raise table.error(
            f"later turns whose prompt holds the turn before, which {share:.0%} of {later.size} do: set {column}=delta "
            "if a later turn counts only what it adds to the turns and outputs before, =whole if these lengths are of "
            "whole prompts",
            at,
            "input_length",
        )
    return True, f"{note}, taken as whole prompts: {share:.1%} of them hold the prompt before"


def _summed(prompt: NDArray[np.int64], output: NDArray[np.int64], previous: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole prompts where each turn counts what it adds."""
    whole = prompt.copy()
    for at in np.flatnonzero(previous >= 0).tolist():
        whole[at] += whole[previous[at]] + output[previous[at]]
    return whole


def _times(
    table: JsonTable, place: NDArray[np.int64], previous: NDArray[np.int64], output: NDArray[np.int64], options: Options
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
    """(n,) arrivals, recorded or nominal, (n,) think times, NaN on first turns, and lines for the provenance."""
    stamp = table.frame["timestamp"][place].fill_null(np.nan).to_numpy() / 1000
    delay = table.frame["delay"][place].fill_null(np.nan).to_numpy() / 1000
    first = previous < 0
    arrival, drawn = _starts(table, place, stamp, first, options)
    early = first & (np.nan_to_num(delay) > 0)
    if early.any():
        raise table.error("no delay on the first turn of a session", int(place[np.argmax(early)]), "delay")
    service = options.assumed_ttft_s + options.assumed_tpot_s * output
    think = np.full(place.size, np.nan)
    guessed = shorter = at_once = 0
    for at in np.flatnonzero(~first).tolist():
        end = arrival[previous[at]] + service[previous[at]]
        if not np.isnan(delay[at]):
            think[at] = delay[at]
        elif not np.isnan(stamp[at]) and not drawn:
            think[at], guessed, shorter = max(stamp[at] - end, 0.0), guessed + 1, shorter + (stamp[at] < end)
        else:
            think[at], at_once = 0.0, at_once + 1
        arrival[at] = end + think[at] if np.isnan(stamp[at]) or drawn else stamp[at]
        if arrival[at] < arrival[previous[at]]:
            raise table.error("turns of a session in order of time", int(place[at]), "timestamp")
    assumed = f"assumed service of {options.assumed_ttft_s:g} s + {options.assumed_tpot_s:g} s a token"
    later = int((~first).sum())
    notes = [drawn]
    if later:
        notes.append(
            f"think times: {later - guessed - at_once} recorded (delay), {guessed} from the gap between stamps less an "
            f"{assumed} ({shorter} gaps were shorter and count as 0), {at_once} follow at once"
        )
    if nominal := int((~first & (np.isnan(stamp) | bool(drawn))).sum()):
        notes.append(f"arrivals of {nominal} later turns are nominal, with an {assumed}")
    lowest = arrival[first].min()
    return arrival - lowest, think, [note for note in notes if note]


def _starts(
    table: JsonTable, place: NDArray[np.int64], stamp: NDArray[np.float64], first: NDArray[np.bool_], options: Options
) -> tuple[NDArray[np.float64], str]:
    """(n,) arrivals of first turns, NaN elsewhere; what was drawn, or an empty text."""
    column, rate = "trace.options.session_rate_per_s", options.session_rate_per_s
    missing = first & np.isnan(stamp)
    if missing.any() and (rate is None or not missing[first].all()):
        expected = "a stamp, as first turns of other sessions have one"
        if missing[first].all():
            expected = (
                "a stamp on first turns: the file has none, and trace.options.session_rate_per_s=N draws Poisson starts"
            )
        raise table.error(expected, int(place[np.argmax(missing)]), "timestamp")
    if rate is None:
        return np.where(first, stamp, np.nan), ""
    if not missing.any():
        raise table.source.error("none: sessions have stamps", column=column, value=rate)
    arrival = np.full(place.size, np.nan)
    gaps = np.random.default_rng(options.seed).exponential(1 / rate, int(first.sum()))
    arrival[first] = np.cumsum(gaps)
    return (
        arrival,
        f"session starts drawn: Poisson, {rate:g} sessions a second, seed {options.seed}, in the file's order",
    )


def _grown(
    session: NDArray[np.int64],
    turn: NDArray[np.int64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ids: NDArray[np.int64],
    block_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chains of contexts that grow by whole turns: a first turn's recorded ids, then ids of the session's own.

    Hashes of what later turns add do not fall on block borders of the whole prompt, so what sessions share beyond
    their first turns is lost.
    """
    growth = growing_chains(session, turn, prompt, output, block_tokens)
    lengths = np.diff(growth.offsets)
    row = np.repeat(np.arange(turn.size), lengths)
    depth = np.arange(growth.ids.size) - np.repeat(growth.offsets[:-1], lengths)
    head = np.arange(turn.size)
    starts = np.zeros(int(session.max()) + 1, np.int64)
    starts[session[(turn == 1) & (session >= 0)]] = np.flatnonzero((turn == 1) & (session >= 0))
    head[session >= 0] = starts[session[session >= 0]]
    shared = depth < np.diff(offsets)[head[row]]
    mixed = growth.ids + (int(ids.max()) + 1 if ids.size else 0)
    mixed[shared] = ids[offsets[:-1][head[row[shared]]] + depth[shared]]
    return growth.offsets, mixed
