"""Gathers files: the traces of all shots and the survey they belong to, in one HDF5 file.

Layout: /data float32 (shot, receiver, time), with one chunk for each shot, or more if HDF5 requires
it; /sources float64 (shot, ndim); /receivers float64 (receiver, ndim) or (shot, receiver, ndim);
/wavelet float32 (time) or (shot, time); /mask (shot, receiver), bool or numbers 0 and 1, if some
traces do not count; root attributes format = "hpcfwi-gathers", version, dt (s). Positions are in m.

Files of version 2 have traces of other components than pressure, or sources that are not explosive.
Indices may be left out if there is one name. Vectors and tensors are in axis order. /kinds int8
(receiver) or (shot, receiver), indices of the attribute kind_names, such as "pressure" and "vz";
for the name "strain", /directions float64 (receiver, ndim), along the fibre, and the attribute
gauge (m). /source_kinds int8 (shot), indices of the attribute source_kind_names; for the name
"moment", /source_moments float64 (shot, ndim, ndim), symmetric.

Labels are optional: numbers and coordinates of shots and traces from the headers of field data. An
inversion does not need them; they are included when SEG-Y is written from the file. `unfinished`
continues a file that an earlier job has not finished. Its dataset /digests stays in the file, and
readers ignore it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.model import AXES
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_per_host
from hpcfwi.parallel.transport import threads_may_call_mpi
from hpcfwi.storage import hdf5, unfinished
from hpcfwi.storage.probe import probe_on_root
from hpcfwi.survey import (
    COMPONENTS,
    EXPLOSIVE,
    PRESSURE,
    SOURCE_KINDS,
    STRAIN,
    Components,
    SourceKinds,
    Survey,
    moment_kinds,
)
from hpcfwi.system import MOMENTARY, beside, check_room, put_in_place, read_patiently, reading

_MAPS = ("source_map", "receiver_map")
_LARGEST = 2**31 - 1


def read_labels(path: Path) -> dict[str, Any]:
    """Return the labels of a gathers file, whose other contents have been checked, by their names.

    They are arrays of numbers as int32, of positions on the map as float64, and the attributes
    `datum`, `start` (numbers) and `line` (text). For one process. Raises `InputError` if an array
    has the wrong shape or type, or if only one of the two maps exists.
    """
    with hdf5.open_alone(path) as file:
        shots, receivers = file["data"].shape[:2]
        shapes: dict[str, list[tuple[int, ...]]] = {
            "records": [(shots,)],
            "shot_points": [(shots,)],
            "channels": [(shots, receivers)],
            "source_map": [(shots, 4)],
            "receiver_map": [(receivers, 4), (shots, receivers, 4)],
        }
        found: dict[str, Any] = {
            name: _read_label(file, path, name, shapes[name])
            for name in shapes
            if hdf5.holds(file, name)
        }
        for one, other in (_MAPS, _MAPS[::-1]):
            if one in found and other not in found:
                raise InputError(
                    f"{path}, /{other}", f"missing, but /{one} exists", "Store both or neither."
                )
        for name in ("datum", "start"):
            if hdf5.plain(file.attrs.get(name)) is not None:
                found[name] = hdf5.read_number(file, path, name, "Correct it, or leave it out.")
        line = hdf5.plain(file.attrs.get("line"))
        if isinstance(line, str):
            found["line"] = line
    return found


def _read_label(
    file: h5py.File, path: Path, name: str, shapes: list[tuple[int, ...]]
) -> NDArray[Any]:
    whole = name not in _MAPS
    expected = "whole numbers of 32 bits" if whole else "finite numbers, in m"
    remedy = "Store it as described in docs/formats.md, or leave it out."

    def is_possible(values: NDArray[np.float64]) -> NDArray[np.bool_]:
        return (np.abs(values) <= _LARGEST) & (not whole or values == np.rint(values))

    values = hdf5.read_real(file, path, name, shapes, "iuf", expected, remedy, is_possible)
    return values.astype(np.int32 if whole else np.float64)


def read_mask(file: h5py.File, path: Path, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Read the mask (shot, receiver) of the traces of an open file that count, None if all do.

    Raises `InputError` if the mask has the wrong shape or type, or if no trace of a shot counts.
    """
    if not hdf5.holds(file, "mask"):
        return None
    expected = "true or false, or 1 and 0"
    remedy = "Store it as bool (shot, receiver), as in /data."
    known = partial(np.isin, test_elements=(0.0, 1.0))
    mask = hdf5.read_real(file, path, "mask", [shape], "biuf", expected, remedy, known) == 1.0
    silent = np.flatnonzero(~mask.any(axis=1))
    if silent.size:
        raise InputError(
            f"{path}, /mask",
            f"{silent.size} of {shape[0]} shots have no valid trace, the first is shot {silent[0]}",
            "Leave these shots out of the file.",
        )
    return mask


_OWN_ATTRIBUTES = ("format", "version", "dt", "kind_names", "gauge", "source_kind_names")


def create_gathers(
    path: Path, survey: Survey, context: Context, extras: Mapping[str, Any] | None = None
) -> GatherWriter:
    """Create or continue a gathers file, with a temporary name until it is finished; collective.

    An unfinished file of the same survey and extras is continued. Shots whose traces it contains
    are then not in `GatherWriter.left`. extras: further root attributes, the same on all ranks,
    such as the fingerprint of the model; arrays are stored as datasets, such as the labels. Raises
    `InputError` on all ranks if the file cannot be created or read, and `WriteFailure` if there is
    no space for the traces.
    """
    given = extras or {}
    whole = unfinished.find_whole(path, survey, given, context)
    if whole is None:
        context.from_root(partial(unfinished.lay_out, path, survey, given))
        whole = np.zeros(survey.n_shots, dtype=bool)
    else:
        context.from_root(partial(unfinished.reserve_room, path))
    file = hdf5.open_for_writing(
        beside(path), context, partial(unfinished.fits, survey=survey, extras=given)
    )
    return GatherWriter(path, file, whole, context)


class GatherWriter(AbstractContextManager["GatherWriter"]):
    """A gathers file that all ranks write; made by `create_gathers`.

    part: path of the unfinished file; left: the shots that were missing when it was opened, the
    same on all ranks. A `with` statement finishes the file at its end. After an exception it leaves
    an unfinished file that can be continued, or none if nothing was written.
    """

    def __init__(
        self, path: Path, file: h5py.File | None, whole: NDArray[np.bool_], context: Context
    ) -> None:
        self._path, self._file, self._context = path, file, context
        self._written = whole
        self.part = beside(path)
        self._identity = context.from_root(partial(hdf5.identify, self.part))
        self.left: NDArray[np.int64] = np.flatnonzero(~whole)

    def rounds(self, most: int) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's part of the missing shots, at most so many at a time; collective.

        All ranks have equally many rounds, some of which may be without shots.
        """
        mine = np.array_split(self.left, self._context.size)[self._context.rank]
        count = max(self._context.all_gather(-(-mine.size // most)))
        yield from (mine[first : first + most] for first in range(0, most * count, most))

    def write(self, shots: NDArray[np.int64], data: NDArray[np.float32]) -> None:
        """Write the traces (shot, receiver, time) of the shots with these numbers.

        All ranks call this equally often, without shots if they have none. With parallel HDF5 each
        rank writes its traces; otherwise rank 0 writes the traces of all ranks. Raises
        `WriteFailure` on a rank that cannot write, and on all ranks if rank 0 writes for them.
        """
        with self._context.heartbeat.waiting():
            if hdf5.is_parallel(self._context):
                self._put(shots, data)
            else:
                self._put_at_root(shots, data)
        self._written[shots] = True

    def finish(self) -> None:
        """Close the file and rename it to its final name; collective.

        Raises `RuntimeError` on all ranks if a shot was never written, `InputError` if there is
        now another file of this name, and `WriteFailure`.
        """
        missing = self._context.sum(torch.from_numpy(self._written).int()).numpy() == 0
        self.close()
        if missing.any():
            raise RuntimeError(f"{self._path}: shots {missing.nonzero()[0]} were never written")
        self._context.from_root(self._put_in_place)

    def close(self) -> None:
        """Close the file unfinished, so that it can be continued; collective if HDF5 is parallel.

        Raises `WriteFailure`.
        """
        if self._file is not None:
            file, self._file = self._file, None
            hdf5.unclosed.append(file)
            with unfinished.failing_clearly(self._path):
                file.close()
            hdf5.unclosed.remove(file)

    def _put(self, shots: NDArray[np.int64], data: NDArray[np.float32]) -> None:
        assert self._file is not None
        with unfinished.failing_clearly(self._path):
            for shot, gather in zip(shots, data, strict=True):
                self._file["data"][shot] = gather
                self._file["digests"][shot] = unfinished.digest_of(gather)

    def _put_in_place(self) -> None:
        with unfinished.failing_clearly(self._path):
            if hdf5.identify(self.part) != self._identity:
                raise hdf5.exchanged(self.part)
            put_in_place(self.part, self._path)

    def _put_at_root(self, shots: NDArray[np.int64], data: NDArray[np.float32]) -> None:
        """Write the traces of all ranks on rank 0, which receives one shot at a time."""
        context, failure = self._context, None
        room = np.empty(data.shape[1:] if context.is_root else 0, dtype=np.float32)
        for rank, numbers in enumerate(context.all_gather(shots)):
            for place, shot in enumerate(numbers):
                gather = np.ascontiguousarray(data[place]) if rank == context.rank else room
                context.bring_to_root(gather, rank)
                # After a failure the other ranks still send their shots, and then get the error.
                if context.is_root and failure is None:
                    try:
                        self._put(np.array([shot]), gather[None])
                    except WriteFailure as error:
                        failure = error
        with hdf5.raised_on_all_ranks(context):
            if failure is not None:
                raise failure

    def _abandon(self, could_not_write: bool) -> None:
        # A parallel file stays open, because closing it would wait for ranks that have not failed.
        if not hdf5.is_parallel(self._context):
            with suppress(WriteFailure):
                self.close()
        elif self._file is not None and could_not_write:
            hdf5.unclosed.append(self._file)
        if self._context.is_root and not self._written.any():
            unfinished.remove(self._path)

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
    """A gathers file that is open on all ranks, each of which reads the shots that it needs.

    survey: the whole survey, with arrays that the ranks of a host share; through_mpi: True if
    reading calls MPI, so that a thread may read only if MPI allows it. Opening and closing are
    collective; reading is not. Raises `InputError` with the key on all ranks if the layout is
    wrong. The traces are not checked for finite values.

    known: the survey, if the ranks already have it; it is then not read again.
    """

    def __init__(self, path: Path, context: Context, known: Survey | None = None) -> None:
        if known is None:
            probe_on_root(path, context)
            self.survey = once_per_host(partial(_read_survey, path), context)
        else:
            context.from_root(lambda: _check_shape(path, known))
            self.survey = known
        self._path, self._file = path, hdf5.open_file(path, context)
        self.through_mpi = hdf5.is_parallel(context)

    def read(self, shots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the traces (shot, receiver, time) of these shots, in the given order.

        Traces that do not count are set to zero. This may be called in a second thread while no
        other thread uses the reader. Raises `InputError` if the file is damaged, or if the system
        cannot read it for half a minute.
        """
        return read_patiently(partial(self._read, shots))

    def _read(self, shots: NDArray[np.int64]) -> NDArray[np.float32]:
        shape = (len(shots), self.survey.n_receivers, self.survey.n_samples)
        traces = np.empty(shape, dtype=np.float32)
        with hdf5.explained(self._path), reading(self._path, MOMENTARY):
            # The dataset is not kept open, because parallel HDF5 could not release the file.
            data = hdf5.find_dataset(self._file, self._path, "data")
            # Contiguous shots are read together, because a call takes longer than a small gather.
            for places in np.split(np.arange(len(shots)), np.flatnonzero(np.diff(shots) != 1) + 1):
                if places.size:
                    some, first = slice(places[0], places[-1] + 1), int(shots[places[0]])
                    data.read_direct(traces, np.s_[first : first + places.size], some)
        if self.survey.mask is not None:
            traces[~self.survey.mask[shots]] = 0.0
        return traces

    def close(self) -> None:
        """Close the file; collective if HDF5 is parallel."""
        self._file.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Closing a parallel file after an exception would wait for ranks that have not failed.
        if kind is None or not self.through_mpi:
            self.close()


Traces = Callable[[], NDArray[np.float32]]
Prepare = Callable[[NDArray[np.float32], int], NDArray[np.float32]]


class Prefetcher(AbstractContextManager["Prefetcher"]):
    """A thread that reads from a `GatherReader` in the order of the requests.

    If reading calls an MPI library that does not allow calls from a second thread, traces are read
    only when they are needed.

    prepare: a function that is applied to the traces and the number of each shot when they are
    read, in `threads` threads.
    """

    def __init__(
        self, reader: GatherReader, prepare: Prepare | None = None, threads: int = 1
    ) -> None:
        self._reader, self._prepare = reader, prepare
        self._workers = ThreadPoolExecutor(threads, "prepare")
        threaded = not reader.through_mpi or threads_may_call_mpi()
        self._thread = ThreadPoolExecutor(1, "prefetch") if threaded else None

    def request(self, shots: NDArray[np.int64]) -> Traces:
        """Start to read these shots, possibly none, and return a function that returns the traces.

        The function waits for the traces (shot, receiver, time), or raises the error of reading. It
        may be called several times, and keeps the traces in memory as long as it exists.
        """
        if self._thread is None:
            return cache(partial(self._read, shots))
        return self._thread.submit(self._read, shots).result

    def _read(self, shots: NDArray[np.int64]) -> NDArray[np.float32]:
        traces = self._reader.read(shots)
        if self._prepare is None or not shots.size:
            return traces
        return np.stack(list(self._workers.map(self._prepare, traces, shots)))

    def __exit__(self, *_: object) -> None:
        """Wait for the threads to end; the reader stays open."""
        for threads in filter(None, (self._thread, self._workers)):
            threads.shutdown(wait=True)


def read_layout(path: Path) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the shape of the traces, and the root attributes that are not part of the format.

    For one process. Raises `InputError` if it is not a gathers file.
    """
    with hdf5.open_alone(path) as file:
        shape = _find_shape(file, path)
        return shape, {k: hdf5.plain(v) for k, v in file.attrs.items() if k not in _OWN_ATTRIBUTES}


SAMPLED = 8  # shots whose traces a digest covers
_OF_KINDS = ("kinds", "directions", "source_kinds", "source_moments")
_OF_SURVEY = ("sources", "receivers", "wavelet", "mask", *_OF_KINDS)


def digest_data(path: Path) -> str:
    """Return a digest of the survey of a gathers file and of the traces of some of its shots.

    For one process. The file has been checked. Raises `InputError` as `GatherReader.read` does.
    """
    return read_patiently(partial(_digest, path))


def _digest(path: Path) -> str:
    with hdf5.open_alone(path) as file, reading(path, MOMENTARY):
        facts = [repr(hdf5.plain(file.attrs.get(name))) for name in _OWN_ATTRIBUTES]
        digest = hashlib.sha256(" ".join(facts).encode())
        traces = file["data"]
        some = np.unique(np.linspace(0, len(traces) - 1, SAMPLED).round().astype(int))
        for array in (
            *(file[name][...] for name in _OF_SURVEY if name in file),
            *(traces[int(shot)] for shot in some),
        ):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _check_shape(path: Path, known: Survey) -> None:
    found, _ = read_layout(path)
    if found != known.shape:
        raise InputError(
            f"{path}, /data",
            f"its shape is {found}, but was {known.shape} when the survey was read",
            "Do not change the file while it is read, and run the same command again.",
        )


def _find_shape(file: h5py.File, path: Path) -> tuple[int, int, int]:
    """Return the shape of the traces of an open file."""
    hdf5.check_format(file, path, unfinished.FORMAT, unfinished.VERSION)
    data = hdf5.find_dataset(file, path, "data")
    if data.ndim != 3 or 0 in data.shape:
        raise InputError(
            f"{path}, /data",
            f"its shape is {data.shape}, expected (shot, receiver, time), none of them 0",
            "Store the traces of at least one shot in three dimensions.",
        )
    hdf5.check_written(data, f"{path}, /data")
    n_shots, n_receivers, n_samples = data.shape
    needed = n_receivers * n_samples * (4.0 + data.dtype.itemsize)
    check_room(f"{path}, /data", f"one shot of {data.shape}", needed, "Give fewer traces per shot.")
    return n_shots, n_receivers, n_samples


def _read_survey(path: Path) -> Survey:
    with hdf5.open_alone(path) as file:
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
                    f"its shape is {arrays[key].shape}, expected {one} or {other}, "
                    f"as /data (shot, receiver, time) has the shape {shape}",
                    "Make the shapes agree.",
                )
        sources, receivers, wavelet = arrays.values()
        mask = read_mask(file, path, (n_shots, n_receivers))
        return Survey(
            sources,
            receivers,
            wavelet.astype(np.float32),
            hdf5.read_number(file, path, "dt", "Give the sampling interval in s.", positive=True),
            mask,
            components=_read_components(file, path, (n_shots, n_receivers), *ndim),
            source_kinds=_read_source_kinds(file, path, n_shots, *ndim),
        )


def _read_array(file: h5py.File, path: Path, key: str) -> NDArray[np.float64]:
    values = hdf5.read_real(file, path, key)
    # Values that would be infinite in single precision are also errors.
    hdf5.refuse_values(
        ~(np.abs(values) <= np.finfo(np.float32).max),
        f"{path}, /{key}",
        "not finite",
        "Leave out shots or receivers without a position or wavelet, or supply the values.",
    )
    return values


def _read_components(file: h5py.File, path: Path, shape: tuple[int, int], ndim: int) -> Components:
    """Return the components of the traces of an open file, for so many shots and receivers.

    Raises `InputError` if something about them is missing or wrong.
    """
    names = hdf5.read_names(file, path, "kind_names", COMPONENTS, ("kinds", "directions"))
    if names is None:
        return PRESSURE
    kinds = hdf5.read_kinds(file, path, "kinds", names, [shape[1:], shape])
    if STRAIN not in names:
        return Components(names, kinds)
    remedy = "Give the length of fibre over which the strain is averaged, in m."
    gauge = hdf5.read_number(file, path, "gauge", remedy, positive=True)
    number = names.index(STRAIN)
    all_kinds = np.zeros(shape[1]) if kinds is None else kinds
    fibre = np.any(np.atleast_2d(all_kinds == number), axis=0)
    remedy = "Give the direction of the fibre at each receiver, in axis order, as float32."
    directions = hdf5.read_real(file, path, "directions", [(shape[1], ndim)], remedy=remedy)
    length = np.linalg.norm(directions, axis=-1)
    wrong = fibre & ~(np.isfinite(length) & (length > 0.0))
    if wrong.any():
        raise InputError(
            f"{path}, /directions",
            f"found {directions[wrong][0].tolist()} for receiver {wrong.argmax()}, which records "
            "strain; expected a finite vector that is not 0",
            remedy,
        )
    along = np.divide(
        directions, length[:, None], out=np.zeros_like(directions), where=fibre[:, None]
    )
    return Components(names, kinds, gauge, along)


def _read_source_kinds(file: h5py.File, path: Path, n_shots: int, ndim: int) -> SourceKinds:
    """Return the kinds of the sources of an open file; raise `InputError` if they are wrong."""
    known = (*SOURCE_KINDS, unfinished.MOMENT)
    arrays = ("source_kinds", "source_moments")
    names = hdf5.read_names(file, path, "source_kind_names", known, arrays)
    if names is None:
        return EXPLOSIVE
    kinds = hdf5.read_kinds(file, path, "source_kinds", names, [(n_shots,)])
    found: dict[str, NDArray[np.float64]] = {}
    for number, name in enumerate(names):
        acts = np.ones(()) if kinds is None else (kinds == number).astype(np.float64)
        if name != unfinished.MOMENT:
            found[name] = acts
            continue
        remedy = "Give the moment tensor of each shot, in axis order, as float32."
        shape = (n_shots, ndim, ndim)
        tensors = hdf5.read_real(file, path, "source_moments", [shape], remedy=remedy)
        tensors = np.where(np.reshape(acts, (-1, 1, 1)) > 0.0, tensors, 0.0)
        turned = tensors.transpose(0, 2, 1)
        wrong = ~np.isclose(tensors, turned, rtol=1e-6, atol=0.0).all(axis=(1, 2))
        wrong |= ~np.isfinite(tensors).all(axis=(1, 2))
        wrong |= (acts > 0.0) & ~tensors.any(axis=(1, 2))
        if wrong.any():
            raise InputError(
                f"{path}, /source_moments",
                f"found {tensors[wrong][0].tolist()} for shot {wrong.argmax()}, expected finite "
                "numbers and a symmetric tensor that is not 0",
                remedy,
            )
        found |= moment_kinds(tensors, AXES[ndim])
    return found
