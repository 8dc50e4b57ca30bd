"""ServeGen client data (Alibaba Cloud): an archive or a folder of one workload, from which traffic is drawn.

Schema: alibaba/ServeGen : data/<category>/<model>/chunk-N-{trace.csv,dataset.json} and servegen/clientpool.py @
f891d1189eb32b3868dfc443800c4150548c282a. A client N has

* ``chunk-N-trace.csv``, no header: window start (s), requests a second, CV of its gaps, ``Gamma``, ``Weibull`` or
  nothing (idle), shape, scale (unused: gaps are stretched to the rate);
* ``chunk-N-dataset.json``: window start -> field -> a table ``{tokens: probability}`` as text. Fields:
  ``input_tokens, output_tokens``; reasoning models add ``reason_ratio`` (not used: the output holds both parts);
  multimodal ones have ``text_tokens`` and ``image|audio|video_{count,tokens}`` instead, which all add to the prompt.
  A window with an empty table holds nothing; the last one before counts on.

Two weeks of the largest workload are 1.4 billion requests, so a stretch is read. Files of 4 MiB and more are missing
upstream, and those are the busiest clients' lengths: ``missing_lengths`` says what to do about them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from traces.check import MAX_TOKENS
from traces.errors import TraceError, nearest
from traces.generators.servegen import (
    GAMMA,
    MEDIA,
    RANKS,
    WEIBULL,
    Client,
    Pdf,
    Tables,
    Window,
    draw_client,
)
from traces.readers.format import Format
from traces.source import Source
from traces.trace import Trace

MISSING = ("error", "drop", "pool")
_NAME = re.compile(r"chunk-(\d{1,9})-(trace\.csv|dataset\.json)")
_FIRST_JSON = re.compile(rb'\s*\{\s*"\d+":\s*\{\s*"(input|text)_tokens":\s*"\{')
_FIRST_CSV = re.compile(rb"\d+,[\d.eE+-]+,[\d.eE+-]+,(Gamma|Weibull)?,[\d.eE+-]+,[\d.eE+-]+\r?\n")
_MAX_REQUESTS = 20_000_000
_MAX_COUNT = 10_000  # images and clips of a request
_LEAST_SHAPE = {GAMMA: 1e-4, WEIBULL: 1e-2}  # more extreme ones overflow
_LAST_WIDTH_S = 600.0  # of a client's only window
_MAX_S = 1e9


def read(
    source: Source,
    *,
    seed: int = 0,
    start_s: float = 0.0,
    duration_s: float = 3600.0,
    rate_per_s: float | None = None,
    clients: int | None = None,
    missing_lengths: str = "error",
    length_ranks: str = "independent",
) -> Trace:
    """Draw traffic of a workload's clients.

    Args:
        source: an archive or a folder of one workload.
        seed: of every draw.
        start_s: start of the stretch, on the file's clock.
        duration_s: its length.
        rate_per_s: requests a second, on average over the stretch and all clients drawn; None: the clients' own.
        clients: only the busiest ones of the stretch, so many; None: all.
        missing_lengths: clients without length tables: ``error``; ``drop`` them, and say which share of the rate they
            are; ``pool``: draw theirs from the other clients' tables, each as likely as its rate.
        length_ranks: see :mod:`traces.generators.servegen`.

    Raises:
        TraceError: no such files, a bad line, table or option, a stretch without requests or with too many.
    """
    _check(source, missing_lengths, length_ranks)
    found = read_clients(source, start_s, start_s + duration_s)
    active = [client for client in found if client.expected > 0]
    if not active:
        raise source.error("a stretch in which some client is active", column="trace.options.start_s", value=start_s)
    active, notes = _without_lengths(source, active, missing_lengths)
    if clients is not None:
        total = sum(client.expected for client in active)
        active = sorted(active, key=lambda client: -client.expected)[:clients]
        part = sum(client.expected for client in active) / total
        notes.append(f"clients={clients}: the {len(active)} busiest, {part:.1%} of the rate of those with lengths")
    own = sum(client.expected for client in active)
    factor = 1.0 if rate_per_s is None else rate_per_s * duration_s / own
    if own * factor > _MAX_REQUESTS:
        expected = f"at most {_MAX_REQUESTS:,} requests: a shorter stretch, a lower trace.options.rate_per_s"
        raise source.error(expected, column="trace.options.duration_s", value=f"{own * factor:,.0f} requests")
    # In order of their numbers: what stands in for one must not depend on which others are asked for.
    active = sorted(active, key=lambda client: client.number)
    drawn = [draw_client(client, client.tables, factor, seed, length_ranks) for client in active]
    n = [one.arrival_s.size for one in drawn]
    if not sum(n):
        raise source.error("a stretch and a rate that give a request", column="trace.options.duration_s", value=0)
    early, zeros = sum(one.early for one in drawn), sum(one.zeros for one in drawn)
    notes = [
        source.provenance,
        f"generated: drawn client by client from [{start_s:g}, {start_s + duration_s:g}) s of the file, seed {seed}: "
        f"{len(active)} clients, "
        + ("their own rates" if rate_per_s is None else f"rates times {factor:.6g} for {rate_per_s:g} requests/s"),
        f"prompt and output ranks {length_ranks}: the file does not hold how they go together",
        *notes,
    ]
    if early:
        notes.append(f"{early} requests come before their client's first length table, which counts for them")
    if zeros:
        notes.append(f"{zeros} requests with a drawn length of 0 count one token")
    arrival = np.concatenate([one.arrival_s for one in drawn]) - start_s
    prompt, output = (np.concatenate([getattr(one, part) for one in drawn]) for part in ("prompt", "output"))
    return Trace.build(
        f"generated_{source.stem}[{start_s:g},{start_s + duration_s:g})",
        {
            "arrival_s": arrival.clip(0.0, duration_s),
            "prompt_tokens": prompt.clip(max=MAX_TOKENS),
            "output_tokens": output,
            "tenant": np.repeat([f"client-{client.number}" for client in active], n),
        },
        provenance=notes,
        duration_s=duration_s,
    )


def _check(source: Source, missing_lengths: str, length_ranks: str) -> None:
    for name, word, words in (
        ("missing_lengths", missing_lengths, MISSING),
        ("length_ranks", length_ranks, RANKS),
    ):
        if word not in words:
            expected = f"one of {', '.join(words)}{nearest(str(word), words)}"
            raise source.error(expected, column=f"trace.options.{name}", value=word)
    if not source.holds_many:
        raise source.error("an archive or a folder of chunk-N-trace.csv and chunk-N-dataset.json", value="one file")


def read_clients(source: Source, start_s: float, end_s: float) -> list[Client]:
    """Clients by number, with the windows and tables that [start_s, end_s) needs."""
    windows: dict[int, tuple[Window, ...]] = {}
    tables: dict[int, tuple[Tables, ...]] = {}
    folders: dict[str, None] = {}
    for name, data in source.members(lambda name: _NAME.fullmatch(PurePosixPath(name).name) is not None):
        path = PurePosixPath(name)
        folders[str(path.parent)] = None
        if len(folders) > 1:
            a, b = folders
            raise source.error(f"one workload; name its folder, such as {source.path / a}", value=f"{a} and {b}")
        match = _NAME.fullmatch(path.name)
        assert match is not None
        number = int(match[1])
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TraceError(file=source.path / name, value=data[:8], expected="UTF-8 text") from error
        where = source.path / name
        if match[2] == "trace.csv":
            windows[number] = _cut(_windows(where, text), start_s, end_s)
        else:
            tables[number] = tuple(_tables(where, text, start_s, end_s))
    for number in sorted(tables):
        if number not in windows:
            raise source.error(f"chunk-{number}-trace.csv beside chunk-{number}-dataset.json", value="none")
    return [Client(number, windows[number], tables.get(number, ())) for number in sorted(windows)]


def _windows(where: Path, text: str) -> list[Window]:
    found: list[Window] = []
    for row, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split(",")]
        try:
            t, rate, cv, shape, _ = (float(fields[i]) for i in (0, 1, 2, 4, 5))
            if len(fields) != 6:
                raise ValueError
        except (ValueError, IndexError) as error:
            expected = "6 fields, t, rate, cv, family, shape, scale: numbers, but for the family"
            raise TraceError(file=where, row=row, value=line, expected=expected) from error
        for column, value, high in (("t", t, _MAX_S), ("rate", rate, 1e6), ("cv", cv, 1e6), ("shape", shape, 1e6)):
            if not 0 <= value <= high:
                raise TraceError(file=where, row=row, column=column, value=value, expected=f"0 to {high:g}")
        if rate > 0 and (fields[3] not in _LEAST_SHAPE or shape < _LEAST_SHAPE[fields[3]]):
            least = ", ".join(f"{family} with a shape of {low:g} or more" for family, low in _LEAST_SHAPE.items())
            raise TraceError(
                file=where, row=row, column="family", value=line, expected=f"where there is a rate, {least}"
            )
        if found:
            if t <= found[-1].start_s:
                raise TraceError(file=where, row=row, column="t", value=t, expected="ascending window starts")
            found[-1] = replace(found[-1], end_s=t)
        width = t - found[-1].start_s if found else _LAST_WIDTH_S
        found.append(Window(t, t + width, rate, cv, fields[3], shape))
    return found


def _cut(windows: list[Window], start_s: float, end_s: float) -> tuple[Window, ...]:
    """The parts of windows inside [start_s, end_s)."""
    return tuple(
        replace(w, start_s=max(w.start_s, start_s), end_s=min(w.end_s, end_s))
        for w in windows
        if w.end_s > start_s and w.start_s < end_s
    )


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _tables(where: Path, text: str, start_s: float, end_s: float) -> Iterator[Tables]:
    try:
        raw = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TraceError(file=where, value=str(error), expected="a JSON object of windows") from error
    if not isinstance(raw, dict):
        raise TraceError(file=where, value=text[:40], expected="a JSON object of windows")
    filled = []
    for key, fields in raw.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise TraceError(file=where, column=key, expected="window starts in whole seconds as keys")
        if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
            raise TraceError(file=where, column=key, value=str(fields)[:40], expected="tables by field, as text")
        used = _used(where, key, fields)
        if all(value.strip() != "{}" for value in used.values()):
            filled.append((int(key), used))
    filled.sort(key=lambda pair: pair[0])
    before = sum(start <= start_s for start, _ in filled)
    needed = [pair for pair in filled[max(before - 1, 0) :] if pair[0] < end_s] or filled[:1]
    for start, used in needed:
        pdfs = {field: _pdf(where, f"{start}.{field}", value) for field, value in used.items()}
        yield Tables(float(start), pdfs)


def _used(where: Path, key: str, fields: dict[str, str]) -> dict[str, str]:
    """The fields that lengths are drawn from."""
    names = ["input_tokens" if "input_tokens" in fields else "text_tokens", "output_tokens"]
    if "text_tokens" in names:
        names += [f"{medium}_{part}" for medium in MEDIA for part in ("count", "tokens") if f"{medium}_count" in fields]
    for name in names:
        if name not in fields:
            hint = nearest(name, fields)
            raise TraceError(file=where, column=f"{key}.{name}", expected=f"this field to be present{hint}")
    return {name: fields[name] for name in names}


def _pdf(where: Path, column: str, text: str) -> Pdf:
    """A table from a dict literal of numbers, which is taken apart, not evaluated."""
    body = text.strip()
    expected = "{tokens: probability, ...}, whole numbers of tokens and probabilities that sum to 1"
    try:
        if body[:1] != "{" or body[-1:] != "}":
            raise ValueError("no braces")
        pairs = [pair.split(":") for pair in body[1:-1].split(",")]
        value, mass = (np.array([float(pair[i]) for pair in pairs]) for i in (0, 1))
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("no pairs")
    except (ValueError, IndexError) as error:
        raise TraceError(file=where, column=column, value=text[:60], expected=expected) from error
    high = _MAX_COUNT if column.endswith("_count") else MAX_TOKENS
    fine = (value >= 0) & (value <= high) & (value == np.floor(value)) & (mass >= 0) & (mass <= 1.001)
    if not fine.all() or abs(mass.sum() - 1) > 1e-3:
        raise TraceError(file=where, column=column, value=text[:60], expected=expected)
    order = np.argsort(value, kind="stable")
    return Pdf(value[order].astype(np.int64), np.cumsum(mass[order]) / mass.sum())


def _without_lengths(source: Source, active: list[Client], how: str) -> tuple[list[Client], list[str]]:
    """Clients that can be drawn, and what is to be said of those without lengths."""
    lacking = [client for client in active if not client.tables]
    if not lacking:
        return active, []
    total = sum(client.expected for client in active)
    lost = sum(client.expected for client in lacking) / total
    named = ", ".join(f"{c.number} ({c.expected / total:.1%})" for c in sorted(lacking, key=lambda c: -c.expected)[:8])
    named += ", ..." if len(lacking) > 8 else ""
    rest = [client for client in active if client.tables]
    if how == "error" or not rest:
        expected = (
            f"length files of all {len(active)} active clients; {len(lacking)} have none, {lost:.1%} of the rate: "
            f"clients {named}; trace.options.missing_lengths=drop leaves them out, =pool draws their lengths from the "
            "other clients' tables"
        )
        raise source.error(expected, column="trace.options.missing_lengths", value=how)
    if how == "drop":
        return rest, [f"missing_lengths=drop: {len(lacking)} clients left out, {lost:.1%} of the rate: clients {named}"]
    pooled = _pool(rest)
    note = f"missing_lengths=pool: lengths of {len(lacking)} clients, {lost:.1%} of the rate, drawn from the others': "
    return [c if c.tables else Client(c.number, c.windows, pooled) for c in active], [f"{note}clients {named}"]


def _pool(clients: list[Client]) -> tuple[Tables, ...]:
    """One table a field: a mixture of the clients' first ones of the stretch by their rates."""
    kinds = [client for client in clients if set(client.tables[0].fields) == set(clients[0].tables[0].fields)]
    total = sum(client.expected for client in kinds)
    fields = {}
    for field in kinds[0].tables[0].fields:
        parts = [client.tables[0].fields[field] for client in kinds]
        values = np.concatenate([part.values for part in parts])
        mass = np.concatenate(
            [np.diff(p.cumulated, prepend=0.0) * (c.expected / total) for p, c in zip(parts, kinds, strict=True)]
        )
        found, inverse = np.unique(values, return_inverse=True)
        cumulated = np.cumsum(np.bincount(inverse, weights=mass))
        fields[field] = Pdf(found, cumulated / cumulated[-1])
    return (Tables(0.0, fields),)


def sniff(name: str, head: bytes) -> bool:
    """True if the first file of an archive or a folder is one of a client's two."""
    return _FIRST_JSON.match(head) is not None or _FIRST_CSV.match(head) is not None


FORMAT = Format("servegen", read, sniff, "ServeGen client data: rates and length tables, drawn client by client")
