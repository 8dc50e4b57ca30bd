"""Open or closed loop: how a benchmark paced its requests, and what that means for their replay."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.readers.clock import one_of
from traces.readers.columns import Table
from traces.readers.users import kept_in_flight
from traces.source import Source


def paced(
    table: Table, replay: str | None, users: int | None, several: bool, concurrency: int | None = None
) -> tuple[str, int | None, str | None]:
    """Replay mode and users of a benchmark's requests, and a note.

    Args:
        table: for errors.
        replay: the option; None: by the protocol.
        users: of a closed loop, by the protocol.
        several: whether conversations have several turns: they are sessions then, not users.
        concurrency: users, by the option.

    Raises:
        TraceError: a replay that the log cannot have.
    """
    modes = ("open", "closed") if several else ("open", "clients")
    if replay is not None:
        one_of(table, "replay", replay, modes)
    if several:
        if concurrency:
            expected = "0: conversations of several turns are sessions, not users"
            raise table.source.error(expected, column="trace.options.concurrency", value=concurrency)
        note = "conversations of several turns: sessions start at their stamps, not when a user is free"
        return replay or "closed", None, note if replay != "open" else None
    if replay == "open":
        return "open", None, None
    if replay == "clients" and not users:
        expected = "open: nothing says how many users kept a request in flight"
        raise table.source.error(expected, column="trace.options.replay", value=replay)
    return "clients" if users else "open", users, None


def users_of(
    source: Source, concurrency: int | None, arrival_s: NDArray[np.float64], end_s: NDArray[np.float64], told: str
) -> int | None:
    """Users of a benchmark whose file does not say how it paced requests.

    Args:
        source: for errors.
        concurrency: the option: users, 0 for an open loop, None to look at the stamps.
        arrival_s: (n,) starts in any order.
        end_s: (n,) ends, NaN where unknown.
        told: where the protocol would have stood.

    Raises:
        TraceError: None, and the stamps look like those of a closed loop.
    """
    if concurrency is not None:
        return concurrency or None
    known = ~np.isnan(end_s)
    order = np.argsort(arrival_s[known], kind="stable")
    kept = kept_in_flight(arrival_s[known][order], end_s[known][order])
    if kept is None:
        return None
    raise source.error(
        f"to know whether the run was open or closed loop, which {told} says: {kept} requests are in flight nearly all "
        f"the time; set trace.options.concurrency={kept} if the tool kept so many in flight, =0 if it followed a rate",
        column="trace.options.concurrency",
    )
