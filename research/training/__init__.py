"""Training of the learned policy. torch and stable-baselines3 are imported by the functions that use them."""

from __future__ import annotations

from research.training.throughput import throughput

__all__ = ["throughput"]
