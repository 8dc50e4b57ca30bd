"""Stamps of a request that must fit together: sent and scheduled, start and end, and latencies in their unit.

Traps, each of which stops with a question that names the option which answers it (``implausible=keep`` says: looked
at, it is right):

* A client that paces requests stamps when it *meant* to send and when it *did*. The server saw the second
  (inference-sim/inference-sim#1270). The two may even count from different origins (#1606).
* A first token before its request, or an end before its first token, is another event's stamp.
* Milliseconds read as seconds, or the reverse, are a thousand times off: what no server does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.errors import nearest
from traces.readers.columns import Table
from traces.readers.plausible import ANSWER, FEW

CLOCKS = ("sent", "scheduled")
_SLACK_S = 2e-3  # stamps are rounded to milliseconds in most logs
_TPOT_S = (1e-4, 5.0)  # 10,000 tokens/s to one request, and one every five seconds
_BEHIND_S = 0.5  # lag of the slowest percent from which the client did not keep its own schedule
_Times = NDArray[np.float64]


def one_of(table: Table, option: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise unless an option has one of its values."""
    if value not in allowed:
        expected = f"one of {', '.join(allowed)}{nearest(str(value), allowed)}"
        raise table.source.error(expected, column=f"trace.options.{option}", value=value)


def choose_clock(
    table: Table, clock: str, sent_s: _Times, scheduled_s: _Times | None, name: str, *, capped: bool = False
) -> tuple[_Times, str | None]:
    """Arrivals by one of two clocks, and what is to be known of the other.

    Args:
        table: for errors.
        clock: ``sent``: what the server saw. ``scheduled``: what the client meant to offer; latencies then count from
            there, the wait in the client included.
        sent_s: (n,) stamps of sending.
        scheduled_s: (n,) stamps that the schedule gave, NaN where it gave none; None if the log has none.
        name: column of the schedule.
        capped: the client limits its requests in flight, which is then what it waits for.

    Raises:
        TraceError: an unknown clock, no schedule to take, or one that counts from another origin.
    """
    one_of(table, "clock", clock, CLOCKS)
    known = np.zeros(sent_s.size, np.bool_) if scheduled_s is None else ~np.isnan(scheduled_s)
    if scheduled_s is None or not known.any():
        if clock == "scheduled":
            raise table.source.error(
                "clock=sent: the file has no scheduled times", column="trace.options.clock", value=clock
            )
        return sent_s, None
    lag = sent_s[known] - scheduled_s[known]
    offset = float(lag.min())
    apart = abs(offset) > 3600 + np.ptp(sent_s)
    if apart:
        if clock == "scheduled":
            raise table.error(
                f"scheduled and sent times on one clock, but they are {abs(offset):,.0f} s apart (one counts since "
                "1970, the other from the start?): set trace.options.clock=sent",
                int(np.argmax(known)),
                name,
            )
        lag = lag - offset
    median, p99 = (float(np.percentile(lag, q)) for q in (50, 99))
    note = f"clock={clock}: sent {median * 1e3:,.1f} ms after {name} at the median, {p99 * 1e3:,.1f} ms at p99"
    if apart:
        note += f", counted from the smallest lag, since the two clocks are {abs(offset):,.0f} s apart"
    if p99 > _BEHIND_S:
        note += f"; the client was the bottleneck{': it waited for its cap on requests in flight' if capped else ''}"
    if clock == "sent":
        return sent_s, note
    return np.where(known, scheduled_s, sent_s), note + "; latencies count from the schedule"


def check_stages(
    table: Table, arrival_s: _Times, first_s: _Times, end_s: _Times, names: tuple[str, str, str]
) -> tuple[_Times, _Times]:
    """First tokens and ends that follow their arrival, NaN where unknown; rounding by 2 ms is forgiven and undone.

    Raises:
        TraceError: a first token before its request, an end before its start or before its first token.
    """
    for late, early, name, what in (
        (first_s, arrival_s, names[1], f"a first token after its request ({names[0]})"),
        (end_s, arrival_s, names[2], f"an end after its request ({names[0]})"),
        (end_s, first_s, names[2], f"an end after its first token ({names[1]})"),
    ):
        bad = late < early - _SLACK_S
        if bad.any():
            at = int(np.argmax(bad))
            raise table.error(f"{what}, but it is {early[at] - late[at]:,.3f} s before it", at, name)
    first_s = np.maximum(first_s, arrival_s)
    return first_s, np.fmax(np.maximum(end_s, arrival_s), np.where(np.isnan(end_s), np.nan, first_s))


def per_token(
    table: Table,
    ttft_s: _Times,
    e2e_s: _Times,
    output_tokens: NDArray[np.int64],
    recorded_s: _Times | None,
    name: str,
    implausible: str,
) -> tuple[_Times, str | None]:
    """(n,) time an output token after the first one: as recorded, else (end - first token) / (output - 1).

    Args:
        table: for errors.
        ttft_s: (n,) time to the first token, NaN where unknown.
        e2e_s: (n,) time to the end, likewise.
        output_tokens: (n,) output lengths, 0 or more.
        recorded_s: (n,) time a token as the log has it, or None.
        name: its column, or that of the end.
        implausible: ``ask`` or ``keep``.

    Raises:
        TraceError: a median that no server has, or one that contradicts the recorded ends.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        derived = np.where(output_tokens > 1, (e2e_s - ttft_s) / (output_tokens - 1), np.nan)
    tpot = derived if recorded_s is None else np.where(np.isnan(recorded_s), derived, recorded_s)
    known = tpot[~np.isnan(tpot)]
    note = None
    if recorded_s is not None:
        both = (recorded_s > 0) & (derived > 0)
        if both.any():
            ratio = float(np.median(recorded_s[both] / derived[both]))
            note = f"recorded time a token over (end - first token) / (output - 1): median {ratio:.3f}"
            if implausible == "ask" and not 1 / 3 <= ratio <= 3:
                raise table.error(
                    "a time a token that agrees with first token and end of the request, but it is "
                    f"{ratio:,.3g} times (end - first token) / (output - 1) (another unit?): {ANSWER}",
                    int(np.argmax(both)),
                    name,
                )
    if implausible == "ask" and known.size >= FEW:
        median = float(np.median(known))
        if not _TPOT_S[0] <= median <= _TPOT_S[1]:
            unit = "milliseconds read as seconds" if median > _TPOT_S[1] else "seconds read as milliseconds"
            raise table.error(
                f"a time an output token from {_TPOT_S[0] * 1e3:g} ms to {_TPOT_S[1]:g} s at the median, but it is "
                f"{median:.3g} s ({unit}?): {ANSWER}",
                int(np.flatnonzero(~np.isnan(tpot))[0]),
                name,
            )
    return tpot, note
