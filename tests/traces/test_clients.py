from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces import TraceError, load_trace
from traces.clients import as_clients, client_trace


def test_users_are_sessions_of_rounds_without_think_time() -> None:
    trace = client_trace(3, 4, 100, 20)
    assert (trace.replay, trace.n_sessions, len(trace), trace.prefix_block_tokens) == ("clients", 3, 12, 0)
    assert trace.frame["think_s"].drop_nulls().to_list() == [0.0] * 9
    assert set(trace.frame["prompt_tokens"]) == {100}
    assert set(trace.frame["output_tokens"]) == {20}
    assert set(trace.frame["arrival_s"]) == {0.0}


def test_staggered_starts() -> None:
    trace = client_trace(3, 2, 100, 20, start="staggered", stagger_s=0.5)
    assert trace.frame.filter(trace.frame["turn"] == 1)["arrival_s"].to_list() == [0.0, 0.5, 1.0]
    assert trace.duration_s == 1.0


def test_jitter_is_even_within_its_range_and_seeded() -> None:
    one, again, other = (client_trace(50, 40, 1000, 100, jitter=0.2, seed=s) for s in (1, 1, 2))
    prompts = one.frame["prompt_tokens"].to_numpy()
    assert (prompts.min(), prompts.max()) == (800, 1200)
    assert prompts.mean() == pytest.approx(1000, abs=10)
    assert one.frame["output_tokens"].min() == 80
    assert one.sha256 == again.sha256 != other.sha256
    assert client_trace(2, 2, 1, 1, jitter=1.0).frame["prompt_tokens"].min() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"users": 0},
        {"rounds": 0},
        {"prompt_tokens": 0},
        {"output_tokens": 10**8},
        {"jitter": 1.5},
        {"start": "togethr"},
    ],
)
def test_arguments_out_of_range(change: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=next(iter(change))):
        client_trace(**({"users": 1, "rounds": 1, "prompt_tokens": 1, "output_tokens": 1} | change))


def test_a_trace_dealt_to_clients_keeps_lengths_and_chains() -> None:
    trace = load_trace("default").windows(60)[0].with_replay("open")
    dealt = as_clients(trace, 8)
    assert (len(dealt), dealt.n_sessions, dealt.replay) == (len(trace), 8, "clients")
    first = dealt.frame.filter(dealt.frame["session"] == 2).sort("turn")
    assert first["prompt_tokens"].to_list() == trace.frame["prompt_tokens"][2::8].to_list()
    assert np.diff(dealt.chain_offsets).sum() == np.diff(trace.chain_offsets).sum()
    assert len(as_clients(trace, 8, rounds=2)) == 16
    with pytest.raises(TraceError, match="users"):
        as_clients(trace, len(trace) + 1)
    with pytest.raises(TraceError, match="rounds"):
        as_clients(trace, 1, rounds=0)
