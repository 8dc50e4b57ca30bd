"""The workers as the router knows them: identity, capabilities, the predictor's law, scraped metrics.

A worker is one record with the contract's fields as slots. Events change the fields that they move, in place; a
decision touches only what depends on the request or the clock.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from .rulebook import ExportError, Rulebook
from .values import INF, NAN, key_number, number, whole

COUNTERS = (
    "prefill_requests",
    "prefill_tokens",
    "local_prefills",
    "decode_requests",
    "decode_tokens",
    "streams",
    "transfers",
    "finished",
    "failures",
)
LAW = (
    "floor_s",
    "c0_s",
    "c_tok_s",
    "c_attn_s",
    "c_seq_s",
    "c_kv_s",
    "kv_bytes_per_token",
    "handover_s",
    "link_bytes_per_s",
)
FLAGS = ("can_prefill", "can_decode", "prefix_cache")
SIZES = ("group", "rack", "kv_capacity_tokens", "max_batched_tokens", "max_num_seqs")
SETTINGS = ("id", "role", "profile", "age_s", *FLAGS, *SIZES, *LAW)
SCRAPED = {
    "scraped_running": ("running", "num_requests_running"),
    "scraped_waiting": ("waiting", "num_requests_waiting"),
    "scraped_kv_usage": ("kv_usage", "kv_cache_usage_perc"),
    "scraped_pinned": ("pinned",),
}
MOST_WORKERS = 65_536
"""Ids seen in candidate lists are taken in up to here; beyond, they are ignored and counted."""


class Board:
    """Workers by id, in order of arrival.

    Attributes:
        workers: the records, in the order of the view.
        version: counts changes of membership.
        bad: inputs that could not be used.
    """

    def __init__(self, book: Rulebook, max_metric_age_s: float) -> None:
        manifest = book.manifest
        self.book = book
        self.roles: dict[str, dict[str, Any]] = manifest["roles"]
        self.profiles: dict[str, dict[str, Any]] = manifest["profiles"]
        self.default_profile: str = manifest["default_profile"]
        self.max_metric_age_s = max_metric_age_s
        self.workers: list[Any] = []
        self.by_key: dict[Any, Any] = {}
        self.by_number: dict[int, Any] = {}
        self.version = 0
        self.bad = 0
        reads = set(manifest["reads"]["worker"])
        self._ages = "age_s" in reads
        self._scrapes = not reads.isdisjoint({"scrape_age_s", *SCRAPED})
        self._hinted: list[Any] = []  # workers whose cached_tokens is not 0
        self._up: Any = None

    # -- membership ----------------------------------------------------------------------------------

    def add(self, settings: Any, now_s: float) -> Any:
        """Take a worker in; settings that are not given come from its role and profile.

        Raises:
            ExportError: an unknown setting, role or profile, or an id that is known already.
        """
        given: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {"id": settings}
        for name in given:
            if name not in SETTINGS:
                raise ExportError(f"worker setting {name!r}: unknown{_nearest(name, SETTINGS)}")
        if "id" not in given:
            raise ExportError("worker: expected an id")
        key = given["id"]
        if key in self.by_key:
            raise ExportError(f"worker {key!r}: there is one with this id already")
        role, profile = given.get("role", "mixed"), given.get("profile", self.default_profile)
        if role not in self.roles:
            raise ExportError(
                f"worker {key!r}: role {role!r}{_nearest(role, self.roles)}: expected {_list(self.roles)}"
            )
        if profile not in self.profiles:
            raise ExportError(
                f"worker {key!r}: profile {profile!r}{_nearest(profile, self.profiles)}: "
                f"expected {_list(self.profiles)}"
            )
        return self._make(key, role, {**self.profiles[profile], **self.roles[role], **given}, now_s)

    def _make(self, key: Any, role: str, settings: Mapping[str, Any], now_s: float) -> Any:
        w = self.book.Worker()
        code = key_number(key)
        while code in self.by_number:
            code += 1
        w.id, w.key, w.role = code, key, self.book.contract.ROLES.index(role)
        for name in FLAGS:
            setattr(w, name, 1 if settings.get(name, True) else 0)
        for name in SIZES:
            setattr(w, name, whole(settings.get(name), code if name == "group" else 0))
        w.max_batched_tokens = max(1, w.max_batched_tokens)
        for name in LAW:
            setattr(w, name, number(settings.get(name), 0.0))
        for name in COUNTERS:
            setattr(w, name, 0)
        w.base_prefill, w.base_decode = w.can_prefill, w.can_decode
        w.age_s = number(settings.get("age_s"), 0.0)
        w.started_s = now_s - w.age_s
        w.last_tbt_s, w.min_slo_tpot_s, w.cached_tokens, w.objectives = NAN, INF, 0, {}
        self._forget_scrape(w)
        self.workers.append(w)
        self.by_key[key] = self.by_number[code] = w
        self.version += 1
        return w

    def remove(self, key: Any) -> Any:
        """Take a worker out; what is in flight there still ends on its record. None if it is not known."""
        w = self.by_key.pop(key, None)
        if w is not None:
            del self.by_number[w.id]
            self.workers = [other for other in self.workers if other is not w]
            self.version += 1
        return w

    # -- candidates ----------------------------------------------------------------------------------

    def take_up(self, prefill: Any, decode: Any, now_s: float, cached: dict[Any, Any]) -> None:
        """Who is up for which duty, and the metrics that came with the list; None: everybody.

        A worker of the decode list may prefill its own requests if it is able to.
        """
        if prefill is None and decode is None and self._up is None:
            return
        p = None if prefill is None else self._listed(prefill, now_s, cached)
        d = None if decode is None else self._listed(decode, now_s, cached)
        fresh = [key for keys in (p, d) if keys for key in keys if key not in self.by_key]
        for key in fresh:
            self._take_in(key, p, d, now_s)
        for listed in (p, d) if self._scrapes else ():  # a rule that reads no metric need not wait for them
            for key, metrics in (listed or {}).items():
                if metrics is not None and (w := self.by_key.get(key)) is not None:
                    self.observe(w, metrics, now_s)
        up = (None if p is None else tuple(p), None if d is None else tuple(d), self.version)
        if up == self._up:
            return
        self._up = up if p is not None or d is not None else None
        for w in self.workers:
            decodes = d is None or w.key in d
            w.can_decode = w.base_decode if decodes else 0
            prefills = p is None or w.key in p or (decodes and w.base_decode)
            w.can_prefill = w.base_prefill if prefills else 0

    def _listed(self, items: Any, now_s: float, cached: dict[Any, Any]) -> dict[Any, Any]:
        """Id -> metrics (or None) of a candidate list; entries without a usable id are counted and left out."""
        found: dict[Any, Any] = {}
        try:
            for item in items:
                metrics = item if isinstance(item, Mapping) else None
                key = item.get("id") if isinstance(item, Mapping) else item
                try:
                    if key is None or (isinstance(key, float) and key != key):
                        raise TypeError("no id")
                    found[key] = metrics
                except TypeError:
                    self.bad += 1
                    continue
                if metrics is not None:
                    hit = metrics.get("cached_tokens", metrics.get("overlap_tokens"))
                    if hit is not None:
                        cached[key] = hit
        except Exception:
            self.bad += 1
        return found

    def _take_in(self, key: Any, p: Any, d: Any, now_s: float) -> None:
        """A worker that is first heard of in a candidate list: its role by the lists, the rest by default."""
        if key in self.by_key:
            return
        if len(self.workers) >= MOST_WORKERS:
            self.bad += 1
            return
        role = (
            "mixed"
            if p is not None and d is not None and key in p and key in d
            else "decode"
            if d and key in d
            else "prefill"
        )
        settings = {**self.profiles[self.default_profile], **self.roles[role]}
        metrics = (p or {}).get(key) or (d or {}).get(key)
        if isinstance(metrics, Mapping):
            settings |= {name: metrics[name] for name in SETTINGS[3:] if metrics.get(name) is not None}
        self._make(key, role, settings, now_s)

    # -- metrics -------------------------------------------------------------------------------------

    def observe(self, w: Any, metrics: Mapping[str, Any], now_s: float) -> None:
        """Take scraped metrics in; what is missing or no number stays unknown (NaN)."""
        values = {name: number(_first(metrics, (name, *others)), NAN) for name, others in SCRAPED.items()}
        if all(value != value for value in values.values()):
            return
        for name, value in values.items():
            setattr(w, name, value)
        age_s = number(_first(metrics, ("metrics_age_s", "scrape_age_s")), 0.0)
        w.scraped_at, w.scrape_age_s, w.expired = now_s - age_s, age_s, False

    def _forget_scrape(self, w: Any) -> None:
        for name in SCRAPED:
            setattr(w, name, NAN)
        w.scrape_age_s, w.scraped_at, w.expired = INF, -INF, True

    # -- what a decision needs -----------------------------------------------------------------------

    def refresh(self, now_s: float, prompt_tokens: int, cached: Mapping[Any, Any]) -> dict[Any, int]:
        """Bring the fields up that depend on the clock or on the request; others are current already.

        Returns:
            Cached tokens by worker id, where there are any.
        """
        if self._ages:
            for w in self.workers:
                w.age_s = now_s - w.started_s if now_s > w.started_s else 0.0
        if self._scrapes:
            for w in self.workers:
                if not w.expired:
                    age_s = now_s - w.scraped_at
                    w.scrape_age_s = age_s if age_s > 0.0 else 0.0
                    if age_s > self.max_metric_age_s:
                        self._forget_scrape(w)
        for w in self._hinted:
            w.cached_tokens = 0
        self._hinted = []
        hits: dict[Any, int] = {}
        for key, tokens in cached.items():
            hit: Any = self.by_key.get(key)
            if hit is not None and hit.prefix_cache:
                # one token is always computed
                hits[key] = hit.cached_tokens = min(whole(tokens, 0), max(0, prompt_tokens - 1))
                self._hinted.append(hit)
        return hits


def _first(metrics: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        if (value := metrics.get(name)) is not None:
            return value
    return None


def _nearest(word: Any, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
