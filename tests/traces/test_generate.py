from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.traces.test_transform import sessions_trace
from traces import TraceError
from traces.describe import dispersion, fixed_arrivals
from traces.generate import poisson_trace, replicate, two_turn_sessions


def test_poisson_arrivals() -> None:
    trace = poisson_trace(20.0, 1000.0, 100, 10, seed=3)
    assert len(trace) == pytest.approx(20_000, abs=4 * 20_000**0.5)
    gaps = np.diff(trace.frame["arrival_s"].to_numpy())
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)
    index = dispersion(trace.frame["arrival_s"].to_numpy(), trace.duration_s, 10.0)
    assert index == pytest.approx(1.0, abs=0.5)
    assert trace.sha256 == poisson_trace(20.0, 1000.0, 100, 10, seed=3).sha256


def test_two_turn_sessions_grow_their_context() -> None:
    trace = two_turn_sessions(5.0, 100.0, turn1=(128, 128), turn2=((16, 32), (256, 64)), think_s=1.5, seed=1)
    assert trace.replay == "closed"
    first, second = (trace.frame.filter(pl.col("turn") == k) for k in (1, 2))
    assert len(first) == len(second) == trace.n_sessions
    assert set(first["prompt_tokens"]) == {128}
    assert set(second.select("prompt_tokens", "output_tokens").rows()) == {(272, 32), (512, 64)}
    assert set(second["think_s"]) == {1.5}
    assert trace.duration_s == 100.0


def test_two_turn_chains_share_the_first_turn_and_nothing_else() -> None:
    trace = two_turn_sessions(1.0, 30.0, turn1=(100, 60), turn2=((20, 40),), block_tokens=16)
    rows: dict[int, dict[int, int]] = {}
    for row, (session, turn) in enumerate(trace.frame.select("session", "turn").rows()):
        rows.setdefault(session, {})[turn] = row
    seen: set[int] = set()
    for turns in rows.values():
        one, two = trace.chain(turns[1]).tolist(), trace.chain(turns[2]).tolist()
        assert (len(one), len(two), two[: len(one)]) == (160 // 16, 220 // 16, one)
        assert not seen & set(two)
        seen |= set(two)


BAD: list[Any] = [
    lambda: poisson_trace(0.0, 10.0, 1, 1),
    lambda: poisson_trace(1.0, float("inf"), 1, 1),
    lambda: poisson_trace(1e-9, 1.0, 1, 1),
    lambda: two_turn_sessions(1.0, 10.0, turn2=()),
    lambda: two_turn_sessions(1.0, 10.0, turn1=(0, 1)),
    lambda: two_turn_sessions(1.0, 10.0, block_tokens=0),
    lambda: replicate(sessions_trace(), 0),
    lambda: replicate(sessions_trace(), 10, how="stack"),
]


@pytest.mark.parametrize("act", BAD)
def test_bad_arguments(act: Any) -> None:
    with pytest.raises(TraceError):
        act()


@pytest.mark.parametrize("replay", ["open", "closed"])
@pytest.mark.parametrize("how", ["concatenate", "superpose"])
def test_copies_are_apart_and_complete(replay: str, how: str) -> None:
    trace = sessions_trace(replay)
    triple = replicate(trace, 3 * len(trace), how=how)
    assert len(triple) == 3 * len(trace)
    assert triple.n_sessions == 3 * trace.n_sessions
    assert triple.n_prefix_ids == 3 * trace.n_prefix_ids
    rate = triple.rate_per_s / trace.rate_per_s
    assert rate == pytest.approx(1.0 if how == "concatenate" else 3.0, rel=0.25 if how == "superpose" else 1e-9)


def test_a_cut_copy_has_the_requests_asked_for() -> None:
    trace = sessions_trace("open")
    assert len(replicate(trace, len(trace) + 13)) == len(trace) + 13
    assert len(replicate(trace, 7)) == 7
    closed = replicate(sessions_trace("closed"), len(trace) + 13)
    assert len(trace) + 13 <= len(closed) < len(trace) + 13 + 8
    assert (
        closed.frame.group_by("session")
        .agg(pl.col("turn").max(), pl.len())
        .filter(pl.col("turn") != pl.col("len"))
        .is_empty()
    )


def test_superposed_copies_are_smoother_for_their_rate() -> None:
    bursts = sessions_trace("closed", n=200, turns=1)
    clumped = bursts.frame.with_columns((pl.col("arrival_s") / 10).floor() * 10)
    trace = type(bursts).build("b", clumped, duration_s=100.0)
    variation = []
    for t in (trace, replicate(trace, 40 * len(trace), how="superpose")):
        counts = np.histogram(fixed_arrivals(t), 100, (0.0, 100.0))[0]
        variation.append(counts.std() / counts.mean())
    assert variation[1] < variation[0] / 2
