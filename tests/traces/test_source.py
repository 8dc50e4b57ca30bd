"""Files, compressed files, archives and folders as bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.traces.samples import azure_csv, write
from traces import TraceError, load_trace
from traces.source import read_source

PACK = {"plain": bytes, "gz": gzip.compress, "zst": zstandard.compress}


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("pack", PACK)
def test_an_archive_of_one_file_is_that_file(tmp_path: Path, pack: str) -> None:
    path = write(tmp_path, "conv.tar", PACK[pack](tar({"./data/conv.csv": gzip.compress(azure_csv())})))
    assert read_source(path).data == azure_csv()
    assert len(load_trace(path)) == 3


def test_members_are_named_by_a_path_that_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, "all.tar.gz", gzip.compress(tar({"a.csv": azure_csv(), "sub/b.csv": azure_csv()[:-1]})))
    trace = load_trace(path / "sub" / "b.csv")
    assert trace.name == "b"
    assert trace.provenance[0].startswith("read from sub/b.csv in all.tar.gz, sha256 ")
    with pytest.raises(TraceError, match=r"several files.*such as .*all\.tar\.gz/a\.csv"):
        load_trace(path, format="azure")
    with pytest.raises(TraceError, match=r"did you mean 'sub/b.csv'"):
        load_trace(path / "sub" / "bb.csv")
    with pytest.raises(TraceError, match="a tar archive or a folder"):
        load_trace(write(tmp_path, "one.csv", azure_csv()) / "b.csv")


def test_a_folder_inside_an_archive_is_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path, "repo.tar", tar({"r/data/a/1.csv": b"1", "r/data/a/2.csv": b"2", "r/data/b/3.csv": b"3"}))
    source = read_source(path / "r" / "data" / "a")
    assert source.holds_many
    assert list(source.members()) == [("1.csv", b"1"), ("2.csv", b"2")]
    with pytest.raises(TraceError, match="a member of repo"):
        _ = read_source(path / "r" / "data" / "c").data


def test_members_of_an_archive_and_of_a_folder_are_alike(tmp_path: Path) -> None:
    files = {"a.json": b"1", "b/c.json": gzip.compress(b"22"), ".hidden": b"no", "z.txt": b"3"}
    for name, data in files.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    archive = write(tmp_path, "x.tar", tar(files))
    expected = [("a.json", b"1"), ("b/c.json", b"22")]
    for path in (tmp_path / "folder", archive):
        source = read_source(path)
        assert list(source.members(lambda name: name.endswith(".json"))) == expected
        assert source.holds_many
        assert source.head == b"1"
        with pytest.raises(TraceError, match="at least one file that this format reads"):
            list(source.members(lambda name: False))


def test_a_folder_hash_depends_on_names_and_bytes(tmp_path: Path) -> None:
    write(tmp_path, "a", b"1")
    first = read_source(tmp_path).sha256
    assert read_source(tmp_path).sha256 == first
    write(tmp_path, "a", b"2")
    assert read_source(tmp_path).sha256 != first


def test_a_stream_reads_across_zstd_frames(tmp_path: Path) -> None:
    path = write(tmp_path, "x", zstandard.compress(b"a" * 3_000_000) + zstandard.compress(b"b"))
    with read_source(path).open() as stream:
        assert stream.read(3) == b"aaa"
        assert stream.read() == b"a" * 2_999_997 + b"b"


def test_a_torn_archive_names_itself(tmp_path: Path) -> None:
    data = tar({"a.csv": azure_csv() * 500, "b.csv": azure_csv() * 500})
    path = write(tmp_path, "x.tar", data[:-40_000])
    with pytest.raises(TraceError, match=r"x\.tar.*sound tar archive"):
        list(read_source(path).members())


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_empty_tar_is_said_to_be_one(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    buffer = io.BytesIO()
    tarfile.open(fileobj=buffer, mode="w").close()
    (tmp_path / "empty.tar").write_bytes(pack(buffer.getvalue()))
    for form in (None, "azure", "servegen"):
        with pytest.raises(TraceError, match="found 'an empty tar archive, or zeros only', expected at least one file"):
            load_trace(tmp_path / "empty.tar", format=form)
