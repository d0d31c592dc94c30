"""Checkpoints: the state of an inversion on disk, from which the next step follows.

A file is a header (magic, version, score, SHA-256 of the body, epoch, SHA-256 of the header so far)
and a body, which torch writes into the file and reads from it without a second copy in memory. The
header answers what can be answered without the body, which may be as large as memory.

Checkpoints are written to a temporary file, which is then renamed. The last few and the best one
are kept, and a damaged one is skipped for the one before. A file is damaged if its bytes are wrong.
A file that the system does not let be read says nothing of its bytes: it is waited for, and never
passed over, nor removed. `inversion` decides what belongs to the state and what its score is. One
process calls these functions, in one thread at a time.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import torch

from hpcfwi.errors import InputError, WriteFailure, first_line
from hpcfwi.system import check_link, open_regular, written_whole


def write_body(payload: dict[str, Any], file: BinaryIO) -> bytes:
    """Write what `load_body` reads from here on; its SHA-256. Raises OSError."""
    body = _Writer(file)
    torch.save(payload, cast(BinaryIO, body))
    if body.failure is not None:
        raise body.failure
    return body.digest.digest()


def load_body(file: BinaryIO, begin: int) -> dict[str, Any]:
    """Read the body that begins at a byte, on the CPU; foreign objects are refused.

    Raises OSError if the system does not let it be read, and the errors of torch.
    """
    body = _Reader(file, begin)
    try:
        found = torch.load(cast(BinaryIO, body), map_location="cpu", weights_only=True)
    except Exception as error:
        if body.failure is not None:
            raise body.failure from error
        raise
    return cast(dict[str, Any], found)


def check_loadable(payload: dict[str, Any]) -> None:
    """Raise `TypeError` for what could be saved, and not loaded."""
    body = io.BytesIO()
    torch.save(_hollow(payload), body)
    body.seek(0)
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(body)
    if foreign:
        raise TypeError(f"a checkpoint that holds {', '.join(foreign)} could not be loaded")


def _hollow(tree: Any) -> Any:
    """The same with empty tensors."""
    if type(tree) is dict:
        return {key: _hollow(branch) for key, branch in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(_hollow, tree))
    return tree.new_empty(0) if type(tree) is torch.Tensor else tree


class _Writer:
    """A file, as torch writes into it.

    failure: of the file, after which nothing is written. Raised here it would be one of torch's.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, part: memoryview) -> int:
        if self.failure is None:
            try:
                self._file.write(part)
            except OSError as error:
                self.failure = error
            self.digest.update(part)
        return len(part)

    def flush(self) -> None:
        """The file is flushed when it is whole."""


class _Reader(io.RawIOBase):
    """A file from a byte on, as torch reads it; failure: what the system has said."""

    def __init__(self, file: BinaryIO, begin: int) -> None:
        super().__init__()
        self._file, self._begin = file, begin
        self.failure: OSError | None = None
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        # No OSError: the system has read a file whose contents are wrong
        if whence == os.SEEK_SET and offset < 0:
            raise ValueError(f"it refers to byte {offset} of its body")
        before = self._begin if whence == os.SEEK_SET else 0
        return self._file.seek(before + offset, whence) - self._begin

    def readinto(self, buffer: Any) -> int:
        try:
            return cast(io.BufferedReader, self._file).readinto(buffer)
        except OSError as error:
            self.failure = error
            raise


T = TypeVar("T")

VERSION = 5
# s, from one try to the next to read what the system does not let be read: half a minute in all
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
_MAGIC = b"hpcfwi-checkpoint\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sId32sQ")
_DIGEST_SIZE = 32  # bytes
_NAME = re.compile(r"epoch_(\d+)\.ckpt", re.ASCII)

log = logging.getLogger("hpcfwi")


class _DamageError(Exception):
    """The file is not what was written."""


class _UnreadableError(Exception):
    """The system does not let it be read, now: `path`, and the system's `reason`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read ({reason})")
        self.path, self.reason = path, reason


@dataclass(frozen=True)
class _Header:
    """score, digest: of the body; begin: its first byte in the file."""

    score: float
    digest: bytes
    begin: int
    epoch: int


def save_checkpoint(
    directory: Path, epoch: int, payload: dict[str, Any], keep: int = 3, score: float = math.inf
) -> Path:
    """Write the state after `epoch`; keep the last `keep` files, this one among them, and the best.

    payload: tensors and plain Python values, nested in dicts, lists and tuples.
    score: how good the state is, less is better; the best of the files that are there is kept
    whatever its age. One that is not finite is never the best.
    Files of later epochs are removed: the run has gone back to before them.
    Raises `TypeError` for a payload of anything else, `WriteFailure`, and `InputError` where the
    directory is somebody else's link; the files that were there before are there still then.
    """
    check_link(directory)
    content = {"epoch": epoch, "state": payload}
    check_loadable(content)
    path = directory / f"epoch_{epoch:06d}.ckpt"
    with written_whole(path) as file:
        file.seek(_HEADER.size + _DIGEST_SIZE)
        digest = write_body(content, file)
        header = _HEADER.pack(_MAGIC, VERSION, score, digest, epoch)
        file.seek(0)
        file.write(header + hashlib.sha256(header).digest())
    _prune(directory, epoch, keep)
    return path


def load_latest_checkpoint(directory: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest whole checkpoint as (epoch, payload), on the CPU; None where there is none.

    Damaged files are skipped with a warning. Those that cannot be read are tried again for half a
    minute, as file servers have their moments. Raises `InputError` where they still cannot, and
    for a file of another version, from which this program cannot go on.
    """
    return _find_newest(directory, _load)


def latest_whole_epoch(directory: Path) -> int:
    """The epoch of the newest whole checkpoint, 0 where there is none; in little memory.

    Raises and warns as `load_latest_checkpoint`.
    """
    found = _find_newest(directory, _verify)
    return 0 if found is None else found[0]


def latest_epoch(directory: Path) -> int:
    """The epoch of the newest checkpoint, whole or not; 0 where there is none.

    Raises `InputError` where the system does not tell, for half a minute.
    """
    listed = _patiently(partial(_checkpoints, directory))
    return max((epoch for epoch, _ in listed), default=0)


@contextmanager
def naming_checkpoint(directory: Path) -> Iterator[None]:
    """Let a `WriteFailure` of any file say too which checkpoint the run can go on from."""
    try:
        yield
    except WriteFailure as failure:
        last = _name_last(directory)
        raise WriteFailure(failure.path, failure.reason, f"{last} {failure.remedy}") from failure


def _name_last(directory: Path) -> str:
    try:
        for epoch, path in reversed(_checkpoints(directory)):
            if _is_whole(path, epoch):
                return f"The checkpoint of epoch {epoch} is whole."
    except _UnreadableError as error:
        return f"Now {error}."
    return "No checkpoint yet."


def _patiently(read: Callable[[], T]) -> T:
    """Return the result of `read`, which is called again for a while if a file cannot be read."""
    for pause in PAUSES:
        try:
            return read()
        except _UnreadableError as error:
            if pause == PAUSES[0]:
                log.warning("%s: trying again for %.0f s.", error, sum(PAUSES))
        time.sleep(pause)
    try:
        return read()
    except _UnreadableError as error:
        raise InputError(
            str(error.path),
            f"it cannot be read ({error.reason}), and the run would lose what is in it",
            "See to its permissions or its file system, and give the same command again.",
        ) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _UnreadableError(path, error.strerror or str(error)) from error


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(epoch, file) in order of epoch; none where there is no directory."""
    # Not Path.glob, to which a directory that may not be read is an empty one
    with _reading(directory):
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


def _find_newest(directory: Path, read: Callable[[Path, int], T]) -> tuple[int, T] | None:
    """The epoch of the newest whole checkpoint, and what is read of it; tells of damaged ones."""
    found, damaged = _patiently(partial(_try_from_newest, directory, read))
    for path, damage in damaged:
        log.warning("%s is damaged (%s) and skipped.", path, damage)
    return found


def _try_from_newest(
    directory: Path, read: Callable[[Path, int], T]
) -> tuple[tuple[int, T] | None, list[tuple[Path, _DamageError]]]:
    """The newest that can be read, and the damaged ones that are newer."""
    damaged: list[tuple[Path, _DamageError]] = []
    for epoch, path in reversed(_checkpoints(directory)):
        try:
            return (epoch, read(path, epoch)), damaged
        except _DamageError as damage:
            damaged.append((path, damage))
    return None, damaged


def _prune(directory: Path, epoch: int, keep: int) -> None:
    """Remove the files of later epochs, and all but the last `keep` and the best of the others.

    Not those that cannot be read, one of which may be the best, or all that there is.
    """
    try:
        there = _checkpoints(directory)
    except _UnreadableError as error:
        log.warning("%s: no checkpoint is removed.", error)
        return
    scores: dict[Path, float] = {}
    for _, path in there:
        try:
            scores[path] = _score(path)
        except _UnreadableError as error:
            log.warning("%s and is kept.", error)
    now_or_before = [path for e, path in there if e <= epoch]
    kept = set(now_or_before[-keep:])
    finite = [path for path in now_or_before if math.isfinite(scores.get(path, math.inf))]
    if finite:
        kept.add(min(finite, key=scores.__getitem__))
    for path in scores:
        if path in kept:
            continue
        try:
            path.unlink()
        except OSError as error:
            log.warning("%s is not needed and cannot be removed (%s).", path, error.strerror)


def _score(path: Path) -> float:
    """The score in a file's header, which is all that is read; infinite where it says none."""
    try:
        with _opened(path) as file:
            score = _read_header(file, path).score
    except (_DamageError, InputError):
        return math.inf
    return score if math.isfinite(score) else math.inf


def _is_whole(path: Path, epoch: int) -> bool:
    try:
        with _opened(path) as file:
            _check_whole(file, path, epoch)
    except (_DamageError, InputError):
        return False
    return True


def _verify(path: Path, epoch: int) -> None:
    """Raise `_DamageError` unless it is a whole checkpoint of this epoch."""
    with _opened(path) as file:
        _check_whole(file, path, epoch)


def _load(path: Path, epoch: int) -> dict[str, Any]:
    """The state in it; raises as `_verify` does."""
    with _opened(path) as file:
        header = _check_whole(file, path, epoch)
        return _unpack(file, header.begin, epoch)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file, of which what the system does not let be read is an `_UnreadableError`."""
    with _reading(path):
        try:
            file = open(path, "rb", opener=open_regular)  # noqa: SIM115
        except InputError as error:
            raise _DamageError("it is not a file") from error
        with file:
            yield file


def _check_whole(file: BinaryIO, path: Path, epoch: int) -> _Header:
    header = _read_header(file, path)
    if header.epoch != epoch:
        raise _DamageError(f"it is that of epoch {header.epoch}")
    if hashlib.file_digest(cast(BufferedReader, file), "sha256").digest() != header.digest:
        raise _DamageError("its checksum does not match")
    return header


def _read_header(file: BinaryIO, path: Path) -> _Header:
    """Read the header of a file."""
    content = file.read(_HEADER.size)
    if len(content) < _HEADER.size:
        raise _DamageError("it is cut short")
    magic, version, score, digest, epoch = _HEADER.unpack(content)
    if magic != _MAGIC:
        raise _DamageError("it does not begin like a checkpoint")
    if hashlib.sha256(content).digest() != file.read(_DIGEST_SIZE):
        raise _DamageError("the checksum of its header does not match")
    if version != VERSION:
        raise InputError(
            str(path),
            f"checkpoint version {version}, this program reads version {VERSION}",
            "Go on with the hpcfwi that wrote it, or choose another output directory.",
        )
    return _Header(score, digest, file.tell(), epoch)


def _unpack(file: BinaryIO, begin: int, epoch: int) -> dict[str, Any]:
    """The state in a body; `_DamageError` where it is none, or of another epoch than its name's."""
    try:
        content = load_body(file, begin)
        found, state = content["epoch"], content["state"]
    except OSError:
        raise
    except Exception as error:
        raise _DamageError(f"it holds no state: {first_line(error)}") from error
    if found != epoch:
        raise _DamageError(f"it is that of epoch {found}")
    return cast(dict[str, Any], state)
