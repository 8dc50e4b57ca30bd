"""Stamps in another unit than a format has stop with a question, in every format that has stamps."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples_public import chat
from traces import Trace, TraceError, load_trace


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def table(header: str, *columns: list[Any]) -> bytes:
    return "\n".join([header, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]).encode()


def azure(seconds: list[float]) -> bytes:
    start = datetime(2023, 11, 16, 18)
    stamps = [(start + timedelta(seconds=s)).strftime("%Y-%m-%d %H:%M:%S.%f0") for s in seconds]
    return table("TIMESTAMP,ContextTokens,GeneratedTokens", stamps, [9] * len(stamps), [9] * len(stamps))


def bailian(seconds: list[float]) -> bytes:
    return lines([chat(i, -1, s, 8, 8, []) for i, s in enumerate(seconds)])


def burstgpt(seconds: list[float]) -> bytes:
    n = len(seconds)
    return table("Timestamp,Request tokens,Response tokens", seconds, [9] * n, [9] * n)


def llmservingsim(seconds: list[float]) -> bytes:
    return lines([{"input_toks": 9, "output_toks": 9, "arrival_time_ns": round(s * 1e9)} for s in seconds])


def mooncake(seconds: list[float]) -> bytes:
    return lines([{"timestamp": s * 1e3, "input_length": 9, "output_length": 9, "hash_ids": []} for s in seconds])


def mooncake_turns(seconds: list[float]) -> bytes:
    rows = [{"timestamp": s * 1e3, "input_length": 9, "output_length": 9} for s in seconds]
    return lines([row | {"session_id": str(i)} for i, row in enumerate(rows)])


def mooncake_agentic(seconds: list[float]) -> bytes:
    rows = [{"timestamp": s * 1e3, "input_length": 9, "output_length": 9, "hash_ids": []} for s in seconds]
    return lines([row | {"request_id": str(i), "wait_for": []} for i, row in enumerate(rows)])


def vidur(seconds: list[float]) -> bytes:
    n = len(seconds)
    return table("arrived_at,num_prefill_tokens,num_decode_tokens", seconds, [9] * n, [9] * n)


FORMATS: dict[str, tuple[str, Callable[[list[float]], bytes]]] = {
    "azure": ("azure", azure),
    "bailian": ("bailian", bailian),
    "burstgpt": ("burstgpt", burstgpt),
    "llmservingsim": ("llmservingsim", llmservingsim),
    "mooncake": ("mooncake", mooncake),
    "mooncake with sessions": ("mooncake", mooncake_turns),
    "mooncake_agentic": ("mooncake_agentic", mooncake_agentic),
    "vidur": ("vidur", vidur),
}


def read(tmp_path: Path, name: str, seconds: list[float], **options: Any) -> Trace:
    form, write = FORMATS[name]
    (tmp_path / "log").write_bytes(write(seconds))
    return load_trace(tmp_path / "log", format=form, **options)


@pytest.mark.parametrize("name", FORMATS)
def test_rates_that_no_service_has_are_a_question(tmp_path: Path, name: str) -> None:
    for seconds, question in (
        ([3600.0 * i for i in range(12)], "less than 60 s apart on average, but they are 3,"),
        ([1e-6 * i for i in range(12)], "a rate below 100,000 requests/s, but 12 arrive within"),
        ([0.0] * 12, "a rate below 100,000 requests/s, but 12 arrive within 0 s"),
    ):
        with pytest.raises(TraceError, match=question) as found:
            read(tmp_path, name, seconds)
        assert "implausible=keep" in str(found.value)
        assert found.value.column
        assert found.value.row
        assert len(read(tmp_path, name, seconds, implausible="keep")) == 12
    with pytest.raises(TraceError, match=r"implausible'.*one of ask, keep; did you mean 'keep'"):
        read(tmp_path, name, [0.0] * 12, implausible="kept")


@pytest.mark.parametrize("name", FORMATS)
def test_few_requests_and_usual_rates_are_not_asked_about(tmp_path: Path, name: str) -> None:
    assert len(read(tmp_path, name, [0.0, 3600.0, 86_400.0])) == 3
    assert len(read(tmp_path, name, [0.05 * i for i in range(12)])) == 12
