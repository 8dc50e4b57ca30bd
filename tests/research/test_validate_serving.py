"""A measured run on the simulator: protocol, engine policy, cluster, times by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from research.validating import recipes_groups, serving
from research.validating.ahead import Ahead, AheadRouter
from research.validating.batch_wait import BatchWait, WaitingRouter
from research.validating.engines import step_policy
from research.validating.protocols import AICONFIGURATOR, INFERENCEX, UNKNOWN, protocol_of
from research.validating.serving import Setting, cluster_of, serve
from tests.research.validate_runs import disaggregated, profile, run

HERE = Path()
HOP_S = 0.010
"""Of a request to the engine's API server: the links' own."""


@pytest.fixture(autouse=True)
def _hand(monkeypatch):
    for module in (serving, recipes_groups):
        monkeypatch.setattr(module, "engine_profile", lambda instance, data_dir: profile())


def test_campaigns_have_the_protocol_that_was_published():
    assert protocol_of("2026-04-06.csv") is protocol_of("db-dump/2026-04-27") is INFERENCEX
    assert protocol_of("<upstream-home>/data/h100_sxm/vllm/0.12.0/Qwen_Qwen3-32B.csv") is AICONFIGURATOR
    assert protocol_of("kimi-k2.5-gap-analysis.csv") is UNKNOWN


def test_lengths_are_drawn_as_the_benchmark_does():
    frame = INFERENCEX.trace(8, 10, 1000, 100).frame
    assert frame.height == 80
    for column, nominal in (("prompt_tokens", 1000), ("output_tokens", 100)):
        assert 0.8 * nominal <= frame[column].min() < 0.82 * nominal
        assert 0.97 * nominal < frame[column].max() <= nominal + 1
    fixed = UNKNOWN.trace(4, 3, 1000, 100).frame
    assert fixed["prompt_tokens"].unique().to_list() == [1000]
    assert (frame["arrival_s"] == 0.0).all()


def test_a_lone_user_by_hand():
    served = serve(run(), Setting(), HERE)
    assert [row["rounds"] for row in served["rounds"]] == [3, 5, 10]
    for row in served["rounds"]:  # the hop, a prompt of 1,000 tokens in one step; then 99 steps
        assert row["ttft_s"] == pytest.approx(HOP_S + 0.020)
        assert row["tpot_s"] == pytest.approx(0.010)
        assert row["served"] == row["requests"] == row["rounds"]


def test_a_closed_client_misses_the_step_that_its_answer_ends():
    """Two users, a token apart: each new prompt finds the other's step begun and waits for its end."""
    row = serve(run(users=2, output_tokens=3), Setting(rounds=(50,), budgets=(("vllm", 1001),)), HERE)["rounds"][0]
    # Alone a prompt takes a step of 20 ms; none is served so fast, and none waits for more than one such step.
    assert HOP_S + 0.020 < row["ttft_s"] < HOP_S + 2 * 0.021
    assert row["tpot_s"] > 0.010


def test_rounds_given_replace_only_what_was_not_published():
    assert [r["rounds"] for r in serve(run(), Setting(rounds=(2,)), HERE)["rounds"]] == [2]
    published = serve(run(campaign="2026-04-06.csv"), Setting(rounds=(2,)), HERE)
    assert [r["rounds"] for r in published["rounds"]] == [10]


def test_prompts_first_or_mixed():
    """Two users, a budget of one prompt, one token of output left while the second prompt waits."""
    budgets = (("sglang", 1000), ("vllm", 1000))
    asked = {"users": 2, "output_tokens": 2}
    mixed = serve(run(**asked), Setting(rounds=(1,), budgets=budgets), HERE)["rounds"][0]
    first = serve(run(engine="sglang", **asked), Setting(rounds=(1,), budgets=budgets), HERE)["rounds"][0]
    # Prompts first: prompt A 20 ms, prompt B 20 ms, then both decode in 10 ms: A's gap is 30 ms, B's 10 ms.
    assert first["ttft_s"] == pytest.approx(HOP_S + (0.020 + 0.040) / 2)
    assert first["tpot_s"] == pytest.approx((0.030 + 0.010) / 2)
    # Mixed: A decodes beside 999 tokens of prompt B (19.99 ms), whose last token takes a step more.
    assert mixed["tpot_s"] == pytest.approx((0.01999 + 0.010) / 2)
    assert mixed["ttft_s"] == pytest.approx(HOP_S + (0.020 + 0.020 + 0.01999 + 0.01001) / 2)


def test_budgets_follow_the_launch_scripts():
    def budget(**given):
        made = run(**given)
        return step_policy(made, protocol_of(made["campaign"]), {}).budget_tokens

    inferencex = {"campaign": "2026-03-25.csv", "model": "meta-llama/Llama-3.1-70B"}
    assert budget(**inferencex) == 8192
    assert budget(engine="trtllm", **inferencex) == 16384
    assert (
        budget(engine="trtllm", **inferencex | {"precision": "fp4", "prompt_tokens": 1024, "output_tokens": 1024})
        == 2248
    )
    own = {"campaign": "x/data/h100_sxm/trtllm/1.0.0rc3/Qwen_Qwen3-32B.csv", "users": 8}
    # Batch, prompt and 1,500 tokens; TensorRT-LLM fills them with whole prompts only.
    assert [budget(engine="trtllm", prompt_tokens=n, **own) for n in (1000, 1024, 4096)] == [2008, 2056, 4104]
    assert (budget(prompt_tokens=1024, **own), budget(engine="sglang", **own)) == (2532, 8192)
    moe = {"campaign": "db-dump/2026-04-27", "model": "deepseek-ai/DeepSeek-R1", "engine": "trtllm", "gpu": "b200_sxm"}
    assert budget(**moe, users=64, prompt_tokens=1024, engine_version="1.1.0rc2.post2") == 1152
    assert budget(**moe, users=64, prompt_tokens=1024, engine_version="1.2.0rc6.post2") == 8192
    assert (budget(engine="sglang"), budget(engine="sglang", gpu="b200_sxm")) == (8192, 16384)
    assert step_policy(run(), UNKNOWN, {"vllm": 2048}).budget_tokens == 2048


def test_batch_waiting_holds_prompts_while_something_decodes():
    """InferenceX's TensorRT-LLM runs of 1K/1K: up to 20 iterations of 10 ms on top of the prompt's own step."""
    asked = {"engine": "trtllm", "model": "meta-llama/Llama-3.1-70B", "campaign": "2026-03-25.csv", "users": 4}
    asked |= {"prompt_tokens": 1024, "output_tokens": 1024}
    waits = serve(run(**asked), Setting(), HERE)["rounds"][0]["ttft_s"]
    eight = serve(run(**asked | {"tp": 8}), Setting(), HERE)["rounds"][0]["ttft_s"]  # TP 8 was launched without it
    # The first round starts on an idle engine and does not wait; a prompt takes 20 ms.
    assert eight == pytest.approx(HOP_S + 0.020 + 0.005, abs=0.008)
    assert waits - eight == pytest.approx(0.9 * 20 * 0.010, rel=0.15)


def test_an_engine_that_plans_ahead_starts_a_prompt_a_step_later():
    """One user decodes when another comes: 10 ms more for those whose scripts or versions plan ahead."""
    router = AheadRouter()
    busy, idle = (SimpleNamespace(id=i, streams=s, last_tbt_s=0.010) for i, s in ((0, 3), (1, 0)))

    def ask(number, now_s, view):
        return router.route(SimpleNamespace(id=number, now_s=now_s), view)

    assert (ask(1, 0.5, [busy]).kind, ask(1, 0.5, [busy]).kind) == (1, 0)
    router.reset(2, 0)
    assert [ask(i, 0.0, [busy, idle]).kind for i in (1, 2)] == [1, 0]  # in turn: the idle rank takes its at once
    assert ask(3, 0.002, [busy, idle]).until_s == pytest.approx(0.012)

    def ahead(**given):
        made = run(**given)
        return step_policy(made, protocol_of(made["campaign"]), {}).wait == Ahead()

    assert [ahead(engine_version=v) for v in ("0.12.0", "0.14.0")] == [False, True]
    assert [ahead(engine="trtllm", engine_version=v) for v in ("1.0.0rc3", "1.3.0rc5")] == [False, True]
    assert [ahead(engine="sglang", engine_version="0.5.1"), ahead(campaign="2026-03-25.csv")] == [True, True]


def test_batch_waiting_ends_when_a_step_is_full():
    router = WaitingRouter(BatchWait(iterations=20, tokens=1500))
    worker = SimpleNamespace(id=0, streams=3, last_tbt_s=0.010)

    def ask(number, now_s):
        return router.route(SimpleNamespace(id=number, now_s=now_s, prompt_tokens=1000), [worker])

    assert (ask(1, 0.0).kind, ask(1, 0.0).until_s) == (1, 0.010)
    assert ask(2, 0.005).kind == 0  # 2,003 tokens: it goes, and so does the other when it asks again
    assert ask(1, 0.010).kind == 0
    assert [ask(3, 1.0 + 0.010 * i).kind for i in range(21)] == [1] * 20 + [0]


def test_a_disaggregated_run_has_its_workers_ranks_and_handovers():
    made = disaggregated(2, 1, users=4, campaign="db-dump/2026-04-27") | {"decode_dp": 3}
    protocol = protocol_of(made["campaign"])
    cluster = cluster_of(made, step_policy(made, protocol, {}), protocol, Setting(link="tcp"), HERE)
    assert [w.role for w in cluster.workers] == ["prefill"] * 2 + ["decode"] * 3
    assert [w.group for w in cluster.workers] == [-1, -1, 2, 2, 2]
    assert (cluster.handover.name, cluster.handover.connect_s) == ("tcp", 0.0)
    alone = serve(disaggregated(1, 1), Setting(rounds=(1,), link="tcp"), HERE)["rounds"][0]
    law = cluster.handover
    # Prefill, two hops, the pull, and the decode worker's step over the last prompt token.
    by_hand = 0.020 + law.dispatch_s + law.seconds(1000 * 1000.0, 63) + 0.010
    assert alone["ttft_s"] == pytest.approx(by_hand, rel=1e-3)


def test_racks_hand_over_by_nvlink_and_others_by_rdma_with_the_published_work_around_it():
    def law(gpu, engine="vllm", **given):
        return serving.link_of({"gpu": gpu, "engine": engine}, Setting(**given), (profile(),), True)

    assert [law(gpu).name for gpu in ("gb200", "h100_sxm")] == ["nixl-nvlink", "nixl-rdma"]
    assert law("gb200").base_s > 0.07 > law("gb200", link="nvlink").base_s
    # TensorRT-LLM sends a prompt's blocks as one buffer; a link that was asked for stays as it is.
    assert law("gb200", "trtllm").per_block_s == 0.0 < law("gb200").per_block_s
    assert law("gb200", "trtllm", link="nixl-rdma").per_block_s > 0.0


def test_the_prefill_workers_token_is_streamed_before_a_step_of_the_decode_workers():
    ttft_s = {
        engine: serve(disaggregated(1, 1, engine=engine), Setting(rounds=(1,), link="tcp"), HERE)["rounds"][0]["ttft_s"]
        for engine in ("vllm", "trtllm")
    }
    assert ttft_s["vllm"] - ttft_s["trtllm"] == pytest.approx(0.010)
