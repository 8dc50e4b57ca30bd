"""Mooncake traces (FAST 2025): JSON lines with ``timestamp`` (ms), lengths in tokens, ``hash_ids``.

Source: kvcache-ai/Mooncake, FAST25-release/traces/*.jsonl. ``len(hash_ids) == ceil(input_length / 512)``. An id is
global and names the prefix up to and including its block; the last, partial block is left out here (full blocks
only). The conversation trace is stamped in 3-second buckets: arrivals are spread evenly at random inside their
bucket, by a seed, in the order of the file. There are no session ids: :mod:`traces.sessions` infers them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import jsonl
from traces.readers.columns import order_of
from traces.readers.format import Format
from traces.readers.repair import zero_outputs
from traces.sessions import chains_with_output, link_by_prefix, think_times
from traces.source import Source
from traces.trace import Trace

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_MAX_STAMP_MS = 10 * 365 * 86_400_000  # relative stamps of ten years: above it is an epoch stamp
_MAX_ID = 2**62
_Parsed = tuple[list[int], list[int], list[int], list[int], list[Sequence[int]]]


def read(
    source: Source,
    *,
    sort: bool = False,
    zero_output: str = "error",
    block_tokens: int = 512,
    bucket_s: float | None = None,
    seed: int = 0,
    infer_sessions: bool = True,
    min_blocks: int = 2,
    tolerance_tokens: int = 64,
    max_gap_s: float = 3600.0,
    assumed_ttft_s: float = 1.0,
    assumed_tpot_s: float = 0.03,
) -> Trace:
    """Read a Mooncake trace.

    Args:
        source: the file.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them, or count them as ``one`` token.
        block_tokens: tokens a hash id stands for.
        bucket_s: width of the stamp buckets inside which arrivals are spread; 0: stamps are exact; None: the
            usual step between stamps if most requests share theirs with another, else 0.
        seed: of the spread.
        infer_sessions: link requests into sessions.
        min_blocks: see :mod:`traces.sessions`.
        tolerance_tokens: see :mod:`traces.sessions`.
        max_gap_s: see :mod:`traces.sessions`.
        assumed_ttft_s: assumed service before the first token, for think times: the trace has no end stamps.
        assumed_tpot_s: assumed service time an output token, likewise.

    Raises:
        TraceError: a bad line, field, length, id or option.
    """
    _check_options(source, block_tokens, bucket_s, min_blocks, tolerance_tokens)
    rows, stamps, prompts, outputs, chains = _parse(source, block_tokens)
    keep, output, zero_note = zero_outputs(
        pl.Series("output_length", outputs), zero_output, (source, np.array(rows, np.int64))
    )
    ms = np.array(stamps, np.int64)
    order = order_of(ms, rows, "timestamp", sort, source, stamps)
    index = np.flatnonzero(keep) if order.index is None else order.index[keep[order.index]]
    ms, outputs = ms[index], output[index].to_list()
    prompts, chains = [prompts[i] for i in index], [chains[i] for i in index]

    arrival, width_s = spread(ms, bucket_s, seed)
    notes = [source.provenance, order.note, zero_note]
    if width_s:
        notes.append(f"stamps of {width_s:g} s spread inside their bucket, seed {seed}")
    columns: dict[str, object] = {"arrival_s": arrival, "prompt_tokens": prompts, "output_tokens": outputs}
    child = np.full(len(chains), -1, np.int64)
    if infer_sessions:
        links = link_by_prefix(
            chains,
            prompts,
            outputs,
            (ms / 1000).tolist(),
            min_blocks=min_blocks,
            tolerance_tokens=tolerance_tokens,
            max_gap_s=max_gap_s,
        )
        child = links.child
        think, negative = think_times(arrival, outputs, links.parent, assumed_ttft_s, assumed_tpot_s)
        columns |= {"session": links.session, "turn": links.turn, "think_s": pl.Series(think).fill_nan(None)}
        notes.append(
            f"sessions inferred by longest prefix chain (min_blocks={min_blocks}, "
            f"tolerance_tokens={tolerance_tokens}, max_gap_s={max_gap_s:g}): {links.linked_share:.1%} of requests "
            f"linked to an earlier turn, {links.in_sessions_share:.1%} in sessions of two or more turns"
        )
        notes.append(
            f"think time = start-to-start gap - assumed service ({assumed_ttft_s:g} s + {assumed_tpot_s:g} s a token); "
            f"{negative:.1%} of gaps were shorter and count as 0"
        )
    offsets, ids = chains_with_output(chains, prompts, outputs, child, block_tokens)
    return Trace.build(
        source.stem,
        columns,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block_tokens,
        provenance=[note for note in notes if note],
        duration_s=float(ms[-1] - ms[0]) / 1000 + width_s,
    )


def _check_options(
    source: Source, block_tokens: int, bucket_s: float | None, min_blocks: int, tolerance_tokens: int
) -> None:
    for column, value, low in (
        ("block_tokens", block_tokens, 1),
        ("min_blocks", min_blocks, 1),
        ("tolerance_tokens", tolerance_tokens, 0),
    ):
        if value < low:
            raise source.error(f"{low} or more", column=f"trace.options.{column}", value=value)
    if bucket_s is not None and not 0 <= bucket_s < np.inf:
        raise source.error("0 or more seconds", column="trace.options.bucket_s", value=bucket_s)


def _parse(source: Source, block_tokens: int) -> _Parsed:
    rows, stamps, prompts, outputs = [], [], [], []
    chains: list[Sequence[int]] = []
    named: dict[tuple[int, int], int] = {}  # (id of the prefix before, hash id) -> dense prefix id
    for row, record in jsonl.records(source):
        rows.append(row)
        stamps.append(jsonl.whole(record, "timestamp", 0, _MAX_STAMP_MS, "ms from the start", row, source))
        prompt = jsonl.whole(record, "input_length", 1, MAX_TOKENS, "tokens", row, source)
        prompts.append(prompt)
        outputs.append(jsonl.whole(record, "output_length", 0, MAX_TOKENS, "tokens", row, source))
        hashes = jsonl.whole_list(record, "hash_ids", 0, _MAX_ID, row, source)
        full = prompt // block_tokens
        if not full <= len(hashes) <= full + 1:
            expected = f"{full} or {full + 1} ids: a block of {block_tokens} tokens each for {prompt} tokens"
            raise source.error(expected, row=row, column="hash_ids", value=f"{len(hashes)} ids")
        chain, before = [], -1
        for hash_id in hashes[:full]:
            before = named.setdefault((before, hash_id), len(named))
            chain.append(before)
        chains.append(chain)
    return rows, stamps, prompts, outputs, chains


def spread(stamps_ms: NDArray[np.int64], bucket_s: float | None, seed: int) -> tuple[NDArray[np.float64], float]:
    """Arrivals in seconds from the first stamp, spread inside their buckets; and the bucket width used.

    Args:
        stamps_ms: (n,) ascending stamps.
        bucket_s: width; None infers it.
        seed: of the spread.
    """
    start_ms = stamps_ms - stamps_ms[0]
    distinct, inverse, counts = np.unique(start_ms, return_inverse=True, return_counts=True)
    steps = np.diff(distinct)
    if bucket_s is None:
        shared = counts[counts > 1].sum() / stamps_ms.size
        bucket_s = float(np.median(steps)) / 1000 if steps.size and shared > 0.5 else 0.0
    if bucket_s == 0:
        return start_ms / 1000, 0.0
    # A bucket ends where the next stamp begins, should that be earlier: order is kept.
    width_ms = np.minimum(np.r_[steps, np.inf], bucket_s * 1000)
    place = np.random.default_rng(seed).random(stamps_ms.size)
    place = place[np.lexsort((place, inverse))]  # ascending inside each bucket, in the order of the file
    return (start_ms + place * width_ms[inverse]) / 1000, bucket_s


def sniff(name: str, head: bytes) -> bool:
    """True if the first line is a JSON object with Mooncake's fields."""
    first = head.split(b"\n", 1)[0]
    return first.lstrip().startswith(b"{") and all(f'"{field}"'.encode() in first for field in FIELDS)


FORMAT = Format("mooncake", read, sniff, "Mooncake JSONL: 512-token prefix hash ids, ms stamps")
