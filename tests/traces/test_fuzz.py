"""Whatever the bytes, a reader gives a trace or a TraceError."""

from __future__ import annotations

import contextlib
import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.traces.samples import TABLE, agentic_frame, azure_csv, mooncake_jsonl, parquet
from traces import Trace, TraceError, load_trace
from traces.readers import canonical
from traces.readers.registry import FORMATS


def _canonical() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        canonical.write(load_trace("default").windows(200)[0], Path(folder) / "x.parquet")
        return (Path(folder) / "x.parquet").read_bytes()


VALID: dict[str, bytes] = {
    "azure": azure_csv(),
    "mooncake": mooncake_jsonl(),
    "agentic": parquet(agentic_frame()),
    "table": TABLE.encode(),
    "pdgym": _canonical(),
}
WORDS = [
    b"nan",
    b"-1",
    b"1e12",
    b"1e308",
    b"9" * 40,
    b"null",
    b"\xff\xfe",
    b"\x00",
    b",",
    b"\n",
    b'"',
    b"[",
    b"}",
    b"0",
]
OPTIONS: dict[str, dict[str, Any]] = {"agentic": {"zero_output": "one"}, "azure": {"sort": True}}

Edit = tuple[float, int, bytes]
edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 12), st.sampled_from(WORDS) | st.binary(max_size=3)),
    min_size=1,
    max_size=4,
)
packers = st.sampled_from([bytes, gzip.compress, zstandard.compress])


def apply(data: bytes, changes: list[Edit]) -> bytes:
    """Each edit replaces some bytes at a relative place by others."""
    for place, length, word in changes:
        at = int(place * len(data))
        data = data[:at] + word + data[at + length :]
    return data


def attempt(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(data)
        for form, options in ((name, OPTIONS.get(name, {})), (name, {}), (None, {})):
            with contextlib.suppress(TraceError):
                assert isinstance(load_trace(path, format=form, **options), Trace)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.binary(max_size=300), pack=packers)
@example(data=b"", pack=bytes)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_random_bytes(name: str, data: bytes, pack: Any) -> None:
    attempt(name, pack(data))


@pytest.mark.parametrize("name", FORMATS)
@given(changes=edits)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_files(name: str, changes: list[Edit]) -> None:
    attempt(name, apply(VALID[name], changes))


@given(changes=edits, pack=st.sampled_from([gzip.compress, zstandard.compress]))
@settings(max_examples=60)
def test_mutated_archives(changes: list[Edit], pack: Any) -> None:
    attempt("azure", apply(pack(VALID["azure"]), changes))
