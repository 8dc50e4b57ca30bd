"""Several traces on one cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from traces.check import BY_NAME
from traces.errors import TraceError, nearest
from traces.transforms.rows import number

if TYPE_CHECKING:
    from traces.trace import Trace

INTO = ("both", "tenant", "class")


def merge(traces: Mapping[str, Trace], *, into: str = "both", coarsen: bool = False) -> Trace:
    """One trace of several, from one start on, as long as the shortest.

    Sessions and prefixes of different traces have nothing in common. All take the replay mode of the first.

    Args:
        traces: traces by label, two or more.
        into: what carries the label: the column ``tenant``, ``class`` (so that objectives by class are possible), or
            ``both``. A tenant or class that a trace already has becomes ``label/old``.
        coarsen: prefix blocks of different size become the largest, if that is a multiple of each; what a partial
            coarse block would have shared is lost. A trace without prefix information stays without.

    Raises:
        TraceError: fewer than two traces, blocks of different size, a replay mode that one cannot take, or an
            unknown ``into``.
    """
    name = "+".join(traces)
    if len(traces) < 2:
        raise TraceError(file=name, column="merge", value=len(traces), expected="two or more traces")
    if into not in INTO:
        expected = f"one of {', '.join(INTO)}{nearest(str(into), INTO)}"
        raise TraceError(file=name, column="into", value=into, expected=expected)
    mode = next(iter(traces.values())).replay
    duration_s = min(trace.duration_s for trace in traces.values())
    block = _block(traces, name, coarsen)
    frames, lengths, ids, notes = [], [], [], []
    sessions = blocks = 0
    classes: dict[str, None] = {}
    for label, trace in traces.items():
        part = _coarse(_shortened(trace.with_replay(mode), duration_s), block)
        frame = _labelled(part, label, into)
        classes |= dict.fromkeys(_classes(part, label, into))
        session = pl.when(pl.col("session") >= 0).then(pl.col("session") + sessions).otherwise(-1)
        frames.append(frame.with_columns(session.alias("session")))
        lengths.append(np.diff(part.chain_offsets))
        ids.append(part.chain_ids.astype(np.int64) + blocks)
        sessions, blocks = sessions + part.n_sessions, blocks + part.n_prefix_ids
        what = f"{len(part)} requests" + ("" if part.prefix_block_tokens else ", no prefix information: never a hit")
        size = trace.prefix_block_tokens
        what += f", blocks of {size} made {block} tokens" if size not in (0, block) else ""
        notes.append(f"merged as {label}: {what}; {part.name}: " + "; ".join(part.provenance))
    notes.append(f"merged into one of {duration_s:g} s, the shortest; labels in {into}, replay {mode} as the first")
    frame = pl.concat(frames, how="diagonal")
    fill = [pl.col("priority").fill_null(0)] if "priority" in frame.columns else []
    fill += [pl.col("class").fill_null("default")] if "class" in frame.columns else []
    first = next(iter(traces.values()))
    return type(first).build(
        name,
        frame.with_columns(fill),
        chain_offsets=np.r_[0, np.cumsum(np.concatenate(lengths))],
        chain_ids=np.concatenate(ids),
        prefix_block_tokens=block,
        replay=mode,
        classes=list(classes),
        provenance=notes,
        duration_s=duration_s,
    )


def coarsen_blocks(trace: Trace, block_tokens: int) -> Trace:
    """The same trace with prefix blocks of ``block_tokens``, a multiple of its own. Partial blocks share nothing.

    Raises:
        TraceError: no multiple, or a trace without prefix information.
    """
    number(trace, "block_tokens", block_tokens, low=1, whole=True)
    size = trace.prefix_block_tokens
    if size == 0 or block_tokens % size or block_tokens < size:
        expected = f"a multiple of the trace's blocks of {size} tokens" if size else "a trace with prefix information"
        raise TraceError(file=trace.name, column="block_tokens", value=block_tokens, expected=expected)
    if block_tokens == size:
        return trace
    per = block_tokens // size
    lengths = np.diff(trace.chain_offsets) // per
    offsets = np.r_[0, np.cumsum(lengths)]
    # The last fine block of a coarse one names all of the text up to its end.
    depth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    ids = trace.chain_ids[np.repeat(trace.chain_offsets[:-1], lengths) + (depth + 1) * per - 1]
    return type(trace).build(
        trace.name,
        trace.frame,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block_tokens,
        replay=trace.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, f"prefix blocks of {size} tokens made {block_tokens}"),
        duration_s=trace.duration_s,
    )


def _block(traces: Mapping[str, Trace], name: str, coarsen: bool) -> int:
    sizes = {label: trace.prefix_block_tokens for label, trace in traces.items() if trace.prefix_block_tokens}
    largest = max(sizes.values(), default=0)
    if any(size != largest for size in sizes.values()):
        fit = all(largest % size == 0 for size in sizes.values())
        if not coarsen or not fit:
            can = f"coarsen=true makes all {largest}" if fit else "none of them is a multiple of the others"
            expected = f"prefix blocks of one size ({can})"
            raise TraceError(file=name, column="prefix_block_tokens", value=sizes, expected=expected)
    return largest


def _coarse(trace: Trace, block: int) -> Trace:
    return coarsen_blocks(trace, block) if trace.prefix_block_tokens else trace


def _shortened(trace: Trace, duration_s: float) -> Trace:
    if duration_s >= trace.duration_s:
        return trace
    return trace.window(0.0, duration_s)


def _labelled(trace: Trace, label: str, into: str) -> pl.DataFrame:
    frame = trace.frame
    columns: Sequence[str] = ("tenant", "class") if into == "both" else (into,)
    for column in columns:
        new: Any = pl.lit(label)
        if column in frame.columns:
            new = pl.when(pl.col(column).is_null()).then(new).otherwise(pl.lit(f"{label}/") + pl.col(column))
        frame = frame.with_columns(new.cast(BY_NAME[column].dtype).alias(column))
    return frame


def _classes(trace: Trace, label: str, into: str) -> list[str]:
    if "class" not in trace.frame.columns:
        return ["default"] if into == "tenant" else [label]
    return list(trace.classes) if into == "tenant" else [f"{label}/{old}" for old in trace.classes]
