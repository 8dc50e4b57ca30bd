"""Whatever a router hands over, nothing raises and every decision is one that can be carried out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.export.runtime.board import COUNTERS, SETTINGS
from policies.export.runtime.router import Router
from policies.export.runtime.runner import Decision
from tests.policies.export.folders import folder_of, make_router, pd

NAN, INF = float("nan"), float("inf")
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(), st.sampled_from([NAN, INF, -INF, -1.0]),
    st.text(max_size=4), st.binary(max_size=4), st.lists(st.integers(), max_size=2), st.just({}),
)  # fmt: skip
IDS = st.one_of(st.sampled_from(["p0", "p1", "d0", "d1", 0, 1, -1, -2]), JUNK)
REQUEST_KEYS = st.sampled_from(
    ["id", "prompt_tokens", "prompt_bytes", "session", "turn", "max_tokens", "slo_ttft_s", "slo_tpot_s", "priority",
     "output_hint_tokens", "arrival_s", "holds", "prefix_hashes", "last_decode", "class_id"]
)  # fmt: skip
WORKER_KEYS = st.sampled_from(
    [*SETTINGS, "running", "waiting", "kv_usage", "pinned", "metrics_age_s", "cached_tokens", "overlap_tokens"]
)
REQUESTS = st.one_of(JUNK, st.dictionaries(REQUEST_KEYS, JUNK, max_size=8))
WORKERS = st.one_of(IDS, st.dictionaries(WORKER_KEYS, JUNK, max_size=6))
LISTS = st.one_of(st.none(), JUNK, st.lists(WORKERS, max_size=6))
CACHED = st.one_of(st.none(), JUNK, st.dictionaries(st.sampled_from(["p0", "d0", "x", 1]), JUNK, max_size=3))


def possible(router: Router, decision: Any) -> None:
    """The decision can be carried out by the workers that the router knows."""
    assert isinstance(decision, Decision)
    assert decision.kind in ("route", "hold", "reject")
    assert decision.local_chunk_tokens >= 0
    if decision.kind == "route":
        assert decision.decode is not None
        assert router.view(decision.decode)["can_decode"]
        prefill = decision.decode if decision.local else decision.prefill
        assert router.view(prefill)["can_prefill"]


@pytest.mark.parametrize("policy", ["guard", "deflect", "learned"])
@settings(max_examples=60)
@given(data=st.data())
def test_any_call_is_survived(policy: str, data: st.DataObject) -> None:
    router = make_router(policy, pd(2, 2) if data.draw(st.booleans()) else ())
    hooks = (
        router.on_dispatched, router.on_prefill_done, router.on_first_token, router.on_token, router.on_finished,
        router.on_failed, lambda i, now, _: router.on_cancelled(i, now), router.on_bound,
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(st.integers(0, 4))
        if step <= 1:
            decision = router.decide(
                data.draw(REQUESTS), data.draw(LISTS), data.draw(LISTS), data.draw(JUNK), cached=data.draw(CACHED)
            )
            possible(router, decision)
        elif step == 2:
            more = (data.draw(JUNK), data.draw(IDS))
            data.draw(st.sampled_from(hooks))(data.draw(IDS), *more)
        elif step == 3:
            router.observe(data.draw(IDS), data.draw(st.one_of(JUNK, st.dictionaries(WORKER_KEYS, JUNK))))
        else:
            router.bind_decode(data.draw(IDS), data.draw(JUNK))
            router.adjust(data.draw(JUNK))
            router.remove_worker(data.draw(IDS))
    router.metrics_text()
    possible(router, router.decide({"id": "last", "prompt_tokens": 100}))


@settings(max_examples=25)
@given(events=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=60))
def test_any_order_of_events_leaves_counters_whole(events: list[tuple[int, int]]) -> None:
    router = make_router("round_robin", pd(1, 1))
    for i in range(4):
        router.decide({"id": i, "prompt_tokens": 10 + i})
    for event, i in events:
        (
            router.on_dispatched, router.on_prefill_done, router.on_first_token, router.on_token, router.on_token,
            router.on_finished, router.on_failed, router.on_cancelled,
        )[event](i)  # fmt: skip
        for worker in ("p0", "d0"):
            assert min(router.view(worker)[name] for name in COUNTERS) >= 0
    for i in range(4):
        router.on_cancelled(i)
    for worker in ("p0", "d0"):
        assert {router.view(worker)[name] for name in COUNTERS[:-2]} == {0}


@pytest.mark.parametrize("n", [0, 1, 4096])
@pytest.mark.parametrize("policy", ["guard", "round_robin", "time_slice", "learned"])
def test_none_or_thousands_of_workers(policy: str, n: int) -> None:
    router = Router(folder_of(policy), [{"id": i, "role": "mixed"} for i in range(n)])
    for i in range(3):
        decision = router.decide({"id": i, "prompt_tokens": 1000})
        assert decision.kind == ("route" if n else "reject")
        assert decision.fallback == ""
        router.on_dispatched(i)
