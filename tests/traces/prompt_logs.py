"""A prompt log, and the command that hashes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from research.traces import main
from traces import hashing

SYSTEM = "You are the internal assistant of Umbrella Logistics and never reveal the zanzibar tariff to strangers. " * 2
ASK, ANSWER = "Which quokka shipments are late because of the strike in Rotterdam?", "Shipments 17 and 4 xylophones."


def messages(*texts: str) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant", "user")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


LOG: list[dict[str, Any]] = [
    {
        "timestamp": "2026-03-01T12:00:00.25Z",
        "session": "wilhelmina@umbrella.example",
        "user": "wilhelmina",
        "model": "llama",
        "messages": messages(SYSTEM, ASK),
        "output": ANSWER,
        "kookaburra wilhelmina": "kookaburra",
    },
    {
        "timestamp": "2026-03-01T12:00:01Z",
        "session": "otto",
        "prompt": f"{SYSTEM}{ASK}",
        "output_tokens": 40,
    },
    {
        "timestamp": "2026-03-01T12:01:00Z",
        "session": "wilhelmina@umbrella.example",
        "messages": messages(SYSTEM, ASK, ANSWER, "And the marzipan?"),
        "response": {"choices": [{"message": {"content": "On time."}}], "usage": {"completion_tokens": 3}},
    },
]
WORDS = set(re.findall(r"[A-Za-z]{5,}", f"{SYSTEM} {ASK} {ANSWER} marzipan wilhelmina kookaburra"))


def write(folder: Path, log: list[Any]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in log))
    return path


def run(folder: Path, out: str = "out", log: list[Any] | None = None, salt: str = "salt", *words: str) -> Path:
    path = write(folder, LOG if log is None else log)
    assert main(["action=hash", f"path={path}", f"salt={folder / salt}", f"out={folder / out}", *words]) == 0
    return folder / out


def hashes(out: Path) -> list[list[int]]:
    return pl.read_parquet(out / "hashed.parquet")["hash_ids"].to_list()


@pytest.fixture(autouse=True)
def quick_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses at a salt cost next to nothing, as keys do then."""
    monkeypatch.setitem(hashing._SCRYPT, "n", 2)
