"""``action=hash``: a prompt log as lengths and salted block hashes, so that it can be compared on without the text."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from omegaconf import DictConfig

    from traces.hashing import Salt
    from traces.prompts import Prompt, PromptLog
    from traces.source import Source

KEYS: tuple[str, ...] = ("path", "tokenizer", "salt", "block_tokens", "rate_per_s", "seed")
BLOCK_TOKENS = 16
NAME = "hashed.parquet"
METADATA_KEY = "pdgym.hash"
_PIECE = 1_000_000  # blocks held at a time; a request counts as one more
_OTHERS = {
    "session": "Int64",
    "tenant": "String",
    "model": "String",
    "max_output_tokens": "Int64",
    "ttft_s": "Float64",
    "tpot_s": "Float64",
    "e2e_s": "Float64",
}


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Hash one prompt log and write ``hashed.parquet``."""
    from traces.hashing import VERSION
    from traces.prompts import PromptLog
    from traces.source import read_source
    from traces.tokens import ESTIMATE, load_tokenizer

    if config.path is None:
        raise ResearchError("path=null: expected a prompt log, path=prompts.jsonl")
    block = BLOCK_TOKENS if config.block_tokens is None else config.block_tokens
    if not isinstance(block, int) or isinstance(block, bool) or not 1 <= block <= 1 << 20:
        raise ResearchError(f"block_tokens={block!r}: expected a whole number of tokens from 1 to {1 << 20:,}")
    rate, seed = _drawing(config.rate_per_s, config.seed)
    source = read_source(str(config.path))
    tokenizer = load_tokenizer(ESTIMATE if config.tokenizer is None else config.tokenizer)
    salt = _salt(config.salt, out)
    log = PromptLog(source, tokenizer, block, salt.key)
    head = {
        "version": VERSION,
        "block_tokens": block,
        "kind": "prefix",
        "covers": "prompt and output",
        "tokenizer": Path(tokenizer.name).name,
        "tokens": tokenizer.note,
        "salt_id": salt.id,
    }
    with _progress(source.file) as tick:
        found = _write(log, out / NAME, head, rate, seed, tick)
    notes = [tokenizer.note, *found.pop("notes"), *log.notes]
    for note in notes:
        print(note)
    made = "made now, at random; " if salt.made else ""
    print(f"salt: {salt.path} ({made}keep it to yourself: who has it can test guesses at your prompts)")
    print(
        f"{found['requests']:,} requests, {found['prompt_tokens']:,} prompt and {found['output_tokens']:,} output "
        f"tokens, {found['blocks']:,} blocks of {block} tokens, {found['distinct_blocks']:,} of them distinct\n"
        f"written to {out / NAME}; next: python -m research.compare trace.path={out / NAME}"
    )
    return {"file": NAME, **head, **found, "notes": notes}  # the name alone: a path may name the user


def _drawing(rate: object, seed: object) -> tuple[float | None, int]:
    """The rate at which arrivals are drawn, None for not at all, and the seed."""
    if rate is not None and (not isinstance(rate, int | float) or isinstance(rate, bool) or not 1e-9 <= rate <= 1e9):
        raise ResearchError(f"rate_per_s={rate!r}: expected a number of requests a second from 1e-9 to 1e9")
    if seed is None:
        return rate, 0
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ResearchError(f"seed={seed!r}: expected a whole number, 0 or more")
    if rate is None:
        raise ResearchError(f"seed={seed}: expected rate_per_s=R with it, as nothing else is drawn")
    return rate, seed


def _salt(given: object, out: Path) -> Salt:
    """The salt: of the file that is named, or of the user's own, made at random where there is none yet."""
    from traces.hashing import get_salt

    if given is None:
        import platformdirs

        path = Path(platformdirs.user_config_dir("pdgym")) / "hash_salt"
    elif isinstance(given, str) and given and "\0" not in given:
        path = Path(os.path.expanduser(given))  # a user that does not exist stays as it is
    else:
        raise ResearchError(f"salt={given!r}: expected the path of a file (a new one is made if it is not there)")
    if os.path.realpath(path).startswith(os.path.join(os.path.realpath(out), "")):
        raise ResearchError(f"salt={path}: expected a file outside {out}, whose content is made to be shared")
    return get_salt(path)


class _Parts:
    """What was hashed so far: pieces of the table in a folder of their own, stamps and sums in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self.stamps: list[float | int | None] = []
        self.units: set[str | None] = set()
        self.columns: set[str] = set()
        self.sums = {"requests": 0, "prompt_tokens": 0, "output_tokens": 0, "blocks": 0}

    def add(self, rows: list[Prompt]) -> None:
        import polars as pl

        frame = pl.DataFrame(
            {
                "prompt_tokens": [row.prompt_tokens for row in rows],
                "output_tokens": [row.output_tokens for row in rows],
                **{
                    name: pl.Series([row.others.get(name) for row in rows], dtype=getattr(pl, kind))
                    for name, kind in _OTHERS.items()
                },
                "hash_ids": pl.Series([row.hash_ids for row in rows], dtype=pl.List(pl.Int64)),
            }
        )
        self.columns |= {name for name in _OTHERS if frame[name].null_count() < frame.height}
        self.stamps += [row.arrival for row in rows]
        self.units |= {row.unit for row in rows if row.arrival is not None}
        for name in ("prompt_tokens", "output_tokens"):
            self.sums[name] += int(frame[name].sum())
        self.sums["requests"] += len(rows)
        self.sums["blocks"] += sum(len(row.hash_ids) for row in rows)
        self.files.append(self.folder / f"{len(self.files):06d}.parquet")
        frame.write_parquet(self.files[-1])

    def join(self, arrival_s: NDArray[np.float64], path: Path, head: dict[str, Any]) -> int:
        """One file of all pieces, in order of arrival, put in place in one step; its distinct blocks."""
        import polars as pl

        begin = 0
        for file in self.files:
            frame = pl.read_parquet(file)
            frame.with_columns(pl.Series("arrival_s", arrival_s[begin : begin + frame.height])).write_parquet(file)
            begin += frame.height
        names = ["arrival_s", "prompt_tokens", "output_tokens", *sorted(self.columns), "hash_ids"]
        whole = pl.scan_parquet(self.files).select(names)
        if (arrival_s[1:] < arrival_s[:-1]).any():
            whole = whole.sort("arrival_s", maintain_order=True)
        part = self.folder / path.name
        held = self.sums["requests"] + self.sums["blocks"]
        rows = max(1, _PIECE // 4 * self.sums["requests"] // held)  # of a row group, which is held while it is written
        whole.sink_parquet(part, metadata={METADATA_KEY: json.dumps(head)}, row_group_size=rows)
        distinct = _distinct(part, 1 + self.sums["blocks"] // (2 * _PIECE))
        part.replace(path)
        return distinct


def _distinct(file: Path, shares: int) -> int:
    """Distinct hashes of a table, counted by remainder: a share of them at a time is held."""
    import polars as pl

    ids = pl.scan_parquet(file).select("hash_ids").filter(pl.col("hash_ids").list.len() > 0).explode("hash_ids")
    id_ = pl.col("hash_ids")
    counts = (ids.filter(id_ % shares == k).select(id_.n_unique()).collect(engine="streaming") for k in range(shares))
    return sum(int(count.item()) for count in counts)


def _write(
    log: PromptLog, path: Path, head: dict[str, Any], rate: float | None, seed: int, tick: Callable[[int], None]
) -> dict[str, Any]:
    """Hash everything and write the table; the figures of the summary."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        parts = _Parts(Path(folder))
        for piece in _pieces(log.rows(tick)):
            parts.add(piece)
        arrival, notes = _arrivals(parts, log.source, rate, seed)
        distinct = parts.join(arrival, path, head)
    return {**parts.sums, "distinct_blocks": distinct, "notes": notes}


def _pieces(rows: Iterator[Prompt]) -> Iterator[list[Prompt]]:
    piece: list[Prompt] = []
    held = 0
    for row in rows:
        piece.append(row)
        held += 1 + len(row.hash_ids)
        if held >= _PIECE:
            yield piece
            piece, held = [], 0
    if piece:
        yield piece


def _arrivals(parts: _Parts, source: Source, rate: float | None, seed: int) -> tuple[NDArray[np.float64], list[str]]:
    """(n,) seconds from the start, as recorded or drawn, and what was done."""
    import numpy as np

    from traces.prompts import seconds_from_start

    known = [stamp for stamp in parts.stamps if stamp is not None]
    if not known and rate is not None:
        drawn = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(parts.stamps)))
        return drawn, [f"arrivals drawn: Poisson, {rate:g} requests a second, seed {seed}, in the order of the file"]
    if rate is not None:
        raise ResearchError(f"rate_per_s={rate:g}: the log has times of its own; leave rate_per_s out to keep them")
    if len(known) < len(parts.stamps):
        found = f"none on request {parts.stamps.index(None) + 1}"
        expected = "a time (arrival_s, timestamp, ...) on every request, or rate_per_s=R to draw arrivals"
        raise source.error(expected, column="arrival_s", value=found)
    if len(parts.units) > 1:
        raise source.error("stamps of one unit", column="arrival_s", value=sorted(map(str, parts.units)))
    arrival, note = seconds_from_start(known, next(iter(parts.units)), source)
    back = int((arrival[1:] < arrival[:-1]).sum())
    repair = [f"repair: {back} steps back in time, requests sorted by arrival"] if back else []
    return arrival, [note, *repair]


@contextmanager
def _progress(file: Path) -> Iterator[Callable[[int], None]]:
    """Bytes read, on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda n: None
        return
    packed = file.suffix in (".gz", ".zst")  # the size of the text is not known
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(file.name, total=None if packed else file.stat().st_size)
        yield lambda n: bar.advance(task, n)
