"""Files that are written beside their place under a fixed name, and renamed; and hashes.

Those are the ones that take long to come. All others are written by `hpcfwi.files`.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from hpcfwi.files import flush_to_disk, make_directory

__all__ = ["beside", "make_directory", "put_in_place", "remove_part", "sha256_of"]


def beside(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".part")


def put_in_place(part: Path, path: Path) -> None:
    """Rename a complete `part` to `path` so that a power cut leaves the old file or the new one."""
    flush_to_disk(part)
    part.replace(path)
    flush_to_disk(path.parent)


def remove_part(path: Path) -> None:
    """Remove what is beside a file that was not finished, if it is there and can be removed."""
    with suppress(OSError):
        beside(path).unlink()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
