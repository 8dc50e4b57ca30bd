"""The project's own form of a trace: one Parquet file that reads back to an equal hash.

The trace's columns as they are, one column ``chain`` (list of int32: the dense prefix ids of a request, each as the
difference to the id before it in the file, which compresses to little), and the rest as file metadata under
``pdgym.trace``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from traces.errors import TraceError
from traces.readers.columns import PARQUET_MAGIC, parquet_table, sound_parquet
from traces.readers.format import Format
from traces.source import Source
from traces.trace import Trace

KEY = "pdgym.trace"
VERSION = 1

_LEVEL, _QUICK_LEVEL = 19, 3  # of zstd: small files are shipped, large ones must not take minutes
_MANY = 1_000_000


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace as canonical Parquet, atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    head = {
        "version": VERSION,
        "name": trace.name,
        "prefix_block_tokens": trace.prefix_block_tokens,
        "replay": trace.replay,
        "classes": list(trace.classes),
        "provenance": list(trace.provenance),
        "duration_s": trace.duration_s,
        "sha256": trace.sha256,
    }
    frame = trace.frame
    if trace.prefix_block_tokens:
        frame = frame.with_columns(_pack(trace))
    try:
        level = _LEVEL if len(trace) + trace.chain_ids.size < _MANY else _QUICK_LEVEL
        frame.write_parquet(part, compression="zstd", compression_level=level, metadata={KEY: json.dumps(head)})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(source: Source) -> Trace:
    """Read canonical Parquet.

    Raises:
        TraceError: no canonical Parquet, a newer version, or content that does not have its recorded hash.
    """
    table = parquet_table(source)
    head = _head(source)
    frame, offsets, ids = table.frame, None, None
    if "chain" in frame.columns:
        if frame.schema["chain"] != pl.List(pl.Int32):
            raise source.error("type List(Int32)", column="chain", value=str(frame.schema["chain"]))
        chains = frame["chain"]
        if chains.null_count():
            raise source.error("a list on every row", column="chain", value="null")
        offsets = np.zeros(frame.height + 1, np.int64)
        np.cumsum(chains.list.len().to_numpy(), out=offsets[1:])
        flat = chains.filter(chains.list.len() > 0).explode().fill_null(0).to_numpy()
        ids = np.cumsum(flat, dtype=np.int64)
        del chains, flat
        frame = frame.drop("chain")
    try:
        trace = Trace.build(
            str(head["name"]),
            frame,
            chain_offsets=offsets,
            chain_ids=ids,
            prefix_block_tokens=int(head["prefix_block_tokens"]),
            replay=str(head["replay"]),
            classes=[str(c) for c in head["classes"]],
            provenance=[str(p) for p in head["provenance"]],
            duration_s=float(head["duration_s"]),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise source.error(f"complete metadata ({error})", column=KEY) from error
    if trace.sha256 != head.get("sha256"):
        raise source.error("the content that was written: its hash differs", column="sha256", value=trace.sha256)
    return trace


def _pack(trace: Trace) -> pl.Series:
    delta = np.diff(trace.chain_ids, prepend=np.int32(0)).astype(np.int32, copy=False)
    row = np.repeat(np.arange(len(trace), dtype=np.int32), np.diff(trace.chain_offsets))
    lists = pl.DataFrame({"row": row, "chain": delta}).group_by("row", maintain_order=True).agg("chain")
    rows = pl.DataFrame({"row": np.arange(len(trace), dtype=np.int32)})
    rows = rows.join(lists, on="row", how="left", maintain_order="left")
    return rows["chain"].fill_null(pl.Series([[]], dtype=pl.List(pl.Int32))).alias("chain")


def _head(source: Source) -> dict[str, Any]:
    with sound_parquet(source) as file:
        text = pl.read_parquet_metadata(file).get(KEY)
    try:
        head = json.loads(text) if text is not None else None
    except (ValueError, RecursionError) as error:
        raise source.error("sound metadata", column=KEY, value=str(error)) from error
    if not isinstance(head, dict) or head.get("version") != VERSION:
        found = head.get("version") if isinstance(head, dict) else None
        expected = f"a trace written by this project, version {VERSION} (other tables: trace.format=table)"
        raise source.error(expected, column=KEY, value=found)
    return head


def sniff(name: str, head: bytes) -> bool:
    """True for a Parquet file, which :func:`marked` then looks into: metadata are at the end of one."""
    return head.startswith(PARQUET_MAGIC)


def marked(source: Source) -> bool:
    """True if the file has this project's metadata, of whatever version."""
    try:
        with sound_parquet(source) as file:
            return KEY in pl.read_parquet_metadata(file)
    except TraceError:
        return False  # whoever reads it says what is wrong with it


FORMAT = Format("pdgym", read, sniff, "the project's own Parquet", marked)
