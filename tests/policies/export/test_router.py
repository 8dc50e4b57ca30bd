"""The exported router: what it decides from, what moves its counters, and what happens when something is wrong."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from policies.contract import LATE, LOCAL, PER_WORKER, Action, hold, reject, route, rule
from policies.export.runtime.prefix import chain_hashes
from policies.export.runtime.router import Router
from policies.export.runtime.rulebook import ExportError
from policies.export.runtime.runner import Decision
from policies.export.runtime.scrape import read_metrics
from tests.policies.export.folders import folder_of_rule, make_router, pd


def bind_third(request: Any, view: Any, params: Any, memory: Any, seed: int) -> int:
    """Worker 2, whatever it is."""
    return int(view[2].id)


@rule(
    name="scripted",
    memory={"count": 0.0, "sent": PER_WORKER},
    needs=("late_binding", "hold", "reject", "order_key", "chunk"),
    reasons=("zero", "one"),
    bind=bind_third,
)
def scripted(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Does what the prompt's length says."""
    memory.count += 1.0
    memory.sent[0] += 1.0
    what = request.prompt_tokens
    if what == 1:
        return route(view[0].id, view[1].id, 2.5, 0, 1)
    if what == 2:
        return route(view[1].id, view[1].id, 0.0, 64)
    if what == 3:
        return route(view[0].id, LATE)
    if what == 4:
        return hold(request.now_s + 1.0 + request.holds)
    if what == 5:
        return reject(1)
    if what == 6:
        return route(999, view[1].id)
    if what == 7:
        return route(view[0].id, view[0].id)
    if what == 8:
        return route(LOCAL, LATE)
    if what == 9:
        return hold(request.now_s)
    if what == 10:
        return Action(7, 0, 0, 0.0, 0, 0, 0.0, 0)
    if what == 11:
        return route(view[0].id, view[1].id, math.nan)
    if what == 12:
        return route(view[0].id, view[1].id, 0.0, -1)
    if what == 13:
        return None  # type: ignore[return-value]
    if what == 14:
        return Action(0, view[0].id, view[1].id, 0.0, 0, 1, 0.0, 0)
    return route(int(1.0 / (what - 15)), 0)


WORKERS = pd(1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # The module imports pytest; its source goes out without what only the tests need.
    import sys
    from importlib import import_module
    from pathlib import Path

    place = tmp_path_factory.mktemp("lab")
    text = Path(__file__).read_text("utf-8")
    body = text[text.index("def bind_third") : text.index("\n\nWORKERS")]
    head = (
        "from __future__ import annotations\nimport math\nfrom typing import Any\n"
        "from policies.contract import LATE, LOCAL, PER_WORKER, Action, hold, reject, route, rule\n\n"
    )
    (place / "scripted_rule.py").write_text(head + body)
    sys.path.insert(0, str(place))
    try:
        return folder_of_rule(import_module("scripted_rule").scripted)
    finally:
        sys.path.remove(str(place))


@pytest.fixture
def router(folder: Any) -> Router:
    return Router(folder, WORKERS, clock=lambda: 10.0)


def test_a_route_says_who_and_how(router: Router) -> None:
    assert router.decide({"id": "r", "prompt_tokens": 1}) == Decision("route", "p0", "d0", order_key=2.5, reason="one")
    local = Decision("route", None, "d0", local=True, local_chunk_tokens=64, reason="zero")
    assert router.decide({"id": "r", "prompt_tokens": 2}) == local


def test_late_binding(router: Router) -> None:
    decision = router.decide({"id": "r", "prompt_tokens": 3})
    assert (decision.prefill, decision.decode, decision.late) == ("p0", None, True)
    router.on_dispatched("r")
    router.on_prefill_done("r")
    assert router.bind_decode("r") == "d1"
    assert router.view("d1")["decode_requests"] == 0
    router.on_bound("r", "d1")
    assert [router.view("d1")[k] for k in ("decode_requests", "transfers")] == [1, 1]
    router.on_first_token("r")
    router.on_finished("r")
    assert [router.view("d1")[k] for k in ("decode_requests", "transfers", "finished")] == [0, 0, 1]
    assert router.bind_decode("nobody") is None


def test_a_late_request_is_not_bound_to_its_prefill_worker(folder: Any) -> None:
    router = Router(folder, [{"id": k, "role": "mixed"} for k in "abc"])
    router.decide({"id": "r", "prompt_tokens": 3})
    router.on_dispatched("r", prefill="c")
    assert router.bind_decode("r") in ("a", "b")
    assert 'cause="bound to its prefill worker"' in router.metrics_text()


def test_holds_are_counted_and_end(router: Router) -> None:
    for n in range(3):
        assert router.decide({"id": "r", "prompt_tokens": 4}) == Decision("hold", until_s=11.0 + n, reason="zero")
    assert router.decide({"id": "r", "prompt_tokens": 1}).kind == "route"
    assert router.decide({"id": "r", "prompt_tokens": 4}).until_s == 11.0
    assert router.decide({"id": "r", "prompt_tokens": 5}) == Decision("reject", reason="one")


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (6, "unknown worker"),
        (7, "cannot decode"),
        (8, "local and late"),
        (9, "hold not later than now"),
        (10, "unknown kind"),
        (11, "order key is no number"),
        (12, "negative chunk"),
        (13, "TypeError"),
        (14, "unknown kv source"),
        (15, "ZeroDivisionError"),
    ],
)
def test_what_the_rule_gets_wrong_falls_back_and_is_counted(router: Router, what: int, cause: str) -> None:
    decision = router.decide({"id": "r", "prompt_tokens": what})
    assert (decision.kind, decision.prefill, decision.fallback) == ("route", "p0", cause)
    assert decision.decode in ("d0", "d1")
    assert f'pdgym_fallbacks_total{{policy="scripted",cause="{cause}"}} 1' in router.metrics_text()


def test_the_fallback_takes_the_least_loaded_then_the_most_cached(router: Router) -> None:
    router.decide({"id": "a", "prompt_tokens": 1})
    router.on_dispatched("a", decode="d0")
    assert router.decide({"id": "r", "prompt_tokens": 13}).decode == "d1"
    router.on_finished("a")
    assert router.decide({"id": "r", "prompt_tokens": 13}, cached={"d1": 8}).decode == "d1"
    assert router.decide({"id": "r", "prompt_tokens": 13}, cached={"d0": 8}).decode == "d0"
    router.remove_worker("p0")
    alone = router.decide({"id": "r", "prompt_tokens": 13})
    assert alone.kind == "route"
    assert alone.local or alone.prefill in ("d0", "d1")
    for worker in ("d0", "d1"):
        router.remove_worker(worker)
    nobody = router.decide({"id": "r", "prompt_tokens": 13})
    assert (nobody.kind, nobody.reason) == ("reject", "no worker can serve it")


def test_memory_of_a_worker_moves_with_it(router: Router) -> None:
    for i in range(3):
        router.decide({"id": i, "prompt_tokens": 1})
    memory = router._runner.memory
    assert (memory.count, memory.sent) == (3.0, [3.0, 0.0, 0.0])
    router.remove_worker("d0")
    router.add_worker({"id": "d9", "role": "decode"})
    router.decide({"id": 9, "prompt_tokens": 5})
    assert memory.sent == [4.0, 0.0, 0.0]
    router.remove_worker("p0")
    router.decide({"id": 9, "prompt_tokens": 5})
    assert memory.sent == [1.0, 0.0]


def test_counters_of_a_remote_and_a_local_request() -> None:
    router = make_router("round_robin", pd(1, 1))
    names = ("prefill_requests", "prefill_tokens", "decode_requests", "transfers", "streams", "decode_tokens")

    def counts(worker: str) -> list[int]:
        return [router.view(worker)[name] for name in names]

    router.decide({"id": 1, "prompt_tokens": 100}, cached={"p0": 64}, now=0.0)
    assert counts("p0") == [0] * 6
    router.on_dispatched(1, 0.0)
    assert (counts("p0"), counts("d0")) == ([1, 36, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0])
    router.on_prefill_done(1, 0.1)
    assert (counts("p0"), counts("d0")) == ([0] * 6, [0, 0, 1, 1, 0, 0])
    router.on_first_token(1, 0.2)
    assert counts("d0") == [0, 0, 1, 0, 1, 101]
    assert router.view("d0")["min_slo_tpot_s"] == 0.025
    router.on_token(1, 0.25)
    router.on_token(1, 0.32, tokens=4)
    assert counts("d0") == [0, 0, 1, 0, 1, 106]
    assert router.view("d0")["last_tbt_s"] == pytest.approx(0.07)
    router.on_finished(1, 0.4)
    assert counts("d0") == [0] * 6
    assert router.view("d0")["min_slo_tpot_s"] == math.inf

    router.decide({"id": 2, "prompt_tokens": 10})
    router.on_dispatched(2, prefill=None, decode="d0")
    assert counts("d0") == [1, 10, 1, 0, 0, 0]
    assert router.view("d0")["local_prefills"] == 1
    router.on_prefill_done(2)
    assert counts("d0") == [1, 10, 1, 0, 0, 0]
    router.on_failed(2)
    assert counts("d0") == [0] * 6
    assert [router.view("d0")[k] for k in ("local_prefills", "finished", "failures")] == [0, 1, 1]


def test_events_that_never_came_are_made_up_for() -> None:
    router = make_router("round_robin", pd(1, 1))
    zero = {k: v for k, v in router.view("p0").items() if isinstance(v, int)}
    for i, events in enumerate(("tf", "f", "kf", "x", "px", "c", "tkkc", "tx")):
        router.decide({"id": i, "prompt_tokens": 50})
        router.on_dispatched(i)
        for event in events:
            hook = {
                "p": router.on_prefill_done, "t": router.on_first_token, "k": router.on_token, "f": router.on_finished,
                "x": router.on_failed, "c": router.on_cancelled,
            }[event]  # fmt: skip
            hook(i)
    left = {k: v for k, v in router.view("p0").items() if isinstance(v, int)}
    assert left == {**zero, "failures": 1}
    assert [router.view("d0")[k] for k in ("streams", "decode_tokens", "decode_requests", "transfers")] == [0] * 4
    assert [router.view("d0")[k] for k in ("finished", "failures")] == [3, 2]
    router.on_token("never heard of")
    assert 'kind="unknown request or worker"} 1' in router.metrics_text()


def test_a_request_without_an_end_times_out() -> None:
    router = make_router("round_robin", pd(1, 1), flight_timeout_s=60.0)
    for i, now in enumerate((0.0, 30.0, 61.0)):
        router.decide({"id": i, "prompt_tokens": 50}, now=now)
        router.on_dispatched(i, now)
    assert router.view("d0")["decode_requests"] == 2
    assert 'kind="request without an end"} 1' in router.metrics_text()


def test_sessions_are_remembered() -> None:
    router = make_router("ppd", pd(2, 2))
    first = router.decide({"id": 1, "prompt_tokens": 500, "session": "alice"}, now=1.0)
    router.on_dispatched(1, 1.0)
    router.on_first_token(1, 1.5)
    router.on_finished(1, 2.0, output_tokens=30)
    router.decide({"id": 2, "prompt_tokens": 600, "session": "alice"}, now=5.0)
    ask = router._asked[2].ask
    assert (ask.turn, ask.since_last_turn_s, ask.mean_output_tokens) == (2, 3.0, 30.0)
    numbers = {key: router.view(key)["id"] for key in ("p0", "p1", "d0", "d1")}
    assert (ask.last_prefill, ask.last_decode) == (numbers[first.prefill], numbers[first.decode])
    router.decide({"id": 3, "prompt_tokens": 600, "session": "bob", "turn": 4}, now=5.0)
    assert (router._asked[3].ask.turn, router._asked[3].ask.last_decode) == (4, -1)


def test_prefix_matches_from_own_history() -> None:
    router = make_router("guard", pd(1, 1))
    tokens = list(range(100))
    blocks = chain_hashes(tokens, 16)
    assert len(blocks) == 6
    assert chain_hashes([*tokens[:40], 7], 16)[:2] == blocks[:2]
    assert chain_hashes([1, *tokens[1:]], 16)[1:] != blocks[1:]
    router.decide({"id": 1, "prompt_tokens": 100, "prefix_hashes": blocks}, now=0.0)
    router.on_dispatched(1, 0.0, prefill="p0", decode="d0")
    router.decide({"id": 2, "prompt_tokens": 60, "prefix_hashes": blocks[:3]}, now=99.0)
    assert [router.view(k)["cached_tokens"] for k in ("p0", "d0")] == [48, 48]
    router.decide({"id": 3, "prompt_tokens": 48, "prefix_hashes": blocks[:3]}, now=99.0)
    assert router.view("p0")["cached_tokens"] == 32  # one token is always computed
    router.decide({"id": 4, "prompt_tokens": 60, "prefix_hashes": blocks[:3]}, now=101.0)
    assert router.view("p0")["cached_tokens"] == 0  # forgotten after approximate_ttl_s
    router.decide({"id": 5, "prompt_tokens": 60}, cached={"p0": "many", "d0": -5, "x": 3}, now=101.0)
    assert [router.view(k)["cached_tokens"] for k in ("p0", "d0")] == [0, 0]
    router.decide({"id": 5, "prompt_tokens": 60}, cached={"p0": 1e9, "d0": 32}, now=101.0)
    assert [router.view(k)["cached_tokens"] for k in ("p0", "d0")] == [59, 32]


PAGE = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0"} 7
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
other_metric 12
sglang:token_usage nonsense
"""


def test_scrapes_age_and_expire() -> None:
    from tests.envs.cluster.rules import watchful

    assert read_metrics(PAGE) == {"running": 5.0, "waiting": 7.0, "kv_usage": 0.5}
    router = Router(folder_of_rule(watchful), pd(1, 2), max_metric_age_s=20.0, clock=lambda: 0.0)
    scraped = ("scraped_running", "scraped_waiting", "scraped_kv_usage", "scrape_age_s")

    def seen(now: float) -> list[float]:
        router.decide({"id": 1, "prompt_tokens": 10}, now=now)
        return [router.view("p0")[name] for name in scraped]

    assert seen(0.0)[3] == math.inf
    router.observe("p0", PAGE, now=1.0)
    assert seen(4.0) == [5.0, 7.0, 0.5, 3.0]
    router.observe("p0", {"running": -1, "waiting": "x"}, now=5.0)
    assert seen(6.0) == [5.0, 7.0, 0.5, 5.0]  # nothing usable: the older scrape stays
    router.observe("p0", {"waiting": 2, "metrics_age_s": 0.5}, now=10.0)
    age = seen(11.0)
    assert (math.isnan(age[0]), age[1], age[3]) == (True, 2.0, 1.5)
    assert seen(30.0)[3] == math.inf
    assert math.isnan(seen(30.0)[1])
    router.decide({"id": 1}, prefill=[{"id": "p0", "running": 4, "metrics_age_s": 2.0}], now=31.0)
    assert [router.view("p0")[name] for name in (scraped[0], scraped[3])] == [4.0, 2.0]


def test_candidate_lists_say_who_is_up() -> None:
    router = make_router("guard", pd(2, 2))
    for _ in range(3):
        decision = router.decide({"id": 1, "prompt_tokens": 4000}, prefill=["p1"], decode=["d1"])
        assert decision.prefill in ("p1", None)
        assert decision.decode == "d1"
    assert router.decide({"id": 1, "prompt_tokens": 4000}, prefill=[], decode=[{"id": "d0"}]).decode == "d0"
    assert router.decide({"id": 1, "prompt_tokens": 4000}, prefill=["p0"], decode=[]).kind == "reject"
    chosen = {router.decide({"id": i, "prompt_tokens": 4000}).decode for i in range(40)}
    assert chosen == {"d0", "d1"}  # nothing given: all are up again


def test_unknown_workers_in_the_lists_are_taken_in() -> None:
    router = make_router("guard")
    decision = router.decide({"id": 1, "prompt_tokens": 400}, prefill=[{"id": "x"}, {"bad": 1}, [], None], decode=["y"])
    assert decision.kind == "route"
    assert decision.decode == "y"
    assert [router.view(k)["role"] for k in ("x", "y")] == [0, 1]
    assert 'kind="candidate"} 3' in router.metrics_text()


def test_numbers_of_a_worker_come_from_profile_role_and_settings() -> None:
    router = make_router("guard", [{"id": 5, "role": "prefill", "c0_s": 0.5, "rack": 3, "can_decode": True}])
    seen = router.view(5)
    assert (seen["id"], seen["role"], seen["c0_s"], seen["rack"], seen["can_decode"]) == (5, 0, 0.5, 3, 1)
    assert (seen["max_batched_tokens"], seen["c_tok_s"], seen["kv_capacity_tokens"]) == (8192, 1e-4, 400_000)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"id": 1, "rol": "decode"}, "'rol': unknown .did you mean 'role'"),
        ({"role": "decode"}, "expected an id"),
        ({"id": 1, "role": "decoder"}, "did you mean 'decode'"),
        ({"id": 1, "profile": "eazy"}, "did you mean 'easy'"),
        ({"id": "d0"}, "one with this id already"),
    ],
)
def test_set_up_errors_are_told(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        make_router("guard", pd(1, 1)).add_worker(settings)


def test_requests_may_be_objects_and_may_lack_everything() -> None:
    router = make_router("guard", pd(1, 1))
    assert router.decide(SimpleNamespace(id="x", prompt_tokens=64)).kind == "route"
    for request in ({}, None, 3, {"prompt_bytes": 100}, {"prompt_tokens": None, "session": None}):
        assert router.decide(request).kind == "route"
    assert router.decide({"id": [], "prompt_tokens": 5}).fallback == "TypeError"
    assert 'kind="unreadable request"} 1' in router.metrics_text()


def test_time_slice_gives_shares() -> None:
    router = make_router("time_slice", [{"id": "s0", "role": "split"}, {"id": "d0", "role": "decode"}])
    shares = router.adjust()
    assert list(shares) == ["s0"]
    assert 0.0 < shares["s0"] < 1.0
    assert make_router("guard", pd(1, 1)).adjust() == {}


def test_metrics_page() -> None:
    router = make_router("guard", pd(1, 1))
    for i in range(5):
        router.decide({"id": i, "prompt_tokens": 100})
    router.on_dispatched(0)
    page = router.metrics_text()
    assert 'pdgym_decision_seconds_count{policy="guard"} 5' in page
    assert 'pdgym_requests_in_flight{policy="guard"} 1' in page
    assert 'pdgym_workers{policy="guard"} 2' in page
    for line in page.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0.0


def test_seeds_and_replicas_break_ties_alike() -> None:
    one, two = make_router("random", pd(3, 3), seed=4), make_router("random", pd(3, 3)[::-1], seed=4)
    other = make_router("random", pd(3, 3), seed=5)
    asked = [{"id": f"r{i}", "prompt_tokens": 10} for i in range(30)]
    first = [one.decide(a)[:3] for a in asked]
    assert first == [two.decide(a)[:3] for a in asked]
    assert first != [other.decide(a)[:3] for a in asked]


def test_many_threads() -> None:
    router = make_router("guard", pd(4, 4))

    def work(name: int) -> None:
        for i in range(60):
            key = f"{name}-{i}"
            router.decide({"id": key, "prompt_tokens": 100})
            router.on_dispatched(key)
            router.on_first_token(key)
            router.on_token(key)
            router.on_finished(key)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seen = [router.view(w["id"]) for w in pd(4, 4)]
    assert sum(w["finished"] for w in seen) == 240
    assert all(w[name] == 0 for w in seen for name in ("prefill_requests", "streams", "decode_tokens", "transfers"))
