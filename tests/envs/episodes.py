"""Small pools of episodes on the shipped trace."""

from __future__ import annotations

from envs.episodes import EpisodePool, make_pool


def small_pool(**options) -> EpisodePool:
    """About forty requests an episode, busy enough that objectives are missed."""
    chosen = {"trace": "default", "episode_requests": 40, "rate_per_s": 8.0, "clusters": ("2p2d",), **options}
    return make_pool(**chosen)
