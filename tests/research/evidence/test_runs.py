"""The run store: a run is whole or absent, at any moment, for any number of writers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from research.errors import ResearchError
from research.evidence import runs
from research.evidence.runs import RunStore, canonical_json, key_of


def write(store: RunStore, **identity: object) -> str:
    key = key_of(identity)
    store.write(key, identity, {"goodput_per_s": 1.5, "tpot_p50_s": float("nan")}, files={"requests.parquet": b"abc"})
    return key


def test_canonical_json_has_one_spelling_for_equal_values():
    import numpy as np

    assert canonical_json({"b": (1, 2.0), "a": None}) == canonical_json({"a": None, "b": [1, np.float64(2.0)]})
    assert canonical_json({"x": float("nan")}) == '{"x":"nan"}'
    with pytest.raises(TypeError, match="not a plain value"):
        canonical_json({"x": object()})


def test_any_change_of_identity_changes_the_key():
    assert len({key_of({"load": 1.0}), key_of({"load": 1.1}), key_of({"load": 1.0, "seed": 0}), key_of({})}) == 4


def test_a_run_reads_back_and_nan_becomes_null(tmp_path):
    store = RunStore.open(tmp_path / "runs")
    key = write(store, load=1.0)
    result = store.read(key)
    assert result["metrics"] == {"goodput_per_s": 1.5, "tpot_p50_s": None}
    assert result["identity"] == {"load": 1.0}
    assert (store.folder(key) / "requests.parquet").read_bytes() == b"abc"
    assert store.missing([key, "0" * 64, "0" * 64]) == ["0" * 64]


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "no json", "no parquet", "short parquet", "a file"])
def test_a_damaged_run_is_absent_and_can_be_made_again(tmp_path, damage):
    store = RunStore.open(tmp_path)
    key = write(store, load=1.0)
    folder = store.folder(key)
    text = (folder / "result.json").read_text()
    if damage == "empty":
        (folder / "result.json").write_text("")
    elif damage == "cut":
        (folder / "result.json").write_text(text[: len(text) // 2])
    elif damage == "changed":
        (folder / "result.json").write_text(text.replace("1.5", "9.5"))
    elif damage == "no json":
        (folder / "result.json").unlink()
    elif damage == "no parquet":
        (folder / "requests.parquet").unlink()
    elif damage == "short parquet":
        (folder / "requests.parquet").write_bytes(b"a")
    else:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("not a folder")
    assert store.read(key) is None
    assert write(store, load=1.0) == key
    assert store.read(key)["metrics"]["goodput_per_s"] == 1.5
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_whole_run_is_never_overwritten(tmp_path):
    store = RunStore.open(tmp_path)
    key = write(store, load=1.0)
    before = (store.folder(key) / "result.json").stat().st_mtime_ns
    store.write(key, {"load": 1.0}, {"goodput_per_s": 7.0})
    assert store.read(key)["metrics"]["goodput_per_s"] == 1.5
    assert (store.folder(key) / "result.json").stat().st_mtime_ns == before


def test_scratch_of_dead_processes_is_cleared_and_of_living_ones_kept(tmp_path):
    import socket

    host = socket.gethostname()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f".tmp-{host}-{dead.pid}-aa", f".tmp-{host}-{os.getpid()}-bb", ".tmp-elsewhere-1-cc"):
        (tmp_path / name).mkdir()
    RunStore.open(tmp_path)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == sorted([f".tmp-{host}-{os.getpid()}-bb", ".tmp-elsewhere-1-cc"])


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResearchError, match=r"cannot write to .*file.*set out=DIR"):
        RunStore.open(tmp_path / "file" / "runs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_clear_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ResearchError, match="cannot write"):
            RunStore.open(tmp_path)
    finally:
        tmp_path.chmod(0o700)


WRITER = """
import sys
from pathlib import Path
from research.evidence.runs import RunStore, key_of
store = RunStore(Path(sys.argv[1]))
print("ready", flush=True)
for i in range(100000):
    identity = {"run": i % 40}
    store.write(key_of(identity), identity, {"value": i % 40}, files={"requests.parquet": b"x" * 50000})
"""


def test_killed_at_any_moment_every_run_is_whole_or_absent(tmp_path):
    store = RunStore.open(tmp_path)
    for wait_s in (0.002, 0.011, 0.03):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=_env())
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(wait_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        folders = [f for prefix in tmp_path.iterdir() if not prefix.name.startswith(".") for f in prefix.iterdir()]
        assert all(store.read(folder.name) is not None for folder in folders)
    RunStore.open(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


def test_many_writers_of_one_run_leave_one_whole_run(tmp_path):
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER.replace("100000", "60"), str(tmp_path)], stdout=-3, env=_env())
        for _ in range(3)
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    store = RunStore.open(tmp_path)
    assert all(store.read(key_of({"run": i}))["metrics"] == {"value": i} for i in range(40))


def test_json_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "summary.json"
    runs.write_json(path, {"a": [float("inf"), 1]})
    assert json.loads(path.read_text()) == {"a": [None, 1]}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_code_version_is_a_hash_of_sources_only():
    assert len(runs.code_version()) == 64
    assert set(runs.git_state()) == {"git_sha", "git_dirty"}


def _env() -> dict[str, str]:
    from pathlib import Path

    return {**os.environ, "PYTHONPATH": str(Path(runs.__file__).parents[2])}
