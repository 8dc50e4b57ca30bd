"""Azure LLM inference traces 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Sources
* 2023: Azure/AzurePublicDataset : AzureLLMInferenceDataset2023.md @ 1a61e6c66a968da98f3851edc25ad7a4171a1e91,
  data/AzureLLMInferenceTrace_{code,conv}.csv (Splitwise, ISCA 2024). Local date-times with 100 ns digits, no zone.
* 2024: AzureLLMInferenceDataset2024.md @ 04e28b8aedd8890b472ec87ae40245a2910ac6dc and its notebook,
  analysis/AzureLLMInferenceDataset2024.ipynb @ 7f7c0f4e7de3c759be1eb0b3b5380659c499798d (DynamoLLM, HPCA 2025): a week,
  16.8 and 27.3 million rows, date-times with a zone, with microseconds or without:
  ``2024-05-12 00:00:00.001163+00:00``, ``2024-05-12 00:00:00+00:00``. No such file was at hand when this was written.

The first stamp becomes 0; zones are taken into account. No sessions, no prefixes. Read piece by piece. The multimodal
trace of 2025 has a column ``NumImages``, whose tokens are not in ContextTokens, and is refused.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traces.check import MAX_TOKENS
from traces.errors import nearest
from traces.readers.columns import Table
from traces.readers.format import Format
from traces.readers.log import Log, first_line
from traces.readers.plausible import check_rate
from traces.readers.repair import zero_outputs
from traces.source import Source
from traces.trace import Trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(source: Source, *, sort: bool = False, zero_output: str = "error", implausible: str = "ask") -> Trace:
    """Read an Azure CSV of 2023 or 2024.

    Args:
        source: the file.
        sort: repair stamps that are out of order by sorting, counted in the provenance.
        zero_output: requests without output: ``error``, ``drop`` them, or count them as ``one`` token.
        implausible: rates that no service has, such as stamps in another unit give: ``ask`` stops with a question,
            ``keep`` takes them.

    Raises:
        TraceError: a bad header, stamp, length or option.
    """
    log = Log(source)
    for column in COLUMNS:
        if column not in log.columns:
            hint = nearest(column, log.columns) or f" (found: {', '.join(log.columns[:12])})"
            raise source.error(f"this column to be present{hint}", column=column)
    if "NumImages" in log.columns:
        raise source.error("requests without images, whose tokens are not in ContextTokens", column="NumImages")
    data = log.gather(
        COLUMNS,
        {
            "stamp": _stamps_ns,
            "prompt": lambda piece: piece.whole("ContextTokens", 1, MAX_TOKENS, "tokens").cast(pl.Int32),
            "output": lambda piece: piece.whole("GeneratedTokens", 0, MAX_TOKENS, "tokens").cast(pl.Int32),
        },
    )
    stamp = data["stamp"].to_numpy()
    keep, output, repair = zero_outputs(data["output"].alias("GeneratedTokens"), zero_output, log)
    check_rate(log, (stamp - stamp.min()) / 1e9, "TIMESTAMP", implausible, dates=True)
    order = log.order(stamp, "TIMESTAMP", sort)
    index = np.flatnonzero(keep) if order.index is None else order.index[keep[order.index]]
    start = stamp.min()
    return Trace.build(
        source.stem,
        {
            "arrival_s": (stamp[index] - start) / 1e9,
            "prompt_tokens": data["prompt"][index],
            "output_tokens": output[index],
        },
        provenance=[note for note in (source.provenance, order.note, repair) if note],
        duration_s=float((stamp.max() - start) / 1e9),
    )


def _stamps_ns(piece: Table) -> pl.Series:
    """Date-times in the form that the first stamp of the piece has: of four that may be, one is tried."""
    first = str(piece.frame["TIMESTAMP"][0]).strip()
    separator = "T" if "T" in first else " "
    zone = "%#z" if "+" in first or first.endswith("Z") or first.count("-") > 2 else ""
    example = "2024-05-12 00:00:00.001163+00:00" if zone else "2023-11-16 18:17:03.9799600"
    return piece.stamps_ns("TIMESTAMP", (f"%Y-%m-%d{separator}%H:%M:%S%.f{zone}",), example)


def sniff(name: str, head: bytes) -> bool:
    """True if the header is that of an Azure trace."""
    return first_line(head) == list(COLUMNS)


FORMAT = Format("azure", read, sniff, "Azure 2023 and 2024 CSV: TIMESTAMP, ContextTokens, GeneratedTokens")
