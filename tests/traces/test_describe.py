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


def test_lacks_say_what_a_comparison_cannot_see() -> None:
    bare = Trace.build("t", {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]})
    said = " ".join(describe(bare)["lacks"])
    assert "prefix-aware policies are not ranked on this trace" in said
    assert "no sessions" in said
    full = describe(sessions_trace("closed"))
    assert "prefix" not in " ".join(full["lacks"])
    assert full["sessions_how"] == ["as the trace has them"]


def test_curves_of_the_summary() -> None:
    stats = describe(sessions_trace("closed"))
    hits = stats["hit_curve"]["hit_share"]
    assert hits == sorted(hits)
    assert hits[-1] == pytest.approx(stats["ideal_block_hit_share_with_outputs"], abs=1e-12)
    assert stats["hit_curve_prompts_alone"]["hit_share"][-1] == pytest.approx(stats["ideal_block_hit_share"], abs=1e-12)
    assert stats["arrival_dispersion_curve"]["scale_s"] == [1, 2, 3, 5, 7, 10]  # eight intervals or more in 100 s
    rate = stats["arrival_rate"]
    widths = np.subtract(rate["end_s"], rate["start_s"])
    assert float((np.array(rate["per_s"]) * widths).sum()) == pytest.approx(40)  # session starts


def test_think_times_that_are_assumed_are_told_from_those_that_are_recorded() -> None:
    trace = sessions_trace("closed")
    some = trace.named("a", "think times as recorded, but for 3 turns after one without ...: an assumed service of 2 s")
    every = trace.named("b", "think time = start-to-start gap - assumed service (0 s + 0 s a token)")
    recorded, mixed, assumed = (" ".join(describe(one)["lacks"]) for one in (trace, some, every))
    assert "think times" not in recorded
    assert "some think times are not as they were" in mixed
    assert "think times are not as they were" in assumed
    assert "some think times" not in assumed
