"""Asks the rule and judges the answer: the same steps for a router's decision and for a recorded view."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from .rulebook import Rulebook
from .values import INF, number, whole

PER_WORKER = "per_worker"


class Decision(NamedTuple):
    """What to do with a request.

    Attributes:
        kind: ``"route"``, ``"hold"`` or ``"reject"``.
        prefill: the prefill worker's id; None: the decode worker prefills (*local*), or no route.
        decode: the decode worker's id; None: chosen by ``bind_decode`` when the prefill ends (*late*), or no route.
        local, late: which of the two it is.
        order_key: order in the engine's queue, smaller first.
        local_chunk_tokens: most prefill tokens a step computes for this request; 0: the engine's budget.
        until_s: for a hold: ask again at this time.
        reason: the rule's own word for why.
        fallback: why the declared fallback decided in the rule's place; empty if it did not.
    """

    kind: str
    prefill: Any = None
    decode: Any = None
    local: bool = False
    late: bool = False
    order_key: float = 0.0
    local_chunk_tokens: int = 0
    until_s: float = 0.0
    reason: str = ""
    fallback: str = ""


class IllegalAnswerError(ValueError):
    """The rule answered what the contract does not allow; the message is a short cause, used as a metric label."""


class Runner:
    """The rule with its memory, for one router replica.

    Attributes:
        view: the workers in the order in which the rule sees them.
        by_number: the same by worker number.
    """

    def __init__(self, book: Rulebook, seed: int) -> None:
        self.book = book
        self.seed = seed
        self.params = book.namespace()
        self.memory: Any = SimpleNamespace(
            **{name: [] if start == PER_WORKER else start for name, start in book.memory.items()}
        )
        self._per_worker = [name for name, start in book.memory.items() if start == PER_WORKER]
        self.view: list[Any] = []
        self.by_number: dict[int, Any] = {}
        contract = book.contract
        self._local, self._late = contract.LOCAL, contract.LATE
        self._route, self._hold, self._reject = contract.ROUTE, contract.HOLD, contract.REJECT
        self._prefill_role, self._decode_role = contract.PREFILL, contract.DECODE

    def seat(self, workers: Sequence[Any]) -> None:
        """Take ``workers`` as the view; memory kept a worker moves with it, and starts at 0 for a new one."""
        for name in self._per_worker:
            kept = dict(zip((w.id for w in self.view), getattr(self.memory, name), strict=True))
            setattr(self.memory, name, [kept.get(w.id, 0.0) for w in workers])
        self.view = list(workers)
        self.by_number = {w.id: w for w in self.view}
        self.book.ties.seat([w.id for w in self.view])

    def ask(self, request: Any) -> Any:
        """The rule's own answer about ``request``, unjudged."""
        self.book.ties.prepare(self.seed, request.id)
        return self.book.decide(request, self.view, self.params, self.memory, self.seed)

    def ask_bind(self, request: Any) -> Any:
        """The rule's own answer to a late binding, unjudged."""
        if self.book.bind is None:
            raise IllegalAnswerError("no bind")
        self.book.ties.prepare(self.seed, request.id)
        return self.book.bind(request, self.view, self.params, self.memory, self.seed)

    def ask_shares(self) -> dict[int, float]:
        """Prefill shares of split workers by worker number; empty for a rule that sets none."""
        if self.book.shares is None:
            return {}
        answer: dict[int, float] = self.book.shares(self.view, self.book.params)
        return answer

    def judged(self, answer: Any, now_s: float) -> Decision:
        """The rule's answer as a Decision.

        Raises:
            IllegalAnswerError: what the contract does not allow.
        """
        kind, prefill, decode, order_key, chunk, source, until_s, reason = answer
        text = self._reason(reason)
        if kind == self._reject:
            return Decision("reject", reason=text)
        if kind == self._hold:
            if not now_s < until_s < INF:
                raise IllegalAnswerError("hold not later than now")
            return Decision("hold", until_s=float(until_s), reason=text)
        if kind != self._route:
            raise IllegalAnswerError("unknown kind")
        if chunk < 0:
            raise IllegalAnswerError("negative chunk")
        if source != 0:
            raise IllegalAnswerError("unknown kv source")
        if not -INF < order_key < INF:
            raise IllegalAnswerError("order key is no number")
        if prefill == decode:
            prefill = self._local
        here = None
        if decode == self._late:
            if prefill == self._local:
                raise IllegalAnswerError("local and late")
            if self.book.bind is None:
                raise IllegalAnswerError("late without bind")
        else:
            here = self._able(decode, "decode")
        if prefill == self._local:
            there = None
            if here is not None and not here.can_prefill:
                raise IllegalAnswerError("cannot prefill")
        else:
            there = self._able(prefill, "prefill")
        return Decision(
            "route",
            None if there is None else there.key,
            None if here is None else here.key,
            there is None,
            here is None,
            float(order_key),
            int(chunk),
            0.0,
            text,
        )

    def judged_bind(self, answer: Any, prefilled_by: Any) -> Any:
        """The worker that the rule bound a request to.

        Raises:
            IllegalAnswerError: unknown, cannot decode, or the one that prefilled.
        """
        here = self._able(answer, "decode")
        if here is prefilled_by:
            raise IllegalAnswerError("bound to its prefill worker")
        return here

    def _able(self, worker: Any, duty: str) -> Any:
        found = self.by_number.get(worker)
        if found is None:
            raise IllegalAnswerError("unknown worker")
        if not getattr(found, f"can_{duty}"):
            raise IllegalAnswerError(f"cannot {duty}")
        return found

    def _reason(self, reason: Any) -> str:
        index = whole(reason, 0)
        return self.book.reasons[index] if index < len(self.book.reasons) else ""

    # -- the declared fallback -----------------------------------------------------------------------

    def fallback(self, request: Any, cause: str) -> Decision:
        """Least decode requests, then most cached tokens; prefill by least pending tokens, then most cached.

        Roles come first, as in the rules: a decode worker prefills for others only where nobody else can. A worker
        that comes up for both duties serves the request alone. Without anybody to serve it the request is rejected.
        """
        here = self._least_loaded(request, None)
        there = min(
            (w for w in self.view if w.can_prefill),
            key=lambda w: (w.role == self._decode_role, w.prefill_tokens, -w.cached_tokens, self._tie(request, w)),
            default=None,
        )
        if here is None or there is None:
            return Decision("reject", reason="no worker can serve it", fallback=cause)
        if there is here:
            return Decision("route", None, here.key, local=True, reason="fallback", fallback=cause)
        return Decision("route", there.key, here.key, reason="fallback", fallback=cause)

    def fallback_bind(self, request: Any, prefilled_by: Any) -> Any:
        """Least decode requests among those that did not prefill the request; None if there is nobody."""
        return self._least_loaded(request, prefilled_by)

    def _least_loaded(self, request: Any, but: Any) -> Any:
        return min(
            (w for w in self.view if w.can_decode and w is not but),
            key=lambda w: (w.role == self._prefill_role, w.decode_requests, -w.cached_tokens, self._tie(request, w)),
            default=None,
        )

    def _tie(self, request: Any, worker: Any) -> float:
        return number(self.book.ties.tie_hash(self.seed, request.id, worker.id), 0.0)
