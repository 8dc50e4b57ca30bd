"""What the documents show works: every file that CONTRIBUTING prints is written, loaded and used."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from envs.hardware.load import load_profile
from policies.rulepolicy import RulePolicy
from tests.policies.views import ask, d, make_request, p
from traces import TraceError, load_trace
from traces.readers import registry

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def printed_files(document: Path) -> dict[str, str]:
    """Path -> text of the fenced blocks whose first line is a comment with a path."""
    blocks = re.findall(r"^```\w+\n(# (\S+/\S+)\n.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return {path: text for text, path in blocks}


@pytest.fixture
def my_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of CONTRIBUTING below a folder that Python imports from."""
    for name, text in printed_files(ROOT / "CONTRIBUTING.md").items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "my_lab/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def lab_module(name: str) -> ModuleType:
    return importlib.import_module(f"my_lab.{name}")


def test_the_policy_decides(my_lab: Path) -> None:
    policy = RulePolicy.of(lab_module("fewest_streams").decide)
    workers = [p(0, prefill_tokens=900), p(1, prefill_tokens=100), d(2, streams=3), d(3, streams=2, transfers=2)]
    assert ask(policy, make_request(), workers)[:3] == (0, 1, 2)
    assert ask(policy.with_params(transfer_weight=0.1), make_request(), workers)[:3] == (0, 1, 3)


def test_the_reader_reads(my_lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = lab_module("plain_log").FORMAT
    monkeypatch.setitem(registry.FORMATS, form.name, form)
    log = my_lab / "day.plain"
    log.write_text("10.0 100 5\n10.5 200 7\n")
    assert load_trace(log).frame["arrival_s"].to_list() == [0.0, 0.5]
    log.write_text("10.0 100 5\n10.5 200\n")
    with pytest.raises(TraceError, match="row 2"):
        load_trace(log, format="plain")


def test_the_profile_loads(my_lab: Path) -> None:
    profile = load_profile(my_lab / "my_lab/mine.yaml")
    assert (profile.name, profile.step.c0_s) == ("mine", 0.006)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text("utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_make_commands_in_the_documents_exist() -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"(?:^    |`)make ([a-z]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named - rules == set()
