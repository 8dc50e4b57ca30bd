"""Small pools of episodes."""

from __future__ import annotations

import numpy as np

from envs.cluster.presets import parse_cluster
from envs.cluster.slo import TIGHT
from envs.episodes import EpisodePool, cut, make_pool
from envs.hardware.load import load_handover, load_profile
from traces import Trace


def small_pool(**options) -> EpisodePool:
    """About forty requests of the shipped trace an episode."""
    chosen = {"trace": "default", "episode_requests": 40, "rate_per_s": 8.0, "clusters": ("2p2d",), **options}
    return make_pool(**chosen)


def busy_pool(requests: int = 160, rate_per_s: float = 40.0) -> EpisodePool:
    """Conversations at a rate that a careless router cannot serve: open replay, long prompts now and then."""
    rng = np.random.default_rng(2)
    n = 4 * requests
    columns = {
        "arrival_s": np.cumsum(rng.exponential(1.0 / rate_per_s, n)),
        "prompt_tokens": np.minimum(rng.lognormal(6.5, 1.0, n), 12_000).astype(int) + 1,
        "output_tokens": np.minimum(rng.lognormal(4.5, 0.8, n), 800).astype(int) + 1,
    }
    profile = load_profile("llama-3.1-70b-fp8-h100-tp4")
    cluster = parse_cluster("2p2d", profile=profile, handover=load_handover("rdma"))
    return EpisodePool(cut(Trace.build("busy", columns), requests), [cluster], TIGHT)
