"""Clusters by layout and from a user's file."""

from __future__ import annotations

import pytest

from research.cli import compose_config
from research.clusters import build_cluster
from research.errors import ResearchError


def build(*words):
    config = compose_config("compare", list(words))
    return build_cluster(config.cluster, config.hardware, config.view)


def test_a_layout_gives_roles_budgets_and_capabilities():
    spec = build("cluster=1p3d", "cluster.decode_budget_tokens=512", "cluster.max_num_seqs=64")
    assert [w.role for w in spec.workers] == ["prefill", "decode", "decode", "decode"]
    assert [w.max_batched_tokens for w in spec.workers] == [8192, 512, 512, 512]
    assert [w.can_decode for w in spec.workers] == [False, True, True, True]
    assert {w.max_num_seqs for w in spec.workers} == {64}


def test_a_layout_agrees_with_the_simulators_own_preset():
    from envs.cluster.presets import parse_cluster
    from envs.hardware.load import load_handover, load_profile

    for name in ("2p2d", "colocated4", "split2"):
        own = build(f"cluster={name}")
        profile, handover = load_profile("llama-3.1-70b-fp8-h100-tp4"), load_handover("rdma", gpus=4)
        assert own == parse_cluster(name, profile=profile, handover=handover, view=own.view)


def test_a_file_mixes_kinds_of_workers(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: two_kinds\nworkers:\n"
        "- {role: prefill, count: 2, max_batched_tokens: 4096}\n"
        "- {role: decode, profile: llama-3.1-8b-bf16-h100-tp1, kv_tokens: 100000}\n"
    )
    spec = build(f"cluster='{path}'")
    assert spec.name == "two_kinds"
    assert [w.role for w in spec.workers] == ["prefill", "prefill", "decode"]
    assert [w.max_batched_tokens for w in spec.workers] == [4096, 4096, 2048]
    assert (spec.workers[2].profile.name, spec.workers[2].kv_tokens) == ("llama-3.1-8b-bf16-h100-tp1", 100000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers: [", "not readable as YAML"),
        ("[]", "expected a mapping with a list `workers`"),
        ("workers: []", "expected a mapping with a list `workers`"),
        ("worker: [{role: decode}]\nworkers: [{}]", "unknown field 'worker' .did you mean 'workers'"),
        ("workers: [prefill]", r"workers\[0\]: expected a mapping"),
        ("workers: [{role: decoed}]", r"workers\[0\]: role='decoed' .did you mean 'decode'"),
        ("workers: [{role: decode, cuont: 2}]", "unknown field 'cuont' .did you mean 'count'"),
        ("workers: [{role: decode, count: 0}]", "count=0: expected a whole number of at least 1"),
        ("workers: [{role: decode, max_num_seqs: many}]", "max_num_seqs='many': expected a whole number"),
        ("workers: [{role: prefill}]", "needs a worker that can prefill and one that can decode"),
    ],
)
def test_a_file_that_is_no_cluster_is_told(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ResearchError, match=message):
        build(f"cluster='{path}'")


def test_a_missing_file_and_a_wrong_value_are_told(tmp_path):
    with pytest.raises(ResearchError, match="No such file"):
        build(f"cluster={tmp_path}/none.yaml")
    with pytest.raises(ResearchError, match="max_num_seqs=0"):
        build("cluster.max_num_seqs=0")
    with pytest.raises(ResearchError, match=r"view\.replicas 0"):
        build("view.replicas=0")
    with pytest.raises(ResearchError, match="cluster 0p0d"):
        build("cluster=0p0d")


def test_a_link_is_as_wide_as_the_workers_have_ports(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("workers:\n- {role: prefill}\n- {role: decode, profile: llama-3.1-8b-bf16-h100-tp1}\n")
    bandwidth = {
        name: build(
            f"cluster='{path}'" if name == "mixed" else "cluster=2p2d", f"hardware={hardware}"
        ).handover.bandwidth_bytes_per_s
        for name, hardware in (
            ("tp8", "llama2-70b-fp16-a100-tp8"),
            ("tp4", "llama-3.1-70b-fp8-h100-tp4"),
            ("tp1", "llama-3.1-8b-bf16-h100-tp1"),
            ("mixed", "llama-3.1-70b-fp8-h100-tp4"),
        )
    }
    assert bandwidth["tp8"] == 2 * bandwidth["tp4"] == 8 * bandwidth["tp1"]
    assert bandwidth["mixed"] == bandwidth["tp1"]


@pytest.mark.parametrize(("layout", "missing"), [("0p2d", "no prefill worker"), ("2p0d", "no decode worker")])
def test_a_layout_with_one_phase_alone_is_told_what_to_ask_for(layout, missing):
    with pytest.raises(
        ResearchError, match=rf"cluster {layout}: it has {missing}: .*, such as [12]p[12]d, or colocated2"
    ):
        build(f"cluster={layout}")
