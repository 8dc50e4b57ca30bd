"""Token counts of the client and of the server: which is meant, and whether they can be of one text.

A server counts what it processes: chat template, special tokens and all. A client that counts before it sends misses
10 to 30 tokens a chat request, and a simulator fed with its counts prefills too little
(inference-sim/inference-sim#1269). A ratio beyond :data:`MAX_RATIO` is no template: the text was tokenized twice or by
another tokenizer, or words were counted. That is asked, not averaged.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from traces.errors import nearest
from traces.readers.columns import Table
from traces.source import Source

COUNTS = ("server", "client")
MAX_RATIO = 2.0
_FEW = 10


def check_counts(source: Source, counts: str | None, found: Collection[str]) -> None:
    """Raise unless ``counts`` is None or one of the sides whose counts were ``found``."""
    if counts is not None and counts not in COUNTS:
        expected = f"one of {', '.join(COUNTS)}{nearest(str(counts), COUNTS)}"
        raise source.error(expected, column="trace.options.counts", value=counts)
    if counts is not None and counts not in found:
        expected = f"counts={'server' if counts == 'client' else 'client'}: the file has none of the {counts}"
        raise source.error(expected, column="trace.options.counts", value=counts)


def choose_counts(
    table: Table, what: str, server: pl.Series | None, client: pl.Series | None, counts: str | None
) -> tuple[pl.Series, str]:
    """Token counts of one side, filled with the other's where it has none, and a line for the provenance.

    Args:
        table: for errors.
        what: ``prompt`` or ``output``.
        server: (n,) counts of the server, null where unknown, named as their column; None if it logged none.
        client: likewise of the client.
        counts: ``server``, ``client``, or None: the server's, unless the two cannot be of one text.

    Raises:
        TraceError: no count at all, or a ratio beyond :data:`MAX_RATIO` and no side chosen.
    """
    if server is None or client is None:
        one = client if server is None else server
        side = "client" if server is None else "server"
        if one is None:
            raise table.source.error(f"a count of {what} tokens", column=f"{what}_tokens")
        return one, f"{what} tokens: counted by the {side} ({one.name}), the only count in the file"
    both = (server.is_not_null() & client.is_not_null() & (server > 0) & (client > 0)).fill_null(False)
    note = ""
    if n := int(both.sum()):
        ours, theirs = (s.filter(both).to_numpy().astype(np.float64) for s in (server, client))
        ratio = float(ours.sum() / theirs.sum())
        difference = float(np.median(ours / theirs - 1))
        note = f"; of the server's over the client's the median is {difference:+.1%} ({n:,} requests with both)"
        if counts is None and n >= _FEW and not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            raise table.error(
                f"counts of server and client within a factor of {MAX_RATIO:g}, but {server.name} is {ratio:.2f} times "
                f"{client.name} (tokenized twice, by another tokenizer, or words?): set trace.options.counts=server or "
                "=client",
                int(np.argmax(both.to_numpy())),
                server.name,
            )
    first, second, side, other = (server, client, "server", "client")
    if counts == "client":
        first, second, side, other = (client, server, "client", "server")
    filled = int((first.is_null() & second.is_not_null()).sum())
    chosen = pl.select(pl.coalesce(first, second).alias(first.name)).to_series()
    note = f"{what} tokens: counted by the {side} ({first.name}){note}"
    return chosen, note + (f"; {filled:,} requests have the {other}'s count only" if filled else "")
