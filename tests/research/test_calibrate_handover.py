"""What moving a prompt's KV cache costs, and from which length on that is faster than computing it."""

from __future__ import annotations

import json

import pytest

from envs.hardware.load import handover_names, load_handover, load_profile
from envs.hardware.profile import HandoverLaw, KvLaw, Profile, StepLaw
from research.calibrate import main
from research.calibrating.handover import crossover_tokens, moving_s, pull, recompute_s


def profile(c_tok_s: float = 1e-3, floor_s: float = 0.0, c_attn_s: float = 0.0) -> Profile:
    step = StepLaw(floor_s, 0.0, c_tok_s, c_attn_s, 0.0, 0.0)
    return Profile("toy", "toy", "toy", 1, "toy", "bf16", step, KvLaw(1000.0, 10_000, 16))


def link(fixed_s: float, bandwidth: float = 1e7, per_block_s: float = 0.0) -> HandoverLaw:
    return HandoverLaw("toy", fixed_s, 0.4, 0.0, per_block_s, bandwidth, {"kind": "assumption"})


def test_terms_and_flows_that_share_a_link():
    one = pull(HandoverLaw("toy", 0.01, 0.4, 0.002, 1e-4, 1e9, {"kind": "assumption"}), 5e8, 100)
    assert one.total_s() == pytest.approx(0.01 + 0.002 + 0.01 + 0.5)
    assert one.total_s(4) == pytest.approx(0.01 + 0.002 + 0.01 + 2.0)
    assert one.first_use_s == 0.4


def test_a_long_prompt_is_computed_in_steps_that_attend_to_what_is_there():
    held = profile(c_tok_s=1e-3, c_attn_s=1e-6)
    by_hand = 1.5 + 1e-6 * (1000 * 500 + 500 * (1000 + 250))
    assert recompute_s(held, 1500, budget_tokens=1000) == pytest.approx(by_hand)


def test_the_crossover_is_where_both_lines_meet():
    # Computing 1 ms a token; moving 0.1 ms a token and 90 ms: alike at 100 tokens.
    assert crossover_tokens(profile(), link(0.0901)) == 101
    assert moving_s(profile(), link(0.0901), 100) > recompute_s(profile(), 100)
    assert moving_s(profile(), link(0.0901), 101) < recompute_s(profile(), 101)


def test_moving_may_always_pay_or_never():
    assert crossover_tokens(profile(floor_s=0.02), link(0.01)) == 1
    assert crossover_tokens(profile(c_tok_s=1e-6), link(0.01)) is None


def test_blocks_count_in_the_crossover():
    assert crossover_tokens(profile(), link(0.05, per_block_s=2e-3)) > crossover_tokens(profile(), link(0.05))


def test_the_documents_example_beside_what_the_shape_gives(tmp_path, capsys):
    assert main(["action=handover", "model=llama-3.1-70b", "prompt_tokens=4096", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "500 MB:    5.0 ms at 100 GB/s,   50.0 ms at 10 GB/s" in printed
    assert "1,342 MB:   13.4 ms at 100 GB/s,  134.2 ms at 10 GB/s   (bf16 cache" in printed
    assert "next: python -m research.compare hardware.profile=llama-3.1-70b-fp8-h100-tp4" in printed
    assert (tmp_path / "handover.png").stat().st_size > 10_000
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["bytes"] for row in summary["bytes"]] == [1_342_177_280, 671_088_640, 5e8]
    published = summary["published"]
    assert published["sum_s"] == pytest.approx(0.197, rel=1e-3)
    assert sum(published["terms_s"].values()) == pytest.approx(published["sum_s"])
    (crossing,) = summary["crossover"]
    at = {row["link"]: row["crossover_tokens"] for row in crossing["links"]}
    assert at["nvlink"] < at["nixl-published"]


def test_the_page_has_the_figures_that_the_command_prints(root):
    text = " ".join((root / "docs" / "hardware.md").read_text().split())
    profile = load_profile("llama-3.1-70b-fp8-h100-tp4")
    at = {name: crossover_tokens(profile, load_handover(name, gpus=4)) for name in handover_names()}
    assert (at["nvlink"], at["rdma"]) == (1, 1)
    words = f"{at['tcp']} tokens over `tcp` and {at['nixl-published']:,} with the published handover's terms"
    assert f"{words} ({at['nixl-rdma']:,} over `nixl-rdma`)" in text
    kv_bytes, blocks = profile.kv.bytes_per_token * 4096, 256
    shared = {name: pull(load_handover(name, gpus=4), kv_bytes, blocks).total_s(16) for name in ("tcp", "rdma")}
    assert f"take {shared['tcp']:.1f} s until each has arrived, over `rdma` {shared['rdma']:.2f} s" in text


def test_every_shipped_profile_of_the_model_counts(tmp_path):
    assert main(["action=handover", "model=llama-3.1-8b", "link=tcp", f"out={tmp_path}"]) == 0
    crossing = json.loads((tmp_path / "summary.json").read_text())["crossover"]
    names = [row["profile"] for row in crossing]
    assert names[:2] == ["llama-3.1-8b-bf16-a100-tp1", "llama-3.1-8b-bf16-h100-tp1"]
    slow, fast, *_ = (row["links"][0]["crossover_tokens"] for row in crossing)
    assert slow < fast  # what computes slowly gains from moving earlier


def test_a_model_without_a_profile_still_has_its_bytes(tmp_path, capsys):
    assert main(["action=handover", "model=deepseek-v3", f"out={tmp_path}"]) == 0
    assert "no profile of deepseek-v3 ships" in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["bytes"][0]["bytes"] == 61 * 4096 * (512 + 64) * 2
    assert summary["crossover"] == []


def test_a_profile_says_its_model(tmp_path):
    name = "llama2-70b-fp16-a100-tp8"
    assert main(["action=handover", f"profile={name}", "link=rdma", f"out={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["model"] == load_profile(name).model
    assert [row["profile"] for row in summary["crossover"]] == [name]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected model=NAME"),
        (["model=llama-3.1-70"], "did you mean 'llama-3.1-70b'"),
        (["model=llama-3.1-8b", "profile=llama-3.1-70b-fp8-h100-tp4"], "expected one model"),
        (["model=llama-3.1-8b", "prompt_tokens=0"], "prompt_tokens=0: expected a whole number"),
        (["model=llama-3.1-8b", "prompt_tokens=4k"], "prompt_tokens=4k: expected a whole number"),
        (["model=llama-3.1-8b", "link=rdna"], "did you mean 'rdma'"),
        (["model=llama-3.1-8b", "out=/proc/none"], "cannot be written"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["action=handover", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert expected in error
