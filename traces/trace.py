"""A trace: one validated row a request, prefix-block chains in CSR arrays, and a content hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces import transform
from traces.check import BY_NAME, CHUNK, COLUMNS, REPLAY_MODES, check_chains, check_frame, row_of
from traces.errors import TraceError, nearest

HASH_VERSION = b"pdgym-trace-1"


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival. Immutable; every method returns a new trace.

    Build one with :meth:`build`, which sorts and renumbers; the constructor takes final form only and checks it.

    Attributes:
        name: name of the trace, with what was done to it (``azure_conv[960,1440)``).
        frame: (n,) rows, the columns of :data:`traces.check.COLUMNS`, sorted by (arrival_s, session, turn).
        chain_offsets: (n+1,) CSR offsets into ``chain_ids``.
        chain_ids: dense prefix-block ids. A request's chain is the full blocks of its prompt, then those that
            its output completes, as far as known. An id names the whole prefix up to and including its block.
        prefix_block_tokens: tokens of a prefix block; 0 if the trace has no prefix information.
        replay: the trace's natural mode. ``open``: arrivals at their stamps. ``closed``: turn k+1 arrives
            ``think_s`` after turn k ends. ``clients``: as closed, each session is one benchmark user.
        classes: service classes that the column ``class`` may hold; a request's class id is its index here.
        provenance: where the data came from and what was done to it, in order.
        duration_s: observed time, at least the last arrival that the trace fixes: of any request in open replay,
            of a first turn otherwise. 0 becomes that arrival. Rates and windows use it.
    """

    name: str
    frame: pl.DataFrame
    chain_offsets: NDArray[np.int64]
    chain_ids: NDArray[np.int32]
    prefix_block_tokens: int
    replay: str = "open"
    classes: tuple[str, ...] = ("default",)
    provenance: tuple[str, ...] = ()
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        """Check everything; see :class:`TraceError`."""
        check_frame(self.frame, self.name)
        tokens = self.frame["prompt_tokens"]
        if self.chain_ids.size:
            tokens = tokens + self.frame["output_tokens"]
        check_chains(self.chain_offsets, self.chain_ids, self.prefix_block_tokens, tokens.to_numpy(), self.name)
        for array in (self.chain_offsets, self.chain_ids):
            array.setflags(write=False)
        if self.replay not in REPLAY_MODES:
            expected = f"one of {', '.join(REPLAY_MODES)}{nearest(str(self.replay), REPLAY_MODES)}"
            raise TraceError(file=self.name, column="replay", value=self.replay, expected=expected)
        if self.replay != "open":
            unknown = self.frame["think_s"].is_null().to_numpy() & (self.frame["turn"].to_numpy() > 1)
            if unknown.any():
                expected = f"a think time on every later turn, which replay={self.replay} needs"
                raise TraceError(file=self.name, row=row_of(unknown), column="think_s", expected=expected)
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise TraceError(file=self.name, column="classes", value=self.classes, expected="distinct class names")
        if "class" in self.frame.columns:
            known = self.frame["class"].is_in(list(self.classes)).to_numpy()
            if not known.all():
                row = row_of(~known)
                value = self.frame["class"][row - 1]
                expected = f"one of {', '.join(self.classes)}{nearest(value, self.classes)}"
                raise TraceError(file=self.name, row=row, column="class", value=value, expected=expected)
        last = transform.last_start_s(self.frame["arrival_s"].to_numpy(), self.frame, self.replay)
        if self.duration_s == 0.0:
            object.__setattr__(self, "duration_s", last)
        if not last <= self.duration_s < np.inf:
            expected = f"at least the last arrival, {last:.6f} s"
            raise TraceError(file=self.name, column="duration_s", value=self.duration_s, expected=expected)

    @classmethod
    def build(
        cls,
        name: str,
        columns: Mapping[str, Any] | pl.DataFrame,
        *,
        chain_offsets: NDArray[Any] | None = None,
        chain_ids: NDArray[Any] | None = None,
        prefix_block_tokens: int = 0,
        replay: str = "open",
        classes: Sequence[str] | None = None,
        provenance: Sequence[str] = (),
        duration_s: float = 0.0,
    ) -> Trace:
        """Bring columns into final form: fill in, cast, sort, renumber sessions and prefix ids, check.

        Args:
            name: name of the trace.
            columns: (n,) arrays by column name. ``session`` and ``turn`` may be absent (no sessions), as may
                ``think_s``. Sessions may be any integers, negative for none.
            chain_offsets: (n+1,) CSR offsets into ``chain_ids``, in the order of ``columns``.
            chain_ids: prefix-block ids, any non-negative integers.
            prefix_block_tokens: tokens of a prefix block, 0 if there are no chains.
            replay: natural replay mode.
            classes: class names in order; None takes the column ``class`` in alphabetical order.
            provenance: where the data came from.
            duration_s: observed time, 0 for the last arrival.

        Raises:
            TraceError: the columns are no valid trace.
        """
        frame = pl.DataFrame(columns)
        for column, missing in (("session", -1), ("turn", 1), ("think_s", None)):
            if column not in frame.columns:
                frame = frame.with_columns(pl.lit(missing, BY_NAME[column].dtype).alias(column))
        frame = frame.select([c.name for c in COLUMNS if c.name in frame.columns] + _unknown(frame))
        frame = _cast(frame, name)
        offsets = np.zeros(frame.height + 1, np.int64) if chain_offsets is None else np.asarray(chain_offsets, np.int64)
        ids = np.zeros(0, np.int64) if chain_ids is None else np.asarray(chain_ids)
        if _sortable(frame):
            frame, order = _sort(frame)
            if order is not None and offsets.size == frame.height + 1:
                offsets, ids = transform.gather_chains(offsets, ids, order)
        ids = _dense(ids, name)
        if classes is None:
            given = frame["class"].drop_nulls().unique().sort().to_list() if "class" in frame.columns else []
            classes = given or ["default"]
        return cls(
            name, frame, offsets, ids, prefix_block_tokens, replay, tuple(classes), tuple(provenance), duration_s
        )

    def __len__(self) -> int:
        """Number of requests."""
        return self.frame.height

    def __repr__(self) -> str:
        """One line: name, size, span, mode."""
        return (
            f"Trace({self.name!r}, {len(self)} requests, {self.n_sessions} sessions, {self.duration_s:.1f} s, "
            f"replay={self.replay}, prefix_block_tokens={self.prefix_block_tokens})"
        )

    @property
    def n_sessions(self) -> int:
        """Number of sessions (requests without one are not counted)."""
        return int(self.frame["session"].max()) + 1  # type: ignore[arg-type]

    @property
    def n_prefix_ids(self) -> int:
        """Number of distinct prefix-block ids."""
        return int(self.chain_ids.max()) + 1 if self.chain_ids.size else 0

    @property
    def rate_per_s(self) -> float:
        """Requests per second of observed time: the offered load (inf if all start at once)."""
        return len(self) / self.duration_s if self.duration_s > 0 else float("inf")

    @cached_property
    def sha256(self) -> str:
        """Hash of the content: columns, chains, block size, mode, classes, duration. Not of name and provenance."""
        digest = hashlib.sha256(HASH_VERSION)
        head = (self.prefix_block_tokens, self.replay, self.classes, float(self.duration_s).hex(), len(self))
        digest.update(repr(head).encode())
        for column in COLUMNS:
            if column.name in self.frame.columns:
                digest.update(f"|{column.name}:{column.dtype}|".encode())
                for part in _canonical(self.frame[column.name]):
                    digest.update(part)
        digest.update(b"|chains|")
        for part in chain(_bytes(self.chain_offsets, "<i8"), _bytes(self.chain_ids, "<i4")):
            digest.update(part)
        return digest.hexdigest()

    def chain(self, request: int) -> NDArray[np.int32]:
        """Prefix-block ids of one request (row from 0)."""
        return self.chain_ids[self.chain_offsets[request] : self.chain_offsets[request + 1]]

    def with_replay(self, mode: str) -> Trace:
        """The same requests, replayed in another mode; ``closed`` needs think times on later turns."""
        if mode == self.replay:
            return self
        last = float(self.frame["arrival_s"][-1]) if mode == "open" else 0.0
        return replace(self, replay=mode, duration_s=max(self.duration_s, last))

    def named(self, name: str, *notes: str) -> Trace:
        """The same content under another name, with notes added to the provenance."""
        return replace(self, name=name, provenance=(*self.provenance, *notes))

    def window(self, start_s: float, end_s: float, *, across: str | None = None) -> Trace:
        """See :func:`traces.transform.window`."""
        return transform.window(self, start_s, end_s, across=across)

    def split(self, train: float = 0.4, validation: float = 0.2, test: float = 0.4) -> dict[str, Trace]:
        """See :func:`traces.transform.split`."""
        return transform.split(self, train, validation, test)

    def windows(self, n: int, *, across: str | None = None) -> list[Trace]:
        """See :func:`traces.transform.windows`."""
        return transform.windows(self, n, across=across)

    def scale_rate(self, factor: float) -> Trace:
        """See :func:`traces.transform.scale_rate`."""
        return transform.scale_rate(self, factor)


def _sortable(frame: pl.DataFrame) -> bool:
    """What is missing or of a wrong type is left for the check to name."""
    keys = [BY_NAME[name] for name in ("arrival_s", "session", "turn")]
    typed = frame.height > 0 and all(
        key.name in frame.columns and frame.schema[key.name] == key.dtype and not frame[key.name].null_count()
        for key in keys
    )
    return typed and bool(frame["arrival_s"].is_finite().all())


def _unknown(frame: pl.DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in BY_NAME]


def _cast(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    casts = []
    for column in frame.columns:
        want = BY_NAME[column].dtype if column in BY_NAME else None
        have = frame.schema[column]
        if want is not None and have != want and (have.is_numeric() or have == pl.Null or have == pl.Boolean):
            # Only lossless casts: a fraction or an overflow becomes an error below, not a rounded value.
            casts.append(pl.col(column).cast(want, strict=True))
            if have.is_float() and want.is_integer():
                values = frame[column]
                bad = (values.is_not_null() & (values.floor() != values)).fill_null(False).to_numpy()
                bad |= (~values.is_finite()).fill_null(False).to_numpy()
                if bad.any():
                    row = row_of(bad)
                    raise TraceError(
                        file=name, row=row, column=column, value=values[row - 1], expected="a whole number"
                    )
    try:
        return frame.with_columns(casts) if casts else frame
    except pl.exceptions.PolarsError as error:
        raise TraceError(file=name, expected="numbers that fit 64 bits") from error


def _sort(frame: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.int64] | None]:
    """Sort by (arrival_s, session, turn) with sessions numbered by first arrival; the order, or None if kept."""
    arrival, session, turn = (frame[name].to_numpy() for name in ("arrival_s", "session", "turn"))
    if np.signbit(arrival).any():
        arrival = arrival + 0.0  # -0.0 becomes 0.0: equal content, equal hash
        frame = frame.with_columns(pl.Series("arrival_s", arrival))
    dense = _number_sessions(session, arrival)
    if dense is not session:
        frame = frame.with_columns(pl.Series("session", dense))
    order = _order(arrival, dense, turn)
    return (frame, None) if order is None else (frame[order], order)


def _number_sessions(session: NDArray[np.int64], arrival: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sessions numbered from 0 by first arrival (at the same time: by their number), -1 for none."""
    low, high = int(session.min()), int(session.max())
    if high < 0:
        return np.full(session.size, -1, np.int64)
    inside: NDArray[np.int64] | slice = slice(None) if low >= 0 else np.flatnonzero(session >= 0)
    label, when = session[inside], arrival[inside]
    if high < 4 * label.size + 1024:  # numbers that may be indices
        start = np.full(high + 1, np.inf)
        np.minimum.at(start, label, when)
        old = np.flatnonzero(start < np.inf)
        start = start[old]
        if old.size == high + 1 and (start[1:] >= start[:-1]).all() and low >= 0:
            return session  # they are so numbered already
        rank_of = np.full(high + 1, -1, np.int64)
        rank_of[old[np.argsort(start, kind="stable")]] = np.arange(old.size)
        ranked = rank_of[label]
    else:
        old, inverse = np.unique(label, return_inverse=True)
        start = np.full(old.size, np.inf)
        np.minimum.at(start, inverse, when)
        rank = np.empty(old.size, np.int64)
        rank[np.argsort(start, kind="stable")] = np.arange(old.size)
        ranked = rank[inverse]
    if low >= 0:
        return ranked
    dense = np.full(session.size, -1, np.int64)
    dense[inside] = ranked
    return dense


def _order(
    arrival: NDArray[np.float64], session: NDArray[np.int64], turn: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The order by (arrival, session, turn), None for rows that are in it. Only what arrives together is sorted."""
    if (arrival[1:] < arrival[:-1]).any():
        return np.lexsort((turn, session, arrival))
    same = arrival[1:] == arrival[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    sorted_ = tied[np.lexsort((turn[tied], session[tied], arrival[tied]))]
    if (sorted_ == tied).all():
        return None
    order = np.arange(arrival.size)
    order[tied] = sorted_
    return order


def _dense(ids: NDArray[Any], name: str) -> NDArray[np.int32]:
    """Renumber prefix ids by first appearance."""
    if not ids.size:
        return np.zeros(0, np.int32)
    low, high = int(ids.min()), int(ids.max())
    if low < 0:
        raise TraceError(file=name, column="chain_ids", value=low, expected="ids of 0 or more")
    if high >= 4 * ids.size + 1024:  # sparse hashes: make them small first
        ids = np.unique(ids, return_inverse=True)[1].reshape(-1)
        high = int(ids.max())
    first = np.full(high + 1, -1, np.int64)
    first[ids[::-1]] = np.arange(ids.size - 1, -1, -1)  # the last write is the first appearance
    appears = np.zeros(ids.size, np.bool_)
    appears[first[first >= 0]] = True
    rank = np.cumsum(appears, dtype=np.int32)  # of a position: ids that have appeared up to it
    return np.asarray(rank[first[ids]] - 1, np.int32)


def _canonical(values: pl.Series) -> Iterator[bytes]:
    """Bytes that depend on the values only: null mask, then little-endian numbers or length-prefixed text."""
    if values.null_count():
        yield b"n" + np.packbits(values.is_null().to_numpy()).tobytes()
    parts = [values.slice(at, CHUNK) for at in range(0, values.len(), CHUNK)]
    if values.dtype == pl.String:
        for part in parts:
            yield part.fill_null("").str.len_bytes().to_numpy().astype("<i8").tobytes()
        for part in parts:
            yield "".join(part.fill_null("").to_list()).encode()
        return
    for part in parts:
        numbers = part.fill_null(0).to_numpy()
        if values.dtype == pl.Float64:
            yield (numbers + 0.0).astype("<f8", copy=False).tobytes()
        else:
            yield numbers.astype("<i8", copy=False).tobytes()


def _bytes(numbers: NDArray[Any], dtype: str) -> Iterator[bytes]:
    for at in range(0, numbers.size, CHUNK):
        yield numbers[at : at + CHUNK].astype(dtype, copy=False).tobytes()
