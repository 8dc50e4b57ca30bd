"""Downloads against a local server: whole, broken off, resumed, corrupted, redirected, refused."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from traces import TraceError
from traces.entries import ENTRIES
from traces.fetch import LFS_POINTER, PIECE_BYTES, TRIES, fetch, mirrored

BODY = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(BODY).hexdigest()


@dataclass
class Site:
    """What the server holds and how it misbehaves. ``breaks``: bytes after which each answer in turn breaks off."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    ranges: bool = True
    etag: str | None = '"one"'
    length: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            if site.errors:
                self.send_error(site.errors.pop(0))
                return
            if self.path in site.redirects:
                self.send_response(302)
                self.send_header("Location", site.redirects[self.path])
                self.end_headers()
                return
            if self.path not in site.files:
                self.send_error(404)
                return
            body, start = site.files[self.path], 0
            if site.ranges and wanted and self.headers.get("If-Range") == site.etag:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            if site.etag:
                self.send_header("ETag", site.etag)
            self.send_header("Content-Length", site.length or str(len(body) - start))
            self.end_headers()
            end = start + site.breaks.pop(0) if site.breaks else len(body)
            self.wfile.write(body[start:end])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.files["/x.csv"] = BODY
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    got = fetch(
        f"{site.address}/x.csv",
        tmp_path / "a" / "x.csv",
        sha256=SHA256,
        progress=lambda *at: seen.append(at),
        pause_s=0,
    )
    assert got.path.read_bytes() == BODY
    assert (got.size_bytes, got.sha256, got.verified, got.resumed_bytes) == (len(BODY), SHA256, True, 0)
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert leftovers(tmp_path / "a") == ["x.csv"]


def test_without_a_known_hash_it_is_unverified(site: Site, tmp_path: Path) -> None:
    assert not fetch(f"{site.address}/x.csv", tmp_path / "x.csv", pause_s=0).verified


def test_it_goes_on_where_it_broke_off(site: Site, tmp_path: Path) -> None:
    site.breaks = [100_000, 200_000]
    got = fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0)
    assert got.path.read_bytes() == BODY
    assert [wanted for _, wanted in site.asked] == [None, f"bytes={PIECE_BYTES}-", f"bytes={4 * PIECE_BYTES}-"]


def test_a_later_call_goes_on_too(site: Site, tmp_path: Path) -> None:
    site.breaks = [PIECE_BYTES + 1000] * TRIES
    with pytest.raises(TraceError, match=f"{PIECE_BYTES * TRIES:,} bytes are kept, the same command goes on"):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0)
    assert not (tmp_path / "x.csv").exists()
    got = fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0)
    assert got.path.read_bytes() == BODY
    assert got.resumed_bytes == PIECE_BYTES * TRIES
    assert leftovers(tmp_path) == ["x.csv"]


@pytest.mark.parametrize("change", ["another version", "no ranges", "no mark", "another address"])
def test_what_cannot_be_gone_on_with_begins_anew(site: Site, tmp_path: Path, change: str) -> None:
    site.breaks = [PIECE_BYTES + 5000] * TRIES
    site.ranges = False
    with pytest.raises(TraceError):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", pause_s=0)
    address = f"{site.address}/x.csv"
    site.ranges = change != "no ranges"
    if change == "another version":
        site.files["/x.csv"], site.etag = BODY[::-1], '"two"'
    if change == "no mark":
        site.etag = None
    if change == "another address":
        address = f"{site.address}/y.csv"
        site.files["/y.csv"] = BODY[::-1]
    got = fetch(address, tmp_path / "x.csv", pause_s=0)
    assert got.path.read_bytes() == site.files["/y.csv" if change == "another address" else "/x.csv"]
    assert got.resumed_bytes == 0


def test_a_part_that_is_longer_than_the_file_begins_anew(site: Site, tmp_path: Path) -> None:
    site.breaks = [PIECE_BYTES + 5000] * TRIES
    site.ranges = False
    with pytest.raises(TraceError):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", pause_s=0)
    site.ranges = True
    with (tmp_path / ".x.csv.part").open("ab") as part:
        part.write(BODY)
    assert fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0).path.read_bytes() == BODY


def test_corrupted_bytes_are_deleted_and_named(site: Site, tmp_path: Path) -> None:
    site.files["/x.csv"] = BODY[:-1] + b"!"
    with pytest.raises(TraceError, match=f"x.csv.*expected bytes with sha256 {SHA256}"):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0)
    assert leftovers(tmp_path) == []


def test_an_old_file_stays_until_the_new_one_is_whole(site: Site, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"old")
    site.files["/x.csv"] = b"corrupted"
    with pytest.raises(TraceError):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0)
    assert (tmp_path / "x.csv").read_bytes() == b"old"


def test_redirects_are_followed(site: Site, tmp_path: Path) -> None:
    site.redirects = {"/old.csv": "/newer.csv", "/newer.csv": f"{site.address}/x.csv"}
    assert fetch(f"{site.address}/old.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0).verified


def test_a_circle_of_redirects_ends(site: Site, tmp_path: Path) -> None:
    site.redirects = {"/a": "/b", "/b": "/a"}
    with pytest.raises(TraceError, match="redirects"):
        fetch(f"{site.address}/a", tmp_path / "x.csv", pause_s=0)


def test_a_redirect_from_https_to_http_is_refused() -> None:
    import requests

    from traces.fetch import _keep_https

    answer = requests.Response()
    answer.status_code, answer.url = 302, "https://example.org/x"
    answer.headers["Location"] = "http://example.org/x"
    with pytest.raises(TraceError, match="stays on HTTPS"):
        _keep_https(answer)
    answer.headers["Location"] = "https://example.com/x"
    _keep_https(answer)


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(site: Site, tmp_path: Path) -> None:
    site.errors = [503, 429]
    assert fetch(f"{site.address}/x.csv", tmp_path / "x.csv", sha256=SHA256, pause_s=0).verified
    assert len(site.asked) == 3
    with pytest.raises(TraceError, match=r"HTTP 404.*mirror=URL"):
        fetch(f"{site.address}/none.csv", tmp_path / "none.csv", pause_s=0)
    assert len(site.asked) == 4


def test_a_git_lfs_pointer_is_not_the_data(site: Site, tmp_path: Path) -> None:
    site.files["/x.csv"] = LFS_POINTER + b"v1\noid sha256:0\nsize 1\n"
    with pytest.raises(TraceError, match="Git LFS pointer"):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", pause_s=0)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "what"),
    [(b"", "an empty file"), (b"  <!DOCTYPE html><p>log in</p>", "a web page"), (b"<html>", "a web page")],
)
def test_what_servers_send_in_place_of_a_trace_is_refused(site: Site, tmp_path: Path, body: bytes, what: str) -> None:
    site.files["/x.csv"] = body
    with pytest.raises(TraceError, match=what):
        fetch(f"{site.address}/x.csv", tmp_path / "x.csv", pause_s=0)
    assert leftovers(tmp_path) == []


def test_a_length_and_an_address_that_are_none(site: Site, tmp_path: Path) -> None:
    site.length = "abc"
    assert fetch(f"{site.address}/x.csv", tmp_path / "x.csv", pause_s=0).size_bytes == len(BODY)
    site.redirects = {"/old.csv": "http://[bad"}
    with pytest.raises(TraceError, match="a file that can be fetched"):
        fetch(f"{site.address}/old.csv", tmp_path / "y.csv", pause_s=0)


def test_no_server_and_no_address(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unbroken download"):
        fetch("http://127.0.0.1:9/x", tmp_path / "x", pause_s=0)
    with pytest.raises(TraceError, match="https://"):
        fetch("ftp://example.org/x", tmp_path / "x")


def test_every_public_place_is_https_and_lies_where_the_trace_is_looked_for() -> None:
    for entry in ENTRIES.values():
        if entry.url is not None:
            assert entry.url.startswith("https://")
            assert entry.saved_as is not None
            assert any(file == entry.saved_as or file.startswith(f"{entry.saved_as}/") for file in entry.files)


def test_the_command_fetches_from_a_mirror_and_the_trace_loads(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from research.traces import main
    from tests.traces.samples import azure_csv
    from traces import load_trace

    saved_as = str(ENTRIES["azure_conv"].saved_as)
    site.files[f"/data/{saved_as}"] = azure_csv()
    words = ["action=fetch", "trace=azure_conv", f"data_dir={tmp_path}/data", f"out={tmp_path}/out"]
    assert main([*words, f"mirror={site.address}/data/"]) == 0
    said = capsys.readouterr()
    assert "unverified" in said.out
    assert "CC-BY-4.0" in said.out
    assert "plain HTTP" in said.err
    assert len(load_trace("azure_conv", data_dir=tmp_path / "data")) == 3
    asked = len(site.asked)
    assert main([*words, f"mirror={site.address}/data/"]) == 0
    assert "there already" in capsys.readouterr().out
    assert len(site.asked) == asked


def test_a_mirror_of_the_data_folder_gives_the_part_with_the_known_hash(
    site: Site, tmp_path: Path, public_data: Path
) -> None:
    from research.traces import main

    part = ENTRIES["azure_code"].files[0]
    site.files[f"/{part}"] = (public_data / part).read_bytes()
    words = ["action=fetch", "trace=azure_code", f"data_dir={tmp_path}/data", f"out={tmp_path}/out"]
    assert main([*words, f"mirror={site.address}"]) == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["verified"]
    assert (tmp_path / "data" / part).is_file()


def test_the_command_says_what_it_cannot_fetch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from research.traces import main

    assert main(["action=fetch", "trace=default", f"out={tmp_path}"]) == 2
    assert main(["action=fetch", "trace=agentic", f"data_dir={tmp_path}", f"out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "comes with the package" in said
    assert "cannot be had by one download" in said


def test_a_mirror_holds_the_layout_of_the_data_folder() -> None:
    assert mirrored("https://example.org/d/", "traces/a b.csv") == "https://example.org/d/traces/a%20b.csv"
