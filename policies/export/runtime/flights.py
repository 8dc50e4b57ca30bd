"""Requests under way, and the counters that their events move (docs/engine.md, "What the router's counters count").

| counter                          | up                                     | down                          |
|----------------------------------|----------------------------------------|-------------------------------|
| prefill_requests, prefill_tokens | dispatched: max(1, prompt - cached)    | prefill done; local: token 1  |
| local_prefills                   | dispatched local                       | token 1                       |
| decode_requests                  | dispatched (late: bound)               | end                           |
| transfers                        | remote prefill done (late: bound)      | token 1                       |
| streams                          | token 1                                | end                           |
| decode_tokens                    | token 1: prompt + 1; later ones: 1     | end: all of them              |
| finished, failures               | end                                    |                               |

An event that a router never reported is made up for by the next one: a first token ends the prefill, an end ends all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from .values import INF

PREFILLING, HANDOVER, STREAMING = range(3)


class Flight:
    """One request between dispatch and end."""

    __slots__ = (
        "decode", "dispatched_s", "emitted", "key", "last_s", "local", "new_tokens", "prefill", "prompt", "request",
        "stage",
    )  # fmt: skip

    def __init__(self, key: Any, request: Any, prefill: Any, decode: Any, new_tokens: int, now_s: float) -> None:
        self.key, self.request = key, request
        self.local = prefill is decode
        self.prefill, self.decode = prefill, decode
        self.prompt: int = request.prompt_tokens
        self.new_tokens = new_tokens
        self.stage = PREFILLING
        self.emitted = 0
        self.dispatched_s = now_s
        self.last_s = now_s


class Flights:
    """All requests under way of one router replica.

    Attributes:
        open: by request id, oldest first.
        finished, output_tokens: of the requests that ended well.
    """

    def __init__(self) -> None:
        self.open: OrderedDict[Any, Flight] = OrderedDict()
        self.finished = 0
        self.output_tokens = 0

    def dispatched(self, key: Any, request: Any, prefill: Any, decode: Any, cached_tokens: int, now_s: float) -> Flight:
        """A route is on its way; ``decode`` None: it is late."""
        f = Flight(key, request, prefill, decode, max(1, request.prompt_tokens - cached_tokens), now_s)
        prefill.prefill_requests += 1
        prefill.prefill_tokens += f.new_tokens
        if f.local:
            prefill.local_prefills += 1
        if decode is not None:
            decode.decode_requests += 1
        self.open[key] = f
        return f

    def bound(self, f: Flight, decode: Any) -> None:
        """A late request has its decode worker."""
        f.decode = decode
        decode.decode_requests += 1
        if f.stage == HANDOVER:
            decode.transfers += 1

    def prefill_done(self, f: Flight) -> None:
        """A remote prefill ended; the end of a local one shows in its first token only."""
        if f.local or f.stage != PREFILLING:
            return
        self._prefill_over(f)
        f.stage = HANDOVER
        if f.decode is not None:
            f.decode.transfers += 1

    def first_token(self, f: Flight, now_s: float, prompt_tokens: int = 0) -> None:
        """The first token reached the client; ``prompt_tokens`` above 0 replaces what was an estimate."""
        w = f.decode
        if f.stage == STREAMING or w is None:
            return
        if prompt_tokens > 0:
            f.prompt = prompt_tokens
        self._before_stream_over(f)
        f.stage, f.emitted, f.last_s = STREAMING, 1, now_s
        w.streams += 1
        w.decode_tokens += f.prompt + 1
        tpot_s = f.request.slo_tpot_s
        w.objectives[tpot_s] = w.objectives.get(tpot_s, 0) + 1
        if tpot_s < w.min_slo_tpot_s:
            w.min_slo_tpot_s = tpot_s

    def token(self, f: Flight, now_s: float, tokens: int) -> None:
        """Further tokens of a stream."""
        if f.stage != STREAMING:
            self.first_token(f, now_s)
            tokens -= 1
            if f.stage != STREAMING:
                return
        if tokens <= 0:
            return
        f.emitted += tokens
        w = f.decode
        w.decode_tokens += tokens
        if now_s > f.last_s:
            w.last_tbt_s = now_s - f.last_s
        f.last_s = now_s

    def ended(self, f: Flight, output_tokens: int | None) -> None:
        """The last token was seen."""
        self.open.pop(f.key, None)
        self._leave(f)
        if f.decode is not None:
            f.decode.finished += 1
        self.finished += 1
        self.output_tokens += f.emitted if output_tokens is None else output_tokens

    def failed(self, f: Flight, blame: Any) -> None:
        """The request ended otherwise; ``blame`` is the worker whose failure it is, None for nobody's."""
        self.open.pop(f.key, None)
        self._leave(f)
        if blame is not None:
            blame.failures += 1

    def _prefill_over(self, f: Flight) -> None:
        f.prefill.prefill_requests -= 1
        f.prefill.prefill_tokens -= f.new_tokens

    def _before_stream_over(self, f: Flight) -> None:
        """Takes back what a request counts for until its first token."""
        if f.stage == PREFILLING:
            self._prefill_over(f)
            if f.local:
                f.prefill.local_prefills -= 1
        elif f.stage == HANDOVER and f.decode is not None:
            f.decode.transfers -= 1

    def _leave(self, f: Flight) -> None:
        self._before_stream_over(f)
        w = f.decode
        if w is None:
            return
        w.decode_requests -= 1
        if f.stage == STREAMING:
            w.streams -= 1
            w.decode_tokens -= f.prompt + f.emitted
            tpot_s = f.request.slo_tpot_s
            left = w.objectives.get(tpot_s, 0) - 1
            if left > 0:
                w.objectives[tpot_s] = left
            else:
                w.objectives.pop(tpot_s, None)
                if tpot_s <= w.min_slo_tpot_s:
                    w.min_slo_tpot_s = min(w.objectives, default=INF)
