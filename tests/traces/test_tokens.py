"""Tokenizers: what they may return, and that nothing they say gets out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from research.traces import main
from tests.traces.prompt_logs import hashes, quick_salt, run, write  # noqa: F401
from traces.errors import TraceError
from traces.tokens import load_tokenizer


def test_a_real_tokenizer_leaves_room_for_the_end_token_alone(tmp_path: Path) -> None:
    answer = "x y z " * 20
    for more, blocks in ((0, 16), (1, 16), (2, 1)):
        log = [{"timestamp": 1, "prompt": "a b c d", "output": answer, "output_tokens": 60 + more}]
        out = run(tmp_path, f"out{more}", log, "salt", f"tokenizer={__name__}:words", "block_tokens=4")
        assert [len(chain) for chain in hashes(out)] == [blocks]


def words(text: str) -> list[int]:
    if any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise UnicodeEncodeError("utf-8", text, 0, 1, text)
    return [len(word) for word in text.split()]


@pytest.mark.parametrize("tokenizer", ["estimate", f"{__name__}:words"])
def test_halves_of_surrogate_pairs_are_mended_and_counted(tmp_path: Path, tokenizer: str) -> None:
    half, whole = "quokka \ud83d late " * 30, "quokka \ufffd late " * 30
    log = [{"timestamp": k, "prompt": text, "output": text} for k, text in enumerate((half, whole))]
    log.append({"timestamp": 3, "session": "\ud83d", "user": "\ud83d", "prompt": "a", "output": "b"})
    out = run(tmp_path, "out", log, "salt", f"tokenizer={tokenizer}")
    one, two, _ = hashes(out)
    assert one == two != []
    notes = json.loads((out / "summary.json").read_text("utf-8"))["notes"]
    assert "repair: 2 texts had halves of surrogate pairs, now U+FFFD" in notes


def exits(text: str) -> list[int]:
    raise SystemExit(text)


def panics(text: str) -> list[int]:
    raise type("PanicException", (BaseException,), {})(text)


def fails_late(text: str) -> Iterator[int]:
    yield 1
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (exits, "SystemExit"),
        (panics, "PanicException"),
        (fails_late, "RuntimeError"),
        (lambda text: text, "TypeError"),
        (lambda text: [1.7], "TypeError"),
        (lambda text: [float("inf")], "TypeError"),
        (lambda text: [2**63], "an id of 2^63 or more"),
        (lambda text: [-1], "an id below 0"),
        (lambda text: None, "TypeError"),
    ],
)
def test_a_tokenizer_that_fails_is_told_by_row_without_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, function: Any, message: str
) -> None:
    monkeypatch.setattr(f"{__name__}.tried", lambda text: function(text) if "quokka" in text else [1], raising=False)
    path = write(tmp_path, [{"timestamp": k, "prompt": p, "output_tokens": 1} for k, p in enumerate(("a", "quokka"))])
    settings = [f"path={path}", f"salt={tmp_path / 'salt'}", f"out={tmp_path / 'out'}"]
    assert main(["action=hash", f"tokenizer={__name__}:tried", *settings]) == 2
    said = capsys.readouterr().err
    assert "row 2, column 'tokenizer'" in said
    assert message in said
    assert "quokka" not in said
    with pytest.raises(TraceError) as raised:
        load_tokenizer(f"{__name__}:tried").encode("quokka")
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)  # a traceback would show their words


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        (".tk:f", "", "package.module:function"),
        ("tk_syntax:f", "def f(:", "invalid syntax"),
        ("tk_raises:f", "raise ValueError('quokka')", "an importable module (ValueError)"),
        ("tk_exits:f", "raise SystemExit('quokka')", "an importable module (SystemExit)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, code: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{spec.partition(':')[0].strip('.')}.py").write_text(code, "utf-8")
    with pytest.raises(TraceError, match=re.escape(message)):
        load_tokenizer(spec)


def test_a_tokenizer_file_is_read_by_its_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tokenizers.py"
    package.write_text(
        "class Tokenizer:\n"
        "    @classmethod\n"
        "    def from_file(cls, path):\n"
        "        if 'bad' in path:\n"
        "            raise Exception('unknown variant `quokka` at line 1 column 7')\n"
        "        return cls()\n"
        "    def encode(self, text, add_special_tokens):\n"
        "        assert not add_special_tokens\n"
        "        return type('Encoding', (), {'ids': [ord(letter) for letter in text]})\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text("{}", "utf-8")
    bad.write_text('{"prompt": "quokka"}', "utf-8")
    try:
        assert load_tokenizer(str(good)).encode("ab") == [97, 98]
        with pytest.raises(TraceError, match="at line 1 column 7") as raised:
            load_tokenizer(str(bad))
    finally:
        sys.modules.pop("tokenizers", None)  # other tests have none
    assert "quokka" not in str(raised.value)
