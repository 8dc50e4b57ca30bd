from __future__ import annotations

import numpy as np
import pytest

from tests.traces.test_transform import sessions_trace
from traces import Trace
from traces.describe import describe, dispersion, ideal_hit_share


def test_the_summary_of_a_trace_with_everything() -> None:
    stats = describe(sessions_trace("closed"))
    assert stats["requests"] == 101
    assert stats["sessions"] == 40
    assert stats["rate_per_s"] == pytest.approx(1.01)
    assert stats["arrival_gap_mean_s"] == pytest.approx(100 / 40, rel=0.1)  # of sessions, not of turns
    assert stats["think_s_p50"] == 5.0
    assert stats["turns_max"] == 4
    assert stats["prompt_tokens_total"] == sessions_trace().frame["prompt_tokens"].sum()


def test_what_a_trace_lacks_is_left_out() -> None:
    trace = Trace.build("t", {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]})
    stats = describe(trace)
    assert not {"turns_mean", "think_s_mean", "ideal_block_hit_share", "arrival_gap_cv"} & set(stats)


def test_ideal_hits_by_hand() -> None:
    trace = Trace.build(
        "t",
        {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [20, 30, 25], "output_tokens": [15, 1, 1]},
        chain_offsets=np.array([0, 3, 6, 8]),
        chain_ids=np.array([0, 1, 2, 0, 1, 2, 0, 9]),
        prefix_block_tokens=10,
    )
    # Prompt blocks: 2 + 3 + 2. The second request finds 0 and 1, and 2 if the first one's output counts.
    assert ideal_hit_share(trace, outputs=False) == pytest.approx(3 / 7)
    assert ideal_hit_share(trace) == pytest.approx(4 / 7)


def test_dispersion_needs_eight_intervals() -> None:
    assert dispersion(np.arange(7.0), 7.0, 1.0) is None
    assert dispersion(np.arange(8.0), 8.0, 1.0) == 0.0
