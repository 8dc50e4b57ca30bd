"""The observation of a routing decision: a flat float32 vector with a named layout.

``candidates``: the features of each of the SLOTS candidates (``policies.features.FEATURES``), zeros where there is
none; ``mask``: 1 where there is a candidate; ``state``: a few numbers of the whole cluster, for value functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.features import FEATURES, N_FEATURES, SLOTS

STATE = (
    "prefill_load",  # mean prefill work queued on workers that can prefill / TTFT objective, at most 20
    "streams",  # mean streams of workers that can decode / 64
    "on_the_way",  # mean requests on their way to them / 64
    "slow_gap",  # largest last token gap / TPOT objective, at most 4
    "prompt",  # log10(1 + prompt tokens) / 4
    "ttft_objective",  # log10(1 + TTFT objective in ms) / 4
)
N_STATE = 6

CANDIDATES = slice(0, SLOTS * N_FEATURES)
MASK = slice(SLOTS * N_FEATURES, SLOTS * N_FEATURES + SLOTS)
STATE_SLICE = slice(SLOTS * N_FEATURES + SLOTS, SLOTS * N_FEATURES + SLOTS + N_STATE)
SIZE = SLOTS * N_FEATURES + SLOTS + N_STATE

LAYOUT: dict[str, slice] = {"candidates": CANDIDATES, "mask": MASK, "state": STATE_SLICE}
"""Name -> slice of the vector."""

HIGH = 1000.0
"""Bound of the observation space. Features are capped at 20 but for ``kv``, which is small in any sane cluster."""


def named(observation: NDArray[np.float32]) -> dict[str, dict[str, Any]]:
    """An observation by name: ``candidates`` as (SLOTS,) arrays a feature, ``mask`` (SLOTS,), ``state`` as numbers."""
    table = observation[CANDIDATES].reshape(SLOTS, N_FEATURES)
    return {
        "candidates": {name: table[:, i].copy() for i, name in enumerate(FEATURES)},
        "mask": {"legal": observation[MASK].astype(bool)},
        "state": dict(zip(STATE, observation[STATE_SLICE].tolist(), strict=True)),
    }
