"""Azure LLM inference trace 2023: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_{code,conv}.csv (Splitwise, ISCA 2024). Stamps are
local date-times with 100 ns digits, without a zone; the first one becomes 0. No sessions, no prefixes.
"""

from __future__ import annotations

import polars as pl

from traces.check import MAX_TOKENS
from traces.readers import text
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")


def read(source: Source, *, sort: bool = False, zero_output: str = "error") -> Trace:
    """Read an Azure 2023 CSV.

    Args:
        source: the file.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them, or count them as ``one`` token.

    Raises:
        TraceError: see :mod:`traces.readers.text`.
    """
    frame = text.csv_strings(source)
    text.need(frame, COLUMNS, source)
    stamp = text.stamps_ns(frame, "TIMESTAMP", _FORMATS, "2023-11-16 18:17:03.9799600", source).to_numpy()
    prompt = text.whole(frame, "ContextTokens", 1, MAX_TOKENS, "tokens", source)
    output = text.whole(frame, "GeneratedTokens", 0, MAX_TOKENS, "tokens", source)
    order, note = text.in_order(stamp, lambda row: frame["TIMESTAMP"][row], "TIMESTAMP", sort, source)
    if order is not None:
        stamp, prompt, output = stamp[order], prompt[order], output[order]
    keep, output, repair = zero_outputs(
        output, zero_output, source, column="GeneratedTokens", rows=order, first_row=text.FIRST_ROW
    )
    arrival = (stamp - stamp[0]) / 1e9
    columns = pl.DataFrame({"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output})
    return Trace.build(
        source.stem,
        columns.filter(pl.Series(keep)),
        provenance=[p for p in (source.provenance, note, repair) if p],
        duration_s=float(arrival[-1]),
    )


def sniff(name: str, head: bytes) -> bool:
    """True if the header is that of an Azure trace."""
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
    return [field.strip().lstrip("\ufeff") for field in first.split(",")] == list(COLUMNS)
