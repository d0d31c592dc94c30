"""Checkpoints: the state of an inversion on disk, from which the next epoch can be computed.

A file consists of a header (magic, version, SHA-256 of the body, epoch, SHA-256 of the preceding
header fields) and a body, which torch writes and reads without a second copy in memory.
The header can be read without the body, which may be as large as memory.

A checkpoint is written to a temporary file, which is then renamed. The last few checkpoints are
kept. If a checkpoint is damaged, that is, if its bytes are wrong, the previous one is used. A file
that the system cannot read may be intact, so that it is tried again and never skipped. `inversion`
decides the contents of the state. One process calls these functions, in one thread at a time.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import torch

from hpcfwi.errors import InputError, WriteFailure, first_line, is_out_of_memory
from hpcfwi.system import (
    UnreadableError,
    check_link,
    open_regular,
    read_patiently,
    reading,
    written_whole,
)

log = logging.getLogger("hpcfwi")


def write_body(payload: dict[str, Any], file: BinaryIO) -> bytes:
    """Write a body at the current position and return its SHA-256; raises OSError."""
    body = _Writer(file)
    torch.save(payload, cast(BinaryIO, body))
    if body.failure is not None:
        raise body.failure
    return body.digest.digest()


def load_body(file: BinaryIO, begin: int) -> dict[str, Any]:
    """Read the body that begins at a byte, on the CPU; reject objects other than plain data.

    Raises OSError if the system cannot read it, MemoryError if it does not fit into memory, and the
    errors of `torch.load`.
    """
    body = _Reader(file, begin)
    try:
        found = torch.load(cast(BinaryIO, body), map_location="cpu", weights_only=True)
    except Exception as error:
        if body.failure is not None:
            raise body.failure from error
        if is_out_of_memory(error):
            raise MemoryError("a checkpoint does not fit into memory") from error
        raise
    return cast(dict[str, Any], found)


def check_loadable(payload: dict[str, Any]) -> None:
    """Raise `TypeError` for objects that torch can save but `load_body` would reject."""
    body = io.BytesIO()
    torch.save(_hollow(payload), body)
    body.seek(0)
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(body)
    if foreign:
        raise TypeError(f"a checkpoint that holds {', '.join(foreign)} could not be loaded")


def _hollow(tree: Any) -> Any:
    """Return the payload with empty tensors in place of its tensors."""
    if type(tree) is dict:
        return {key: _hollow(branch) for key, branch in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(_hollow, tree))
    return tree.new_empty(0) if type(tree) is torch.Tensor else tree


class _Writer:
    """A file for `torch.save`.

    failure: the first error, after which nothing is written. It is not raised in `write`, because
    torch would replace it by another error.
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
        """Do nothing, because the file is flushed when it is complete."""


class _Reader(io.RawIOBase):
    """A file for `torch.load` that begins at a byte; failure: the first error of the system."""

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
        # This is not an OSError, because the file was read but its contents are wrong.
        if whence == os.SEEK_SET and offset < 0:
            raise ValueError(f"it refers to byte {offset} of its body, which does not exist")
        before = self._begin if whence == os.SEEK_SET else 0
        return self._file.seek(before + offset, whence) - self._begin

    def readinto(self, buffer: Any) -> int:
        try:
            return cast(io.BufferedReader, self._file).readinto(buffer)
        except OSError as error:
            self.failure = error
            raise


T = TypeVar("T")

VERSION = 6
_MAGIC = b"hpcfwi-checkpoint\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sI32sQ")
_DIGEST_SIZE = 32  # bytes
_NAME = re.compile(r"epoch_(\d+)\.ckpt", re.ASCII)


class _DamageError(Exception):
    """A file whose contents are not those that were written."""


def save_checkpoint(directory: Path, epoch: int, payload: dict[str, Any], keep: int = 3) -> Path:
    """Write the state after `epoch`; keep the last `keep` files, including this one.

    payload: tensors and plain Python values, nested in dicts, lists and tuples.

    Files of later epochs are removed, because the run was continued from an earlier one. Raises
    `TypeError` for another kind of payload, `WriteFailure`, and `InputError` if the directory is
    another user's link; existing files are then unchanged.
    """
    check_link(directory)
    content = {"epoch": epoch, "state": payload}
    check_loadable(content)
    path = directory / f"epoch_{epoch:06d}.ckpt"
    with written_whole(path) as file:
        file.seek(_HEADER.size + _DIGEST_SIZE)
        digest = write_body(content, file)
        header = _HEADER.pack(_MAGIC, VERSION, digest, epoch)
        file.seek(0)
        file.write(header + hashlib.sha256(header).digest())
    _prune(directory, epoch, keep)
    return path


def load_latest_checkpoint(directory: Path) -> tuple[int, dict[str, Any]] | None:
    """Return the newest complete checkpoint as (epoch, payload), on the CPU; None if there is none.

    Damaged files are skipped with a warning. Files that cannot be read are tried again for half a
    minute, because a fault of a file server may be temporary. Raises `InputError` if they still
    cannot be read, and for a file of another version, and `MemoryError` if the newest complete one
    does not fit into memory.
    """
    return _find_newest(directory, _load)


def latest_whole_epoch(directory: Path) -> int:
    """Return the epoch of the newest complete checkpoint, 0 if there is none; uses little memory.

    It raises and warns as `load_latest_checkpoint` does.
    """
    found = _find_newest(directory, _verify)
    return 0 if found is None else found[0]


def latest_epoch(directory: Path) -> int:
    """Return the epoch of the newest checkpoint, complete or not; 0 if there is none.

    Raises `InputError` if the system cannot list the directory for half a minute.
    """
    listed = read_patiently(partial(_checkpoints, directory))
    return max((epoch for epoch, _ in listed), default=0)


@contextmanager
def naming_checkpoint(directory: Path) -> Iterator[None]:
    """Add the checkpoint from which the run can continue to the message of a `WriteFailure`."""
    try:
        yield
    except WriteFailure as failure:
        last = _name_last(directory)
        raise WriteFailure(failure.path, failure.reason, f"{last} {failure.remedy}") from failure


def _name_last(directory: Path) -> str:
    try:
        found, _ = _try_from_newest(directory, _verify)
    except UnreadableError as error:
        return f"Now {error}."
    if found is None:
        return "There is no checkpoint yet."
    return f"The checkpoint of epoch {found[0]} is complete."


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Return (epoch, file) in order of epochs; empty if there is no directory."""
    # Path.glob would treat an unreadable directory as empty.
    with reading(directory):
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


def _find_newest(directory: Path, read: Callable[[Path, int], T]) -> tuple[int, T] | None:
    """Return epoch and contents of the newest complete checkpoint; log warnings of damaged ones."""
    found, damaged = read_patiently(partial(_try_from_newest, directory, read))
    for path, damage in damaged:
        log.warning("%s is damaged (%s) and is skipped.", path, damage)
    return found


def _try_from_newest(
    directory: Path, read: Callable[[Path, int], T]
) -> tuple[tuple[int, T] | None, list[tuple[Path, _DamageError]]]:
    """Return the newest checkpoint that can be read, and the damaged ones that are newer."""
    damaged: list[tuple[Path, _DamageError]] = []
    for epoch, path in reversed(_checkpoints(directory)):
        try:
            return (epoch, read(path, epoch)), damaged
        except _DamageError as damage:
            damaged.append((path, damage))
    return None, damaged


def _prune(directory: Path, epoch: int, keep: int) -> None:
    """Remove the files of later epochs, and all but the last `keep` of the others."""
    try:
        there = _checkpoints(directory)
    except UnreadableError as error:
        log.warning("%s: no checkpoint is removed.", error)
        return
    kept = [path for e, path in there if e <= epoch][-keep:]
    for _, path in there:
        if path in kept:
            continue
        try:
            path.unlink()
        except OSError as error:
            log.warning("%s is not needed and cannot be removed (%s).", path, error.strerror)


def _verify(path: Path, epoch: int) -> None:
    """Raise `_DamageError` unless a file is a complete checkpoint of this epoch."""
    with _opened_whole(path, epoch):
        pass


def _load(path: Path, epoch: int) -> dict[str, Any]:
    """Return the state in a file; raises as `_verify` does, also if the body holds no state."""
    with _opened_whole(path, epoch) as (file, begin):
        try:
            content = load_body(file, begin)
            found, state = content["epoch"], content["state"]
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise _DamageError(f"it does not hold a state: {first_line(error)}") from error
    if found != epoch:
        raise _DamageError(f"it is that of epoch {found}")
    return cast(dict[str, Any], state)


@contextmanager
def _opened_whole(path: Path, epoch: int) -> Iterator[tuple[BinaryIO, int]]:
    """Open a complete checkpoint; yield the file and the position of the first byte of its body.

    Errors of the system become an `UnreadableError`.
    """
    with reading(path):
        try:
            file = open(path, "rb", opener=open_regular)  # noqa: SIM115
        except InputError as error:
            raise _DamageError("it is not a file") from error
        with file:
            found, digest = _read_header(file, path)
            if found != epoch:
                raise _DamageError(f"it is that of epoch {found}")
            begin = file.tell()
            if hashlib.file_digest(file, "sha256").digest() != digest:
                raise _DamageError("its checksum does not match")
            yield file, begin


def _read_header(file: BinaryIO, path: Path) -> tuple[int, bytes]:
    """Read the header of a file; return the epoch and the SHA-256 of the body."""
    content = file.read(_HEADER.size)
    if len(content) < _HEADER.size:
        raise _DamageError("it is truncated")
    magic, version, digest, epoch = _HEADER.unpack(content)
    if magic != _MAGIC:
        raise _DamageError("it does not start like a checkpoint")
    if hashlib.sha256(content).digest() != file.read(_DIGEST_SIZE):
        raise _DamageError("the checksum of its header does not match")
    if version != VERSION:
        raise InputError(
            str(path),
            f"found checkpoint version {version}, but this program reads version {VERSION}",
            "Continue with the hpcfwi that wrote it, or choose another output directory.",
        )
    return epoch, digest
