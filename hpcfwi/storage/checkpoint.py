"""Checkpoints: the state of an inversion on disk, from which the next step follows.

A file is a header (magic, version, SHA-256 of the body) and a body written by torch. It is
written beside and renamed; the last few are kept; a damaged one is skipped for the one before.
What belongs into the state is decided in `inversion`. One process calls these functions.
"""

from __future__ import annotations

import hashlib
import io
import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcfwi.errors import InputError
from hpcfwi.storage.files import written_whole

VERSION = 1
_MAGIC = b"hpcfwi-checkpoint\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sI32s")

# What unpickling NumPy arrays and scalars needs beyond what torch allows by itself
_NUMPY_TYPES: list[Any] = [
    np.ndarray,
    np.dtype,
    np.zeros(0).__reduce__()[0],
    np.float64(0).__reduce__()[0],
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"},
]

log = logging.getLogger("hpcfwi")


class _DamageError(Exception):
    """The file is not what was written."""


def save_checkpoint(directory: Path, epoch: int, payload: dict[str, Any], keep: int = 3) -> Path:
    """Write the state after `epoch` and keep the last `keep` files, this one among them.

    payload: tensors, NumPy arrays and plain Python values, nested in dicts, lists and tuples.
    Files of later epochs are removed: the run has gone back to before them.
    Raises `TypeError` for a payload of anything else.
    """
    body = io.BytesIO()
    torch.save(payload, body)
    body.seek(0)
    with torch.serialization.safe_globals(_NUMPY_TYPES):
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(body)
    if foreign:
        raise TypeError(f"a checkpoint that holds {', '.join(foreign)} could not be loaded")
    path = directory / f"epoch_{epoch:06d}.ckpt"
    with written_whole(path) as part, part.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, VERSION, _digest(VERSION, body.getbuffer())))
        file.write(body.getbuffer())
    others = [(e, p) for e, p in _checkpoints(directory) if e != epoch]
    earlier = [p for e, p in others if e < epoch]
    later = [p for e, p in others if e > epoch]
    for outdated in later + earlier[: max(0, len(earlier) - (keep - 1))]:
        outdated.unlink()
    return path


def load_latest_checkpoint(directory: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest whole checkpoint as (epoch, payload), on the CPU; None where there is none.

    Damaged files are skipped with a warning. Raises `InputError` for a file of a newer version,
    from which this program cannot go on.
    """
    for epoch, path in reversed(_checkpoints(directory)):
        try:
            return epoch, _read(path)
        except _DamageError as damage:
            log.warning("%s is damaged (%s) and skipped.", path, damage)
    return None


def latest_epoch(directory: Path) -> int:
    """The epoch of the newest checkpoint, whole or not; 0 where there is none."""
    return max((epoch for epoch, _ in _checkpoints(directory)), default=0)


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(epoch, file) in order of epoch."""
    numbered = ((path.stem.removeprefix("epoch_"), path) for path in directory.glob("epoch_*.ckpt"))
    return sorted((int(number), path) for number, path in numbered if number.isdigit())


def _digest(version: int, body: memoryview) -> bytes:
    return hashlib.sha256(str(version).encode() + body).digest()


def _read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    if len(content) < _HEADER.size:
        raise _DamageError("it is cut short")
    magic, version, digest = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise _DamageError("it does not begin like a checkpoint")
    body = memoryview(content)[_HEADER.size :]
    if _digest(version, body) != digest:
        raise _DamageError("its checksum does not match")
    if version > VERSION:
        raise InputError(
            str(path),
            f"checkpoint version {version}, this program reads up to {VERSION}",
            "Go on with the newer hpcfwi that wrote it, or choose another output directory.",
        )
    with torch.serialization.safe_globals(_NUMPY_TYPES):
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
