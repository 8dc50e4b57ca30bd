"""Whatever the bytes, a reader gives a trace or a TraceError.

Every format brings valid files: ``VALID`` (format name -> files) and, if it needs them, ``OPTIONS`` (format name ->
reader options) of a module ``tests/traces/samples*.py``.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import pkgutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from traces import Trace, TraceError, load_trace
from traces.readers.registry import FORMATS

VALID: dict[str, list[bytes]] = {}
OPTIONS: dict[str, dict[str, Any]] = {}
for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if found.name.startswith("samples"):
        module = importlib.import_module(f"tests.traces.{found.name}")
        VALID |= module.VALID
        OPTIONS |= getattr(module, "OPTIONS", {})
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
@given(changes=edits, data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_files(name: str, changes: list[Edit], data: st.DataObject) -> None:
    attempt(name, apply(data.draw(st.sampled_from(VALID[name])), changes))


@pytest.mark.parametrize("name", FORMATS)
def test_the_samples_are_valid(name: str, tmp_path: Path) -> None:
    for number, data in enumerate(VALID[name]):
        (tmp_path / str(number)).write_bytes(data)
        assert len(load_trace(tmp_path / str(number), format=name, **OPTIONS.get(name, {})))


@given(changes=edits, pack=st.sampled_from([gzip.compress, zstandard.compress]))
@settings(max_examples=60)
def test_mutated_archives(changes: list[Edit], pack: Any) -> None:
    attempt("azure", apply(pack(VALID["azure"][0]), changes))
