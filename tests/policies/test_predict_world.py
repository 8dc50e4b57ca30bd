"""With an exact predictor, an idle cluster does what the estimates say."""

from __future__ import annotations

import numpy as np
import pytest

from envs.cluster.presets import parse_cluster
from envs.cluster.simulator import simulate
from envs.cluster.slo import LOOSE
from envs.hardware.profile import HandoverLaw, KvLaw, Profile, StepLaw
from policies.contract import LOCAL, route
from policies.predict import ttft_local_s, ttft_remote_s
from traces import Trace

DISPATCH_S = 0.003
PROFILE = Profile("p", "m", "g", 1, "e", "bf16", StepLaw(0.03, 0.01, 1e-4, 1e-9, 1e-5, 1e-8), KvLaw(1e5, 400_000, 16))
LINK = HandoverLaw("l", DISPATCH_S, 0.4, 0.001, 0.0, 2e10)
PROMPTS = [1, 50, 201, 2048, 2050, 5000, 8192, 30_000]  # up to 200 tokens a step lies on the floor


class Fixed:
    """Always the same way; keeps what it predicted."""

    def __init__(self, prefill):
        self.prefill = prefill
        self.predicted = []

    def route(self, request, view):
        estimate = (
            ttft_local_s(view[1], request.prompt_tokens)
            if self.prefill == LOCAL
            else ttft_remote_s(view[0], view[1], request.prompt_tokens)
        )
        self.predicted.append(estimate)
        return route(self.prefill, 1)


@pytest.mark.parametrize("prefill", [0, LOCAL], ids=["remote", "local"])
def test_idle_ttft_is_the_estimate_and_one_dispatch(prefill):
    prompts = [64, *PROMPTS]  # the first use of a pair also connects
    trace = Trace.build(
        "idle",
        {
            "arrival_s": 60.0 * np.arange(len(prompts)),
            "prompt_tokens": prompts,
            "output_tokens": [4] * len(prompts),
        },
    )
    policy = Fixed(prefill)
    result = simulate(trace, parse_cluster("1p1d", profile=PROFILE, handover=LINK), policy, LOOSE)
    measured = result.requests.sort("arrival_s")["ttft_s"].to_list()[1:]
    assert measured == pytest.approx([DISPATCH_S + s for s in policy.predicted[1:]], rel=1e-9)
