"""Salts: which are taken, who can read them, and what it takes to test a guess."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

import pytest

from research.traces import main
from tests.traces.prompt_logs import ASK, LOG, SYSTEM, hashes, quick_salt, run, write  # noqa: F401
from traces.errors import TraceError
from traces.hashing import block_hashes, get_salt
from traces.tokens import load_tokenizer


def test_a_salt_decides_and_only_the_salt(tmp_path: Path) -> None:
    same = [hashes(run(tmp_path, name)) for name in ("a", "b")]
    assert same[0] == same[1]
    other = hashes(run(tmp_path, "c", None, "other"))
    assert [len(chain) for chain in other] == [len(chain) for chain in same[0]]
    assert not {i for chain in other for i in chain} & {i for chain in same[0] for i in chain}
    ids = [json.loads((tmp_path / name / "summary.json").read_text("utf-8"))["salt_id"] for name in "abc"]
    assert ids[0] == ids[1] != ids[2]


def test_a_guess_needs_the_salt(tmp_path: Path) -> None:
    found = hashes(run(tmp_path))[1]
    guess = load_tokenizer("estimate").encode(SYSTEM + ASK)
    assert block_hashes(guess, 16, get_salt(tmp_path / "salt").key)[: len(found)] == found
    assert not set(block_hashes(guess, 16)) & set(found)


def test_the_salt_is_the_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    assert "made now, at random" in capsys.readouterr().out
    assert stat.S_IMODE((tmp_path / "salt").stat().st_mode) == 0o600
    run(tmp_path)
    assert "made now" not in capsys.readouterr().out
    (tmp_path / "weak").write_text("secret", "utf-8")
    os.chmod(tmp_path / "weak", 0o600)
    with pytest.raises(TraceError, match="32 to 4,096 random bytes"):
        get_salt(tmp_path / "weak")
    os.chmod(tmp_path / "salt", 0o644)
    with pytest.raises(TraceError, match="chmod 600"):
        get_salt(tmp_path / "salt")
    words = [f"path={write(tmp_path, LOG)}", f"out={tmp_path / 'out'}"]
    assert main(["action=hash", *words, f"salt={tmp_path / 'out' / 'salt'}"]) == 2
    assert "a file outside" in capsys.readouterr().err


def test_the_users_own_salt_is_kept_with_their_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path, LOG)
    assert main(["action=hash", f"path={path}", f"out={tmp_path / 'out'}"]) == 0
    assert [p.name for p in tmp_path.rglob("hash_salt")] == ["hash_salt"]


@pytest.mark.parametrize("salt", ["a" * 64, "hunter2!" * 8, "0123456789" * 4, "abcdefghijklmnopqrstuvwxyz0123456789"])
def test_a_salt_that_is_easily_guessed_is_refused(tmp_path: Path, salt: str) -> None:
    path = tmp_path / "salt"
    path.touch(mode=0o600)
    path.write_text(salt, "utf-8")
    with pytest.raises(TraceError, match="repeats itself or counts up") as raised:
        get_salt(path)
    assert salt not in str(raised.value)


@pytest.mark.parametrize("make", [lambda: secrets.token_hex(16).encode(), lambda: secrets.token_bytes(64)])
def test_a_random_salt_is_taken_and_a_guess_at_it_costs(tmp_path: Path, make: Any, monkeypatch: Any) -> None:
    monkeypatch.undo()  # at the full price
    asked: list[int] = []
    scrypt = hashlib.scrypt
    monkeypatch.setattr("hashlib.scrypt", lambda *a, **k: asked.append(k["n"] * k["r"]) or scrypt(*a, **k))
    path = tmp_path / "salt"
    path.touch(mode=0o600)
    path.write_bytes(make())
    salt = get_salt(path)
    assert asked == [2**18]  # by 128 bytes: 32 MiB
    assert str(salt.key) not in repr(salt)


def test_a_salt_is_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraceError, match="a plain file"):
            get_salt(path)
    with pytest.raises(TraceError, match="can be read"):
        get_salt(tmp_path / ("x" * 300))
