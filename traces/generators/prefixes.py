"""What the prompts of different sessions share: system prompts, and documents behind them.

* ``systems``: beginnings that a good part of all sessions has (a system prompt, a block of tools), with their length
  and share.
* ``documents``: what stands behind, session by session: a document, a repository, a question asked again. Sessions
  draw documents by Zipf's law, ``p(rank) ~ rank ** -exponent``, over ``documents`` ranks. A rank gives way to a fresh
  document after ``life_sessions`` session starts on average: real reuse is local in time, and the hit rate of a long
  trace does not creep up to 1. All three numbers are fitted to how the share of sessions that meet a known document
  grows with the number of sessions in a row.
* How much two sessions share of a document (``kept_ratio`` of the prompt), and how alike their prompt lengths are
  (``length_correlation`` of ranks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.generators.marginal import Marginal
from traces.generators.sessions import share
from traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SYSTEM_SHARE = 0.02  # of all sessions, to be taken for a system prompt
_SYSTEM_SESSIONS = 10
_SAME = 0.9  # of the sessions of a system prompt that go on alike, for it to be longer still
_MAX_SYSTEMS = 20
_MAX_DOCUMENTS = 10_000_000
_FEW_MATES = 10  # sessions that meet a known document, below which there is nothing to fit


@dataclass(frozen=True, slots=True)
class System:
    """A beginning of ``blocks`` prefix blocks that this share of sessions has."""

    blocks: int
    share: float


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents behind the system prompts; see the module.

    Attributes:
        exponent: of Zipf's law.
        documents: number of ranks.
        life_sessions: session starts until a rank gets a fresh document; inf for never.
        kept_ratio: share of a prompt's blocks behind the system prompt that is known from sessions with its document,
            of those that the longest of them could know.
        length_correlation: of the prompt length ranks of sessions with one document.
        reuse: sessions in a row -> share of them that meet a document which one before them had: seen, and by the law.
    """

    exponent: float
    documents: int
    life_sessions: float
    kept_ratio: Marginal
    length_correlation: float
    reuse: Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class PrefixLaw:
    """What sessions share, in blocks of ``block_tokens``."""

    block_tokens: int
    systems: tuple[System, ...]
    documents: Documents | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML."""
        d = self.documents
        return {
            "block_tokens": self.block_tokens,
            "systems": [{"blocks": s.blocks, "share": s.share} for s in self.systems],
            "documents": None
            if d is None
            else {
                "exponent": d.exponent,
                "documents": d.documents,
                "life_sessions": None if np.isinf(d.life_sessions) else d.life_sessions,
                "length_correlation": d.length_correlation,
                "kept_ratio": d.kept_ratio.to_dict(),
                "reuse": {n: list(pair) for n, pair in d.reuse.items()},
            },
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PrefixLaw:
        """The law of :meth:`to_dict`; KeyError, TypeError or ValueError if it is none."""
        d = raw["documents"]
        documents = None
        if d is not None:
            life = np.inf if d["life_sessions"] is None else float(d["life_sessions"])
            documents = Documents(
                float(d["exponent"]),
                int(d["documents"]),
                life,
                Marginal.from_dict(d["kept_ratio"]),
                share(d["length_correlation"]),
                {int(n): (float(pair[0]), float(pair[1])) for n, pair in d["reuse"].items()},
            )
            if not (0 <= documents.exponent <= 10 and 1 <= documents.documents <= _MAX_DOCUMENTS and life > 0):
                raise ValueError(f"an exponent from 0 to 10 and 1 to {_MAX_DOCUMENTS:,} documents")
        systems = tuple(System(int(s["blocks"]), share(s["share"])) for s in raw["systems"])
        if sum(s.share for s in systems) > 1 + 1e-6 or int(raw["block_tokens"]) < 1:
            raise ValueError("shares of system prompts that sum to at most 1, and blocks of 1 token or more")
        return cls(int(raw["block_tokens"]), systems, documents)


def fit_prefixes(trace: Trace) -> PrefixLaw | None:
    """What the first turns of a trace's sessions share; None without prefix chains."""
    block = trace.prefix_block_tokens
    if not block or not trace.chain_ids.size:
        return None
    first = np.flatnonzero(trace.frame["turn"].to_numpy() == 1)  # in order of arrival
    prompt = trace.frame["prompt_tokens"].to_numpy()[first]
    begin = trace.chain_offsets[:-1][first]
    length = np.minimum(np.diff(trace.chain_offsets)[first], prompt // block)
    system, systems = _systems(trace.chain_ids, begin, length)
    depth = np.array([*(s.blocks for s in systems), 0], np.int64)[system]
    documents = _documents(trace.chain_ids, begin, length, depth, prompt)
    return PrefixLaw(block, systems, documents)


def _systems(ids: NDArray[np.int32], begin: Ints, length: Ints) -> tuple[Ints, tuple[System, ...]]:
    """(n,) system prompt of each session (the last number for none), and the system prompts."""
    some = np.flatnonzero(length > 0)
    label = np.full(begin.size, -1, np.int64)
    if not some.size:
        return label, ()
    head, count = np.unique(ids[begin[some]], return_counts=True)
    common = head[(count >= _SYSTEM_SHARE * some.size) & (count >= _SYSTEM_SESSIONS)]
    common = common[np.argsort(-count[np.searchsorted(head, common)], kind="stable")][:_MAX_SYSTEMS]
    found = []
    for number, block in enumerate(common):
        members = some[ids[begin[some]] == block]
        label[members] = number
        blocks = 1
        while True:
            going = members[length[members] > blocks]
            if going.size < _SYSTEM_SESSIONS:
                break
            value, times = np.unique(ids[begin[going] + blocks], return_counts=True)
            if times.max() < _SAME * going.size:
                break
            members = going[ids[begin[going] + blocks] == value[np.argmax(times)]]
            blocks += 1
        found.append(System(blocks, round(float((label == number).sum() / some.size), 6)))
    label[label < 0] = len(found)
    return label, tuple(found)


def _documents(ids: NDArray[np.int32], begin: Ints, length: Ints, depth: Ints, prompt: Ints) -> Documents | None:
    """Documents: what stands behind the system prompt. Sessions with nothing behind it have none."""
    has = np.flatnonzero(length > depth)
    if has.size < 2:
        return None
    _, document = np.unique(ids[begin[has] + depth[has]], return_inverse=True)
    earlier = _previous(document)  # position in `has` of the last session with that document, -1 for none
    mates = np.flatnonzero(earlier >= 0)
    if mates.size < _FEW_MATES:
        return None
    behind = length[has] - depth[has]
    shared = _known(ids, begin[has], length[has])[mates] - depth[has][mates]
    ratio = shared / np.minimum(behind, longest_before(document, behind))[mates]
    from scipy import stats

    pair = stats.spearmanr(prompt[has][mates], prompt[has][earlier[mates]])
    alike = float(np.clip(np.nan_to_num(pair.statistic), 0, 1)) if np.ptp(prompt[has][mates]) else 0.0
    steps = [n for n in (2**k for k in range(3, 24)) if n <= has.size // 2] + [has.size]
    seen = [_reuse(document, earlier, n) for n in steps]
    exponent, documents, life = _zipf(np.array(steps), np.array(seen), has.size)
    by_law = reuse_share(np.array(steps), exponent, documents, life)
    return Documents(
        exponent,
        documents,
        life,
        Marginal.fit(ratio.clip(0, 1), 3),
        round(alike, 4),
        {n: (round(s, 5), round(float(e), 5)) for n, s, e in zip(steps, seen, by_law, strict=True)},
    )


def longest_before(label: Ints, length: Ints) -> Ints:
    """(n,) the largest length before of the same label (dense from 0), 0 for none."""
    order = np.argsort(label, kind="stable")
    step = int(length.max()) + 1
    # Labels ascend in this order, so that one running maximum serves them all.
    most = np.maximum.accumulate(label[order] * step + length[order]) - label[order] * step
    found = np.zeros(label.size, np.int64)
    same = label[order][1:] == label[order][:-1]
    found[order[1:][same]] = most[:-1][same]
    return found


def _previous(label: Ints) -> Ints:
    """(n,) last position before with the same label, -1 for none."""
    order = np.argsort(label, kind="stable")
    before = np.full(label.size, -1, np.int64)
    same = label[order][1:] == label[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _known(ids: NDArray[np.int32], begin: Ints, length: Ints) -> Ints:
    """(n,) leading blocks of each chain that an earlier chain has."""
    total = int(length.sum())
    start = np.cumsum(length) - length
    row = np.repeat(np.arange(length.size), length)
    flat = ids[np.arange(total) - start[row] + begin[row]]
    first = np.full(int(flat.max()) + 1, length.size, np.int64)
    first[flat[::-1]] = row[::-1]  # the last write is the first appearance
    return np.bincount(row[first[flat] < row], minlength=length.size)


def _reuse(document: Ints, earlier: Ints, n: int) -> float:
    """Share of sessions, in stretches of n, whose document an earlier one of the stretch had."""
    whole = document.size // n * n
    at = np.arange(whole)
    return float((earlier[:whole] >= at // n * n).mean())


def reuse_share(n: Floats | Ints, exponent: float, documents: int, life_sessions: float) -> Floats:
    """Expected share of n sessions in a row whose document one before them had, by the law.

    A document of popularity p per session, replaced at rate q = 1 / life: one that is there for m sessions is met
    with probability h(m) = p / (p + q) (1 - exp(-(p + q) m)), so that 1 + q n documents of a rank are met
    h(n) + q * integral of h over [0, n] times.
    """
    n = np.asarray(n, np.float64)[:, None]
    rank, weight = _ranks(documents)
    p = rank**-exponent
    p = p / (p @ weight)
    q = 1.0 / life_sessions
    s = p + q
    missed = -np.expm1(-s * n)
    distinct = p / s * missed + q * p / s * (n - missed / s)
    return np.asarray(np.clip(1 - (distinct @ weight) / n[:, 0], 0, 1))


def _ranks(documents: int) -> tuple[Floats, Floats]:
    """Ranks 1..documents, thinned out geometrically above 100, each with the number of ranks it stands for."""
    edges = np.unique(np.rint(np.geomspace(101, documents + 1, 300)).astype(np.int64)) if documents > 100 else [1]
    starts = np.r_[np.arange(1, min(documents, 100) + 1), edges[:-1]].astype(np.float64)
    ends = np.r_[starts[1:], documents + 1.0]
    return (starts + ends - 1) / 2, ends - starts


def _zipf(n: Ints, seen: Floats, sessions: int) -> tuple[float, int, float]:
    """Exponent, documents and life by least squares of the reuse curve.

    Relative errors, floored where reuse is rare: what a long trace does depends on how the curve bends at its end.
    """
    from scipy import optimize

    weight = 1 / np.maximum(seen, 0.25 * seen.max())

    def law(x: Floats) -> tuple[float, int, float]:
        life = float(np.exp(x[2]))
        return float(x[0]), int(np.exp(x[1])), np.inf if life > 100 * sessions else life

    def miss(x: Floats) -> Floats:
        return np.asarray((reuse_share(n, *law(x)) - seen) * weight)

    low = np.array([0.0, np.log(10.0), np.log(10.0)])
    high = np.array([2.5, np.log(_MAX_DOCUMENTS), np.log(1000.0 * sessions)])
    starts = [
        np.array([a, np.log(d), np.log(life)])
        for a in (0.3, 1.0)
        for d in (0.3 * sessions + 20, 30 * sessions + 20)
        for life in (0.1 * sessions + 20, 200 * sessions)
    ]
    fits = [
        optimize.least_squares(miss, start.clip(low, high), bounds=(low, high), diff_step=0.02, max_nfev=60)
        for start in starts
    ]
    exponent, documents, life = law(min(fits, key=lambda f: float(f.cost)).x)
    return round(exponent, 4), documents, float(f"{life:.5g}")


def draw_documents(law: Documents, n: int, rng: np.random.Generator) -> Ints:
    """(n,) document numbers of sessions in order of their starts, dense from 0."""
    rank, weight = _ranks(law.documents)
    mass = np.cumsum(rank**-law.exponent * weight)
    group = np.minimum(np.searchsorted(mass, rng.random(n) * mass[-1], side="right"), mass.size - 1)
    slot = np.r_[0, np.cumsum(weight)][group].astype(np.int64) + (rng.random(n) * weight[group]).astype(np.int64)
    order = np.argsort(slot, kind="stable")
    same = np.r_[False, slot[order][1:] == slot[order][:-1]]
    gap = np.r_[0, np.diff(order)]
    fresh = ~same | (rng.random(n) < -np.expm1(-gap / law.life_sessions))
    document = np.empty(n, np.int64)
    document[order] = np.cumsum(fresh) - 1
    return document
