"""Azure LLM inference trace 2023: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_{code,conv}.csv (Splitwise, ISCA 2024). Stamps are
local date-times with 100 ns digits, without a zone; the first one becomes 0. No sessions, no prefixes.
"""

from __future__ import annotations

import numpy as np

from traces.check import MAX_TOKENS
from traces.readers.columns import csv_table
from traces.readers.format import Format
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
        TraceError: a bad header, stamp, length or option.
    """
    table = csv_table(source)
    table.need(COLUMNS)
    stamp = table.stamps_ns("TIMESTAMP", _FORMATS, "2023-11-16 18:17:03.9799600").to_numpy()
    prompt = table.whole("ContextTokens", 1, MAX_TOKENS, "tokens")
    output = table.whole("GeneratedTokens", 0, MAX_TOKENS, "tokens")
    keep, output, repair = zero_outputs(output, zero_output, table)
    order = table.order(stamp, "TIMESTAMP", sort)
    index = np.flatnonzero(keep) if order.index is None else order.index[keep[order.index]]
    arrival = (stamp - stamp.min()) / 1e9
    return Trace.build(
        source.stem,
        {"arrival_s": arrival[index], "prompt_tokens": prompt[index], "output_tokens": output[index]},
        provenance=[note for note in (source.provenance, order.note, repair) if note],
        duration_s=float(arrival.max()),
    )


def sniff(name: str, head: bytes) -> bool:
    """True if the header is that of an Azure trace."""
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
    return [field.strip().lstrip("\ufeff") for field in first.split(",")] == list(COLUMNS)


FORMAT = Format("azure", read, sniff, "Azure 2023 CSV: TIMESTAMP, ContextTokens, GeneratedTokens")
