from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from envs.hardware.errors import ProfileError
from envs.hardware.load import (
    LINK_DIR,
    PROFILE_DIR,
    handover_names,
    load_handover,
    load_profile,
    profile_names,
)
from envs.hardware.profile import FittedRange

PROFILES = (
    "llama-3.1-70b-fp8-h100-tp4",
    "llama-3.1-8b-bf16-a100-tp1",
    "llama-3.1-8b-bf16-h100-tp1",
    "llama-3.1-8b-bf16-rtx-pro-6000-tp1",
    "llama2-70b-fp16-a100-tp8",
    "opt-66b-fp16-a100-tp4",
)


def changed(tmp_path: Path, name: str, change) -> Path:
    """A copy of a shipped profile or link with one change."""
    folder = PROFILE_DIR if name in PROFILES else LINK_DIR
    data = yaml.safe_load((folder / f"{name}.yaml").read_text())
    change(data)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_the_profiles_and_the_links_are_there():
    assert tuple(profile_names()) == PROFILES
    assert {"nvlink", "rdma", "tcp"} <= set(handover_names())


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_where_it_comes_from_and_how_wrong_it_is(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.gpus == profile.tensor_parallel
    assert profile.engine_version
    assert {"name", "repository", "commit", "licence", "files"} <= set(profile.source)
    assert all(len(file["sha256"]) == 64 for file in profile.source["files"])
    errors = profile.fit["errors_percent"]
    assert errors["all"]["mape"] < 8.0
    assert all(row["held_out_mape"] <= 15.0 for row in errors.values())
    assert profile.fit["range"]["new_tokens"][1] in (2048, 8192)  # as far as the source goes
    assert 1e5 < profile.kv.bytes_per_token < 3e6  # OPT has as many KV heads as heads
    assert profile.kv.capacity_tokens % profile.kv.block_tokens == 0


@pytest.mark.parametrize("name", ["nvlink", "rdma", "tcp", "nixl-published"])
def test_every_term_of_a_link_says_where_it_comes_from(name):
    law = load_handover(name)
    kinds = {term: str(text).split(":")[0].split(" ")[0] for term, text in law.source["terms"].items()}
    assert set(kinds) == {"dispatch_s", "connect_s", "base_s", "per_block_s", "bandwidth_bytes_per_s"}
    assert set(kinds.values()) <= {"measured", "estimated", "assumption"}


def test_links_are_ordered_as_one_expects():
    kv_bytes, blocks = 671e6, 256
    seconds = [load_handover(name, gpus=4).seconds(kv_bytes, blocks) for name in ("nvlink", "rdma", "tcp")]
    assert seconds == sorted(seconds)


def test_ports_add_up_over_the_gpus_of_a_worker():
    one, eight = load_handover("rdma", gpus=1), load_handover("rdma", gpus=8)
    assert eight.bandwidth_bytes_per_s == pytest.approx(8 * one.bandwidth_bytes_per_s)
    assert load_handover("tcp", gpus=1).bandwidth_bytes_per_s == load_handover("tcp", gpus=8).bandwidth_bytes_per_s
    assert load_handover("rdma").bandwidth_bytes_per_s == eight.bandwidth_bytes_per_s


def test_a_file_of_ones_own_is_read_by_its_path(tmp_path):
    path = changed(tmp_path, PROFILES[0], lambda data: data.update(name="mine"))
    assert load_profile(path).name == "mine"
    assert load_profile(str(path)).step == load_profile(PROFILES[0]).step


def test_exponents_without_a_dot_are_numbers(tmp_path):
    path = changed(tmp_path, PROFILES[0], lambda data: None)
    path.write_text(path.read_text().replace(f"{load_profile(path).step.c_tok_s}", "5e-5"))
    assert load_profile(path).step.c_tok_s == 5e-5


def put(section, key, value):
    def change(data):
        (data[section] if section else data)[key] = value

    return change


def drop(section, key):
    def change(data):
        del (data[section] if section else data)[key]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("step", "c_tokk_s", 1e-5), ["step.c_tokk_s", "'c_tok_s'"]),
        (put(None, "modle", "x"), ["modle", "'model'"]),
        (drop("kv", "bytes_per_token"), ["kv.bytes_per_token is missing"]),
        (drop(None, "step"), ["step is missing"]),
        (put("step", "c0_s", "10 ms"), ["step.c0_s", "'10 ms'", "seconds"]),
        (put("step", "c0_s", -0.01), ["step.c0_s", "-0.01", "from 0"]),
        (put("step", "c0_s", True), ["step.c0_s", "True"]),
        (put("step", "c0_s", float("nan")), ["step.c0_s", "nan"]),
        (put("step", "c0_s", 10.371e3), ["step.c0_s", "another unit"]),
        (put("step", "c_tok_s", 52.0), ["step.c_tok_s", "another unit"]),
        (put("kv", "capacity_tokens", 1.5), ["kv.capacity_tokens", "whole number"]),
        (put("kv", "block_tokens", 0), ["kv.block_tokens", "at least 1"]),
        (put(None, "engine_version", 0.24), ["engine_version", "text"]),
        (put(None, "source", {"name": "x"}), ["source.kind is missing"]),
        (put("fit", "range", {"sequence": [1, 2]}), ["fit.range.sequence", "'sequences'"]),
        (put("fit", "range", {"sequences": [64, 1]}), ["fit.range.sequences", "[64, 1]", "smallest and the largest"]),
        (put("fit", "range", {"sequences": 64}), ["fit.range.sequences", "64", "a list"]),
        (put("source", "kind", "measurd"), ["source.kind", "'measured'"]),
        (put(None, "step", [1, 2]), ["step", "mapping"]),
    ],
)
def test_a_bad_profile_is_one_clear_error(tmp_path, change, words):
    path = changed(tmp_path, PROFILES[0], change)
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    for word in words:
        assert word in message


def test_a_step_that_takes_no_time_is_refused(tmp_path):
    def change(data):
        data["step"].update(c0_s=0.0, floor_s=0.0)

    with pytest.raises(ProfileError, match="both 0"):
        load_profile(changed(tmp_path, PROFILES[0], change))


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text((PROFILE_DIR / f"{PROFILES[0]}.yaml").read_text() + "\nmodel: other\n")
    with pytest.raises(ProfileError, match="'model' is given twice"):
        load_profile(path)


@pytest.mark.parametrize("text", ["", "a: [1", "\x00", "- 1", "? [a, b]\n: 1"])
def test_a_file_that_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"mine\.yaml"):
        load_profile(path)


def test_the_fitted_range_is_that_of_the_file(tmp_path):
    assert load_profile("llama-3.1-8b-bf16-h100-tp1").fitted == FittedRange(8192, 16384, 256, 262144)
    assert load_profile("llama2-70b-fp16-a100-tp8").fitted == FittedRange(8192, 8192, 64, 36853)  # whole prompts only
    path = changed(tmp_path, PROFILES[0], lambda data: data.update(fit={}))
    assert load_profile(path).fitted == FittedRange(0, 0, 0, 0)


def test_unknown_names_suggest_the_nearest(tmp_path):
    with pytest.raises(ProfileError, match=r"did you mean 'llama-3\.1-8b-bf16-h100-tp1'"):
        load_profile("llama-3.1-8b-bf16-h100")
    with pytest.raises(ProfileError, match="did you mean 'nvlink'"):
        load_handover("nvlnk")
    with pytest.raises(ProfileError, match="no such file"):
        load_profile(tmp_path / "none.yaml")


def test_a_shipped_file_is_called_as_it_says(monkeypatch, tmp_path):
    path = changed(tmp_path, PROFILES[0], lambda data: data.update(name="other"))
    monkeypatch.setattr("envs.hardware.load.PROFILE_DIR", tmp_path)
    with pytest.raises(ProfileError, match="expected 'mine'"):
        load_profile(path)
