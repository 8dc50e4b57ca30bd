"""Small valid files of the public formats that are not at hand, made by hand from their published schemas."""

from __future__ import annotations

import json
from typing import Any

from tests.traces.samples import azure_csv, mooncake_jsonl


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def chat(
    chat_id: int, parent: int, stamp: float, prompt: int, output: int, ids: list[int], **more: Any
) -> dict[str, Any]:
    record = {"chat_id": chat_id, "parent_chat_id": parent, "timestamp": stamp, "input_length": prompt}
    return record | {"output_length": output, "type": "text", "turn": 1, "hash_ids": ids} | more


# A conversation of three turns with a branch at its second, a lone file question, and an orphan. 16-token blocks.
BAILIAN = [
    chat(7, -1, 0.0, 40, 24, [1, 2, 90]),  # 2 full blocks; 64 tokens in all: 4 blocks
    chat(8, -1, 1.5, 20, 5, [1, 91], type="file"),
    chat(9, 7, 10.0, 80, 16, [1, 2, 3, 4, 5], turn=2),
    chat(11, 99, 12.0, 33, 1, [6, 7, 92], turn=4),  # its parent is not in the file
    chat(12, 9, 20.25, 100, 10, [1, 2, 3, 4, 5, 8, 93], turn=3),
    chat(13, 9, 30.0, 97, 10, [1, 2, 3, 4, 5, 9, 94], turn=3),  # a branch: a second answer to the same turn
]

LLMSERVINGSIM = [
    {"input_toks": 40, "output_toks": 8, "arrival_time_ns": 500_000_000},
    {"input_toks": 70, "output_toks": 1, "arrival_time_ns": 750_000_000},
]


def call(prompt: int, output: int, tool_ns: int | None = None, **more: Any) -> dict[str, Any]:
    return (
        {"input_toks": prompt, "output_toks": output}
        | ({} if tool_ns is None else {"tool_duration_ns": tool_ns})
        | more
    )


LLMSERVINGSIM_SESSIONS = [
    {
        "session_id": "a",
        "arrival_time_ns": 1_000_000_000,
        "sub_requests": [call(100, 20, 2_000_000_000), call(150, 30, 500_000_000), call(200, 5, 0)],
    },
    {"arrival_time_ns": 4_000_000_000, "input_toks": 9, "output_toks": 9},
    {"session_id": "b", "arrival_time_ns": 5_000_000_000, "sub_requests": [call(10, 10)]},
]

VIDUR = b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n2015,156,2171,12.9\n"
VIDUR_TIMES = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,591,140\n0.125,547,248\n"


def turn(session: str | None, prompt: int, output: int, ids: list[int], **more: Any) -> dict[str, Any]:
    record = {"input_length": prompt, "output_length": output, "hash_ids": ids} | more
    return record if session is None else {"session_id": session} | record


# The schema as AIPerf and Dynamo extended it; blocks of 512 tokens.
MOONCAKE_SESSIONS = [
    turn("a", 1100, 200, [0, 1, 90], timestamp=1000),
    turn("b", 700, 100, [0, 91], timestamp=2000.5),
    turn("a", 2100, 500, [0, 1, 3, 4, 93], delay=2500),
    turn("a", 2700, 20, [0, 1, 3, 4, 6, 96], delay=1000),
    turn(None, 600, 10, [0, 92], timestamp=9000),
]
MOONCAKE_DELTAS = [
    turn("a", 1100, 200, [0, 1, 90]),
    turn("a", 150, 30, [93], delay=2000),
    turn("b", 1030, 5, [0, 94]) | {"hash_ids": [0, 1, 94]},
    turn("a", 800, 10, [95, 96]),
]

BURSTGPT_HEADER = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURSTGPT = [
    "100.0,u-1,43,GPT-4,906,446,1352,Conversation log",
    "151.0,u-2,2,ChatGPT,36,29,65,Conversation log",
    "151.0,,7,ChatGPT,2000,5,2005,API log",
    "160.0,u-1,8,GPT-4,1400,123,1523,Conversation log",
    "161.0,,0,ChatGPT,0,0,0,API log",
    "165.0,u-1,3,ChatGPT,1300,178,1478,Conversation log",
]


def burstgpt_csv(rows: list[str] | None = None, header: str = BURSTGPT_HEADER) -> bytes:
    return "\n".join([header, *(BURSTGPT if rows is None else rows)]).encode() + b"\n"


BURSTGPT_OLD = b"""Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,API log
"""

# Azure 2024: a zone, and microseconds only where there are some.
AZURE_2024 = [
    "2024-05-12 00:00:00+00:00,1452,3",
    "2024-05-12 00:00:00.041683+00:00,584,3",
    "2024-05-12 00:00:01.500000+00:00,862,38",
]


def step(name: str, prompt: int, output: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"request_id": name, "input_length": prompt, "output_length": output, "hash_ids": ids} | more


# A main agent with two turns, a sub-agent that its first turn starts and its third waits for. Blocks of 64 tokens.
MOONCAKE_WORKFLOW = [
    step("m1", 200, 100, [1, 2, 3, 4], session_id="main", timestamp=1000.0),
    step("m2", 400, 50, [1, 2, 3, 5, 6, 7, 8], session_id="main", wait_for=["m1"], delay=500, tool_wait_ms=1500.0),
    step("s1", 130, 400, [1, 20, 21], session_id="sub", wait_for=["m1"], delay=100),
    step("m3", 500, 10, [1, 2, 3, 5, 6, 7, 9, 10], session_id="main", wait_for=["m2", "s1"]),
    step("x", 70, 5, [1, 30], timestamp=2500.0),
]


def after(name: str, delay_ms: float, trigger: str = "completion", relation: str = "sequence") -> dict[str, Any]:
    return {"request_id": name, "trigger": trigger, "delay_ms": delay_ms, "relation": relation}


MOONCAKE_PLAYS = [
    {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": 64,
        "hash_id_scope": "local",
        "source": {"format": "hand-made", "digest": "none"},
    },
    *(
        record | {"model": "m"}
        for play in ("p", "q")
        for record in (
            step(f"{play}1", 200, 100, [1, 2, 3, 4], play_id=play, session_id="s", not_before_ms=0.0)
            | {"recorded_api_time_ms": 4000.0},
            step(f"{play}2", 400, 50, [1, 2, 3, 5, 6, 7, 8], play_id=play, session_id="s", not_before_ms=0.0)
            | {"dependencies": [after(f"{play}1", 2000.0)]},
            step(f"{play}3", 90, 5, [1, 9], play_id=play, session_id="t", not_before_ms=0.0)
            | {"dependencies": [after(f"{play}1", 250.0, "dispatch", "spawn")]},
        )
    ),
]

VALID: dict[str, list[bytes]] = {
    "bailian": [lines(BAILIAN)],
    "llmservingsim": [lines(LLMSERVINGSIM), lines(LLMSERVINGSIM_SESSIONS)],
    "vidur": [VIDUR],
    "mooncake_agentic": [lines(MOONCAKE_WORKFLOW), lines(MOONCAKE_PLAYS[:4])],
    "burstgpt": [burstgpt_csv(), BURSTGPT_OLD],
    "azure": [azure_csv(), azure_csv(AZURE_2024)],
    "mooncake": [mooncake_jsonl(), lines(MOONCAKE_SESSIONS)],
}
OPTIONS: dict[str, dict[str, Any]] = {"vidur": {"rate_per_s": 2.0}, "burstgpt": {"zero_output": "drop"}}
