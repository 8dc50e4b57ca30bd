"""A fitted generator: what ``fit.yaml`` holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traces.arrivals import ArrivalLaw, law_from_dict
from traces.errors import TraceError
from traces.generators.lengths import Lengths, Mix
from traces.generators.prefixes import PrefixLaw
from traces.generators.sessions import SessionLaw

VERSION = 1
_MOST = 1e12
_ROW = 8  # numbers of a mapping that still go on one line
_HEAD = (
    "# A generator fitted from a trace. Made by: python -m research.traces action=fit\n"
    "# A trace from it: python -m research.traces action=generate path=THIS duration_s=3600 out=DIR\n"
    "# Tables: values at probability levels, straight lines between. Joint ranks: counts over equally likely cells.\n"
)


@dataclass(frozen=True, slots=True)
class Generator:
    """Fitted laws and where they come from.

    Attributes:
        source: name of the trace that it is fitted on, with its window.
        source_sha256: content hash of that window.
        origin: provenance of that trace.
        zone: train, validation, test or all.
        requests: in the window.
        duration_s: of the window.
        starts: session starts and requests without a session, in the window: what ``arrivals`` are of.
        arrivals: law of the starts.
        arrivals_fit: what its choice rests on: held-out scores, verdict.
        lengths: of first turns.
        mixes: label combinations, or none.
        sessions: later turns, or None.
        prefixes: what prompts share, or None.
        kept: dependence that a drawn trace keeps, in words.
        not_kept: what it does not, in words.
        distances: against a held-out window, see :mod:`traces.generators.distance`; no part of the hash.
    """

    source: str
    source_sha256: str
    origin: tuple[str, ...]
    zone: str
    requests: int
    duration_s: float
    starts: int
    arrivals: ArrivalLaw
    arrivals_fit: Mapping[str, Any]
    lengths: Lengths
    mixes: tuple[Mix, ...]
    sessions: SessionLaw | None
    prefixes: PrefixLaw | None
    kept: tuple[str, ...]
    not_kept: tuple[str, ...]
    distances: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate_per_s(self) -> float:
        """Requests a second in the window that it is fitted on."""
        return self.requests / self.duration_s

    @property
    def requests_per_start(self) -> float:
        """Requests of a session, on average."""
        return self.requests / self.starts

    @property
    def sha256(self) -> str:
        """Hash of the laws and of what they are fitted on."""
        return hashlib.sha256(json.dumps(self._laws(), sort_keys=True).encode()).hexdigest()

    def _laws(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "zone": self.zone,
            "requests": self.requests,
            "duration_s": self.duration_s,
            "starts": self.starts,
            "arrivals": dict(self.arrivals.to_dict()),
            "lengths": self.lengths.to_dict(),
            "mixes": [mix.to_dict() for mix in self.mixes],
            "sessions": self.sessions.to_dict() if self.sessions else None,
            "prefixes": self.prefixes.to_dict() if self.prefixes else None,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order in which a person wants to read them."""
        laws = self._laws()
        head = {key: laws.pop(key) for key in ("version", "source", "source_sha256", "zone", "requests", "duration_s")}
        return {
            **head,
            "starts": laws.pop("starts"),
            "origin": list(self.origin),
            "kept": list(self.kept),
            "not_kept": list(self.not_kept),
            "distances": dict(self.distances),
            "arrivals_fit": dict(self.arrivals_fit),
            **laws,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Generator:
        """The generator of :meth:`to_dict`; KeyError, TypeError or ValueError if it is none."""
        if raw.get("version") != VERSION:
            raise ValueError(f"version {VERSION}, not {raw.get('version')!r}")
        for key, value in raw.items():
            if key not in ("distances", "arrivals_fit"):  # a record, of which nothing is drawn
                _check_numbers(key, value)
        made = cls(
            source=str(raw["source"]),
            source_sha256=str(raw["source_sha256"]),
            origin=tuple(map(str, raw["origin"])),
            zone=str(raw["zone"]),
            requests=int(raw["requests"]),
            duration_s=float(raw["duration_s"]),
            starts=int(raw["starts"]),
            arrivals=law_from_dict(raw["arrivals"]),
            arrivals_fit=dict(raw["arrivals_fit"]),
            lengths=Lengths.from_dict(raw["lengths"]),
            mixes=tuple(Mix.from_dict(mix) for mix in raw["mixes"]),
            sessions=SessionLaw.from_dict(raw["sessions"]) if raw["sessions"] else None,
            prefixes=PrefixLaw.from_dict(raw["prefixes"]) if raw["prefixes"] else None,
            kept=tuple(map(str, raw["kept"])),
            not_kept=tuple(map(str, raw["not_kept"])),
            distances=dict(raw["distances"]),
        )
        if not 1 <= made.starts <= made.requests or not 0 < made.duration_s < float("inf"):
            raise ValueError("1 or more starts, no more than requests, in a positive duration")
        return made


def _check_numbers(key: str, value: Any) -> None:
    """A ValueError for a number that no law has: sums and products of it would be none."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_numbers(key, item)
    elif isinstance(value, int | float) and not abs(value) <= _MOST:
        raise ValueError(f"numbers up to {_MOST:g} in {key}")


def write_generator(made: Generator, path: str | Path) -> None:
    """Write a generator as YAML."""
    import yaml

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Numbers in a row, words one below the other."""

    def sequence(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=_numbers(values))

    def mapping(dumper: yaml.SafeDumper, values: dict[Any, Any]) -> yaml.Node:
        flow = _numbers(list(values.values()))
        return dumper.represent_mapping("tag:yaml.org,2002:map", values, flow_style=flow and len(values) < _ROW)

    Dumper.add_representer(list, sequence)
    Dumper.add_representer(dict, mapping)
    text = yaml.dump(made.to_dict(), Dumper=Dumper, sort_keys=False, width=118, allow_unicode=True)
    path.write_text(_HEAD + text, encoding="utf-8")


def _numbers(values: list[Any]) -> bool:
    return all(isinstance(value, bool | int | float) for value in values)


def read_generator(path: str | Path) -> Generator:
    """Read a generator.

    Raises:
        TraceError: a missing or damaged file, or one of another version.
    """
    import yaml

    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if not isinstance(raw, Mapping):
            raise ValueError("a mapping of laws")
        return Generator.from_dict(raw)
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        ArithmeticError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        expected = f"a generator written by action=fit ({what})"
        raise TraceError(file=path, expected=expected) from error
