"""The page and its pictures: whole, self-contained, honest."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import polars as pl
import pytest

from research.cli import run_command
from research.errors import ResearchError
from research.evidence.runs import RunStore, key_of, write_json
from research.report import interval_text, nearest_rate, read_summary, run, significant, write_report
from tests.research.studies import study_summary


class Page(HTMLParser):
    """Ids, outside references, unclosed elements."""

    def __init__(self):
        super().__init__()
        self.ids, self.references, self.open, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:")):
                self.references.append(value)
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study with its report written."""
    tmp_path = tmp_path_factory.mktemp("study")
    made = study_summary({"round_robin": 5.0, "ppd": 6.0, "guard": 8.0})
    store = RunStore.open(tmp_path / "runs")
    for entry in made["runs"]:
        identity = {"run": entry["keys"][0]}
        entry["keys"] = [key_of(identity)]
        table = pl.DataFrame({"ttft_s": [0.1, 0.2, 0.9], "tpot_s": [0.01, None, 0.02]})
        file = tmp_path / "t.parquet"
        table.write_parquet(file)
        store.write(entry["keys"][0], identity, {}, files={"requests.parquet": file.read_bytes()})
    write_json(tmp_path / "summary.json", made)
    write_report(tmp_path, tmp_path / "runs")
    return tmp_path


def test_the_page_is_whole_and_needs_nothing_from_outside(folder):
    html = (folder / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert page.references == []
    assert len(page.ids) == len(set(page.ids))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert "prefers-color-scheme: dark" in html
    assert len(html) < 1_000_000


def test_the_page_says_what_must_be_said(folder):
    page = Page()
    page.feed((folder / "report.html").read_text())
    text = " ".join(page.text.split())
    for part in (
        "never backtested",
        "guard wins",
        "17 s at load 1",
        "those of a transient",
        "python -m research.compare 'policies=[a,b]'",
        "0" * 64,
        "Holm",
        "python 3.11",
        "<b>made</b> by hand",  # escaped, not markup
    ):
        assert part in text


def test_every_picture_is_written_as_png_too(folder):
    names = {p.name for p in (folder / "figures").iterdir()}
    assert names == {f"{n}.png" for n in ("goodput", "differences", "distributions", "latencies", "knee")}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in (folder / "figures").iterdir())


def test_without_the_runs_only_the_distributions_are_left_out(folder, tmp_path):
    write_report(folder, folder / "gone", tmp_path)
    assert "distributions" not in {p.stem for p in (tmp_path / "figures").iterdir()}


def test_the_command_writes_it_again_elsewhere(folder, tmp_path, capsys):
    out = tmp_path / "again"
    argv = [f"path={folder}", f"out={out}"]
    assert run_command("report", run, summary="", examples=(), argv=argv) == 0
    assert (out / "report.html").is_file()
    assert str(out / "report.html") in capsys.readouterr().out


def test_one_load_and_no_knee_are_drawn_too(tmp_path):
    made = study_summary({"guard": 8.0})
    keep = made["rows"][0]["rate_per_s"]
    for part in ("rows", "differences", "winners"):
        made[part] = [{**r, "load": None} for r in made[part] if r["rate_per_s"] == keep]
    made["knee"] = None
    made["robustness"] = {"load": None, "rate_per_s": None, "leader": None, "leaders": {}, "rows": []}
    write_json(tmp_path / "summary.json", made)
    page = Page()
    page.feed(write_report(tmp_path, tmp_path / "gone").read_text())
    assert "no knee was searched" in page.text
    assert {p.stem for p in (tmp_path / "figures").iterdir()} == {"goodput", "latencies"}


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"rows": 1}'])
def test_what_is_no_study_is_told(tmp_path, text):
    with pytest.raises(ResearchError, match=r"no summary\.json here"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ResearchError, match=r"summary\.json"):
        read_summary(tmp_path)


def test_pictures_of_one_load_show_the_one_nearest_the_knee():
    assert nearest_rate(study_summary({"guard": 8.0})) == 10.0


def test_figures_on_the_page_have_few_digits():
    assert [significant(v) for v in (None, 0.0, 0.01234, 12.345, 1234.5, 3.2e9)] == [
        "-",
        "0",
        "0.0123",
        "12.3",
        "1,234",
        "3.20e+09",
    ]
    assert interval_text({"estimate": 2.0, "low": 1.5, "high": 2.5}) == "[1.50, 2.50]"
    assert interval_text({"estimate": 2.0, "low": None, "high": None}) == ""
