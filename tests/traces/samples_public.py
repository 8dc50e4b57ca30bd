"""Small valid files of the public formats that are not at hand, made by hand from their published schemas."""

from __future__ import annotations

import json
from typing import Any


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

VALID: dict[str, list[bytes]] = {"bailian": [lines(BAILIAN)]}
OPTIONS: dict[str, dict[str, Any]] = {}
