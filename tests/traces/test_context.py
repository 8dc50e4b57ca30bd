"""Prefixes of a user's own sessions: assumed to grow where the user says so."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples import write
from traces import Trace, TraceError, load_trace

# One session that grows (40 + 10 <= 64), grows (64 + 8 <= 90) and is compacted (90 + 5 > 50), and a lone request.
LOG = """arrival_s,session,prompt_tokens,output_tokens
0,a,40,10
1,,33,5
30,a,64,8
60,a,90,5
90,a,50,20
"""


def read(tmp_path: Path, text: str = LOG, **options: Any) -> Trace:
    return load_trace(write(tmp_path, "log.csv", text.encode()), format="table", **options)


def chains(trace: Trace) -> list[list[int]]:
    cuts = trace.chain_offsets
    return [trace.chain_ids[a:b].tolist() for a, b in pairwise(cuts)]


def test_turns_that_grow_share_the_whole_turn_before(tmp_path: Path) -> None:
    trace = read(tmp_path, context="grows")
    first, alone, second, third, compacted = chains(trace)
    assert trace.prefix_block_tokens == 16
    assert [len(c) for c in (first, second, third)] == [50 // 16, 72 // 16, 90 // 16]
    assert second[:3] == first
    assert third[:4] == second
    assert len(alone) == 2
    assert len(compacted) == 50 // 16
    assert not set(compacted) & {*first, *second, *third, *alone}
    assert any("2 later turns begin with the whole turn before" in note for note in trace.provenance)
    assert any("1 are shorter than that prompt" in note for note in trace.provenance)


def test_thinking_that_was_dropped_is_told_and_only_the_prompt_is_shared(tmp_path: Path) -> None:
    log = "arrival_s,session,prompt_tokens,output_tokens\n0,a,40,100\n30,a,70,10\n"
    trace = read(tmp_path, log, context="grows")
    one, two = chains(trace)
    assert (len(one), two[:2]) == (2, one)
    assert any("1 grew by less than the output before" in note for note in trace.provenance)


def test_order_in_the_file_and_block_size_are_the_users(tmp_path: Path) -> None:
    head, *rows = LOG.splitlines(keepends=True)
    turned = read(tmp_path, head + "".join(reversed(rows)), sort=True, context="grows", prefix_block_tokens=10)
    straight = read(tmp_path, context="grows", prefix_block_tokens=10)
    assert turned.sha256 == straight.sha256
    assert [len(c) for c in chains(straight)] == [5, 3, 7, 9, 5]


def test_without_the_option_nothing_is_shared_and_the_trace_says_so(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert trace.prefix_block_tokens == 0
    assert any("no prefixes known" in n and "trace.options.context=grows" in n for n in trace.provenance)
    alone = read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    assert not any("prefixes" in n for n in alone.provenance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "grow"}, "did you mean 'grows'"),
        ({"prefix_block_tokens": 16}, "context=grows with it"),
        ({"context": "grows", "prefix_block_tokens": 0}, "from 1 to 1,048,576"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, **options)


def test_a_context_that_grows_needs_sessions(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.options\.columns\.session=NAME"):
        read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,10,5\n", context="grows")


def test_the_second_turn_hits_the_cache(tmp_path: Path) -> None:
    from envs.cluster.presets import parse_cluster
    from envs.cluster.simulator import simulate
    from envs.cluster.slo import LOOSE
    from envs.hardware.load import load_handover, load_profile
    from policies.registry import load

    profile = load_profile("llama-3.1-8b-bf16-h100-tp1")
    cluster = parse_cluster("1p1d", profile=profile, handover=load_handover("rdma", gpus=profile.gpus))
    text = "arrival_s,session,prompt_tokens,output_tokens\n0,a,400,100\n60,a,640,80\n120,a,900,50\n180,a,500,20\n"
    for options, hits in (({}, [False] * 4), ({"context": "grows"}, [False, True, True, False])):
        trace = read(tmp_path, text, **options)
        result = simulate(trace, cluster, load("round_robin"), LOOSE, interpret=True)
        assert [cached > 0 for cached in result.requests.sort("turn")["cached_tokens"]] == hits
