"""Checkpoints: the state of an inversion on disk, from which the next step follows.

A file is a header (magic, version, score, SHA-256 of the body, SHA-256 of the header so far) and a
body written by torch. It is written beside and renamed; the last few and the best one are kept; a
damaged one is skipped for the one before. What belongs into the state, and what its score is, is
decided in `inversion`. One process calls these functions, in one thread at a time.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.files import check_link, written_whole

VERSION = 2
_MAGIC = b"hpcfwi-checkpoint\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sId32s")
_DIGEST_SIZE = 32  # bytes

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
    """The file is not what was written, or cannot be read."""


def save_checkpoint(
    directory: Path, epoch: int, payload: dict[str, Any], keep: int = 3, score: float = math.inf
) -> Path:
    """Write the state after `epoch`; keep the last `keep` files, this one among them, and the best.

    payload: tensors, NumPy arrays and plain Python values, nested in dicts, lists and tuples.
    score: how good the state is, less is better; the best of the files that are there is kept
    whatever its age. One that is not finite is never the best.
    Files of later epochs are removed: the run has gone back to before them.
    Raises `TypeError` for a payload of anything else, `WriteFailure`, and `InputError` where the
    directory is somebody else's link; the files that were there before are there still then.
    """
    check_link(directory)
    body = _pack(payload)
    path = directory / f"epoch_{epoch:06d}.ckpt"
    with written_whole(path) as file:
        header = _HEADER.pack(_MAGIC, VERSION, score, hashlib.sha256(body).digest())
        file.write(header + hashlib.sha256(header).digest())
        file.write(body)
    _prune(directory, epoch, keep)
    return path


def load_latest_checkpoint(directory: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest whole checkpoint as (epoch, payload), on the CPU; None where there is none.

    Damaged and unreadable files are skipped with a warning. Raises `InputError` for a file of
    another version, from which this program cannot go on.
    """
    for epoch, path in reversed(_checkpoints(directory)):
        try:
            return epoch, _unpack(_read_body(path))
        except _DamageError as damage:
            log.warning("%s is damaged (%s) and skipped.", path, damage)
    return None


def latest_epoch(directory: Path) -> int:
    """The epoch of the newest checkpoint, whole or not; 0 where there is none."""
    return max((epoch for epoch, _ in _checkpoints(directory)), default=0)


@contextmanager
def naming_checkpoint(directory: Path) -> Iterator[None]:
    """Let a `WriteFailure` of any file say too which checkpoint the run can go on from."""
    try:
        yield
    except WriteFailure as failure:
        whole = [epoch for epoch, path in _checkpoints(directory) if _is_whole(path)]
        last = f"The checkpoint of epoch {whole[-1]} is whole." if whole else "No checkpoint yet."
        raise WriteFailure(failure.path, failure.reason, f"{last} {failure.remedy}") from failure


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """(epoch, file) in order of epoch."""
    numbered = ((path.stem.removeprefix("epoch_"), path) for path in directory.glob("epoch_*.ckpt"))
    return sorted((int(number), path) for number, path in numbered if number.isdecimal())


def _prune(directory: Path, epoch: int, keep: int) -> None:
    """Remove the files of later epochs, and all but the last `keep` and the best of the others."""
    there = _checkpoints(directory)
    now_or_before = [path for e, path in there if e <= epoch]
    best = min(now_or_before, key=_score)
    kept = {*now_or_before[-keep:], *([best] if math.isfinite(_score(best)) else [])}
    for _, path in there:
        if path in kept:
            continue
        try:
            path.unlink()
        except OSError as error:
            log.warning("%s is not needed and cannot be removed (%s).", path, error.strerror)


def _score(path: Path) -> float:
    """The score in a file's header, which is all that is read; infinite where it says none."""
    try:
        with path.open("rb") as file:
            score, _ = _check_header(file.read(_HEADER.size + _DIGEST_SIZE), path)
    except (OSError, _DamageError, InputError):
        return math.inf
    return score if math.isfinite(score) else math.inf


def _is_whole(path: Path) -> bool:
    try:
        _read_body(path)
    except (_DamageError, InputError):
        return False
    return True


def _read_body(path: Path) -> memoryview:
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise _DamageError(error.strerror) from error
    _, digest = _check_header(content, path)
    body = content[_HEADER.size + _DIGEST_SIZE :]
    if hashlib.sha256(body).digest() != digest:
        raise _DamageError("its checksum does not match")
    return body


def _check_header(content: bytes | memoryview, path: Path) -> tuple[float, bytes]:
    """The score and the digest of the body, from the beginning of a file."""
    if len(content) < _HEADER.size + _DIGEST_SIZE:
        raise _DamageError("it is cut short")
    magic, version, score, digest = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise _DamageError("it does not begin like a checkpoint")
    if hashlib.sha256(content[: _HEADER.size]).digest() != content[_HEADER.size :][:_DIGEST_SIZE]:
        raise _DamageError("the checksum of its header does not match")
    if version != VERSION:
        raise InputError(
            str(path),
            f"checkpoint version {version}, this program reads {VERSION}",
            "Go on with the hpcfwi that wrote it, or choose another output directory.",
        )
    return score, digest


def _pack(payload: dict[str, Any]) -> memoryview:
    body = io.BytesIO()
    torch.save(payload, body)
    body.seek(0)
    with torch.serialization.safe_globals(_NUMPY_TYPES):
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(body)
    if foreign:
        raise TypeError(f"a checkpoint that holds {', '.join(foreign)} could not be loaded")
    return body.getbuffer()


def _unpack(body: memoryview) -> dict[str, Any]:
    with torch.serialization.safe_globals(_NUMPY_TYPES):
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
