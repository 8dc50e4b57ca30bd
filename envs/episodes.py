"""The episodes of an environment: windows of a trace's train zone, at some loads, on some clusters, prepared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.cluster.build import build_problem
from envs.cluster.presets import parse_cluster
from envs.cluster.problem import Problem
from envs.cluster.slo import LOOSE, TIGHT, SloSpec
from envs.cluster.spec import ClusterSpec, ViewSpec
from traces import Trace, load_trace

ZONES = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Episode:
    """One prepared episode: what was drawn, and the run's inputs."""

    window: int
    load: float
    cluster: str
    problem: Problem


@dataclass(slots=True)
class EpisodePool:
    """Draws (window, load, cluster); each combination is built on first use and kept.

    Attributes:
        windows: the windows, each a trace from time 0.
        clusters: clusters to draw from.
        slo: objectives.
        scales: pairs (load, factor by which the trace's rate is multiplied).
        seed: seed of ties in all episodes.
    """

    windows: Sequence[Trace]
    clusters: Sequence[ClusterSpec]
    slo: SloSpec
    scales: Sequence[tuple[float, float]] = ((1.0, 1.0),)
    seed: int = 0
    _built: dict[tuple[int, int, int], Episode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("windows", "clusters", "scales"):
            if not len(getattr(self, name)):
                raise ValueError(f"{name}: expected at least one")

    def __len__(self) -> int:
        """Number of different episodes."""
        return len(self.windows) * len(self.scales) * len(self.clusters)

    def draw(self, rng: np.random.Generator) -> Episode:
        """A random episode."""
        return self.episode(*(int(rng.integers(len(x))) for x in (self.windows, self.scales, self.clusters)))

    def episode(self, window: int, scale: int = 0, cluster: int = 0) -> Episode:
        """The episode of these indices."""
        key = (window, scale, cluster)
        if key not in self._built:
            load, factor = self.scales[scale]
            spec = self.clusters[cluster]
            problem = build_problem(self.windows[window].scale_rate(factor), spec, self.slo, seed=self.seed)
            self._built[key] = Episode(window, load, spec.name, problem)
        return self._built[key]


def cut(trace: Trace, requests: int, overlap: float = 0.5) -> list[Trace]:
    """Windows of about ``requests`` requests each, neighbours sharing the part ``overlap`` of their time.

    In open replay each holds exactly ``requests``, unless arrivals coincide. A trace that is shorter is one window.
    """
    if requests < 1 or not 0.0 <= overlap < 1.0:
        raise ValueError(f"requests={requests}, overlap={overlap}: expected at least 1, and a share below 1")
    arrival = trace.frame["arrival_s"].to_numpy()
    if len(trace) <= requests or arrival[-1] <= 0:
        return [trace]
    step = max(1, round(requests * (1.0 - overlap)))
    if trace.replay == "open":
        starts = range(0, len(trace) - requests + 1, step)
        edges = [(arrival[i], arrival[i + requests] if i + requests < len(trace) else trace.duration_s) for i in starts]
        across = "restart"
    else:  # sessions start, think and end on their own clock: cut by time
        span = trace.duration_s * requests / len(trace)
        n = max(1, int((trace.duration_s - span) / (span * (1.0 - overlap))) + 1)
        edges = [(k * span * (1.0 - overlap), k * span * (1.0 - overlap) + span) for k in range(n)]
        across = "whole"
    return [trace.window(float(a), float(b), across=across) for a, b in edges if a < b and _begins(trace, a, b)]


def _begins(trace: Trace, start_s: float, end_s: float) -> bool:
    """True if a request (closed replay: a session) starts in the window."""
    first = trace.frame["arrival_s"].to_numpy()
    if trace.replay != "open":
        first = first[trace.frame["turn"].to_numpy() == 1]
    return bool(((first >= start_s) & (first < end_s)).any())


def make_pool(
    *,
    trace: str = "default",
    zone: str = "train",
    clusters: Sequence[str] = ("2p2d",),
    slo: str | Mapping[str, Any] = "tight",
    profile: str = "llama-3.1-70b-fp8-h100-tp4",
    link: str = "rdma",
    view: Mapping[str, Any] | None = None,
    rate_per_s: float | None = None,
    loads: Sequence[float] = (1.0,),
    episode_requests: int = 512,
    seed: int = 0,
    data_dir: str | None = None,
) -> EpisodePool:
    """A pool from names and plain values; these are the arguments of ``gymnasium.make("PDRouting-v0", ...)``.

    Args:
        trace: catalogue name of a trace.
        zone: ``train``, ``validation`` or ``test``.
        clusters: layouts such as ``2p2d`` to draw from.
        slo: ``tight``, ``loose``, or a mapping with ``ttft_base_s``, ``ttft_per_token_s`` and ``tpot_s``.
        profile: hardware profile of every worker.
        link: handover law.
        view: fields of ``ViewSpec``: what the router sees, and how late.
        rate_per_s: requests (closed replay: session starts) per second at load 1; None: the trace's own rate.
        loads: loads to draw from, as multiples of ``rate_per_s``.
        episode_requests: requests of an episode.
        seed: seed of ties.
        data_dir: folder of public traces.

    Raises:
        ValueError: an unknown zone, slo or field, or a load that is not positive.
    """
    from envs.hardware.load import load_handover, load_profile
    from traces.catalog import zones

    if zone not in ZONES:
        raise ValueError(f"zone {zone!r}: expected one of {', '.join(ZONES)}")
    if isinstance(slo, str):
        known = {"tight": TIGHT, "loose": LOOSE}
        if slo not in known:
            raise ValueError(f"slo {slo!r}: expected tight, loose, or a mapping with ttft_base_s, tpot_s, ...")
        objectives = known[slo]
    else:
        objectives = SloSpec(**{"name": "own", "ttft_per_token_s": 0.0, **slo})
    if not loads or not all(load > 0 for load in loads) or (rate_per_s is not None and not rate_per_s > 0):
        raise ValueError(f"loads {loads!r}, rate_per_s {rate_per_s!r}: expected positive numbers")
    source = zones(load_trace(trace, data_dir=data_dir))[zone]
    at_one = 1.0 if rate_per_s is None else rate_per_s / pace_per_s(source)
    hardware, seen = load_profile(profile), ViewSpec(**(view or {}))
    handover = load_handover(link, gpus=hardware.gpus)
    specs = [parse_cluster(name, profile=hardware, handover=handover, view=seen) for name in clusters]
    return EpisodePool(
        cut(source, episode_requests), specs, objectives, [(load, load * at_one) for load in loads], seed
    )


def pace_per_s(trace: Trace) -> float:
    """What a rate means: requests a second in open replay, else starts of sessions (and of requests without one)."""
    if trace.replay == "open":
        return trace.rate_per_s
    loose = int((trace.frame["session"] < 0).sum())
    return (trace.n_sessions + loose) / trace.duration_s
