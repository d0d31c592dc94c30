"""Unfinished gathers files, which are made with room for all traces and continued by later jobs.

An unfinished file has a temporary name in the same directory. It has the layout and all contents of
the finished file except for missing traces. The dataset /digests, uint64 (shot,), has 8 bytes of
BLAKE2b of each shot's traces, or 0 if they are missing. `gathers` writes and reads the traces.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import InputError, WriteFailure, error_number
from hpcfwi.model import AXES
from hpcfwi.parallel.context import Context
from hpcfwi.storage.hdf5 import open_alone, plain, raised_on_all_ranks
from hpcfwi.storage.probe import probe_on_root
from hpcfwi.survey import EXPLOSIVE, PRESSURE, Survey, moment_tensors
from hpcfwi.system import beside, check_disk, is_there, make_directory, open_own, reserve

FORMAT = "hpcfwi-gathers"
# The newest version; files are of version 1 if all traces are of pressure and sources explosive.
VERSION = 2
MOMENT = "moment"  # kind of sources whose tensors are a separate dataset
_LARGEST_HEADERS = 2**20  # bytes of a file's attributes and tables
_LARGEST_ENTRY = 128  # bytes for a chunk in the file's index
_LARGEST_CHUNK = 2**32 - 1  # bytes, limit of HDF5

log = logging.getLogger("hpcfwi")


@contextmanager
def failing_clearly(path: Path) -> Iterator[None]:
    """Turn errors of the system or HDF5 while a file is written into a `WriteFailure`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise WriteFailure.of(path, error) from error


class _UnfitError(InputError):
    """An unfinished file that cannot be continued."""


def find_whole(
    path: Path, survey: Survey, extras: Mapping[str, Any], context: Context
) -> NDArray[np.bool_] | None:
    """Return a mask of the shots that an unfinished file has, None without a file; collective.

    The ranks read the traces and compare their digests, because after a power cut some writes may
    not have reached the disk. Raises `InputError` on all ranks if the system cannot read the file.
    """
    part, whole = beside(path), np.zeros(survey.n_shots, dtype=bool)
    try:
        digests = context.from_root(partial(_read_digests, part, survey, extras))
        if digests is None:
            return None
        probe_on_root(part, context)
        mine = np.array_split(np.flatnonzero(digests), context.size)[context.rank]
        with raised_on_all_ranks(context), _unfinished(part) as file:
            whole[mine] = [digest_of(file["data"][shot]) == digests[shot] for shot in mine]
    except _UnfitError as unfit:
        if context.is_root:
            log.warning("%s cannot be continued (%s): starting again", part, unfit.problem)
        return None
    return context.sum(torch.from_numpy(whole).int()).numpy().astype(bool)


def _read_digests(
    part: Path, survey: Survey, extras: Mapping[str, Any]
) -> NDArray[np.uint64] | None:
    """Return the digests of an unfinished file's shots, None if there is no matching file."""
    if not is_there(part):
        return None
    _check_own(part)
    with _unfinished(part) as file:
        if not fits(file, survey, extras):
            raise _UnfitError(str(part), "it is for another model or survey", "")
        return file["digests"][...]


def _check_own(part: Path) -> None:
    """Raise `_UnfitError` for a link, because traces would be written into another file."""
    status = part.lstat()
    if stat.S_ISDIR(status.st_mode):
        raise InputError(str(part), "this is a directory, expected a file", "Remove it.")
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise _UnfitError(str(part), "it is a link or not a file", "")


@contextmanager
def _unfinished(part: Path) -> Iterator[h5py.File]:
    """Open a file as `open_alone`; raise `InputError` only if the system cannot read it.

    All other errors become an `_UnfitError`.
    """
    try:
        with open_alone(part) as file:
            yield file
    except InputError as error:
        if error.__cause__ is not None and error_number(error.__cause__) is not None:
            raise
        raise _UnfitError(error.where, error.problem, error.remedy) from error


def fits(file: h5py.File, survey: Survey, extras: Mapping[str, Any]) -> bool:
    """Return True if `lay_out` would make the same file, and all its values are in this file."""
    arrays = _arrays(survey, extras)
    forms = {
        "data": (survey.shape, np.dtype(np.float32), _chunk(survey)),
        "digests": ((survey.n_shots,), np.dtype(np.uint64), None),
        **{name: (array.shape, array.dtype, None) for name, array in arrays.items()},
    }
    return (
        {key: plain(value) for key, value in file.attrs.items()} == _root(survey, extras)
        and file.keys() == forms.keys()
        and all(_form(file, name) == form for name, form in forms.items())
        and all(np.array_equal(file[name], array) for name, array in arrays.items())
    )


def _form(file: h5py.File, name: str) -> tuple[Any, ...] | None:
    """Return shape, type and chunk of a dataset, None unless it is in this file without filters."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return None
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        return None
    if found.external or found.is_virtual or found.id.get_create_plist().get_nfilters():
        return None
    return found.shape, found.dtype, found.chunks


def lay_out(path: Path, survey: Survey, extras: Mapping[str, Any]) -> None:
    """Make the file with everything but the traces, and with room for these.

    HDF5 crashes if the disk is full when it flushes its caches. The free space is therefore tested
    before HDF5 writes here; later it writes only traces and their digests.
    """
    make_directory(path.parent)
    part = beside(path)
    try:
        with failing_clearly(path):
            part.unlink(missing_ok=True)
            with _try_room(path, survey, extras) as room, h5py.File(room, "w") as file:
                # Allocated chunks are written at once, without caches.
                placed = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                placed.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                # Fill values are not needed, as every shot is written before the file is finished.
                form = {"chunks": _chunk(survey), "fill_time": "never", "dcpl": placed}
                file.create_dataset("data", survey.shape, "f4", **form)
                file["digests"] = np.zeros(survey.n_shots, dtype=np.uint64)
                for name, array in _arrays(survey, extras).items():
                    file[name] = array
                file.attrs.update(_root(survey, extras))
        reserve_room(path)
    except BaseException:
        remove(path)
        raise


@contextmanager
def _try_room(path: Path, survey: Survey, extras: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Yield a new, empty, open file, after a test of the space that it needs."""
    arrays = sum(array.nbytes for array in _arrays(survey, extras).values())
    chunks = survey.n_shots * -(-survey.n_receivers // _chunk(survey)[1])
    headers = _LARGEST_HEADERS + 2 * arrays + _LARGEST_ENTRY * chunks
    total = headers + 4 * prod(survey.shape)
    check_disk(path, total)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(beside(path), flags, 0o666), "w+b") as file:
        file.truncate(total)  # fails if there is a limit on the size of files
        file.write(bytes(headers))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        file.truncate(0)
        yield file


def reserve_room(path: Path) -> None:
    """Flush the file to disk, and reserve space for all of it.

    If the file system cannot reserve space, the disk may become full later.
    """
    part = beside(path)
    with failing_clearly(path), open(part, "r+b", opener=open_own) as file:
        os.fsync(file.fileno())
        reserve(file.fileno(), os.fstat(file.fileno()).st_size)


def remove(path: Path) -> None:
    """Remove the file if it exists and can be removed."""
    with suppress(OSError):
        beside(path).unlink()


def digest_of(gather: NDArray[np.float32]) -> np.uint64:
    """Return the digest of a shot's traces; never 0, which marks a shot that is not written."""
    digest = hashlib.blake2b(gather.tobytes(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") or 1)


def _chunk(survey: Survey) -> tuple[int, int, int]:
    receivers = _LARGEST_CHUNK // (4 * survey.n_samples)
    return 1, min(survey.n_receivers, receivers), survey.n_samples


def _arrays(survey: Survey, extras: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return all datasets but those of the traces, by name."""
    return {
        "sources": survey.sources.astype(np.float64, copy=False),
        "receivers": survey.receivers.astype(np.float64, copy=False),
        "wavelet": survey.wavelet.astype(np.float32, copy=False),
        **({} if survey.mask is None else {"mask": survey.mask}),
        **describe_kinds(survey)[0],
        **{name: value for name, value in extras.items() if isinstance(value, np.ndarray)},
    }


def _root(survey: Survey, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return all root attributes, by name."""
    _, kinds = describe_kinds(survey)
    own = {"format": FORMAT, "version": VERSION if kinds else 1, "dt": survey.dt, **kinds}
    return {name: v for name, v in extras.items() if not isinstance(v, np.ndarray)} | own


def describe_kinds(survey: Survey) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the datasets and the attributes for the kinds of a survey, by name.

    There are none if all traces are of pressure and all sources explosive.
    """
    datasets: dict[str, NDArray[Any]] = {}
    attributes: dict[str, Any] = {}
    components, sources = survey.components, survey.source_kinds
    if components.names != PRESSURE.names:
        attributes["kind_names"] = _as_attribute(components.names)
        if components.kinds is not None:
            datasets["kinds"] = components.kinds.astype(np.int8)
        if components.directions is not None:
            datasets["directions"] = components.directions.astype(np.float64)
            attributes["gauge"] = components.gauge
    if sources.keys() != EXPLOSIVE.keys():
        shape, ndim = (survey.n_shots,), survey.sources.shape[-1]
        tensors = moment_tensors(sources, AXES[ndim], survey.n_shots)
        names = list(dict.fromkeys(MOMENT if MOMENT in name else name for name in sources))
        attributes["source_kind_names"] = _as_attribute(names)
        if MOMENT in names:
            datasets["source_moments"] = tensors
        if len(names) > 1:
            acts = [
                tensors.any(axis=(1, 2))
                if name == MOMENT
                else np.broadcast_to(sources[name], shape)
                for name in names
            ]
            datasets["source_kinds"] = np.argmax(acts, axis=0).astype(np.int8)
    return datasets, attributes


def _as_attribute(names: Sequence[str]) -> str | list[str]:
    """Return names as `plain` reads them from an attribute."""
    return names[0] if len(names) == 1 else list(names)
