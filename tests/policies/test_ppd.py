"""ppd: turn 1, gain, loss, weights, bypass and placement, by hand."""

from __future__ import annotations

import pytest

from policies.contract import LOCAL
from policies.ppd import expected_output_tokens
from policies.registry import load
from tests.policies.views import ask, d, make_request, p

LATER = make_request(turn=2, session=5, last_decode=1, mean_output_tokens=200.0)


def view(streams, queue=0):
    # 400 new tokens over 600 cached on the session's decode worker, nothing cached on the prefill worker
    return [p(0, prefill_tokens=queue), d(1, streams=streams, cached_tokens=600), d(2)]


def test_the_first_turn_goes_over_the_handover_to_the_least_loaded():
    action = ask(load("ppd"), make_request(turn=1, session=5), view(10))
    assert (action.prefill, action.decode) == (0, 2)


def test_later_turns_weigh_ttft_gain_against_tpot_loss():
    # 10 streams: TTFT remote 0.11 + 0.009 + 0.0111 = 0.1301, local 0.011 + 0.04 = 0.051: gain 0.608
    # TPOT remote 0.0111; local adds 0.04 * 10 / 200 = 0.002: loss 0.180
    assert ask(load("ppd"), LATER, view(10))[1:3] == (LOCAL, 1)
    assert ask(load("ppd", w_tpot=3.3), LATER, view(10))[1:3] == (LOCAL, 1)  # 0.608 > 0.594
    assert ask(load("ppd", w_tpot=3.5), LATER, view(10))[1:3] == (0, 1)  # 0.608 < 0.630
    # 100 streams: gain (0.1391 - 0.06) / 0.1391 = 0.57; loss 0.02 / 0.0201 = 0.995
    assert ask(load("ppd"), LATER, view(100))[1:3] == (0, 1)


def test_the_turn_stays_on_its_session_worker_either_way():
    assert ask(load("ppd"), LATER, view(100)).decode == 1
    gone = LATER._replace(last_decode=77)
    assert ask(load("ppd"), gone, view(100)).decode == 2


def test_a_queue_at_the_prefill_worker_makes_later_turns_local():
    # gain -> (4.08 - 0.06) / 4.08 = 0.985, loss 0.995: w_tpot 0.95 tips it
    assert ask(load("ppd", w_tpot=0.95), LATER, view(100))[1:3] == (0, 1)
    assert ask(load("ppd", w_tpot=0.95), LATER, view(100, queue=38_000))[1:3] == (LOCAL, 1)


def test_bypass_is_an_option():
    assert ask(load("ppd", bypass_tokens=401), LATER, view(100))[1:3] == (LOCAL, 1)
    assert ask(load("ppd", bypass_tokens=400), LATER, view(100))[1:3] == (0, 1)
    first = make_request(turn=1, session=5, prompt_tokens=10)
    assert ask(load("ppd", bypass_tokens=512), first, view(0)).prefill == 0


def test_hash_placement_follows_the_session_not_the_load():
    workers = [p(0), p(1), d(2), d(3), d(4)]
    policy = load("ppd", balanced=0)
    ways = {s: ask(policy, make_request(id=s, session=s), workers)[1:3] for s in range(60)}
    busy = [p(0, prefill_tokens=9000), p(1), d(2), d(3, streams=90), d(4)]
    assert {s: ask(policy, make_request(id=99, session=s), busy)[1:3] for s in range(60)} == ways
    assert {way[0] for way in ways.values()} == {0, 1}
    assert {way[1] for way in ways.values()} == {2, 3, 4}


def test_expected_output_prefers_hint_then_history():
    assert expected_output_tokens(make_request(output_hint_tokens=50, mean_output_tokens=200.0), 256.0) == 50
    assert expected_output_tokens(make_request(mean_output_tokens=200.0), 256.0) == 200
    assert expected_output_tokens(make_request(), 256.0) == pytest.approx(256)
