"""Any CSV or Parquet through a column map: ``columns={"prompt_tokens": "my_col"}``.

Columns of the trace are looked for under their own names unless mapped; ``arrival_s``, ``prompt_tokens`` and
``output_tokens`` must be there. Other columns of the file are ignored, and named in the provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import partial

import numpy as np
import polars as pl

from traces.check import BY_NAME, COLUMNS, MAX_TOKENS, Column
from traces.errors import nearest
from traces.readers.columns import Table, table
from traces.readers.format import Format
from traces.readers.repair import zero_outputs
from traces.readers.stamps import UNITS, Stamps, read_stamps
from traces.sessions import growing_chains
from traces.source import Source
from traces.trace import Trace

CONTEXTS = ("unknown", "grows")
_BLOCK_TOKENS = 16
_GROWTH = ("session", "turn", "prompt_tokens", "output_tokens")
_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")


def read(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    arrival_unit: str = "auto",
    sort: bool = False,
    zero_output: str = "error",
    replay: str = "open",
    context: str = "unknown",
    prefix_block_tokens: int | None = None,
) -> Trace:
    """Read a table.

    Args:
        source: a CSV with a header, or a Parquet file.
        columns: trace column -> column of the file.
        arrival_unit: unit of the arrivals, see :mod:`traces.readers.stamps`.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them, or count them as ``one`` token.
        replay: replay mode; ``closed`` needs sessions with ``think_s``.
        context: what later turns of a session share with earlier ones, which a table does not say. ``unknown``:
            no prefix is known, and no cache hits. ``grows``: a prompt begins with the whole turn before it, see
            :func:`traces.sessions.growing_chains`.
        prefix_block_tokens: tokens of a prefix block where the context grows; None: 16.

    Raises:
        TraceError: an unknown or missing column, a bad value, an implausible arrival unit.
    """
    if arrival_unit not in UNITS:
        expected = f"one of {', '.join(UNITS)}{nearest(str(arrival_unit), UNITS)}"
        raise source.error(expected, column="trace.options.arrival_unit", value=arrival_unit)
    if context not in CONTEXTS:
        raise source.error(
            f"one of {', '.join(CONTEXTS)}{nearest(str(context), CONTEXTS)}",
            column="trace.options.context",
            value=context,
        )
    data = table(source)
    if columns is not None and not isinstance(columns, Mapping):
        raise source.error("trace column: column of the file, a mapping", column="trace.options.columns", value=columns)
    names = _names(data, dict(columns or {}))
    stamps = read_stamps(data, names["arrival_s"], arrival_unit)
    order = data.order(stamps.keys, names["arrival_s"], sort)
    found = {
        c: _column(data, BY_NAME[c], names[c]) for c in names if c not in ("arrival_s", "session", "output_tokens")
    }
    recorded = data.whole(names["output_tokens"], 0, MAX_TOKENS, "tokens")
    keep, found["output_tokens"], zero_note = zero_outputs(recorded, zero_output, data)
    if "session" in names:
        found["session"] = _sessions(data, names["session"])
    frame = pl.DataFrame(found).with_columns(pl.Series("arrival_s", stamps.arrival_s), row=pl.int_range(pl.len()))
    if order.index is not None:
        frame = frame[order.index]
    kept = pl.Series(keep if order.index is None else keep[order.index])
    if "session" in names:
        if "turn" in names:
            _check_turns(frame, data, names["turn"])
        frame = _count_turns(frame.filter(kept))
    else:
        frame = frame.filter(kept)
    growth, block, prefix_note = None, 0, None
    if context == "grows":
        block = _block(source, prefix_block_tokens, names)
        session, turn, prompt, output = (frame[c].to_numpy() for c in _GROWTH)
        growth = growing_chains(session, turn, prompt, output, block)
        prefix_note = (
            f"prefixes assumed, context=grows: {growth.grown} later turns begin with the whole turn before (prompt and "
            f"output), {growth.cut} are shorter than that and share nothing; blocks of {block} tokens"
        )
    elif prefix_block_tokens is not None:
        raise source.error(
            "trace.options.context=grows with it", column="trace.options.prefix_block_tokens", value=prefix_block_tokens
        )
    elif "session" in names:
        prefix_note = (
            "no prefixes known, so later turns hit no cache: trace.options.context=grows takes each turn's prompt to "
            "begin with the whole turn before"
        )
    used = set(names.values())
    ignored = [c for c in data.frame.columns if c not in used]
    notes = (
        source.provenance,
        f"columns {', '.join(f'{k}={v}' for k, v in sorted(names.items()))}",
        f"columns ignored: {', '.join(ignored)}" if ignored else None,
        stamps.note,
        order.note,
        zero_note,
        prefix_note,
    )
    return Trace.build(
        source.stem,
        frame.drop("row"),
        chain_offsets=growth.offsets if growth else None,
        chain_ids=growth.ids if growth else None,
        prefix_block_tokens=block,
        replay=replay,
        provenance=[note for note in notes if note],
        duration_s=_duration(stamps, frame, replay),
    )


def _block(source: Source, tokens: int | None, names: Mapping[str, str]) -> int:
    """Tokens of a prefix block where the context grows, which needs sessions."""
    if "session" not in names:
        expected = "a session column with it, or one mapped with trace.options.columns.session=NAME"
        raise source.error(expected, column="trace.options.context", value="grows")
    if tokens is None:
        return _BLOCK_TOKENS
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise source.error(
            "a whole number of tokens, 1 or more", column="trace.options.prefix_block_tokens", value=tokens
        )
    return tokens


def _names(data: Table, given: dict[str, str]) -> dict[str, str]:
    """Trace column -> column of the file."""
    for column, name in given.items():
        if column not in BY_NAME:
            expected = f"a trace column{nearest(column, BY_NAME) or ' (' + ', '.join(BY_NAME) + ')'}"
            raise data.source.error(expected, column=f"trace.options.columns.{column}", value=name)
        if not isinstance(name, str):
            raise data.source.error("a column name", column=f"trace.options.columns.{column}", value=name)
        data.need([name])
    names = {c.name: c.name for c in COLUMNS if c.name in data.frame.columns and c.name not in given} | given
    for column in _REQUIRED:
        if column not in names:
            hint = _likely(column, data, names) or f" (found: {', '.join(data.frame.columns[:12])})"
            expected = f"this column to be present, or mapped with trace.options.columns.{column}=NAME{hint}"
            raise data.source.error(expected, column=column)
    return names


def _likely(column: str, data: Table, names: Mapping[str, str]) -> str:
    """The free column of the file whose name is closest, unless it is closer to another column that must be there."""

    def alike(name: str, wanted: str) -> float:
        return SequenceMatcher(None, name.lower(), wanted).ratio()

    free = [c for c in data.frame.columns if c not in names.values()]
    return nearest(column, [c for c in free if max(_REQUIRED, key=partial(alike, c)) == column])


def _column(data: Table, column: Column, name: str) -> pl.Series:
    if column.low is None or column.high is None:
        values = data.text(name)
        if not column.nullable and values.null_count():
            raise data.error(column.meaning, int(np.argmax(values.is_null().to_numpy())), name)
        return values
    if column.dtype == pl.Int64:
        return data.whole(name, int(column.low), int(column.high), column.meaning, null=column.nullable)
    return data.number(name, column.low, column.high, column.meaning, null=column.nullable)


def _sessions(data: Table, name: str) -> pl.Series:
    """Session numbers by first appearance of their key; empty and -1 are none."""
    key = data.text(name).str.strip_chars()
    key = pl.select(pl.when(key.is_in(["", "-1"])).then(None).otherwise(key).alias("key")).to_series()
    frame = pl.DataFrame({"key": key, "row": pl.int_range(key.len(), eager=True)})
    first = frame.select(pl.when(pl.col("key").is_null()).then(-1).otherwise(pl.col("row").first().over("key")))
    return first.to_series().cast(pl.Int64)


def _check_turns(frame: pl.DataFrame, data: Table, name: str) -> None:
    rows = frame.filter(pl.col("session") >= 0)
    twice = rows.filter(~pl.struct("session", "turn").is_first_distinct())["row"]
    if twice.len():
        raise data.error("each turn of a session once", int(twice[0]), name)
    gap = rows.filter(pl.col("turn") != pl.int_range(1, pl.len() + 1).over("session"))["row"]
    if gap.len():
        raise data.error("turns 1, 2, 3, ... of a session in order of arrival", int(gap[0]), name)


def _count_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """Turns counted from 1 by arrival: where the file has none, or a repair dropped some."""
    count = pl.int_range(1, pl.len() + 1).over("session")
    frame = frame.with_columns(turn=pl.when(pl.col("session") >= 0).then(count).otherwise(1))
    if "think_s" in frame.columns:  # loggers write 0 on a first turn, where there is nothing to think about
        frame = frame.with_columns(think_s=pl.when(pl.col("turn") == 1).then(None).otherwise(pl.col("think_s")))
    return frame


def _duration(stamps: Stamps, frame: pl.DataFrame, replay: str) -> float:
    return float(stamps.arrival_s.max()) if replay == "open" else 0.0


def sniff(name: str, head: bytes) -> bool:
    """True if the header has the three columns that a trace needs, under their own names."""
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace").lstrip("\ufeff")
    return set(_REQUIRED) <= {field.strip().strip('"') for field in first.split(",")}


FORMAT = Format("table", read, sniff, "any CSV or Parquet through a column map")
