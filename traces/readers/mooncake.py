"""Mooncake traces (FAST 2025) and the schema that grew from them: JSON lines, stamps in ms, block hashes.

Sources
* kvcache-ai/Mooncake : FAST25-release/README.md @ 40ea55f809cfd8dad8a738d6b5c1c26d9e06a7cd: ``timestamp`` (ms),
  ``input_length``, ``output_length``, ``hash_ids``. One schema for conversation, toolagent, synthetic and the trace of
  the arXiv paper.
* ai-dynamo/aiperf : src/aiperf/dataset/loader/models.py @ 0109a64e75c3f43aa02bc1ce29f66deb16f57bda and
  ai-dynamo/dynamo : lib/data-gen/src/mooncake.rs @ 0c7705a47eb2d167cc8d2b0ad66719a2e786b876: adds ``session_id`` and
  ``delay`` (ms from the end of the turn before), and the names ``input_tokens``, ``output_tokens``, ``created_time``,
  ``delay_ms``; ``timestamp`` and ``hash_ids`` may be absent. Rows that hold text instead of ``input_length`` (AIPerf)
  are refused.

An id is global and names the prefix up to and including its block, or its block alone: here it becomes one that names
the prefix. ``len(hash_ids) == ceil(input_length / 512)``; the last, partial block is left out (full blocks only). The
conversation trace is stamped in 3-second buckets: arrivals are spread evenly at random inside their bucket, by a seed,
in the order of the file. Sessions are those of ``session_id`` (:mod:`traces.readers.mooncake_turns`), else inferred
(:mod:`traces.sessions`). Rows that wait for others by name are ``trace.format=mooncake_agentic``.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.check import MAX_TOKENS
from traces.readers import chains, mooncake_turns
from traces.readers.columns import Order, order_of
from traces.readers.format import Format
from traces.readers.json_table import Field, JsonTable, read_json
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.sessions import link_by_prefix, think_times
from traces.source import Source
from traces.trace import Trace
from traces.transform import gather_chains

_MAX_STAMP_MS = 10 * 365 * 86_400_000  # relative stamps of ten years: above it is an epoch stamp
_BIG = 2**62
FIELDS = (
    Field("timestamp", "number", 0, _MAX_STAMP_MS, "ms from the start", optional=True, aliases=("created_time",)),
    Field("input_length", "whole", 1, MAX_TOKENS, "tokens", aliases=("input_tokens",)),
    Field("output_length", "whole", 0, MAX_TOKENS, "tokens", aliases=("output_tokens",)),
    Field("hash_ids", "whole_list", 0, _BIG, "block hashes", optional=True),
    Field("session_id", "text", meaning="session", optional=True),
    Field("delay", "number", 0, _MAX_STAMP_MS, "ms after the turn before", optional=True, aliases=("delay_ms",)),
)


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
    later_turns: str | None = None,
    session_rate_per_s: float | None = None,
    replay: str | None = None,
    implausible: str = "ask",
) -> Trace:
    """Read a Mooncake trace.

    Args:
        source: the file.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them (refused where there are session ids), or count
            them as ``one`` token.
        block_tokens: tokens a hash id stands for.
        bucket_s: width of the stamp buckets inside which arrivals are spread; 0: stamps are exact; None: the
            usual step between stamps if most requests share theirs with another, else 0. Without session ids only.
        seed: of the spread, and of drawn session starts.
        infer_sessions: link requests into sessions, where the file has no session ids.
        min_blocks: see :mod:`traces.sessions`.
        tolerance_tokens: see :mod:`traces.sessions`.
        max_gap_s: see :mod:`traces.sessions`.
        assumed_ttft_s: assumed service before the first token, for think times: the trace has no end stamps.
        assumed_tpot_s: assumed service time an output token, likewise.
        later_turns: with session ids, what a later turn's length and hashes are of: the ``whole`` prompt, or the
            ``delta`` that it adds to the turns and outputs before. None: whole if most later turns are long enough.
        session_rate_per_s: rate of the Poisson session starts that a file without stamps is given; needed there.
        replay: replay mode; None: closed if a session's turns have delays or no stamps, else open.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad line, field, length, id or option.
    """
    if b'"wait_for"' in source.data or b'"dynamo.agentic_mooncake"' in source.data:
        raise source.error("requests that wait for none by name, or trace.format=mooncake_agentic", column="wait_for")
    table = read_json(source, FIELDS)
    keep, output, zero_note = zero_outputs(table.frame["output_length"], zero_output, (source, table.rows))
    if table.has("session_id"):
        if zero_output == "drop":
            raise source.error(
                "error or one: dropping a turn would tear its session", column="trace.options.zero_output", value="drop"
            )
        if bucket_s is not None:
            expected = "a file without session ids with it: stamps are taken as they are"
            raise source.error(expected, column="trace.options.bucket_s", value=bucket_s)
        options = mooncake_turns.Options(
            sort,
            block_tokens,
            seed,
            assumed_ttft_s,
            assumed_tpot_s,
            later_turns,
            session_rate_per_s,
            replay,
            implausible,
        )
        return mooncake_turns.build(table, output.to_numpy(), *prompt_chains(table, block_tokens), options, zero_note)
    for option, value in (("later_turns", later_turns), ("session_rate_per_s", session_rate_per_s)):
        if value is not None:
            raise source.error("a file with session ids with it", column=f"trace.options.{option}", value=value)
    order = _stamp_order(table, sort)
    check_rate(table, _ms(table) / 1000, "timestamp", implausible)
    place = np.arange(keep.size) if order.index is None else order.index
    index = place[keep[place]]
    ms, outputs = _ms(table)[index], output.to_numpy()[index]
    prompts = table.column("input_length")[index]
    offsets, ids = gather_chains(*prompt_chains(table, block_tokens), index)

    arrival, width_s = spread(ms, bucket_s, seed)
    notes = [source.provenance, order.note, zero_note, _hash_note(table)]
    if width_s:
        notes.append(f"stamps of {width_s:g} s spread inside their bucket, seed {seed}")
    columns: dict[str, object] = {"arrival_s": arrival, "prompt_tokens": prompts, "output_tokens": outputs}
    if infer_sessions and ids.size:
        flat = ids.tolist()
        links = link_by_prefix(
            [flat[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)],
            prompts.tolist(),
            outputs.tolist(),
            (ms / 1000).tolist(),
            min_blocks=min_blocks,
            tolerance_tokens=tolerance_tokens,
            max_gap_s=max_gap_s,
        )
        think, negative = think_times(arrival, outputs.tolist(), links.parent, assumed_ttft_s, assumed_tpot_s)
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
        offsets, ids, _ = chains.with_outputs(
            offsets, ids, prompts, outputs, links.child, block_tokens, whole_answer=False
        )
    return Trace.build(
        source.stem,
        columns,
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=block_tokens if table.has("hash_ids") else 0,
        replay="open" if replay is None else replay,
        provenance=[note for note in notes if note],
        duration_s=float(ms[-1] - ms[0]) / 1000 + width_s,
    )


def _stamp_order(table: JsonTable, sort: bool) -> Order:
    """The order of arrival; without session ids every request needs a stamp, and none can have a delay."""
    for name, wrong, expected in (
        ("timestamp", table.frame["timestamp"].is_null(), "a stamp, as the file has no session ids"),
        (
            "delay",
            table.frame["delay"].is_not_null(),
            "no delay without a session_id, whose turn before it counts from",
        ),
    ):
        if wrong.any():
            raise table.error(expected, int(wrong.arg_max() or 0), name)
    return order_of(_ms(table), table.rows.tolist(), "timestamp", sort, table.source, pl.Series(_ms(table)))


def _ms(table: JsonTable) -> NDArray[np.int64] | NDArray[np.float64]:
    """Stamps as whole milliseconds where they are."""
    stamps = table.column("timestamp")
    whole = stamps.astype(np.int64)
    return whole if np.array_equal(whole, stamps) else stamps


def prompt_chains(table: JsonTable, block_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Recorded hashes as CSR prefix ids of the full prompt blocks; their number must be that of the blocks."""
    offsets, hashes = table.lists("hash_ids")
    full = table.column("input_length") // block_tokens
    count = np.diff(offsets)
    bad = ((count < full) | (count > full + 1)) & table.frame["hash_ids"].is_not_null().to_numpy()
    if bad.any():
        at = int(np.argmax(bad))
        tokens = table.column("input_length")[at]
        expected = f"{full[at]} or {full[at] + 1} ids: a block of {block_tokens} tokens each for {tokens} tokens"
        raise table.error(f"{expected} (trace.options.block_tokens)", at, "hash_ids", f"{count[at]} ids")
    offsets, hashes = chains.cut(offsets, hashes, full)
    return offsets, chains.prefix_ids(offsets, hashes)


def _hash_note(table: JsonTable) -> str | None:
    absent = table.frame["hash_ids"].null_count()
    if not absent:
        return None
    if not table.has("hash_ids"):
        return "no hash_ids, and so no prefixes known and no sessions inferred"
    return f"{absent} requests have no hash_ids: they share nothing"


def spread(
    stamps_ms: NDArray[np.int64] | NDArray[np.float64], bucket_s: float | None, seed: int
) -> tuple[NDArray[np.float64], float]:
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
    """True if the first line is a JSON object with Mooncake's lengths, and its stamps, hashes or sessions."""
    first = head.split(b"\n", 1)[0]
    lengths = b'"input_length"' in first and b'"output_length"' in first
    more = any(name in first for name in (b'"timestamp"', b'"hash_ids"', b'"session_id"'))
    return first.lstrip().startswith(b"{") and lengths and more


FORMAT = Format("mooncake", read, sniff, "Mooncake JSONL: prefix hash ids, ms stamps, or sessions with delays")
