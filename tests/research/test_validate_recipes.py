"""Recipes of disaggregated runs: which one is a run's, what its limits do, front ends, groups that are not full."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from envs.hardware.sources.moe_tables import BEHIND_DEEPEP, ExpertTables
from research.validating import recipes_groups, serving
from research.validating.engines import step_policy
from research.validating.protocols import INFERENCEX
from research.validating.recipes import SOURCES, TABLE, recipe_of
from research.validating.recipes_front_ends import FrontEnds
from research.validating.recipes_groups import SharedTables, busy_share
from research.validating.serving import Setting, cluster_of, serve
from tests.research.validate_runs import disaggregated, profile

HERE = Path()
DEEPSEEK = {"model": "deepseek-ai/DeepSeek-R1", "campaign": "db-dump/2026-04-27"}


@pytest.fixture(autouse=True)
def _hand(monkeypatch):
    for module in (serving, recipes_groups):
        monkeypatch.setattr(module, "engine_profile", lambda instance, data_dir: profile())


def asked(prefill, decode, degrees, **given):
    """A run of DeepSeek; degrees: (prefill tp, dp, ep, decode tp, dp, ep)."""
    made = disaggregated(prefill, decode, **DEEPSEEK | given)
    names = [f"{phase}_{axis}" for phase in ("prefill", "decode") for axis in ("tp", "dp", "moe_ep")]
    return made | dict(zip(names, degrees, strict=True))


def tensorrt(users, decode_workers=3):
    given = {"engine": "trtllm", "engine_version": "0.8.1.post2", "gpu": "gb200", "precision": "fp8", "users": users}
    lengths = {"prompt_tokens": 1024, "output_tokens": 1024}
    return asked(1, decode_workers, (1, 8, 8, 8, 1, 8), **given | lengths)


def test_the_table_is_whole():
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 150
    for row in rows:
        assert row["path"].startswith(tuple(SOURCES))
        assert len(row["commit"]) == 8
        for phase in ("prefill", "decode"):
            gpus = int(row[f"{phase}_tp"]) * int(row[f"{phase}_dp"])
            assert gpus % int(row[f"{phase}_ep"]) == 0
        assert int(row["frontends"]) >= 1
        assert row["users"]


def test_a_recipe_is_found_by_layout_lengths_and_users():
    three, many = recipe_of(tensorrt(3)), recipe_of(tensorrt(27))
    assert (three.decode.seqs, many.decode.seqs) == (1, 8)
    assert (three.prefill.dp, three.prefill.tokens, three.frontends) == (8, 16384, 10)
    assert recipe_of(tensorrt(4)) is None  # two recipes of this layout, neither for four users
    assert recipe_of(tensorrt(3) | {"engine_version": "9.9"}) is None
    assert recipe_of(tensorrt(3, decode_workers=2)) is None


def test_a_recipe_corrects_the_recorded_degrees():
    """Recorded as 32 ranks that split each expert; the script has 32 groups of whole experts."""
    given = {"engine": "sglang", "engine_version": "0.5.5.post2", "gpu": "gb200", "precision": "fp8", "users": 4096}
    recorded = asked(2, 1, (1, 8, 1, 1, 32, 1), **given, prompt_tokens=1024, output_tokens=1024)
    instance = serving._instance(recorded, "decode")
    assert (instance.data_parallel, instance.expert_parallel) == (32, 32)
    assert serving._instance(recorded | {"engine_version": "9.9"}, "decode").expert_parallel == 1


def test_a_recipes_limits_are_the_workers():
    run = tensorrt(27)
    cluster = cluster_of(run, step_policy(run, INFERENCEX, {}), INFERENCEX, Setting(), HERE)
    decode = [w for w in cluster.workers if w.role == "decode"]
    prefill = [w for w in cluster.workers if w.role == "prefill"]
    assert (len(prefill), len(decode)) == (8, 3)
    assert {w.max_num_seqs for w in decode} == {8}
    assert {w.max_batched_tokens for w in prefill} == {16384}


def test_a_full_decode_worker_makes_requests_wait_for_its_first_token(monkeypatch):
    """Three users on three workers of one place each: chance sends two to one worker, and the second waits."""
    monkeypatch.setattr(serving, "launched_profile", lambda *_: profile())
    three, many = (serve(tensorrt(users), Setting(), HERE)["rounds"][0] for users in (3, 27))
    alone_s = 1023 * 0.010
    assert three["ttft_s"] > 0.2 * alone_s
    assert many["ttft_s"] < three["ttft_s"]


def test_a_place_of_sglang_prefill_is_kept_until_the_handover_ends():
    role = recipe_of(tensorrt(3)).prefill
    worker = serving.WorkerSpec(profile(), "prefill", can_decode=False)
    sglang = {"engine": "sglang", "prompt_tokens": 1000}
    assert serving._limited(worker, replace(role, seqs=2), sglang).kv_tokens == 2 * 1008
    assert serving._limited(worker, replace(role, seqs=2, kv_tokens=1500), sglang).kv_tokens == 1500
    assert serving._limited(worker, replace(role, seqs=2), sglang | {"engine": "trtllm"}).kv_tokens is None


def ask(router, count):
    found = [router.route(SimpleNamespace(id=i), []) for i in range(count)]
    return [(action.prefill, action.decode) for action in found]


def test_one_front_end_takes_workers_and_their_ranks_in_turn():
    router = FrontEnds(1, [[0, 1], [2, 3]], [[4], [5], [6]])
    assert ask(router, 6) == [(0, 4), (2, 5), (1, 6), (3, 4), (0, 5), (2, 6)]
    router.reset(7, 0)
    assert ask(router, 1) == [(0, 4)]


def test_many_front_ends_leave_workers_uneven():
    def least(frontends, seed):
        router = FrontEnds(frontends, [[0]], [[1], [2], [3], [4]])
        router.reset(5, seed)
        sent = [decode for _, decode in ask(router, 40)]
        return min(sent.count(worker) for worker in (1, 2, 3, 4))

    assert {least(1, seed) for seed in range(8)} == {10}
    assert min(least(10, seed) for seed in range(8)) < 8


def test_random_ranks_are_uneven():
    router = FrontEnds(1, [[0, 1, 2, 3]], [[4]], random_rank=True)
    sent = [prefill for prefill, _ in ask(router, 40)]
    assert set(sent) == {0, 1, 2, 3}
    assert sent[:8] != [0, 1, 2, 3] * 2


def test_the_busy_share_is_that_of_ranks_in_their_groups_steps():
    workers = pl.DataFrame({"prefill_s": [1.0, 3.0, 9.0], "idle_rank_s": [3.0, 1.0, 0.0]})
    assert busy_share(workers, [0, 1], 0.25) == 0.5
    assert busy_share(workers, [2], 0.25) == 1.0
    assert busy_share(workers, [0], 0.5) == 0.5
    assert busy_share(workers.with_columns(prefill_s=pl.lit(0.0)), [0], 0.5) == 1.0


def tables(share=1.0):
    return SharedTables("gb200", "sglang", "0.5.14", {name: None for name in BEHIND_DEEPEP}, share=share)


def test_experts_of_a_half_full_group_get_half_the_tokens(monkeypatch):
    monkeypatch.setattr(ExpertTables, "experts_s", lambda self, tokens, *rest: float(tokens))
    monkeypatch.setattr(ExpertTables, "collective_s", lambda self, op, elements, *rest: elements)
    half = tables(0.5)
    assert half.experts_s(1000, "fp8_block", 1, 8, "power_law_1.01") == 500.0
    assert half.experts_s(1, "fp8_block", 1, 8, "power_law_1.01") == 1.0
    assert [half.collective_s(op, 100.0, 8, 8) for op in ("all_gather", "all_reduce")] == [50.0, 100.0]


def test_experts_behind_deepep_lie_between_the_measured_degrees(monkeypatch):
    asked_tokens = {}

    def measured(self, tokens, precision, point):
        asked_tokens[point["moe_ep_size"]] = tokens
        return {4: 1.0, 16: 4.0}.get(point["moe_ep_size"], 0.0)

    monkeypatch.setattr(ExpertTables, "_behind_deepep_s", measured)
    monkeypatch.setattr(SharedTables, "_degrees", lambda self, name: [2, 4, 16, 32])
    found = {ep: tables()._behind_deepep_s(8000, "fp8_block", {"moe_ep_size": ep}) for ep in (4, 8, 64, 1)}
    assert found == pytest.approx({4: 1.0, 8: 2.0, 64: 4.0, 1: 0.0})
    asked_tokens.clear()
    tables()._behind_deepep_s(8000, "fp8_block", {"moe_ep_size": 8})
    assert asked_tokens == {8: 8000, 4: 4000, 16: 16000}  # as many tokens a GPU
