"""Every option of every reader, given values that it cannot take: one message that names it."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.traces.test_fuzz import OPTIONS, VALID
from traces import Trace, TraceError, load_trace
from traces.readers.options import RANGES
from traces.readers.registry import FORMATS

INF, NAN = float("inf"), float("nan")
ODD: list[Any] = [None, True, False, 0, 1, -1, 1.5, -0.5, 2**70, -(2**70), 10**400, 1e-300, 1e300, INF, NAN]
ODD += ["", "x", "no", "1s", "null", "\ud83d", b"x", [], [1], {}, {"a": 1}, {5: "a"}, {"a": None}, object()]
SETTINGS = [
    (name, option, str(parameter.annotation))
    for name, form in FORMATS.items()
    for option, parameter in inspect.signature(form.read).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("odd")
    for name, samples in VALID.items():
        (folder / name).write_bytes(samples[0])
    return {name: folder / name for name in VALID}


def fits(value: Any, option: str, annotation: str) -> bool:
    """Whether a value has a type and a range that the annotation of an option allows."""
    kinds = annotation.replace("Mapping[str, str | None]", "nulls").replace("Mapping[str, str]", "names").split(" | ")
    if value is None:
        return "None" in kinds
    if isinstance(value, bool):
        return "bool" in kinds
    if isinstance(value, str):
        return "str" in kinds or ("bool" in kinds and value == "no")
    if isinstance(value, dict):
        names = all(isinstance(k, str) and (isinstance(v, str) or v is None) for k, v in value.items())
        return ("nulls" in kinds and names) or ("names" in kinds and names and None not in value.values())
    whole = "int" in kinds and isinstance(value, int)
    fraction = "float" in kinds and isinstance(value, int | float)
    return (whole or fraction) and RANGES[option][0] <= value <= RANGES[option][1]


@pytest.mark.parametrize(("name", "option", "annotation"), SETTINGS, ids=[f"{n}-{o}" for n, o, _ in SETTINGS])
def test_odd_values(files: dict[str, Path], name: str, option: str, annotation: str) -> None:
    for value in ODD:
        given = {**OPTIONS.get(name, {}), option: value}
        if fits(value, option, annotation):
            with contextlib.suppress(TraceError):
                assert isinstance(load_trace(files[name], format=name, **given), Trace)
        else:
            with pytest.raises(TraceError, match=f"{name}, column 'trace.options.{option}.*expected"):
                load_trace(files[name], format=name, **given)


@pytest.mark.parametrize(
    ("word", "sorts"), [("yes", True), ("On", True), ("true", True), ("no", False), ("off", False)]
)
def test_words_for_truths_are_read_as_yaml_does(tmp_path: Path, word: str, sorts: bool) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n1,5,5\n0,5,5\n")
    if sorts:
        assert len(load_trace(path, sort=word)) == 2
    else:
        with pytest.raises(TraceError, match=r"ascending order .*trace.options.sort=true sorts them"):
            load_trace(path, sort=word)


@pytest.mark.parametrize("value", [-1000, NAN, "1s", None, []])
def test_assumed_service_is_no_debt(tmp_path: Path, value: Any) -> None:
    (tmp_path / "m").write_bytes(VALID["mooncake"][0])
    with pytest.raises(TraceError, match=r"trace.options.assumed_ttft_s'.*expected a number from 0 to 1,000,000"):
        load_trace(tmp_path / "m", format="mooncake", assumed_ttft_s=value)
