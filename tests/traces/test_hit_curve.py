from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import Trace, load_trace
from traces.describe import ideal_hit_share
from traces.prefix_cache import hit_curve


@st.composite
def trees(draw: st.DrawFn) -> Trace:
    """Requests whose chains are paths in a small random tree of texts."""
    n = draw(st.integers(1, 25))
    texts: list[tuple[int, ...]] = [()]
    chains, prompts, outputs = [], [], []
    for i in range(n):
        base = draw(st.sampled_from(texts))
        chain = base[: draw(st.integers(0, len(base)))] + tuple(100 * i + j for j in range(draw(st.integers(0, 4))))
        texts.append(chain)
        completed = draw(st.integers(0, len(chain)))
        chains.append(chain)
        prompts.append(max(1, 10 * (len(chain) - completed)))
        outputs.append(10 * completed + 1)
    return Trace.build(
        "t",
        {"arrival_s": np.arange(n, dtype=float), "prompt_tokens": prompts, "output_tokens": outputs},
        chain_offsets=np.r_[0, np.cumsum([len(chain) for chain in chains])],
        chain_ids=np.array([i for chain in chains for i in chain], np.int64),
        prefix_block_tokens=10,
    )


def lru(trace: Trace, blocks: int, outputs: bool) -> int:
    """Hits of a plain cache, played request by request."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for i in range(len(trace)):
        chain = trace.chain(i).tolist()
        prompt = chain[: int(trace.frame["prompt_tokens"][i]) // trace.prefix_block_tokens]
        hits += sum(block in held for block in prompt)
        for block in reversed(chain if outputs else prompt):
            held.pop(block, None)
            held[block] = None
        while len(held) > blocks:
            held.popitem(last=False)
    return hits


@given(trace=trees(), outputs=st.booleans())
def test_every_size_hits_what_a_plain_cache_of_that_size_does(trace: Trace, outputs: bool) -> None:
    curve = hit_curve(trace, outputs=outputs)
    for blocks in range(trace.n_prefix_ids + 2):
        assert round(curve.share(blocks) * max(1, curve.lookups)) == lru(trace, blocks, outputs)
    assert (np.diff(curve.hits) >= 0).all()
    assert curve.share(np.inf) == pytest.approx(ideal_hit_share(trace, outputs=outputs), abs=1e-12)


def test_a_trace_without_prefixes_has_no_hits() -> None:
    trace = Trace.build("t", {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]})
    assert hit_curve(trace).share(np.inf) == 0.0
    assert hit_curve(trace).points()["hit_share"] == [0.0, 0.0]


def test_the_smallest_cache_for_a_part_of_the_hits() -> None:
    curve = hit_curve(load_trace("default"))
    blocks = curve.blocks_for(0.9)
    assert curve.share(blocks) >= 0.9 * curve.share(np.inf) > curve.share(blocks - 1)


def test_the_end_for_mooncake_equals_an_independent_count(public_data: Path) -> None:
    path = public_data / "traces" / "mooncake" / "conversation_trace.first2700s.jsonl.gz"
    seen, hits, lookups = set(), 0, 0
    with gzip.open(path, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            full = record["hash_ids"][: record["input_length"] // 512]
            lookups += len(full)
            hits += sum(block in seen for block in full)
            seen |= set(full)
    curve = hit_curve(load_trace("mooncake_conversation", data_dir=public_data), outputs=False)
    assert curve.lookups == lookups
    assert curve.share(np.inf) == pytest.approx(hits / lookups, abs=1e-6)
