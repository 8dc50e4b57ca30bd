"""What launch scripts set: held prompts, budgets, the cache's precision, speculation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envs.hardware.load import load_profile
from envs.hardware.profile import Profile
from envs.hardware.speculation import Acceptance
from envs.hardware.tables import StepTables
from research.validating.balancing import Balance, BalancingRouter
from research.validating.batch_wait import BatchWait, WaitingRouter
from research.validating.cache_precision import cache_precision
from research.validating.launches import Launch, launch_of, router_of
from research.validating.receiving import Interval, ReceivingRouter
from research.validating.speculating import acceptance_of, steps_of, verifying

ROUTE, HOLD = 0, 1


def run(**changes: Any) -> dict[str, Any]:
    """A colocated run of InferenceX."""
    return {
        "model": "deepseek-ai/DeepSeek-R1",
        "gpu": "b200_sxm",
        "engine": "sglang",
        "engine_version": "0.5.9",
        "precision": "fp4",
        "layout": "colocated",
        "campaign": "2026-03-25.csv",
        "tp": 8,
        "dp": 1,
        "moe_ep": 1,
        "users": 32,
        "prompt_tokens": 1024,
        "output_tokens": 1024,
    } | changes


def ask(router: Any, name: int, now_s: float, *workers: dict[str, Any]) -> Any:
    """One decision about request ``name``."""
    idle = {"id": 0, "streams": 0, "prefill_requests": 0, "last_tbt_s": float("nan")}
    view = [SimpleNamespace(**idle | {"id": i} | worker) for i, worker in enumerate(workers)]
    return router.route(SimpleNamespace(id=name, now_s=now_s, prompt_tokens=100), view)


TRT = {"engine": "trtllm", "engine_version": "1.2.0rc6.post2"}
BUSY = {"streams": 8, "last_tbt_s": 0.01}


def test_sglang_looks_once_in_so_many_steps() -> None:
    router = ReceivingRouter(Interval(30))
    assert ask(router, 0, 1.0, {}).kind == ROUTE  # idle: at once
    first = ask(router, 1, 1.1, BUSY)
    assert (first.kind, first.until_s) == (HOLD, pytest.approx(1.3))
    assert ask(router, 2, 1.25, BUSY).until_s == pytest.approx(1.3)  # the same look
    assert ask(router, 1, 1.3, BUSY).kind == ROUTE
    assert ask(router, 3, 1.31, BUSY | {"prefill_requests": 1}).kind == ROUTE  # it looks after a prompt
    assert ask(router, 4, 2.22, BUSY).until_s == pytest.approx(1.31 + 4 * 0.3)


def test_balanced_ranks_wait_for_a_prompt_each() -> None:
    router = BalancingRouter(Balance(60))
    ranks = (BUSY, BUSY, BUSY)
    assert ask(router, 0, 1.0, {}, {}, {}).prefill == -1
    for name in (1, 2):
        held = ask(router, name, 1.0, *ranks)
        assert (held.kind, held.until_s) == (HOLD, pytest.approx(1.01))
    dealt = [ask(router, name, 1.0, *ranks) for name in (3, 1, 2)]
    assert [action.kind for action in dealt] == [ROUTE] * 3
    assert sorted(action.decode for action in dealt) == [0, 1, 2]


def test_a_round_that_stays_incomplete_goes_in_the_end() -> None:
    router = BalancingRouter(Balance(60))
    assert ask(router, 1, 1.0, BUSY, BUSY).kind == HOLD
    assert ask(router, 1, 1.59, BUSY, BUSY).until_s == pytest.approx(1.6)
    assert ask(router, 1, 1.6, BUSY, BUSY).kind == ROUTE


@pytest.mark.parametrize(
    ("changes", "launch"),
    [
        ({}, Launch("dsr1_fp4_b200.sh", 16384, 256, Interval(30))),
        ({"users": 8, "precision": "fp8"}, Launch("dsr1_fp8_b200.sh", 32768, 128, Interval(10))),
        ({"tp": 4, "precision": "fp8"}, Launch("dsr1_fp8_b200.sh, TP 4", 8192, 32, Interval(10))),
        ({"users": 256, "precision": "fp8"}, Launch("dsr1_fp8_b200_mtp.sh", 16384, 512, Interval(30))),
        ({"gpu": "h200_sxm", "precision": "fp8"}, Launch("dsr1_fp8_h200.sh", 32768, 512)),
        (TRT, Launch("dsr1_fp4_b200_trt.sh", 8192)),
        (TRT | {"engine_version": "1.1.0rc2.post2"}, Launch("dsr1_fp4_b200_trt.sh", 1152)),
        (TRT | {"prompt_tokens": 8192}, Launch("dsr1_fp4_b200_trt.sh", 8320)),
        (TRT | {"tp": 1, "dp": 8}, Launch("dsr1_fp4_b200_trt.sh", 8192, 0, Balance(60))),
        (
            TRT | {"precision": "fp8", "users": 64},
            Launch("dsr1_fp8_b200_trt.sh", 8192, 0, BatchWait(40, 6554)),
        ),
        (
            {"model": "openai/gpt-oss-120b", "engine": "vllm", "gpu": "h100_sxm"},
            Launch("gptoss_fp4_h100.sh", 8192, 32),
        ),
        (
            {"model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm", "precision": "fp8", "engine_version": "0.19.0"},
            Launch("minimaxm2.5_fp8_b200.sh", 2048),
        ),
        ({"model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm", "precision": "fp8", "engine_version": "0.9.1"}, None),
        ({"model": "meta-llama/Llama-3.1-70B"}, None),
        ({"gpu": "gb200"}, None),
    ],
)
def test_launches(changes: dict[str, Any], launch: Launch | None) -> None:
    assert launch_of(run(**changes)) == launch


def test_each_way_to_hold_has_its_router() -> None:
    assert type(router_of(Balance(60))) is BalancingRouter
    assert type(router_of(Interval(30))) is ReceivingRouter
    assert type(router_of(BatchWait(20, 100))) is WaitingRouter


@pytest.mark.parametrize(
    ("changes", "weights", "cache"),
    [
        ({}, "nvfp4", "fp8"),
        ({}, "bf16", "bf16"),
        ({"model": "moonshotai/Kimi-K2.5", "engine": "vllm"}, "int4", "bf16"),
        ({"model": "moonshotai/Kimi-K2.5", "engine": "vllm"}, "nvfp4", "fp8"),
        ({"model": "openai/gpt-oss-120b", "engine": "vllm", "gpu": "h100_sxm"}, "mxfp4", "bf16"),
        ({"model": "openai/gpt-oss-120b", "engine": "vllm"}, "mxfp4", "fp8"),
        ({"gpu": "h200_sxm"}, "fp8_block", "bf16"),
        ({"gpu": "h200_sxm", "engine": "trtllm"}, "fp8_block", "fp8"),
        ({"model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm", "engine_version": "0.17.0"}, "fp8_block", "bf16"),
        ({"model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm", "engine_version": "0.19.0"}, "fp8_block", "fp8"),
        ({"model": "meta-llama/Llama-3.1-70B", "engine": "vllm", "gpu": "h100_sxm"}, "fp8", "fp8"),
        ({"gpu": "q900"}, "nvfp4", "fp8"),
    ],
)
def test_the_cache_is_as_precise_as_the_script_says(changes: dict[str, Any], weights: str, cache: str) -> None:
    assert cache_precision(run(**changes), weights) == cache


@pytest.mark.parametrize(
    ("changes", "drafts"),
    [
        ({}, 0),
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post3"}, 3),
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post3", "tp": 1, "dp": 8}, 1),
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post2"}, 0),
        ({"precision": "fp8", "users": 128}, 2),
        ({"precision": "fp8", "users": 64}, 0),
        ({"precision": "fp8", "users": 128, "campaign": "db-dump/2026-04-27"}, 0),
        ({"model": "Qwen/Qwen3.5-397B-A17B", "precision": "fp8", "tp": 4}, 3),
        ({"model": "Qwen/Qwen3.5-397B-A17B", "precision": "fp8", "tp": 4, "moe_ep": 4}, 0),
    ],
)
def test_which_runs_speculate(changes: dict[str, Any], drafts: int) -> None:
    acceptance = acceptance_of(run(**changes))
    assert (acceptance.drafts if acceptance else 0) == drafts


def law() -> Profile:
    """10 ms a step up to 256 tokens, 10 us a token from there; attention 1 us a decode and 1 ns a KV token."""
    tables = StepTables((1, 256, 512, 4096), (0.01, 0.01, 0.01256, 0.0484), (1, 512), (1e-6, 512e-6), (1e-9, 1e-9), 0.0)
    profile = load_profile("llama-3.1-8b-bf16-h100-tp1")
    return Profile(
        profile.name, profile.model, profile.gpu, 1, "trtllm", "bf16", profile.step, profile.kv, profile.source,
        profile.fit, tables=tables,
    )  # fmt: skip


def test_a_step_verifies_its_drafts_and_emits_more() -> None:
    """Two drafts over 256 decodes: products of 768 tokens, the drafting layer twice, attention once."""
    plain, drafting = law(), verifying(law(), Acceptance((0.85, 0.3)), layers=20)
    assert plain.tables is not None
    one_s = plain.seconds(0, 0.0, 512, 512 * 1000)
    more_s = (0.01256 + 0.00256 * 4) - 0.01256 + 2 / 20 * (0.01256 + 512e-6)
    assert drafting.seconds(0, 0.0, 512, 512 * 1000) == pytest.approx(one_s + more_s)
    assert drafting.seconds(4096, 0.0, 0, 0) == plain.seconds(4096, 0.0, 0, 0)
    assert steps_of(1025, Acceptance((0.85, 0.3))) == 1 + round(1024 / 2.105)
    assert steps_of(2, Acceptance((0.85,))) == 2
