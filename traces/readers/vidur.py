"""vidur's request lengths: CSV with ``num_prefill_tokens``, ``num_decode_tokens``, and perhaps ``arrived_at`` (s).

Schema: microsoft/vidur : vidur/request_generator/trace_request_length_generator.py @
01f216fe8559c0eac076b157b19125a9c370d100; the file at hand is data/processed_traces/arxiv_summarization_* of
7d47513363ec447a741ac5e47241580b47724fbf. It has no times: arrivals are drawn at a rate that must be given, in the order
of the file. Further columns (``num_total_tokens``, ``pd_ratio``) follow from the two and are not read.
"""

from __future__ import annotations

import numpy as np

from traces.check import MAX_TOKENS
from traces.readers.columns import csv_table
from traces.readers.format import Format
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace

COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
_MAX_STAMP_S = 10 * 365 * 86_400.0


def read(
    source: Source,
    *,
    rate_per_s: float | None = None,
    seed: int = 0,
    sort: bool = False,
    zero_output: str = "error",
    implausible: str = "ask",
) -> Trace:
    """Read request lengths.

    Args:
        source: the file.
        rate_per_s: rate of the Poisson arrivals that a file without times is given; needed there, refused elsewhere.
        seed: of the arrivals.
        sort: repair times that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them, or count them as ``one`` token.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad header, time, length or option; no times and no rate.
    """
    table = csv_table(source)
    table.need(COLUMNS)
    prompt = table.whole("num_prefill_tokens", 1, MAX_TOKENS, "tokens")
    output = table.whole("num_decode_tokens", 0, MAX_TOKENS, "tokens")
    keep, output, zero_note = zero_outputs(output, zero_output, table)
    option = "trace.options.rate_per_s"
    if "arrived_at" in table.frame.columns:
        if rate_per_s is not None:
            raise source.error("none: the file has times (arrived_at)", column=option, value=rate_per_s)
        stamp = table.number("arrived_at", 0, _MAX_STAMP_S, "seconds from the start").to_numpy()
        check_rate(table, stamp, "arrived_at", implausible)
        order = table.order(stamp, "arrived_at", sort)
        index = np.flatnonzero(keep) if order.index is None else order.index[keep[order.index]]
        arrival, duration_s, time_note = stamp[index], float(stamp.max()), order.note
    else:
        if rate_per_s is None:
            expected = (
                "requests a second, as the file has no times: trace.options.rate_per_s=N draws Poisson arrivals "
                "(another law: fit and generate with research.traces)"
            )
            raise source.error(expected, column=option)
        if sort:
            raise source.error("a file with times (arrived_at) with it", column="trace.options.sort", value=sort)
        index = np.flatnonzero(keep)
        arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, index.size))
        duration_s = float(arrival[-1])
        time_note = f"no times in the file: arrivals drawn, Poisson, {rate_per_s:g} requests a second, seed {seed}"
    return Trace.build(
        source.stem,
        {"arrival_s": arrival, "prompt_tokens": prompt[index], "output_tokens": output[index]},
        provenance=[note for note in (source.provenance, time_note, zero_note) if note],
        duration_s=duration_s,
    )


def sniff(name: str, head: bytes) -> bool:
    """True if the header has vidur's two columns."""
    first = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    return set(COLUMNS) <= {field.strip() for field in first.split(",")}


FORMAT = Format("vidur", read, sniff, "vidur's request lengths, CSV; without times a rate must be given")
