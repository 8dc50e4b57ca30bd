"""A run as a log, and a log as routes: what happened to each request, written into a trace and replayed from it.

``as_trace`` keeps everything that decides a run besides the cluster: arrivals as they reached the router, chains, think
times, and what the router answered. Replayed on the same cluster the log gives the same times to the picosecond,
open and closed. What is easily lost on that way (a replay that ended early or served another schedule:
inference-sim/inference-sim#1615 and #1421 on GitHub; follow-up turns left out: #1621) is kept or refused by name.

How exactly: a run's clock is whole picoseconds, a trace's is float64 seconds, which tell picoseconds apart up to
2**13 s (2 h 16 min). Arrivals that a trace fixes stay as they stand, whatever their size. Those that a closed run made
are exact below that bound, and above to 1 ps up to 2**14 s, 2 ps up to 2**15 s (counted in the provenance); a closed
replay makes them anew and is exact for any length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.cluster.build import logged_order
from envs.cluster.problem import PS, STATUS, whole_ps
from envs.cluster.result import SimResult
from envs.cluster.spec import ClusterSpec
from policies.contract import LOCAL, Action, hold, reject, route
from traces import Trace
from traces.check import LOGGED
from traces.errors import TraceError

REFUSED = ("rejected", "cancelled", "failed", "error", "timeout", "aborted")
"""Logged outcomes, and HTTP status codes from 400, of requests that may lack a worker: the replay refuses them."""

ROUTES = ("prefill_worker", "decode_worker")


def has_routes(trace: Trace) -> bool:
    """Whether the trace recorded where its requests went."""
    return all(name in trace.frame.columns for name in ROUTES)


# -- a run as a log -----------------------------------------------------------------------------------


def as_trace(result: SimResult, trace: Trace, *, name: str | None = None, note: str = "a simulated run") -> Trace:
    """The log of a run: ``trace`` as it happened.

    Arrivals are those at the router, in closed replay too; a turn that never came, because an earlier one was
    refused, stands at that moment with status ``cancelled``. Think times are the gaps of the run. A local prefill has
    ``prefill_worker == decode_worker``.

    Args:
        result: what ``simulate`` returned for ``trace``.
        trace: the trace that was served.
        name: name of the log; default: that of the trace.
        note: what ran, for the provenance.

    Raises:
        ValueError: the result is of another trace.
        TraceError: the policy moved prefill shares of split workers, for which a trace has no place.
    """
    out = result.outcomes
    if len(out) != len(trace):
        raise ValueError(f"a result of {len(out)} requests is not of trace {trace.name!r}, which has {len(trace)}")
    if result.share_changes:
        raise TraceError(
            file=trace.name,
            column="prefill share",
            value=f"{result.share_changes} changes by the policy's timer",
            expected="shares that stay (adjust_period_s=0): a log has no place for them, so its replay would differ",
        )
    came = np.where(out["arrival_ps"] >= 0, out["arrival_ps"], out["finish_ps"])
    nominal = trace.frame["arrival_s"].to_numpy()
    arrival = _in_turn(trace, np.where(whole_ps(nominal) == came, nominal, came / PS))
    waited = np.where(out["routed_ps"] >= 0, out["routed_ps"] - came, 0)
    think, early = _think_times(result, trace, came)
    frame = trace.frame.drop(LOGGED, strict=False).with_columns(
        pl.Series("arrival_s", arrival),
        think.alias("think_s"),
        *(pl.Series(column, out[column]).replace(-1, None) for column in ROUTES),
        result.requests["ttft_s"],
        result.requests["tpot_s"],
        pl.Series("status", [STATUS[i] for i in out["status"]], pl.String),
        pl.Series("routed_after_s", waited / PS),
        result.requests["order_key"],
        result.requests["local_chunk_tokens"].cast(pl.Int64),
        result.requests["request"].cast(pl.Int64).alias("logged_order"),
    )
    idle = [c for c in ("routed_after_s", "order_key", "local_chunk_tokens") if not (frame[c] != 0).any()]
    inexact = int((whole_ps(arrival) != came).sum())
    counts = ", ".join(f"{n} {STATUS[i]}" for i, n in enumerate(np.bincount(out["status"])) if n)
    notes = [
        f"{note}: {result.replay} replay, arrivals at the router, routes and times of the run; {counts}",
        f"{early} turns came before the one before had ended: no think time, 0 instead" if early else None,
        f"{inexact} arrivals rounded by up to {abs(whole_ps(arrival) - came).max()} ps" if inexact else None,
        f"cancel_after_s of {result.cancels_ignored} requests was not acted on" if result.cancels_ignored else None,
    ]
    log = Trace.build(
        name or trace.name,
        frame.drop(idle),
        chain_offsets=trace.chain_offsets,
        chain_ids=trace.chain_ids,
        prefix_block_tokens=trace.prefix_block_tokens,
        replay=result.replay,
        classes=trace.classes,
        provenance=(*trace.provenance, *(n for n in notes if n)),
        duration_s=max(trace.duration_s, float(arrival.max()) if result.replay == "open" else 0.0),
    )
    if log.frame["logged_order"].is_sorted():  # the rows say it
        log = replace(log, frame=log.frame.drop("logged_order"))
    return log


def _in_turn(trace: Trace, arrival: NDArray[np.float64]) -> NDArray[np.float64]:
    """No turn before the one before it: equal picoseconds can be unequal floats."""
    latest = pl.col("arrival").cum_max().over("session", order_by="turn")
    frame = trace.frame.select("session", "turn", pl.Series("arrival", arrival))
    alone = pl.col("session") < 0
    return frame.select(pl.when(alone).then(pl.col("arrival")).otherwise(latest)).to_series().to_numpy()


def _think_times(result: SimResult, trace: Trace, came: NDArray[np.int64]) -> tuple[pl.Series, int]:
    """Think times of the run, and how many would be negative (turns of open replay need not wait for each other)."""
    later = trace.frame["turn"] > 1
    if result.replay != "open":
        return pl.select(pl.when(later).then(trace.frame["think_s"].fill_null(0.0))).to_series(), 0
    session, turn = trace.frame["session"].to_numpy(), trace.frame["turn"].to_numpy()
    order = np.lexsort((turn, session))
    gap = np.zeros(len(trace), np.int64)
    gap[order[1:]] = came[order[1:]] - result.outcomes["finish_ps"][order[:-1]]
    early = int((later.to_numpy() & (gap < 0)).sum())
    return pl.select(pl.when(later).then(pl.Series(np.maximum(gap, 0) / PS))).to_series(), early


# -- a log as routes ----------------------------------------------------------------------------------


class LoggedRoutes:
    """A policy that answers what a trace's log says, whatever the view: a replay, not a router.

    Both workers and nothing else are needed: equal ones mean a local prefill, as does prefill worker -1. A request
    without workers is refused if its logged status says that it was (:data:`REFUSED`). ``routed_after_s`` is waited
    for, ``order_key`` and ``local_chunk_tokens`` are given. A late binding is replayed as a route to the worker that
    it took.

    Attributes:
        refused: requests that are refused.
    """

    name = "logged"
    replays = True

    def __init__(self, trace: Trace, cluster: ClusterSpec, worker_ids: Mapping[int, int] | None = None) -> None:
        """Check every route before anything runs.

        Args:
            trace: the log, exactly the trace that is served.
            cluster: where it is served.
            worker_ids: logged worker id -> worker of the cluster, where they differ.

        Raises:
            TraceError: no routes, one that is incomplete, to a worker that does not exist or cannot do its phase.
        """
        if not has_routes(trace):
            found = [c for c in ROUTES if c in trace.frame.columns] or "none"
            raise TraceError(
                file=trace.name,
                column=" and ".join(ROUTES),
                value=found,
                expected="the logged routes that policy=logged replays; trace.options.columns.prefill_worker=NAME maps "
                "a table's own columns, research.replay writes them",
            )
        check = _Checks(trace, cluster, dict(worker_ids or {}))
        prefill, decode = check.workers("prefill_worker"), check.workers("decode_worker")
        decode = np.where(decode == -1, -2, decode)
        prefill = np.where((prefill == -1) & (decode == -2), -2, prefill)
        refused = check.refused(prefill, decode)
        check.capable(prefill, decode, refused)
        prefill = np.where(prefill == decode, LOCAL, prefill)
        order = logged_order(trace.frame)
        order = np.arange(len(trace)) if order is None else order
        self.refused = int(refused.sum())
        # By request id, which is the place in that order.
        self._refused: list[bool] = refused[order].tolist()
        self._prefill: list[int] = prefill[order].tolist()
        self._decode: list[int] = decode[order].tolist()
        self._wait_ps: list[int] = whole_ps(_column(trace, "routed_after_s"))[order].tolist()
        self._order_key: list[float] = _column(trace, "order_key")[order].tolist()
        self._chunk: list[int] = _column(trace, "local_chunk_tokens").astype(np.int64)[order].tolist()

    def route(self, request: Any, view: Any) -> Action:
        """The logged answer to one request."""
        i = request.id
        if self._wait_ps[i] and not request.holds:
            return hold(stamp_s(round_ps(request.now_s) + self._wait_ps[i]))
        if self._refused[i]:
            return reject()
        return route(self._prefill[i], self._decode[i], self._order_key[i], self._chunk[i])


def stamp_s(ps: int) -> float:
    """Seconds that ``round(s * 1e12)``, the simulator's conversion of an answer, turns into ``ps``."""
    near = ps / PS
    for s in (near, math.nextafter(near, math.inf), math.nextafter(near, 0.0)):
        if round(s * 1e12) == ps:
            return s
    return near


def round_ps(seconds: float) -> int:
    """Whole picoseconds of a time, see ``whole_ps``."""
    return int(whole_ps(np.array([seconds]))[0])


def _column(trace: Trace, name: str) -> NDArray[np.float64]:
    if name not in trace.frame.columns:
        return np.zeros(len(trace))
    return trace.frame[name].fill_null(0).cast(pl.Float64).to_numpy()


class _Checks:
    """Routes of a log against a cluster; every error names the row."""

    def __init__(self, trace: Trace, cluster: ClusterSpec, ids: dict[int, int]) -> None:
        self.trace, self.cluster, self.ids = trace, cluster, ids
        logged = {w for c in ROUTES for w in trace.frame[c].drop_nulls().unique()}
        for old, new in ids.items():
            if old not in logged:
                expected = f"a worker of the log, {_few(logged)}{_nearest(old, logged)}"
                raise self.error(expected, column="policy.worker_ids", value=old)
            if not 0 <= new < len(cluster.workers):
                raise self.error(self._known(new), column="policy.worker_ids", value=f"{old}: {new}")

    def workers(self, column: str) -> NDArray[np.int64]:
        """Worker of the cluster by row; -1 as it stands, -2 for nothing."""
        logged = self.trace.frame[column]
        mapped = logged.replace(self.ids) if self.ids else logged
        bad = ~mapped.is_between(-1, len(self.cluster.workers) - 1).fill_null(True).to_numpy()
        if bad.any():
            row = int(np.argmax(bad))
            id_ = logged[row]
            expected = f"{self._known(id_)}; policy.worker_ids={{{id_}: WORKER}} maps the log's ids to the cluster's"
            raise self.error(expected, row=row, column=column, value=id_)
        return np.asarray(mapped.fill_null(-2).to_numpy())

    def refused(self, prefill: NDArray[np.int64], decode: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) requests without a route, which must have been refused."""
        none: NDArray[np.bool_] = (prefill == -2) & (decode == -2)
        half = ((prefill == -2) | (decode == -2)) & ~none
        if half.any():
            row = int(np.argmax(half))
            column = "prefill_worker" if prefill[row] == -2 else "decode_worker"
            expected = (
                "both workers or none (equal ones for a local prefill); a request that ended between its prefill and "
                "the choice of a decode worker is not replayed"
            )
            raise self.error(expected, row=row, column=column, value="nothing")
        if not none.any():
            return none
        status = self.trace.frame["status"] if "status" in self.trace.frame.columns else None
        said = np.zeros(none.size, np.bool_)
        if status is not None:
            text = status.str.strip_chars().str.to_lowercase()
            said = (text.is_in(REFUSED) | text.str.contains("^[45][0-9][0-9]$")).fill_null(False).to_numpy()
        lost = none & ~said
        if lost.any():
            row = int(np.argmax(lost))
            found = "nothing" if status is None or status[row] is None else f"status {status[row]!r} without a worker"
            expected = f"a worker, or a status that says why there is none ({', '.join(REFUSED)}, HTTP 4xx or 5xx)"
            raise self.error(expected, row=row, column="prefill_worker", value=found)
        return none

    def capable(self, prefill: NDArray[np.int64], decode: NDArray[np.int64], refused: NDArray[np.bool_]) -> None:
        """Raise for a route to a worker that cannot do its phase."""
        for phase, column, at in (
            ("prefill", "prefill_worker", np.where(prefill == LOCAL, decode, prefill)),
            ("decode", "decode_worker", decode),
        ):
            able = np.array([getattr(w, f"can_{phase}") for w in self.cluster.workers])
            bad = ~refused & ~able[np.where(refused, 0, at)]
            if bad.any():
                row = int(np.argmax(bad))
                worker = int(at[row])
                role = self.cluster.workers[worker].role
                expected = (
                    f"a worker of {self.cluster.name} that can {phase} ({_few(np.flatnonzero(able).tolist())}); "
                    f"worker {worker} is a {role} worker, policy.worker_ids={{LOGGED: WORKER}} maps ids"
                )
                raise self.error(expected, row=row, column=column, value=self.trace.frame[column][row])

    def _known(self, worker: int) -> str:
        last = len(self.cluster.workers) - 1
        return f"a worker of {self.cluster.name}, 0 to {last} (the nearest is {min(max(worker, 0), last)})"

    def error(self, expected: str, *, column: str, value: object, row: int | None = None) -> TraceError:
        return TraceError(
            file=self.trace.name, row=None if row is None else row + 1, column=column, value=value, expected=expected
        )


def _few(ids: Any) -> str:
    found = sorted(ids)
    return ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")


def _nearest(worker: int, ids: Any) -> str:
    return f" (the nearest is {min(ids, key=lambda i: (abs(i - worker), i))})" if ids else ""
