"""Gathers files: the traces of all shots and the survey they belong to, in one HDF5 file.

Layout: /data float32 (shot, receiver, time), one chunk a shot, more where HDF5 demands it;
/sources float64 (shot, ndim); /receivers float64 (receiver, ndim) or (shot, receiver, ndim);
/wavelet float32 (time) or (shot, time); where not every trace counts, /mask, bool or numbers 0 and
1 (shot, receiver); root attributes format = "hpcfwi-gathers", version, dt (s). Positions in m.

Labels are optional: the numbers and coordinates that the headers of field data gave to shots and
traces. An inversion does not need them; SEG-Y that is written from the file has them again.
`unfinished` finds a file again that an earlier job has not finished; its /digests are left in the
file, and readers ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import InputError, WriteFailure, quote
from hpcfwi.parallel.replicas import once_a_host
from hpcfwi.storage.hdf5 import (
    check_format,
    exchanged,
    explained,
    find_dataset,
    holds,
    identify,
    is_number,
    is_parallel,
    open_alone,
    open_file,
    open_for_writing,
    plain,
    read_real,
    read_values,
    real_dataset,
    unclosed,
)
from hpcfwi.storage.probe import probe_on_root
from hpcfwi.storage.unfinished import (
    FORMAT,
    VERSION,
    digest_of,
    failing_clearly,
    find_whole,
    fits,
    lay_out,
    remove,
    reserve_room,
)
from hpcfwi.survey import Survey
from hpcfwi.system import beside, check_room, put_in_place

if TYPE_CHECKING:
    from hpcfwi.parallel.context import Context


NUMBERS = ("records", "shot_points", "channels")
MAPS = ("source_map", "receiver_map")
_ATTRIBUTES = ("datum", "start")
_LARGEST = 2**31 - 1


def read_labels(path: Path) -> dict[str, Any]:
    """Read the labels of a gathers file in one process.

    Parameters
    ----------
    path
        The file, whose traces are known to be good.

    Returns
    -------
    dict
        Those that are there, by the names of datasets and attributes: arrays of `NUMBERS` as int32,
        of `MAPS` as float64, and the attributes `datum`, `start` (numbers) and `line` (text).

    Raises
    ------
    InputError
        For arrays of another shape or type, and for one map without the other.
    """
    with open_alone(path) as file:
        shots, receivers = file["data"].shape[:2]
        shapes: dict[str, list[tuple[int, ...]]] = {
            "records": [(shots,)],
            "shot_points": [(shots,)],
            "channels": [(shots, receivers)],
            "source_map": [(shots, 4)],
            "receiver_map": [(receivers, 4), (shots, receivers, 4)],
        }
        found: dict[str, Any] = {
            name: _read(file, path, name, shapes[name]) for name in shapes if holds(file, name)
        }
        for one, other in (MAPS, MAPS[::-1]):
            if one in found and other not in found:
                raise InputError(
                    f"{path}, /{other}", f"missing beside /{one}", "Store both maps, or neither."
                )
        for name in _ATTRIBUTES:
            value = plain(file.attrs.get(name))
            if value is not None and not (is_number(value) and np.isfinite(value)):
                raise InputError(
                    f"{path}, attribute {name}",
                    f"found {quote(value)}, expected a finite number",
                    "Correct it, or leave it out.",
                )
            if value is not None:
                found[name] = float(value)
        line = plain(file.attrs.get("line"))
        if isinstance(line, str):
            found["line"] = line
    return found


def _read(file: h5py.File, path: Path, name: str, shapes: list[tuple[int, ...]]) -> NDArray[Any]:
    """Read one array; raises `InputError` where it does not fit."""
    whole = name in NUMBERS
    expected = "whole numbers of 32 bits" if whole else "finite numbers, in m"
    remedy = "Store it as docs/formats.md says, or leave it out."
    dataset = find_dataset(file, path, name, "iuf", expected, remedy)
    if dataset.shape not in shapes:
        raise InputError(
            f"{path}, /{name}",
            f"its shape is {dataset.shape}, expected {' or '.join(map(str, shapes))}",
            remedy,
        )
    values = read_values(dataset, f"{path}, /{name}")
    good = np.abs(values) <= _LARGEST
    if whole:
        good &= values == np.rint(values)
    if not good.all():
        raise InputError(
            f"{path}, /{name}", f"found {values[~good][0]:g}, expected {expected}", remedy
        )
    return values.astype(np.int32 if whole else np.float64)


def read_mask(file: h5py.File, path: Path, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Read which traces (shot, receiver) of an open file count, None if all do.

    Raises `InputError` for a mask of another shape or type, and for a shot without a trace.
    """
    if not holds(file, "mask"):
        return None
    expected, remedy = "true or false, or 1 and 0", "Store it as an array of bool."
    dataset = find_dataset(file, path, "mask", "biuf", expected, remedy)
    if dataset.shape != shape:
        raise InputError(
            f"{path}, /mask",
            f"its shape is {dataset.shape}, expected {shape} beside /data (shot, receiver, time)",
            "Make the shapes agree.",
        )
    values = np.asarray(dataset[...])
    mask = values == 1
    if not np.array_equal(values[~mask], np.zeros(np.sum(~mask))):
        other = values[~mask & (values != 0)][0]
        raise InputError(f"{path}, /mask", f"it has the value {other}, expected {expected}", remedy)
    silent = np.flatnonzero(~mask.any(axis=1))
    if silent.size:
        raise InputError(
            f"{path}, /mask",
            f"{silent.size} of {shape[0]} shots have no trace that counts, the first is shot "
            f"{silent[0]}",
            "Leave these shots out of the file.",
        )
    return mask


_OWN_ATTRIBUTES = ("format", "version", "dt")


def create_gathers(
    path: Path, survey: Survey, context: Context, extras: Mapping[str, Any] | None = None
) -> GatherWriter:
    """Start a gathers file for a survey, beside `path` until it is finished; collective.

    Where one was left there unfinished, of the same survey and extras, it is gone on with: the
    shots whose traces are whole in it are not among those that the writer has `left`.

    Parameters
    ----------
    path, survey, context
        The file, whose traces it will hold, and the ranks.
    extras
        More root attributes, the same on all ranks, such as what the traces were made with. Arrays
        among them become datasets, such as the labels.

    Raises
    ------
    InputError
        On all ranks, where the file cannot be created, or cannot be read.
    WriteFailure
        Where there is no space for the traces.
    """
    given = extras or {}
    whole = find_whole(path, survey, given, context)
    if whole is None:
        context.from_root(partial(lay_out, path, survey, given))
        whole = np.zeros(survey.n_shots, dtype=bool)
    else:
        context.from_root(partial(reserve_room, path))
    file = open_for_writing(beside(path), context, partial(fits, survey=survey, extras=given))
    return GatherWriter(path, file, whole, context)


class GatherWriter(AbstractContextManager["GatherWriter"]):
    """A gathers file that is being written by all ranks; made by `create_gathers`.

    part: where it is until it is finished; left: the shots that were still to be written when it
    was opened, the same on all ranks.
    As a context manager it finishes the file at the end. After an exception it leaves it
    unfinished, to be gone on with, or none where nothing was written.
    """

    def __init__(
        self, path: Path, file: h5py.File | None, whole: NDArray[np.bool_], context: Context
    ) -> None:
        self._path, self._file, self._context = path, file, context
        self._written = whole
        self.part = beside(path)
        self._identity = context.from_root(partial(identify, self.part))
        self.left: NDArray[np.int64] = np.flatnonzero(~whole)

    def write(self, shots: NDArray[np.int64], data: NDArray[np.float32]) -> None:
        """Write the traces (shot, receiver, time) of the shots with these numbers.

        Every rank calls this once a round, with no shots where it has none: with parallel HDF5
        each rank writes for itself, without it rank 0 writes what the others hand it.
        Raises `WriteFailure` on a rank that cannot write; on all where that is rank 0 for them.
        """
        with self._context.heartbeat.waiting():
            if is_parallel(self._context):
                self._put(shots, data)
            else:
                self._put_at_root(shots, data)
        self._written[shots] = True

    def finish(self) -> None:
        """Close the file and give it its name; collective.

        Raises on all ranks `RuntimeError` if a shot was never written, `InputError` if another
        file is in its place meanwhile, and `WriteFailure`.
        """
        missing = self._context.sum(torch.from_numpy(self._written).int()).numpy() == 0
        self.close()
        if missing.any():
            raise RuntimeError(f"{self._path}: shots {missing.nonzero()[0]} were never written")
        self._context.from_root(self._put_in_place)

    def close(self) -> None:
        """Close the file as it is, to be gone on with; collective where HDF5 is parallel.

        Raises `WriteFailure`.
        """
        if self._file is not None:
            file, self._file = self._file, None
            unclosed.append(file)
            with failing_clearly(self._path):
                file.close()
            unclosed.remove(file)

    def _put(self, shots: NDArray[np.int64], data: NDArray[np.float32]) -> None:
        assert self._file is not None
        with failing_clearly(self._path):
            for shot, gather in zip(shots, data, strict=True):
                self._file["data"][shot] = gather
                self._file["digests"][shot] = digest_of(gather)

    def _put_in_place(self) -> None:
        with failing_clearly(self._path):
            if identify(self.part) != self._identity:
                raise exchanged(self.part)
            put_in_place(self.part, self._path)

    def _put_at_root(self, shots: NDArray[np.int64], data: NDArray[np.float32]) -> None:
        """Every rank's traces, one shot after the other, which is all that rank 0 has of others."""
        context, failure = self._context, None
        room = np.empty(data.shape[1:] if context.is_root else 0, dtype=np.float32)
        for rank, numbers in enumerate(context.all_gather(shots)):
            for place, shot in enumerate(numbers):
                gather = np.ascontiguousarray(data[place]) if rank == context.rank else room
                context.bring_to_root(gather, rank)
                # After a failure the others still hand over what they have, and then learn of it
                if context.is_root and failure is None:
                    failure = self._try_to_put(shot, gather)
        context.from_root(partial(_raise_if_any, failure))

    def _try_to_put(self, shot: np.int64, gather: NDArray[np.float32]) -> WriteFailure | None:
        try:
            self._put(np.array([shot]), gather[None])
        except WriteFailure as failure:
            return failure
        return None

    def _abandon(self, could_not_write: bool) -> None:
        # In parallel it stays open: closing would wait for ranks that may not have failed
        if not is_parallel(self._context):
            with suppress(WriteFailure):
                self.close()
        elif self._file is not None and could_not_write:
            unclosed.append(self._file)
        if self._context.is_root and not self._written.any():
            remove(self._path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abandon(issubclass(kind, WriteFailure))
            return
        try:
            self.finish()
        except BaseException:
            self._abandon(could_not_write=True)
            raise


class GatherReader(AbstractContextManager["GatherReader"]):
    """A gathers file open on all ranks, each of which reads the shots it needs.

    survey: the whole survey, with arrays that are there once a host; through_mpi: whether reading
    calls MPI, so that a thread may only do it where MPI allows.
    Opening and closing are collective; reading is not. Raises `InputError`, naming the key, on
    all ranks for what does not fit the layout; whether the traces are finite is not looked at.

    known: the survey, where the ranks have it already: it is then neither read nor sent.
    """

    def __init__(self, path: Path, context: Context, known: Survey | None = None) -> None:
        if known is None:
            probe_on_root(path, context)
            self.survey = once_a_host(partial(_read_survey, path), context)
        else:
            context.from_root(lambda: _check_shape(path, known))
            self.survey = known
        self._path, self._file = path, open_file(path, context)
        self.through_mpi = is_parallel(context)

    def read(self, shots: NDArray[np.int64]) -> NDArray[np.float32]:
        """The traces (shot, receiver, time) of these shots, in the order asked.

        Traces that do not count are zero, whatever is in the file.
        May run in one thread beside the main one, as long as nothing else uses this reader. Raises
        `InputError` where the file has been damaged.
        """
        shape = (len(shots), self.survey.n_receivers, self.survey.n_samples)
        traces = np.empty(shape, dtype=np.float32)
        with explained(self._path):
            # Not kept: HDF5 in parallel cannot release a file in which an array is open
            data = real_dataset(self._file, self._path, "data")
            # Shots that lie side by side at once: each call takes longer than a small gather
            for places in np.split(np.arange(len(shots)), np.flatnonzero(np.diff(shots) != 1) + 1):
                if places.size:
                    some, first = slice(places[0], places[-1] + 1), int(shots[places[0]])
                    data.read_direct(traces, np.s_[first : first + places.size], some)
        if self.survey.mask is not None:
            traces[~self.survey.mask[shots]] = 0.0
        return traces

    def close(self) -> None:
        """Close the file; collective where HDF5 is parallel."""
        self._file.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # In parallel, closing after an exception would wait for ranks that may not have failed
        if kind is None or not self.through_mpi:
            self.close()


def _raise_if_any(failure: WriteFailure | None) -> None:
    if failure is not None:
        raise failure


def read_layout(path: Path) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """The shape of the traces, and the root attributes beyond the format's own, in one process.

    Raises `InputError` for what is no gathers file.
    """
    with open_alone(path) as file:
        shape = _find_shape(file, path)
        return shape, {k: plain(v) for k, v in file.attrs.items() if k not in _OWN_ATTRIBUTES}


def _check_shape(path: Path, known: Survey) -> None:
    found, _ = read_layout(path)
    if found != known.shape:
        raise InputError(
            f"{path}, /data",
            f"its shape is {found}, and was {known.shape} when the survey was read",
            "Let nobody change the file while it is read, and give the same command again.",
        )


def _find_shape(file: h5py.File, path: Path) -> tuple[int, int, int]:
    """Return the shape of the traces of an open file."""
    check_format(file, path, FORMAT, VERSION)
    data = real_dataset(file, path, "data")
    if data.ndim != 3 or 0 in data.shape:
        raise InputError(
            f"{path}, /data",
            f"its shape is {data.shape}, expected (shot, receiver, time), none of them 0",
            "Store the traces of at least one shot in three dimensions.",
        )
    _check_written(path, data)
    n_shots, n_receivers, n_samples = data.shape
    return n_shots, n_receivers, n_samples


def _read_survey(path: Path) -> Survey:
    with open_alone(path) as file:
        shape = n_shots, n_receivers, n_samples = _find_shape(file, path)
        arrays = {key: _read_array(file, path, key) for key in ("sources", "receivers", "wavelet")}
        ndim = arrays["sources"].shape[-1:]
        for key, one, other in (
            ("sources", (n_shots, 2), (n_shots, 3)),
            ("receivers", (n_receivers, *ndim), (n_shots, n_receivers, *ndim)),
            ("wavelet", (n_samples,), (n_shots, n_samples)),
        ):
            if arrays[key].shape not in {one, other}:
                raise InputError(
                    f"{path}, /{key}",
                    f"its shape is {arrays[key].shape}, expected {one} or {other} "
                    f"beside /data (shot, receiver, time) = {shape}",
                    "Make the shapes agree.",
                )
        sources, receivers, wavelet = arrays.values()
        mask = read_mask(file, path, (n_shots, n_receivers))
        return Survey(sources, receivers, wavelet.astype(np.float32), _read_dt(file, path), mask)


def _check_written(path: Path, data: h5py.Dataset) -> None:
    if not data.id.get_storage_size():
        raise InputError(
            f"{path}, /data",
            f"its shape is {data.shape}, but no trace of it was ever written",
            "Write the file again from its source.",
        )
    _, n_receivers, n_samples = data.shape
    needed = n_receivers * n_samples * (4.0 + data.dtype.itemsize)
    check_room(f"{path}, /data", f"one shot of {data.shape}", needed, "Give fewer traces a shot.")


def _read_array(file: h5py.File, path: Path, key: str) -> NDArray[np.float64]:
    values = read_real(file, path, key)
    # What is infinite in single precision, too
    faults = ~(np.abs(values) <= np.finfo(np.float32).max)
    if faults.any():
        first = tuple(int(i[0]) for i in faults.nonzero())
        raise InputError(
            f"{path}, /{key}",
            f"{faults.sum()} of {values.size} values are not finite, the first at index {first}",
            "Leave out the shots or receivers without a position or wavelet, or fill them in.",
        )
    return values


def _read_dt(file: h5py.File, path: Path) -> float:
    dt = plain(file.attrs.get("dt"))
    if not is_number(dt) or not 0 < dt < np.inf:
        raise InputError(
            f"{path}, attribute dt",
            f"found {quote(dt)}, expected a number above 0",
            "Give the time between samples, in s.",
        )
    return float(dt)
