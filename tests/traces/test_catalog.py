from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.traces.samples import azure_csv, write
from traces import TraceError, load_trace
from traces.catalog import ENTRIES, default_data_dir, names, zones
from traces.readers.registry import FORMATS


def test_every_entry_is_complete() -> None:
    assert names()[0] == "default"
    for name, entry in ENTRIES.items():
        assert entry.name == name
        assert entry.format in FORMATS
        assert set(entry.options) <= set(FORMATS[entry.format].options)
        assert entry.source
        assert entry.licence
        assert entry.citation
        assert entry.oddities
        if entry.cuts_s is not None:
            train, validation, test = entry.cuts_s
            assert train / test == pytest.approx(0.4, abs=0.001)
            assert validation / test == pytest.approx(0.6, abs=0.001)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(TraceError, match="did you mean 'azure_conv'"):
        load_trace("azure_con")


def test_absent_data_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace("azure_conv", data_dir=tmp_path)
    text = str(raised.value)
    for part in (
        str(tmp_path),
        "AzureLLMInferenceTrace_conv.csv",
        "Azure/AzurePublicDataset",
        "b469a113",
        "PDGYM_DATA",
    ):
        assert part in text


def azure_folder(tmp_path: Path, rows: int, ending: str = "csv") -> Path:
    lines = [f"2023-11-16 18:{i // 60 % 60:02d}:{i % 60:02d}.5,{10 + i},5" for i in range(rows)]
    (tmp_path / "traces" / "azure2023").mkdir(parents=True)
    write(tmp_path / "traces" / "azure2023", f"AzureLLMInferenceTrace_conv.{ending}", azure_csv(lines))
    return tmp_path


def test_bytes_that_the_catalogue_does_not_know_are_unverified(tmp_path: Path) -> None:
    trace = load_trace("azure_conv", data_dir=azure_folder(tmp_path, 3000))
    assert trace.name == "azure_conv"
    assert "unverified" in trace.provenance[-1]
    assert "CC-BY-4.0" in trace.provenance[-1]


def test_cuts_are_fixed_in_seconds_whatever_the_length_of_the_file(tmp_path: Path) -> None:
    parts = zones(load_trace("azure_conv", data_dir=azure_folder(tmp_path, 3000)))
    assert {zone: len(part) for zone, part in parts.items()} == {"train": 960, "validation": 480, "test": 960}
    assert parts["test"].frame["prompt_tokens"][0] == 10 + 1440


def test_traces_without_cuts_are_split_by_shares(tmp_path: Path) -> None:
    trace = load_trace(azure_folder(tmp_path, 100) / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv")
    assert {zone: len(part) for zone, part in zones(trace).items()} == {"train": 40, "validation": 20, "test": 40}


def test_a_file_that_merely_has_a_name_of_the_catalogue_has_no_fixed_cuts(tmp_path: Path) -> None:
    folder = azure_folder(tmp_path, 3000)
    file = folder / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
    mine = load_trace(file.rename(tmp_path / "azure_conv.csv"))
    assert mine.name == "azure_conv"
    assert {zone: len(part) for zone, part in zones(mine).items()} == {"train": 1200, "validation": 600, "test": 1200}


def test_a_catalogue_name_takes_reader_options_and_its_own_format_only(tmp_path: Path) -> None:
    folder = azure_folder(tmp_path, 10)
    assert len(load_trace("azure_conv", "azure", folder, sort=True)) == 10
    with pytest.raises(TraceError, match="expected azure"):
        load_trace("azure_conv", "mooncake", folder)
    with pytest.raises(TraceError, match="did you mean 'sort'"):
        load_trace("azure_conv", data_dir=folder, sorts=True)


def test_the_data_folder_is_the_setting_else_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PDGYM_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.delenv("PDGYM_DATA")
    assert default_data_dir().parts[-2:] == ("pdgym", "data")


def test_a_damaged_data_file_names_it(tmp_path: Path) -> None:
    folder = azure_folder(tmp_path, 10, ending="csv.gz")
    path = folder / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv.gz"
    path.write_bytes(b"\x1f\x8bxx")
    with pytest.raises(TraceError, match=r"conv\.csv\.gz.*truncated gzip"):
        load_trace("azure_conv", data_dir=folder)


def test_the_page_on_traces_lists_every_format_and_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text("utf-8").splitlines()
    for form in FORMATS.values():
        row = next(line for line in page if line.startswith(f"| `{form.name}` |"))
        assert tuple(re.findall(r"`(\w+)`", row.split("|")[3])) == form.options
