"""Small conversations and coding-agent sessions, made by hand after the published schemas."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

SYSTEM = "You are a careful gardener who answers in two short sentences and never talks about politics at all. " * 2

SHAREGPT: list[dict[str, Any]] = [
    {
        "id": "a_0",
        "conversations": [
            {"from": "system", "value": SYSTEM},
            {"from": "human", "value": "Why do tomatoes crack after a heavy rain in summer?"},
            {"from": "gpt", "value": "They take up water faster than their skin can grow. Mulch helps."},
            {"from": "human", "value": "With straw?"},
            {"from": "gpt", "value": "Yes, straw is fine, as long as it stays dry at the stem of the plant."},
        ],
    },
    {
        "id": "b_3",
        "conversations": [
            {"from": "system", "value": SYSTEM},
            {"from": "human", "value": "Which apple keeps best?"},
            {"from": "gpt", "value": "Ontario."},
            {"from": "gpt", "value": "It keeps until May."},
            {"from": "human", "value": "Thanks!"},
        ],
    },
    {"id": "c", "conversations": [{"from": "gpt", "value": "As I said."}, {"from": "human", "value": "What?"}]},
]
MESSAGES = [
    {"model": "m", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url"}]},
            {"role": "assistant", "content": "A cat."},
        ]
    },
]


def jsonl(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def request(t: float, tokens: int, out: int, ids: list[int], **more: Any) -> dict[str, Any]:
    kept = {"api_time": 2.0, "think_time": 1.0} | more
    fixed = {"t": t, "type": "n", "model": "m", "in": tokens, "out": out, "hash_ids": ids}
    return fixed | {name: value for name, value in kept.items() if value is not None}


def session() -> dict[str, Any]:
    """Two turns, a sub-agent that ran for 8 s, a turn that waited for it, and a compacted one; blocks of 64."""
    return {
        "id": "trace_0001",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 128,
        "system_tokens": 64,
        "requests": [
            request(0.0, 300, 30, [1, 2, 3, 4], think_time=0.0, ttft=0.5, type="s"),
            request(5.0, 400, 100, [1, 2, 3, 4, 5, 6], think_time=3.0),
            {
                "t": 15.5,
                "type": "subagent",
                "agent_id": "agent_001",
                "duration_ms": 8000,
                "status": "completed",
                "tool_tokens": 128,
                "system_tokens": 64,
                "requests": [
                    request(0.0, 200, 10, [1, 2, 20], think_time=0.0),
                    request(4.0, 260, 10, [1, 2, 20, 21], think_time=2.0),
                ],
            },
            request(17.0, 600, 5, [1, 2, 3, 4, 5, 6, 7, 8, 9], think_time=10.0, api_time=None),
            # The recorded think time of the last turn counts from the end of turn 2, for turn 3 has none.
            request(40.0, 200, 7, [1, 2, 10], think_time=33.0),
        ],
    }


def archive(sessions: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, content in enumerate(sessions):
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(f"traces/trace_{number:04d}.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


VALID: dict[str, list[bytes]] = {
    "sharegpt": [json.dumps(SHAREGPT, indent=1).encode(), jsonl(MESSAGES), jsonl(SHAREGPT)],
    "agentic_json": [json.dumps(session()).encode(), archive([session(), session() | {"id": "trace_0002"}])],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "sharegpt": {"rate_per_s": 2.0, "think_s": 5.0},
    "agentic_json": {"prefix_block_tokens": 64},
}
