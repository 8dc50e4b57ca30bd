from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import Trace, TraceError
from traces.transform import cut_zones, gather_chains, losses


def sessions_trace(replay: str = "open", n: int = 40, seed: int = 0, turns: int = 4) -> Trace:
    """Sessions that start evenly at random in 100 s, turns 10 s apart; a chain of one block a turn, shared."""
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.random(n)) * 100
    count = rng.integers(1, turns + 1, n)
    session = np.repeat(np.arange(n), count)
    turn = np.concatenate([np.arange(c) + 1 for c in count])
    ids = np.concatenate([1 + 10 * s + np.arange(t) for s, t in zip(session, turn, strict=True)])
    return Trace.build(
        "s",
        {
            "arrival_s": starts[session] + 10 * (turn - 1),
            "session": session,
            "turn": turn,
            "think_s": pl.Series(np.where(turn == 1, np.nan, 5.0)).fill_nan(None),
            "prompt_tokens": 64 * turn,
            "output_tokens": np.full(session.size, 7),
        },
        chain_offsets=np.r_[0, np.cumsum(turn)],
        chain_ids=ids,
        prefix_block_tokens=64,
        replay=replay,
        duration_s=140.0 if replay == "open" else 100.0,
    )


@pytest.mark.parametrize("replay", ["open", "closed"])
def test_split_loses_no_session_start_and_shares_no_session(replay: str) -> None:
    trace = sessions_trace(replay)
    parts = trace.split()
    assert list(parts) == ["train", "validation", "test"]
    assert sum(part.n_sessions for part in parts.values()) == trace.n_sessions
    assert [part.duration_s for part in parts.values()] == pytest.approx(
        [trace.duration_s * share for share in (0.4, 0.2, 0.4)]
    )
    assert sum(part.rate_per_s * part.duration_s for part in parts.values()) == sum(map(len, parts.values()))


def test_closed_windows_keep_whole_sessions() -> None:
    trace = sessions_trace("closed")
    assert sum(map(len, trace.split().values())) == len(trace)
    assert sum(map(len, trace.windows(5))) == len(trace)


def test_open_windows_restart_sessions_so_that_the_load_is_whole() -> None:
    trace = sessions_trace("open")
    windows = trace.windows(7)
    assert sum(map(len, windows)) == len(trace)
    dropped = trace.windows(2, across="drop")
    assert sum(map(len, dropped)) < len(trace)
    assert sum(part.n_sessions for part in dropped) == trace.n_sessions
    for part in windows:
        assert part.frame["arrival_s"].max() <= part.duration_s  # type: ignore[operator]
        assert part.frame.filter(pl.col("turn") == 1)["think_s"].null_count() == part.n_sessions


def test_a_window_counts_from_its_start_and_keeps_equal_prefixes_equal() -> None:
    trace = sessions_trace("open")
    part = trace.window(20.0, 60.0, across="restart")
    inside = trace.frame.filter(pl.col("arrival_s").is_between(20.0, 60.0, closed="left"))
    assert part.frame["arrival_s"].to_list() == (inside["arrival_s"] - 20.0).to_list()
    rows = np.flatnonzero(trace.frame["arrival_s"].is_between(20.0, 60.0, closed="left").to_numpy())
    for i, a in enumerate(rows):
        for j, b in enumerate(rows[:i]):
            shared = np.intersect1d(trace.chain(a), trace.chain(b)).size
            assert np.intersect1d(part.chain(i), part.chain(j)).size == shared


def test_the_last_request_belongs_to_the_last_window() -> None:
    trace = Trace.build("t", {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [1, 1, 1], "output_tokens": [1, 1, 1]})
    assert [len(part) for part in trace.windows(2)] == [1, 2]


@given(seed=st.integers(0, 1000), n=st.integers(1, 3), replay=st.sampled_from(["open", "closed"]))
def test_windows_are_disjoint_and_complete(seed: int, n: int, replay: str) -> None:
    trace = sessions_trace(replay, seed=seed)
    parts = trace.windows(n)
    assert sum(map(len, parts)) == len(trace)
    assert sum(int(part.frame["prompt_tokens"].sum()) for part in parts) == trace.frame["prompt_tokens"].sum()
    assert sum(part.duration_s for part in parts) == pytest.approx(trace.duration_s)
    assert all(any("window [" in note for note in part.provenance) for part in parts)


def test_scale_rate_compresses_arrivals_or_session_starts() -> None:
    opened, closed = sessions_trace("open"), sessions_trace("closed")
    fast = opened.scale_rate(4.0)
    assert fast.frame["arrival_s"].to_numpy() == pytest.approx(opened.frame["arrival_s"].to_numpy() / 4)
    assert fast.rate_per_s == pytest.approx(4 * opened.rate_per_s)
    tight = closed.scale_rate(4.0)
    assert tight.rate_per_s == pytest.approx(4 * closed.rate_per_s)
    first, second = (t.frame.filter(pl.col("session") == 3)["arrival_s"].to_numpy() for t in (closed, tight))
    assert second[0] == pytest.approx(first[0] / 4)
    assert np.diff(second) == pytest.approx(np.diff(first))
    assert tight.frame["think_s"].drop_nulls().unique().to_list() == [5.0]
    assert closed.scale_rate(1.0) is closed


def test_zones_by_rule_lose_what_losses_says() -> None:
    trace = sessions_trace("open")
    cuts_s = (56.0, 66.0, 140.0)
    counts = losses(trace, cuts_s)
    assert counts["train"]["crossing"] == 0
    assert counts["test"]["lost_by_drop"] > counts["test"]["lost_by_apart"] > 0
    for rule in ("drop", "apart", "restart"):
        for zone, part in cut_zones(trace, cuts_s, across=rule).items():
            assert len(part) == counts[zone]["inside"] - counts[zone][f"lost_by_{rule}"], (rule, zone)


def test_apart_leaves_no_session_of_train_in_test() -> None:
    trace = labelled_sessions("open")
    parts = cut_zones(trace, (56.0, 66.0, 140.0))
    users = {zone: set(part.frame["tenant"]) for zone, part in parts.items()}
    assert not users["train"] & users["test"]
    assert users["train"] & users["validation"]
    assert users["validation"] & users["test"]
    whole = cut_zones(labelled_sessions("closed"), (40.0, 60.0, 100.0))
    found = [set(part.frame["tenant"]) for part in whole.values()]
    assert not found[0] & found[1]
    assert not found[1] & found[2]
    assert sum(map(len, found)) == 40


def labelled_sessions(replay: str) -> Trace:
    """Sessions whose tenant names them, so that it can be told where they go."""
    trace = sessions_trace(replay)
    frame = trace.frame.with_columns(tenant=pl.col("session").cast(pl.String))
    return replace(trace, frame=frame)


BAD: list[tuple[str, Any]] = [
    ("factor", lambda t: t.scale_rate(0.0)),
    ("factor", lambda t: t.scale_rate(float("nan"))),
    ("window", lambda t: t.window(5.0, 5.0)),
    ("start_s", lambda t: t.window("a", 5.0)),
    ("whole", lambda t: t.window(0.0, 5.0, across="whole")),
    ("across", lambda t: t.window(0.0, 5.0, across="drp")),
    ("windows", lambda t: t.windows(0)),
    ("split", lambda t: t.split(0.5, 0.5, 0.5)),
    ("split", lambda t: t.split(1.0, 0.0, 0.0)),
    ("at least one request", lambda t: t.window(139.0, 139.1)),
]


@pytest.mark.parametrize(("name", "act"), BAD)
def test_a_bad_argument_is_named(name: str, act: Any) -> None:
    with pytest.raises(TraceError, match=name):
        act(sessions_trace())


def test_gather_chains() -> None:
    offsets, ids = gather_chains(np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4, 5]), np.array([2, 1, 0, 2]))
    assert offsets.tolist() == [0, 3, 3, 5, 8]
    assert ids.tolist() == [3, 4, 5, 1, 2, 3, 4, 5]
