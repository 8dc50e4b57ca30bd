"""From what a router knows of a request to the record that the rule reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

from .rulebook import Rulebook
from .values import NAN, key_number, number, request_number, whole

MOST_SESSIONS = 100_000
MOST_TOKENS = 1 << 40
BYTES_PER_TOKEN = 4
"""Estimate of the prompt length where the router gives bytes and no tokens."""


def _attribute(source: Any, name: str) -> Any:
    return getattr(source, name, None)


class Session:
    """What the router remembers of a session: worker numbers of its last turn, when that ended, how many there were."""

    __slots__ = ("ended_s", "last_decode", "last_prefill", "turns")

    def __init__(self) -> None:
        self.last_prefill = self.last_decode = -1
        self.ended_s = NAN
        self.turns = 0


class Asks:
    """Makes request records; remembers sessions, the least recently used are forgotten first."""

    def __init__(self, book: Rulebook, replica: int) -> None:
        self.book = book
        self.replica = replica
        self.slo: dict[str, float] = book.manifest["slo"]
        self.sessions: OrderedDict[int, Session] = OrderedDict()

    def session(self, number_: int) -> Session:
        """The session's memory, made if it is new."""
        found = self.sessions.get(number_)
        if found is None:
            found = self.sessions[number_] = Session()
            if len(self.sessions) > MOST_SESSIONS:
                self.sessions.popitem(last=False)
        else:
            self.sessions.move_to_end(number_)
        return found

    def make(self, source: Any, key: Any, now_s: float, held: Any, mean_output_tokens: float) -> Any:
        """The record of the request ``source`` (a mapping, or anything with attributes) asked about now.

        Fields that are missing or no number take their declared value (REPRESENTABILITY.md lists them).
        ``held`` is the record of the same request's earlier question, None if there was none.
        """
        get: Any = source.get if isinstance(source, Mapping) else partial(_attribute, source)
        r = self.book.Request()
        r.id = request_number(key)
        r.now_s = now_s
        r.replica = self.replica
        prompt = whole(get("prompt_tokens"), 0)
        if prompt < 1:
            prompt = -(-whole(get("prompt_bytes"), 0) // BYTES_PER_TOKEN)
        r.prompt_tokens = min(max(1, prompt), MOST_TOKENS)
        r.arrival_s = number(get("arrival_s"), now_s if held is None else held.arrival_s, -1e15)
        r.holds = whole(get("holds"), 0 if held is None else held.holds + 1)
        r.max_output_tokens = whole(get("max_output_tokens"), -1)
        if r.max_output_tokens < 0:
            r.max_output_tokens = whole(get("max_tokens"), -1)
        r.output_hint_tokens = whole(get("output_hint_tokens"), -1)
        r.class_id = whole(get("class_id"), 0)
        r.tenant, r.model, r.lora = whole(get("tenant"), -1), whole(get("model"), -1), whole(get("lora"), -1)
        r.priority = whole(get("priority"), 0, -(1 << 53))
        r.slo_ttft_s = number(
            get("slo_ttft_s"), self.slo["ttft_base_s"] + self.slo["ttft_per_token_s"] * r.prompt_tokens
        )
        r.slo_tpot_s = number(get("slo_tpot_s"), self.slo["tpot_s"])
        given = get("session")
        r.session = -1 if given is None or given == -1 else key_number(given)
        known = self.sessions.get(r.session) if r.session >= 0 else None
        r.turn = whole(get("turn"), 1 if known is None else known.turns + 1, 1)
        if known is None:
            r.since_last_turn_s, r.last_prefill, r.last_decode = NAN, -1, -1
        else:
            r.since_last_turn_s = now_s - known.ended_s
            r.last_prefill, r.last_decode = known.last_prefill, known.last_decode
        r.mean_output_tokens = mean_output_tokens
        return r
