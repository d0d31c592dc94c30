"""The body of a checkpoint, in the midst of its file: written as it comes, and read where it lies.

torch makes it and reads it; no second copy of it is in memory on the way. Which file it is in, and
whether its bytes are right, is known to `checkpoint`.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import Any, BinaryIO, cast

import torch


def write_body(payload: dict[str, Any], file: BinaryIO) -> bytes:
    """Write what `load_body` reads from here on; its SHA-256. Raises OSError."""
    body = _Writer(file)
    torch.save(payload, cast(BinaryIO, body))
    if body.failure is not None:
        raise body.failure
    return body.digest.digest()


def load_body(file: BinaryIO, begin: int) -> dict[str, Any]:
    """What was written from a byte on, on the CPU; of foreign objects nothing.

    Raises OSError where the system does not let it be read, and whatever torch does.
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
