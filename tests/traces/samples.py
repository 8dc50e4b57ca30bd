"""Small valid files of every format, made by hand, and a few helpers."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from traces import load_trace
from traces.readers import canonical

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = [
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:46.6805901,396,109",
    "2023-11-16 18:15:50.9951690,879,55",
]


def azure_csv(rows: list[str] | None = None, header: str = AZURE_HEADER) -> bytes:
    return "\n".join([header, *(AZURE if rows is None else rows)]).encode() + b"\n"


def mooncake_record(stamp: int, prompt: int, output: int, ids: list[int]) -> dict[str, object]:
    return {"timestamp": stamp, "input_length": prompt, "output_length": output, "hash_ids": ids}


# Two conversations and a lone question. Every prompt starts with block 0 (the system prompt).
MOONCAKE = [
    mooncake_record(0, 1100, 200, [0, 1, 90]),  # conversation A, turn 1: 2 full blocks
    mooncake_record(0, 1030, 50, [0, 2, 91]),  # conversation B, turn 1
    mooncake_record(3000, 600, 10, [0, 92]),  # alone: one block says nothing
    mooncake_record(60000, 2100, 500, [0, 1, 3, 4, 93]),  # A, turn 2: prompt + answer + 800 new
    mooncake_record(60000, 1030, 70, [0, 2, 94]),  # the same prompt as B again: a retry, no turn
    mooncake_record(120000, 1600, 30, [0, 2, 5, 95]),  # B, turn 2
    mooncake_record(180000, 2700, 20, [0, 1, 3, 4, 6, 96]),  # A, turn 3
]


def mooncake_jsonl(records: list[dict[str, object]] | None = None) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in (MOONCAKE if records is None else records))


def agentic_frame() -> pl.DataFrame:
    """Four streams of two sessions, a near-duplicate of the first and a sub-agent; blocks of 64 tokens."""
    rows = [
        # trace, sub, turn, t, in, out, lcp, seen, api, think, family
        ("t1", "", 0, 0.0, 1024, 100, 0, 0, 5.0, 0.0, "t1"),
        ("t1", "", 1, 15.0, 2048, 0, 16, 16, 5.0, 10.0, "t1"),
        ("t1", "", 2, 40.0, 640, 64, 4, 10, None, None, "t1"),  # compaction, then back to the first turn's text
        ("t1", "agent_001", 0, 0.0, 512, 10, 0, 0, 1.0, 0.0, "t1"),
        ("t2", "", 0, 0.0, 5000, 10, 0, 0, 2.0, 0.0, "t2"),
        ("t3", "", 0, 0.0, 1024, 100, 0, 0, 5.0, 0.0, "t1"),
        ("t3", "", 1, 15.0, 2048, 50, 16, 16, 5.0, 600.0, "t1"),
    ]
    names = ["trace_id", "subagent", "turn", "t", "input_length", "output_length", "lcp_prev_blocks"]
    names += ["prefix_seen_blocks", "api_time", "think_time", "family"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    return frame.with_columns(model=pl.lit("m"), n_blocks=pl.col("input_length") // 64)


def parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


TABLE = """arrival_s,prompt_tokens,output_tokens,session,turn,think_s,class
0,100,10,a,1,,chat
0.5,200,20,b,1,0,chat
4,150,30,a,2,1.5,batch
5,50,5,,1,,chat
"""


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _canonical() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        canonical.write(load_trace("default").windows(200)[0], Path(folder) / "x.parquet")
        return (Path(folder) / "x.parquet").read_bytes()


VALID: dict[str, list[bytes]] = {
    "azure": [azure_csv()],
    "mooncake": [mooncake_jsonl()],
    "agentic": [parquet(agentic_frame())],
    "table": [TABLE.encode()],
    "pdgym": [_canonical()],
}
OPTIONS: dict[str, dict[str, Any]] = {"agentic": {"zero_output": "one"}, "azure": {"sort": True}}
