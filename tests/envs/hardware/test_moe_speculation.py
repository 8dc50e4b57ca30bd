"""Tokens a step by their distribution, and what a verifying step costs."""

from __future__ import annotations

import random

import pytest

from envs.hardware.errors import ProfileError
from envs.hardware.profile import KvLaw, Profile, StepLaw
from envs.hardware.speculation import Acceptance, from_counts, speedup, verify_s
from envs.hardware.tables import StepTables

# products 1 ms and 10 us a token; decode attention 1 us a token of KV at one sequence
TABLES = StepTables((1, 1024), (1.01e-3, 11.24e-3), (1, 512), (0.0, 0.0), (1e-6, 1e-6), 1e-9)
PROFILE = Profile(
    "p", "m", "g", 1, "vllm", "bf16", StepLaw(0, 1e-3, 1e-5, 0, 0, 1e-6), KvLaw(1.0, 10**6), tables=TABLES
)


def test_equal_rates_emit_what_the_paper_says():
    for rate in (0.0, 0.3, 0.8):
        for drafts in (1, 3, 5):
            law = Acceptance.equal(rate, drafts)
            assert law.tokens == pytest.approx((1 - rate ** (drafts + 1)) / (1 - rate))
            assert sum(law.probabilities) == pytest.approx(1.0)
    assert Acceptance.equal(1.0, 3).tokens == 4.0
    assert Acceptance(()).tokens == 1.0


def test_the_distribution_by_hand():
    law = Acceptance((0.8, 0.5))
    assert law.probabilities == pytest.approx((0.2, 0.4, 0.4))
    assert law.tokens == pytest.approx(0.2 + 2 * 0.4 + 3 * 0.4)
    assert law.variance == pytest.approx(0.2 + 4 * 0.4 + 9 * 0.4 - 2.2**2)


def test_steps_to_a_length_against_draws():
    law, rng = Acceptance((0.8, 0.6, 0.4)), random.Random(0)

    def drawn(tokens):
        steps = 0
        while tokens > 0:
            tokens -= rng.choices(range(1, 5), law.probabilities)[0]
            steps += 1
        return steps

    mean = sum(drawn(40) for _ in range(4000)) / 4000
    assert law.steps(40) == pytest.approx(mean, rel=0.01)
    assert law.steps(1) == 1.0
    # a long answer: tokens over tokens a step, and the last step's surplus
    surplus = (law.variance + law.tokens**2) / law.tokens / 2 - 0.5
    assert law.steps(1000) == pytest.approx((1000 + surplus) / law.tokens, rel=1e-6)


def test_counts_of_a_log_give_the_rates_back():
    law = from_counts([200, 400, 400])
    assert law.rates == pytest.approx((0.8, 0.5))
    assert from_counts([5]).rates == ()
    assert from_counts([5, 0, 0]).rates == (0.0, 0.0)


def test_a_verifying_step_by_hand():
    plain = 1e-3 + 1e-5 * 8 + 1e-6 * 16000
    assert PROFILE.seconds(0, 0, 8, 16000) == pytest.approx(plain)
    # three more tokens of each sequence; three passes of the drafter
    assert verify_s(PROFILE, 8, 16000, 3, 0.0) == pytest.approx(plain + 24e-5)
    assert verify_s(PROFILE, 8, 16000, 3, 0.1) == pytest.approx(1.3 * plain + 24e-5)
    assert verify_s(PROFILE, 8, 16000, 0, 0.1) == pytest.approx(plain)


def test_it_pays_at_few_sequences_and_not_at_many():
    law = Acceptance.equal(0.5, 3)
    assert speedup(PROFILE, law, 1, 1000, 1 / 61) > 1.5
    assert speedup(PROFILE, law, 512, 1000, 1 / 61) < 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Acceptance((0.5, 1.5)), r"rates\[1\] = 1.5"),
        (lambda: Acceptance((float("nan"),)), r"rates\[0\] = nan"),
        (lambda: from_counts([3, -1]), r"counts\[1\] = -1"),
        (lambda: from_counts([0, 0]), "at least one step"),
        (lambda: verify_s(PROFILE, 1, 1, -1, 0.0), "drafts = -1"),
        (lambda: verify_s(PROFILE, 1, 1, 1, float("inf")), "draft_share = inf"),
    ],
)
def test_what_cannot_be_is_one_clear_error(call, words):
    with pytest.raises(ProfileError, match=words):
        call()
