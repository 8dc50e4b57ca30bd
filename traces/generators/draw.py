"""A trace of any length and rate from a fitted generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.generators.chains import longest, resolve
from traces.generators.lengths import draw_mixes, label_columns
from traces.generators.prefixes import PrefixLaw, draw_documents, longest_before
from traces.generators.sessions import Turns, draw_turns
from traces.generators.spec import Generator
from traces.trace import Trace
from traces.transforms.rows import MAX_REQUESTS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOMINAL_SERVICE = (0.5, 0.03)
"""s, s an output token: nominal arrivals of later turns, which a replay does not use."""


_MOST = 1e100  # seconds, requests, requests a second: whatever is near it is refused below


def draw_trace(
    made: Generator,
    *,
    duration_s: float | None = None,
    rate_per_s: float | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> Trace:
    """Draw a trace. Equal arguments give equal bits.

    Args:
        made: the generator.
        duration_s: how long sessions start for; None: what ``requests`` need, else that of the window it is fitted on.
        rate_per_s: requests a second, all turns counted, on average; None: what ``requests`` in ``duration_s`` give,
            else the rate of the window. At another rate bursts keep their number of requests, and think times stay.
        requests: how many on average; whole sessions are drawn, and bursty traffic may bring half or twice as many.
        seed: of every draw.

    Returns:
        A trace named ``generated_...``: closed replay where it has later turns, open otherwise.

    Raises:
        TraceError: a number out of range, or all three of duration, rate and requests.
    """
    name = f"generated_{made.source}"
    check_seed(name, seed)
    duration, rate = asked(made, duration_s=duration_s, rate_per_s=rate_per_s, requests=requests)
    rng = [np.random.default_rng([seed, part]) for part in range(5)]
    starts = np.round(made.arrivals.draw(duration, rng[0], rate_per_s=rate / made.requests_per_start), 6)
    starts = starts.clip(max=duration)
    n = starts.size
    if not n:
        expected = "a duration in which something starts"
        raise TraceError(file=name, column="duration_s", value=duration, expected=expected)
    document, rank = _ranks(made.prefixes, n, rng[1])
    mix = draw_mixes(made.mixes, n, rng[2])
    prompt, output, other = made.lengths.draw(rank, rng[2])
    for number, one in enumerate(made.mixes):
        if one.lengths is not None:
            at = np.flatnonzero(mix == number)
            prompt[at], output[at], other[at] = one.lengths.draw(rank[at], rng[2])
    turns = _turns(made, prompt, output, (rank, other), rng[3])
    head = turns.turn == 1
    base, per_token = NOMINAL_SERVICE
    service = base + per_token * turns.output
    gone = np.cumsum(np.where(head, 0.0, turns.think_s) + service) - service
    nominal = starts[turns.session] + gone - gone[head][turns.session]
    offsets, ids = None, None
    if made.prefixes is not None:
        offsets, ids = _chains(made.prefixes, turns, document, rng[4])
    closed = not head.all()
    return Trace.build(
        name,
        {
            "arrival_s": np.round(nominal, 6),
            "session": turns.session if closed else np.full(n, -1),
            "turn": turns.turn,
            "think_s": pl.Series(turns.think_s).fill_nan(None),
            "prompt_tokens": turns.prompt,
            "output_tokens": turns.output,
            **label_columns(made.mixes, mix[turns.session]),
        },
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=made.prefixes.block_tokens if made.prefixes else 0,
        replay="closed" if closed else "open",
        provenance=_provenance(made, duration, rate, seed, turns),
        duration_s=duration,
    )


def check_seed(name: str, seed: object) -> None:
    """Raise unless a seed is a whole number of 0 or more."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise TraceError(file=name, column="seed", value=seed, expected="a whole number of 0 or more")


def _provenance(made: Generator, duration: float, rate: float, seed: int, turns: Turns) -> list[str]:
    n = turns.turn.size
    notes = [
        f"generated: drawn by traces.generators from fit {made.sha256}, {duration:g} s, seed {seed}; asked for "
        f"{rate:.6g} requests/s, drawn {n} requests, {n / duration:.6g}/s",
        f"fitted on {made.source}, zone {made.zone}, content {made.source_sha256}, {made.requests} requests in "
        f"{made.duration_s:g} s",
        *(f"its source: {line}" for line in made.origin),
        *(f"not kept: {line}" for line in made.not_kept),
    ]
    if turns.ended:
        notes.append(f"{turns.ended} sessions end early, at the longest context of the source")
    return notes


def asked(
    made: Generator,
    *,
    duration_s: float | None = None,
    rate_per_s: float | None = None,
    requests: int | None = None,
) -> tuple[float, float]:
    """Duration and rate that :func:`draw_trace` draws for, seconds and requests a second, from what is given."""
    name = f"generated_{made.source}"
    for column, value in (("duration_s", duration_s), ("rate_per_s", rate_per_s), ("requests", requests)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float | np.integer) or not 0 < value < _MOST
        ):
            raise TraceError(file=name, column=column, value=value, expected="a positive number")
    if duration_s is not None and rate_per_s is not None and requests is not None:
        expected = "two of duration_s, rate_per_s and requests: the third follows"
        raise TraceError(file=name, column="requests", value=requests, expected=expected)
    own = made.rate_per_s
    if requests is not None and duration_s is not None:
        rate_per_s = requests / duration_s
    rate = own if rate_per_s is None else rate_per_s
    if duration_s is None:
        duration_s = made.duration_s if requests is None else requests / rate
    if duration_s * rate > MAX_REQUESTS:
        found = f"{duration_s * rate:,.0f} requests"
        expected = f"at most {MAX_REQUESTS:,}"
        raise TraceError(file=name, column="duration_s", value=found, expected=expected)
    return float(duration_s), float(rate)


def _ranks(prefixes: PrefixLaw | None, n: int, rng: np.random.Generator) -> tuple[Ints | None, Floats]:
    """Document of each session, if there are any, and the rank of its first prompt."""
    if prefixes is None or prefixes.documents is None:
        return None, rng.random(n)
    from scipy import special

    document = draw_documents(prefixes.documents, n, rng)
    alike = 2 * np.sin(np.pi / 6 * prefixes.documents.length_correlation)  # of normal scores, from that of ranks
    common = rng.standard_normal(int(document.max()) + 1)[document]
    return document, special.ndtr(np.sqrt(alike) * common + np.sqrt(1 - alike) * rng.standard_normal(n))


def _turns(
    made: Generator, prompt: Ints, output: Ints, ranks: tuple[Floats, Floats], rng: np.random.Generator
) -> Turns:
    if made.sessions is not None:
        return draw_turns(made.sessions, prompt, output, ranks, rng)
    n = prompt.size
    one, none = np.ones(n, np.int64), np.full(n, -1)
    return Turns(np.arange(n), one, prompt, output, np.full(n, np.nan), none, 0)


def _chains(law: PrefixLaw, turns: Turns, document: Ints | None, rng: np.random.Generator) -> tuple[Ints, NDArray[Any]]:
    """Chains of prompts, and of outputs that the next turn repeats; see :mod:`traces.generators.chains`."""
    block = law.block_tokens
    own, whole = turns.prompt // block, (turns.prompt + turns.output) // block
    head = turns.turn == 1
    begins = head | (turns.kept >= 0)
    goes_on = np.r_[~begins[1:], False]  # the next turn repeats this one whole
    length = np.where(goes_on, np.minimum(whole, np.r_[own[1:], 0]), own)

    depth = np.array([*(s.blocks for s in law.systems), 0], np.int64)
    n = int(head.sum())
    owners = n if document is None else int(document.max()) + 1
    shares = np.cumsum([s.share for s in law.systems])
    system = np.searchsorted(shares, rng.random(owners), side="right")  # of a document, or of a session
    of = np.where(system < len(law.systems), system, -1)
    first = own[head]
    if document is None:
        parents, cuts = [of], [np.minimum(first, depth[system])]
        roots = np.empty(0, np.int64)
    else:
        assert law.documents is not None
        above = depth[system][document]
        behind = np.maximum(first - above, 0)
        known = longest_before(document, behind)
        ratio = law.documents.kept_ratio.at(rng.random(n))
        # The session that brings a document has all of it.
        shared = np.where(known > 0, np.rint(ratio * np.minimum(behind, known)).astype(np.int64), behind)
        shared += np.minimum(first, above)
        roots = of
        parents, cuts = [roots, len(law.systems) + document], [depth[system], shared]
    base = len(law.systems) + roots.size
    # Texts: system prompts, documents, then those of sessions in order; a session's first goes on from a root, a
    # later one from the text before it.
    text = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    parent, cut = base + text[starts] - 1, np.minimum(turns.kept[starts] // block, own[starts])
    parent[head[starts]], cut[head[starts]] = parents[-1], cuts[-1]
    parent = np.r_[np.full(len(law.systems), -1), *parents[:-1], parent].astype(np.int64)
    cut = np.r_[np.zeros(len(law.systems), np.int64), *cuts[:-1], cut].astype(np.int64)
    extent = longest(base + text, length, parent.size)
    extent[: len(law.systems)] = depth[:-1]
    extent = np.maximum(extent, cut)
    inherited = parent >= 0
    np.maximum.at(extent, parent[inherited], cut[inherited])
    return resolve(base + text, length, parent, cut, extent)
