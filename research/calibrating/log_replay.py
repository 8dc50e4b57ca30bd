"""A request log as ``action=from_log`` reads it: its cluster, its parts in time, and its replay under any profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.hardware.errors import MeasurementError
from envs.hardware.from_log import FEWEST, Cells, make_cells, ranges
from research.errors import ResearchError
from research.settings import Settings

if TYPE_CHECKING:
    import polars as pl

    from envs.cluster.spec import ClusterSpec
    from envs.hardware.from_log import Ints
    from envs.hardware.from_runs import Array
    from envs.hardware.profile import Profile, StepLaw
    from research.choices import PolicyChoice
    from research.trace_choice import TraceChoice
    from traces import Trace

MOST_FITTED = 5000
"""Requests of the fitted part at most: a replay of so many takes some 50 ms."""
DEFAULT_TRACE = "default"
INNER = 2 / 3
"""Share of the fitted part on which the two kinds of law are tried; the rest of it decides between them."""


@dataclass(frozen=True)
class Log:
    """A log and the cluster that is to stand for the one that wrote it.

    Attributes:
        source: the log as the user names it.
        trace: its requests, arrivals at their stamps.
        cluster: the profile in force and all else as configured.
        policy: ``logged``, or a rule that stands for the routes that the log does not have.
        profile: the one that is corrected; workers with another one stay as they are.
        lead: requests at its start that are replayed and not counted.
        fitted: requests after them whose times are looked at.
        seed: of ties.
    """

    source: TraceChoice
    trace: Trace
    cluster: ClusterSpec
    policy: PolicyChoice
    profile: Profile
    lead: int
    fitted: int
    seed: int = 0

    @cached_property
    def times(self) -> Array:
        """(n, 2) measured TTFT and TPOT in seconds, NaN where there is none."""
        frame = self.trace.frame
        columns = [frame[name].cast(float).fill_null(np.nan).to_numpy() for name in ("ttft_s", "tpot_s")]
        return np.column_stack(columns)

    @cached_property
    def load(self) -> Ints:
        """(n,) other requests in flight at each arrival, by the log's times."""
        from research.validating.backtest import in_flight

        return in_flight(self.trace.frame)

    def first(self, last: int) -> Trace:
        """What decides the times of the requests before row ``last``: whatever arrives before they have ended."""
        frame = self.trace.frame
        end = frame["arrival_s"] + frame["ttft_s"].fill_null(0.0)
        end = end + frame["tpot_s"].fill_null(0.0) * (frame["output_tokens"] - 1)
        until = float(end[:last].max() or 0.0)  # type: ignore[arg-type]
        rows = max(last, int(np.searchsorted(frame["arrival_s"].to_numpy(), until, side="right")))
        return head(self.trace, rows)

    def replay(self, trace: Trace, profile: Profile, dispatch_s: float | None = None) -> pl.DataFrame:
        """Measured and simulated times of the first rows of the log.

        Args:
            trace: those rows.
            profile: in the place of the one in force.
            dispatch_s: time of a hop before an engine; None: the link's.

        Returns:
            One row a request, in order: ``arrival_s``, ``measured_<time>_s`` and ``simulated_<time>_s``.

        Raises:
            MeasurementError: a request that the log served is refused.
        """
        from envs.cluster.simulator import simulate
        from envs.cluster.slo import LOOSE
        from research.validating.requests import paired

        workers = tuple(
            replace(worker, profile=profile) if worker.profile.name == self.profile.name else worker
            for worker in self.cluster.workers
        )
        link = self.cluster.handover
        link = link if dispatch_s is None else replace(link, dispatch_s=dispatch_s)
        cluster = replace(self.cluster, workers=workers, handover=link)
        result = simulate(trace, cluster, self.policy.build_for(trace, cluster), LOOSE, seed=self.seed)
        frame = paired(trace, result.requests)
        lost = frame.filter(frame["measured_ttft_s"].is_not_null() & frame["simulated_ttft_s"].is_null())
        if lost.height:
            raise MeasurementError(
                f"{self.source.text()}: {self.cluster.name} as configured refuses {lost.height} requests that the log "
                f"served: expected all; a worker of profile {profile.name} holds {profile.kv.capacity_tokens:,} tokens "
                "(cluster.kv_tokens=N sets another number)"
            )
        return frame

    def part(self, last: int) -> Part:
        """The counted requests before row ``last``."""
        return Part(self, self.first(last), slice(self.lead, last))


@dataclass(frozen=True)
class Part:
    """Counted requests at the start of a log, with what else must be replayed for them."""

    log: Log
    trace: Trace
    rows: slice

    @cached_property
    def cells(self) -> Cells:
        """Its requests by load and prompt length."""
        prompt = self.log.trace.frame["prompt_tokens"].to_numpy()[self.rows].astype(np.int64)
        return make_cells(prompt, self.log.load[self.rows], self.log.times[self.rows])

    def measured(self) -> Array:
        """(cells, 2) mean TTFT and TPOT."""
        return self.cells.means(self.log.times[self.rows])

    def simulated(self, profile: Profile, dispatch_s: float | None) -> Array:
        """(cells, 2) the same of a replay, over the same requests."""
        frame = self.log.replay(self.trace, profile, dispatch_s)[self.rows]
        times = frame.select("simulated_ttft_s", "simulated_tpot_s").fill_null(np.nan).to_numpy()
        return self.cells.means(np.where(np.isfinite(self.log.times[self.rows]), times, np.nan))

    def distance(self, profile: Profile, dispatch_s: float, rows: slice | None = None) -> float:
        """How far a replay is from the log over ``rows`` of it (default: these)."""
        from research.validating.requests import distance

        return distance(self.log.replay(self.trace, profile, dispatch_s)[self.rows if rows is None else rows])

    def search(self, start: StepLaw, dispatch_s: float, tick: Callable[[], None]) -> StepLaw:
        """The plane with which the replay is nearest to these requests."""
        from envs.hardware.from_log import nearest_law

        def distance(law: StepLaw) -> float:
            tick()
            return self.distance(self.log.profile.with_step(law).with_tables(None), dispatch_s)

        return nearest_law(start, distance)

    def range(self) -> dict[str, Any]:
        """What its steps held."""
        frame, times = self.log.trace.frame[self.rows], self.log.times[self.rows]
        usable = np.isfinite(times).all(axis=1)
        start, prompt, output = (
            frame[name].to_numpy()[usable] for name in ("arrival_s", "prompt_tokens", "output_tokens")
        )
        first = start + times[usable, 0]
        decoding = sum(worker.can_decode for worker in self.log.cluster.workers)
        return ranges(first, first + times[usable, 1] * (output - 1), prompt, output, decoding)


def head(trace: Trace, rows: int) -> Trace:
    """The first rows of a trace."""
    from traces import Trace

    if rows >= len(trace):
        return trace
    offsets = trace.chain_offsets[: rows + 1]
    return Trace.build(
        trace.name, trace.frame[:rows], chain_offsets=offsets, chain_ids=trace.chain_ids[: offsets[-1]],
        prefix_block_tokens=trace.prefix_block_tokens, replay=trace.replay, classes=trace.classes,
    )  # fmt: skip


def read_log(plain: Mapping[str, Any]) -> Log:
    """The log, cluster and routes of a configuration.

    Raises:
        ResearchError: no times, too few requests, no routes, a profile that no worker has.
    """
    from envs.hardware.load import load_profile
    from envs.logged import has_routes
    from research.choices import PolicyChoice
    from research.clusters import build_cluster
    from research.trace_choice import TraceChoice

    number = Settings(plain)
    share, lead_in_s = number("first", above=0.0, below=1.0), number("lead_in_s", low=0.0)
    for key, instead in (("profile", "hardware.profile"), ("link", "hardware.link"), ("path", "trace.path")):
        if plain[key] is not None:
            raise ResearchError(f"{key}={plain[key]}: action=from_log takes {instead}={plain[key]}")
    source = TraceChoice.parse(plain["trace"], plain["data_dir"], "open")
    trace, cluster = source.load(), build_cluster(plain["cluster"], plain["hardware"], {})
    _check_times(source, trace)
    profile, policy = load_profile(plain["hardware"]["profile"]), PolicyChoice.parse(plain["policy"], "policy")
    if all(worker.profile.name != profile.name for worker in cluster.workers):
        raise ResearchError(
            f"hardware.profile={plain['hardware']['profile']}: no worker of {cluster.name} has it: expected one of "
            f"{', '.join(sorted({worker.profile.name for worker in cluster.workers}))}, the one to correct"
        )
    if policy.replays and not has_routes(trace):
        if len(cluster.workers) > 1:
            raise ResearchError(
                f"trace {source.text()}: it has no routes, and {cluster.name} has {len(cluster.workers)} workers: "
                "policy=round_robin (or another) says what its router did; trace.options.columns.prefill_worker=NAME "
                "maps a table's own columns"
            )
        policy = PolicyChoice.parse("round_robin", "policy")
    lead = int(np.searchsorted(trace.frame["arrival_s"].to_numpy(), lead_in_s))
    counted = len(trace) - lead
    return Log(
        source, trace, cluster, policy, profile, lead, min(int(share * counted), MOST_FITTED),
        int(number("seed", low=0, whole=True)),
    )  # fmt: skip


def _check_times(source: TraceChoice, trace: Trace) -> None:
    lacking = [name for name in ("ttft_s", "tpot_s") if name not in trace.frame.columns]
    if lacking:
        asked = "trace=MY_LOG: expected a log with times: " if source.name == DEFAULT_TRACE else ""
        raise ResearchError(
            f"{asked}trace {source.text()}: no {' and no '.join(lacking)}: a profile is corrected by the times of each "
            "request; trace.options.columns.ttft_s=NAME maps a table's own columns (a gateway's log: its first-token "
            "and end stamps)"
        )
    known_rows = trace.frame.filter((trace.frame["ttft_s"] > 0) & (trace.frame["tpot_s"] > 0))
    known = known_rows.height
    if known < 2 * FEWEST:
        raise ResearchError(
            f"trace {source.text()}: {known} of {len(trace)} requests have TTFT and TPOT: expected at least "
            f"{2 * FEWEST}, half of them to fit and half to judge by. What fewer can show: action=from_runs takes "
            "means of five benchmark runs"
        )
    # A first token comes out of a step that any other token could come out of as well.
    if 2 * (below := known_rows.filter(known_rows["ttft_s"] < known_rows["tpot_s"]).height) > known:
        raise ResearchError(
            f"trace {source.text()}: ttft_s is shorter than tpot_s in {below} of {known} requests: expected it to be "
            "longer; are the two columns swapped, or in different units?"
        )
